"""What an aggregator does for those who look on: it counts what passes, notes when rounds were, writes down where the run stands, and keeps
the monitor's processes running. None of it is waited for by the run, and none of it can stop it.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.intake.intake import now_ms
from manta_swarm.aggregator.intake.refusals import refused_of
from manta_swarm.aggregator.log.storage import BUSY_TIMEOUT_S
from manta_swarm.aggregator.monitor.door import MonitorDoor
from manta_swarm.aggregator.monitor.settings import DIRECTORY, MonitorSection
from manta_swarm.aggregator.monitor.watched import Tally
from manta_swarm.aggregator.status import AggregatorStatus, Handed, OpenRound, StatusFile, unix_ms
from manta_swarm.network.budget import Faults
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.closing import Closing, Stage
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.child import TOLD, Program, keep, python
from manta_swarm.runtime.line import BEATS

_PROGRAM, _EVALUATOR = "manta_swarm.aggregator.monitor.program", "manta_swarm.aggregator.monitor.evaluator"
# Of what each other program has that wants the same core: the monitor a third, for it answers people and holds locks of the database; the
# evaluator a tenth, so that its first curve comes soon where all cores are busy. How much it takes in all is the operator's to say.
_NICENESS, _OF_EVALUATOR = 5, 10
# The monitor could hold a lock that SQLite wants for a moment, which the log's writer waits for.
_QUIET_S = 0.8 * BUSY_TIMEOUT_S
# The evaluator never opens the database. Where all cores are busy it may need long for its libraries, too, and can be waited for.
_EVALUATOR_START_S, _EVALUATOR_QUIET_S = 1800.0, 300.0
_SHOW_S = 0.5
logger = logging.getLogger("manta.onlookers")


class Onlookers:
    """All of it, of one aggregator."""

    def __init__(self, directory: Path, settings: MonitorSection, door: MonitorDoor | None, data_root: Path | None) -> None:
        """Prepare; without a ``door`` no process is started."""
        self.tally = Tally(unix_ms)
        self.timeline = Timeline(unix_ms)
        self.door = door
        self._directory = directory
        self._settings = settings
        self._data_root = data_root
        self._file = StatusFile(directory)
        self.programs = self._programs()

    def watch(self, closing: Closing, traffic: Traffic, faults: Faults, is_finished: Callable[[], bool]) -> None:
        """Look at these from now on."""
        self._closing = closing
        self._traffic = traffic
        self._faults = faults
        self._is_finished = is_finished
        self.tally.on_call = self.timeline.called
        self.tally.on_answer = self.timeline.answered

    def write(self, closing: Closing, faults: Faults) -> None:
        """Look at the rounds of a writer from now on."""
        self._closing, self._faults = closing, faults

    def show(self, status: AggregatorStatus) -> None:
        """Write a new status down; after ``watch``."""
        self._status = status
        self._file.put(self.seen(status))

    async def look_on(self) -> None:
        """Write what is seen, and keep the processes running, until this is cancelled; after ``show``."""
        tasks = [asyncio.create_task(work) for work in (self._keep_shown(), *map(keep, self.programs))]
        for task in tasks:
            task.add_done_callback(_tell_of_fault)
        try:
            await asyncio.Event().wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _keep_shown(self) -> None:
        while True:
            await asyncio.sleep(_SHOW_S)
            self.show(self._status)

    def close(self) -> None:
        """Let the address go; return once the last status is written."""
        self._file.close()
        if self.door is not None:
            self.door.socket.close()

    def seen(self, status: AggregatorStatus) -> AggregatorStatus:
        """Return the status with what is seen at this moment; not validated: it is made twice a second, of as many peers as there are."""
        now, faults = unix_ms(), self._faults
        seen = {
            "written_at": now,
            "open": None if self._is_finished() else self._open_round(now),
            "times": tuple(replace(times) for times in self.timeline.committed),
            "sent_bytes": self._traffic.sent.total,
            "received_bytes": self._traffic.received.total,
            "calls": {method: replace(one) for method, one in self.tally.by_method.items()},
            "heard": {key.hex(): at for key, at in self.tally.heard().items()},
            "refused": dict(faults.by_reason),
            "refused_of": {peer_name(key): reasons for key, reasons in refused_of(faults).items()},
        }
        return status.model_copy(update=seen)

    def _open_round(self, now: int) -> OpenRound:
        closing = self._closing
        left_ms = closing.left_ms(now_ms())
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
                Handed.model_construct(round=round_, keys=tuple(sorted(key.hex() for key in keys)), body=body)
                for round_, keys, body in closing.standing()
            ),
        )

    def _programs(self) -> tuple[Program, ...]:
        if self.door is None:
            return ()
        directory, descriptor = str(self._directory.absolute()), self.door.socket.fileno()
        where = json.dumps({"fd": descriptor, "is_loopback": self.door.is_loopback})
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


def _tell_of_fault(task: "asyncio.Task[None]") -> None:
    """A fault of this program's stops nothing here, and is seen all the same."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.error("onlookers are not served any more", exc_info=error)
