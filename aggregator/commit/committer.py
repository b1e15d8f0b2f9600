"""Commits rounds to the log: the interface, and the committer of a run with a single operator.

Several operators take turns (``aggregator.features.operators.leadership``).
"""

import asyncio
from enum import Enum
from typing import Protocol

from manta_swarm.aggregator.commit.deciding import LoneDecider
from manta_swarm.aggregator.commit.writing import Leading
from manta_swarm.aggregator.context import RunContext
from manta_swarm.protocol.signing import peer_name


class Event(Enum):
    """What happens to the log, or to who keeps it."""

    TURNED = "turned"  # this operator began to write, or ended, or heard of another that does
    COMMITTED = "committed"  # the log has a new round, or the settlement


class Committer(Protocol):
    """Has rounds committed to a run's log, by this operator or by others."""

    @property
    def writing(self) -> Leading | None:
        """The services of who writes, while that is this operator."""

    @property
    def leader(self) -> str | None:
        """The name of the operator that writes; None: nobody that is known."""

    def left_ms(self, now: int) -> int:
        """Return for how many ms headers may still come for the open round."""

    async def start(self) -> None:
        """Answer from now on.

        Raises:
            UserError: what it needs is not there.
        """

    async def keep(self) -> None:
        """Have rounds committed, until this is cancelled.

        Raises:
            StorageError: the disk failed; what was acknowledged is safe.
        """

    async def next_event(self) -> Event:
        """Return what happens next; each is told once, in order."""

    async def close(self) -> None:
        """Take nothing more, and finish what is being written."""


class LoneCommitter:
    """The committer of a run with a single operator."""

    def __init__(self, context: RunContext) -> None:
        """Prepare; ``start`` and ``keep`` answer from then on."""
        self._context = context
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.writing = Leading(context, context.limits.closing(context.manifest), LoneDecider(context.log, context.bodies))
        self.leader = peer_name(context.key)

    def left_ms(self, now: int) -> int:
        """See ``Committer``."""
        return self.writing.closing.left_ms(now)

    async def start(self) -> None:
        """See ``Committer``."""
        await self.writing.open()

    async def keep(self) -> None:
        """See ``Committer``. Nothing is taken, and so promised, before nobody is known to know a newer log."""
        await self._context.guard.lifted()
        async for _ in self.writing.rounds(None):
            self._events.put_nowait(Event.COMMITTED)

    async def next_event(self) -> Event:
        """See ``Committer``."""
        return await self._events.get()

    async def close(self) -> None:
        """See ``Committer``."""
        await self.writing.close()
