"""What an operator has while it writes the log, which takes contributions and commits rounds; and the committer of a run with one operator.

Where a run has several operators, they take turns (``aggregator.features.operators.leadership``).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import Protocol

from manta_swarm.aggregator.commit.commits import Commits
from manta_swarm.aggregator.commit.deciding import Decider, LoneDecider
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.admissions import Admissions
from manta_swarm.aggregator.intake.bodies import StoredContribution
from manta_swarm.aggregator.intake.intake import Intake
from manta_swarm.aggregator.intake.verdicts import Verdicts
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.signing import PublicKey, peer_name


class Leading:
    """The leader's services, and the rounds that they serve."""

    def __init__(self, context: RunContext, closing: Closing, decider: Decider) -> None:
        """Prepare; ``open`` and ``rounds`` answer from then on.

        Args:
            context: of the run.
            closing: without a round yet.
            decider: decides entries, and keeps what is acknowledged before that; it is closed with this.
        """
        self._context = context
        self._decider = decider
        changed = asyncio.Event()  # a header, a body or a verdict came
        self.changed = changed
        self.closing = closing
        self.intake = Intake(context, closing, changed, decider)
        self.verdicts = Verdicts(context, self.intake.faults, changed, decider)
        self.commits = Commits(context, closing, self.intake, self.verdicts, changed, decider)
        self.admissions = Admissions(context, self.commits)

    async def open(self) -> None:
        """Take from now on what peers may bring at any time: what they say of how good the model is."""
        await self._context.endpoint.serve("measure", self._on_measure)

    async def _on_measure(self, caller: PublicKey, request: bytes) -> bytes:
        """Take a peer's word of how good the model is on its own images."""
        self._context.measures.take(caller, request, self._context.ledger)
        self._context.measures.save()
        return b""

    async def rounds(self, kept: Sequence[tuple[int, StoredContribution]] | None) -> AsyncIterator[None]:
        """Take contributions and commit rounds to the run's end, settle it, and serve on; yield after each round, and the settlement.

        ``kept`` is as in ``begin``.

        Raises:
            StorageError: the disk failed; what was acknowledged is safe.
        """
        await self.begin(kept)
        async for _ in self.commits.rounds():
            yield
        await asyncio.Event().wait()

    async def begin(self, kept: Sequence[tuple[int, StoredContribution]] | None = None) -> None:
        """Open the next round, with what has an inclusion promise, and answer from now on.

        Args:
            kept: contributions that operators kept, each with its round; None: those on the disk, from before the program's start.

        Raises:
            StorageError: they cannot be read.
        """
        self.commits.begin()
        ledger, bodies = self._context.ledger, self._context.bodies
        for round_ in (ledger.round + 1, ledger.round + 2):
            if kept is None:
                self.intake.restore(bodies.read(round_, mend=True), round_)
            else:
                self.intake.restore_valid([one for of_round, one in kept if of_round == round_], round_)
        await self.intake.start()
        await self.verdicts.start()
        await self.admissions.start()

    async def close(self) -> None:
        """Take nothing more, and finish what is being written."""
        await self.admissions.close()
        await self.commits.close()
        await self.intake.close()
        await self.verdicts.close()
        self._decider.close()


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
        """See ``Committer``. Nothing is taken, and so promised, before the rollback guard is lifted."""
        await self._context.guard.lifted()
        async for _ in self.writing.rounds(None):
            self._events.put_nowait(Event.COMMITTED)

    async def next_event(self) -> Event:
        """See ``Committer``."""
        return await self._events.get()

    async def close(self) -> None:
        """See ``Committer``."""
        await self.writing.close()
