"""Observes an aggregator for the monitor: counts what passes, notes when rounds were, and writes down where the run stands.

None of it is waited for by the run, and none of it can stop it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.intake.refusals import refused_of
from manta_swarm.aggregator.monitor.watched import Tally
from manta_swarm.aggregator.status import AggregatorStatus, Handed, OpenRound, StatusFile, unix_ms
from manta_swarm.network.rates import Faults
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.closing import Closing, Stage
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.clock import SYSTEM_CLOCK

_SHOW_S = 0.5
logger = logging.getLogger("manta.observers")


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


class Observers:
    """Observes one aggregator."""

    def __init__(self, directory: Path) -> None:
        """Write into the run's ``directory``."""
        self.timeline = Timeline()
        self.tally = Tally(self.timeline)
        self._file = StatusFile(directory)

    def show(self, scene: Scene) -> None:
        """Write down where it stands."""
        self._file.put(self.seen(scene))

    async def look_on(self, scene: Scene) -> None:
        """Write what is seen twice a second, until this is cancelled."""
        await whatever_happens(self._keep_shown(scene))

    async def _keep_shown(self, scene: Scene) -> None:
        while True:
            await asyncio.sleep(_SHOW_S)
            self.show(scene)

    def close(self) -> None:
        """Return once the last status is written."""
        self._file.close()

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
    """A fault of this program's stops nothing here, and is seen all the same."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.error("observers are not served any more", exc_info=error)
