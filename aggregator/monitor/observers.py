"""What an aggregator does for its monitor: starts its processes, counts what passes, and writes down where the run stands.

The run waits for none of it, and none of it can stop the run.

Calls and bytes are counted by method, in bounded memory. Bytes are those of requests and answers; what the transport, the DHT and the
daemon add to them is not seen here. A peer is heard of when it hands in, or waits for the next commit. Whoever only looks at the run is not
at work there: ``manta-peer about``, ``manta-peer doctor``, witnesses, other operators, and who fetches a state or copies the log.
"""

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.intake.refusals import refused_of
from manta_swarm.aggregator.log.storage import BUSY_TIMEOUT_S
from manta_swarm.aggregator.monitor.settings import DIRECTORY, MonitorSection, MonitorSocket
from manta_swarm.aggregator.status import AggregatorStatus, CallCounts, HandedContribution, OpenRound, StatusFile, unix_ms
from manta_swarm.network.log_client import TRAINING, AfterRound
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Endpoint, Handler, Through
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.auditing import BRING
from manta_swarm.protocol.closing import Closing, Stage
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.signing import PublicKey, peer_name
from manta_swarm.runtime.child import TOLD, Program, keep, python
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.line import BEATS

MAX_HEARD = 4096  # keys
_HANDING_IN = ("header", "body", BRING)
_WAITING = "commit-after"
_MAX_WAITING_BYTES = 128

_SHOW_S = 0.5
logger = logging.getLogger("manta.observers")

_PROGRAM, _EVALUATOR = "manta_swarm.aggregator.monitor.program", "manta_swarm.aggregator.monitor.evaluator"
# Of what each other program has that wants the same core: the monitor a third, for it answers people and holds locks of the database; the
# evaluator a tenth, so that its first curve comes soon where all cores are busy. How much it takes in all is the operator's to say.
_NICENESS, _OF_EVALUATOR = 5, 10
# The monitor could hold a lock that SQLite wants for a moment, which the log's writer waits for.
_QUIET_S = 0.8 * BUSY_TIMEOUT_S
# The evaluator never opens the database. Where all cores are busy it may need long for its libraries, too, and can be waited for.
_EVALUATOR_START_S, _EVALUATOR_QUIET_S = 1800.0, 300.0


class Tally:
    """What was counted since the start of the program."""

    def __init__(self, timeline: Timeline, clock: Clock = SYSTEM_CLOCK) -> None:
        """Count from now on; ``timeline`` notes when the calls of a round were."""
        self._timeline = timeline
        self._clock = clock
        self.since = clock.unix_ms()
        self.by_method: dict[str, CallCounts] = {}
        self._heard: OrderedDict[PublicKey, int] = OrderedDict()  # the newest last
        self._waiting: Counter[PublicKey] = Counter()

    def heard(self) -> dict[PublicKey, int]:
        """Return when each key that takes part last called or was answered; who waits for an answer is heard of now."""
        now = self._clock.unix_ms()
        return {key: now if self._waiting[key] else at for key, at in self._heard.items()}

    def serves(self, method: str) -> None:
        """Count this method from zero."""
        self.by_method.setdefault(method, CallCounts())  # methods are those that are served: a few

    def begin(self, method: str, in_bytes: int, peer: PublicKey | None) -> None:
        """A call came; ``peer``: its caller, if it takes part."""
        self.serves(method)
        calls = self.by_method[method]
        calls.calls += 1
        calls.in_bytes += in_bytes
        if peer is not None:
            self._waiting[peer] += 1
            self._hear(peer)
        self._timeline.called(method)

    def end(self, method: str, out_bytes: int, peer: PublicKey | None) -> None:
        """Count the answer to a call; a call that was refused is answered with 0 bytes."""
        self.by_method[method].out_bytes += out_bytes
        if peer is not None:
            self._waiting[peer] -= 1
            if not self._waiting[peer]:
                del self._waiting[peer]
            self._hear(peer)
        if out_bytes:
            self._timeline.answered(method)

    def _hear(self, key: PublicKey) -> None:
        self._heard[key] = self._clock.unix_ms()
        self._heard.move_to_end(key)
        if len(self._heard) > MAX_HEARD:
            self._heard.popitem(last=False)


def takes_part(method: str, request: bytes) -> bool:
    """Return whether only a peer that takes part in the run calls this: it hands in, or waits for the next commit."""
    if method != _WAITING:
        return method in _HANDING_IN
    try:
        return unpack(AfterRound, request, max_bytes=_MAX_WAITING_BYTES).waits_as == TRAINING
    except EncodingError:
        return False


class Watched(Through):
    """An endpoint, each of whose calls is counted. Implements ``network.rpc.Endpoint``."""

    def __init__(self, endpoint: Endpoint, tally: Tally) -> None:
        """Count what comes through this object, whatever else uses ``endpoint``."""
        super().__init__(endpoint)
        self._tally = tally

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""

        async def counted(caller: PublicKey, request: bytes) -> bytes:
            peer = caller if takes_part(method, request) else None
            self._tally.begin(method, len(request), peer)
            out_bytes = 0
            try:
                answer = await handler(caller, request)
                out_bytes = len(answer)
                return answer
            finally:
                self._tally.end(method, out_bytes, peer)

        self._tally.serves(method)
        await self._endpoint.serve(method, counted)


class ObservedAggregator(Protocol):
    """What is looked at: an operator at work."""

    @property
    def status(self) -> AggregatorStatus:
        """What the operator's program says of itself at this moment."""

    @property
    def closing(self) -> Closing | None:
        """The open round, and who has handed in; None: the run is finished."""

    @property
    def faults(self) -> CallerFaults:
        """Counts of the calls that were refused."""

    @property
    def traffic(self) -> Traffic:
        """What its node sends and receives."""


class Observers:
    """Observes one aggregator."""

    def __init__(self, directory: Path) -> None:
        """Write into the run's ``directory``."""
        self.timeline = Timeline()
        self.tally = Tally(self.timeline)
        self._file = StatusFile(directory)

    def show(self, scene: ObservedAggregator) -> None:
        """Write down where the run stands."""
        self._file.put(self.seen(scene))

    async def look_on(self, scene: ObservedAggregator) -> None:
        """Write what is seen twice a second, until this is cancelled."""
        await whatever_happens(self._keep_shown(scene))

    async def _keep_shown(self, scene: ObservedAggregator) -> None:
        while True:
            await asyncio.sleep(_SHOW_S)
            self.show(scene)

    def close(self) -> None:
        """Return once the last status is written."""
        self._file.close()

    def seen(self, scene: ObservedAggregator) -> AggregatorStatus:
        """Return a status with what is seen at this moment; not validated: it is made twice a second, of as many peers as there are."""
        now, faults, closing = unix_ms(), scene.faults, scene.closing
        seen = {
            "written_at": now,
            "open": None if closing is None else self._open_round(closing, now),
            "times": tuple(replace(times) for times in self.timeline.committed),
            "sent_bytes": scene.traffic.sent.total,
            "received_bytes": scene.traffic.received.total,
            "calls": {method: replace(one) for method, one in self.tally.by_method.items()},
            "heard": {key.hex(): at for key, at in self.tally.heard().items()},
            "refused": dict(faults.by_reason),
            "refused_of": {peer_name(key): reasons for key, reasons in refused_of(faults).items()},
        }
        return scene.status.model_copy(update=seen)

    def _open_round(self, closing: Closing, now: int) -> OpenRound:
        left_ms = closing.left_ms(round(SYSTEM_CLOCK.now_ms()))
        if closing.stage is Stage.OPEN and left_ms:
            self.timeline.due(left_ms)
        is_running = closing.stage is not Stage.IDLE
        return OpenRound.model_construct(
            round=closing.round,
            stage=closing.stage.value,
            open_ms=closing.open_ms,
            opened_at=self.timeline.current.opened_at if is_running else None,
            deadline_at=now + left_ms if left_ms and is_running else self.timeline.current.deadline_at,
            expected=tuple(sorted(key.hex() for key in closing.expected)),
            handed=tuple(
                HandedContribution.model_construct(round=round_, keys=tuple(sorted(key.hex() for key in keys)), body=body)
                for round_, keys, body in closing.standing()
            ),
        )


async def whatever_happens(*works: Coroutine[Any, Any, None]) -> None:
    """Do these until this is cancelled, also once one of them ended; a fault of one is told, and stops nothing."""
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(_tell_of_fault)
    try:
        await asyncio.Event().wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _tell_of_fault(task: "asyncio.Task[None]") -> None:
    """Log the fault with which a task ended; the others go on."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.error("observers are not served any more", exc_info=error)


class MonitorBeside(Feature):
    """The processes of one aggregator's monitor."""

    def __init__(self, directory: Path, settings: MonitorSection, monitor_socket: MonitorSocket, data_root: Path | None) -> None:
        """Prepare them for the run in ``directory``; the page is at ``monitor_socket``, which is closed at the end of ``run``."""
        self._directory = directory
        self._settings = settings
        self._monitor_socket = monitor_socket
        self._data_root = data_root
        self.programs = self._programs()

    def status(self) -> Mapping[str, object]:
        """Return where the page is."""
        return {"monitor": self._monitor_socket.url}

    async def run(self, addresses: Sequence[str]) -> None:
        """See ``Feature``; what goes wrong is told, and nothing else."""
        try:
            await whatever_happens(*map(keep, self.programs))
        finally:
            self._monitor_socket.socket.close()

    def _programs(self) -> tuple[Program, ...]:
        directory, descriptor = str(self._directory.absolute()), self._monitor_socket.socket.fileno()
        where = json.dumps({"fd": descriptor, "is_loopback": self._monitor_socket.is_loopback})
        monitor = Program(
            "monitor",
            python("-m", _PROGRAM, directory, self._settings.model_dump_json(), where),
            self._directory / DIRECTORY / "monitor.log",
            messages=BEATS,
            pass_fds=(descriptor,),
            niceness=_NICENESS,
            steps=TOLD,
            start_s=120.0,
            quiet_s=_QUIET_S,
        )
        if not self._settings.evaluate_share:
            return (monitor,)
        root = () if self._data_root is None else (str(self._data_root.expanduser().absolute()),)
        evaluator = Program(
            "evaluator",
            python("-m", _EVALUATOR, directory, str(self._settings.evaluate_share), *root),
            self._directory / DIRECTORY / "evaluator.log",
            messages=BEATS,
            niceness=_OF_EVALUATOR,
            steps=TOLD,
            start_s=_EVALUATOR_START_S,
            quiet_s=_EVALUATOR_QUIET_S,
        )
        return monitor, evaluator
