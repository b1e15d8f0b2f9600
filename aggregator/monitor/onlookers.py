"""What an aggregator does for those who look on: it counts what passes, notes when rounds were, writes down where the run stands, and keeps
the monitor's processes running. None of it is waited for by the run, and none of it can stop it.
"""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from manta_swarm.aggregator.commit.timeline import Timeline
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
from manta_swarm.runtime.clock import SYSTEM_CLOCK
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


class Scene(Protocol):
    """What is looked at: an operator at work."""

    @property
    def status(self) -> AggregatorStatus:
        """What it says of itself at this moment."""

    @property
    def closing(self) -> Closing | None:
        """The open round, and who has handed in; None: the run is finished."""

    @property
    def faults(self) -> Faults:
        """What was refused."""

    @property
    def traffic(self) -> Traffic:
        """What its node sends and receives."""


class Onlookers:
    """All of it, of one aggregator."""

    def __init__(self, directory: Path, settings: MonitorSection, door: MonitorDoor | None, data_root: Path | None) -> None:
        """Prepare; without a ``door`` no process is started."""
        self.timeline = Timeline()
        self.tally = Tally(self.timeline)
        self.door = door
        self._directory = directory
        self._settings = settings
        self._data_root = data_root
        self._file = StatusFile(directory)
        self.programs = self._programs()

    def show(self, scene: Scene) -> None:
        """Write down where it stands."""
        self._file.put(self.seen(scene))

    async def look_on(self, scene: Scene) -> None:
        """Write what is seen, and keep the processes running, until this is cancelled."""
        tasks = [asyncio.create_task(work) for work in (self._keep_shown(scene), *map(keep, self.programs))]
        for task in tasks:
            task.add_done_callback(_tell_of_fault)
        try:
            await asyncio.Event().wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _keep_shown(self, scene: Scene) -> None:
        while True:
            await asyncio.sleep(_SHOW_S)
            self.show(scene)

    def close(self) -> None:
        """Let the address go; return once the last status is written."""
        self._file.close()
        if self.door is not None:
            self.door.socket.close()

    def seen(self, scene: Scene) -> AggregatorStatus:
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
