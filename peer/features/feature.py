"""What a feature of a peer may do: a plain swarm trains without any of them. Each is listed once, in ``peer.features.plugged_in``.

A feature is an object with the session's events. It does nothing at an event that it does not override. The session, the training loop and
the submitter know features by this class alone; a feature may know all of them, for ``open`` gives it the session.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from manta_swarm.peer.cohort.cohort_session import CohortSession
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.cohorts import OwnCohort
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.rounds import CommitRef

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session
    from manta_swarm.peer.submit.promises import ClaimListed, FateKnown

Vector = NDArray[np.float32]  # (N,)


class Feature:
    """A part of a peer that others do without. All methods run in the session's event loop."""

    is_blind = False  # claims say nothing of what was computed
    stays = False  # others may ask for what was handed in last, for a while: ``settle`` waits for that
    is_lease_only = False  # this peer does only the microbatches that a contribution's founder must have done

    # The session's life.

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Take part in a session for as long as the context is entered, which is all of its run.

        Raises:
            UserError: what the person asked for cannot be had; the message says what to do.
        """
        yield

    async def run(self) -> None:
        """Do what is to be done beside the rounds, until this is cancelled."""

    def limit(self, limits: Limits) -> None:
        """Take no more of this computer than this from now on."""

    def pause(self) -> None:
        """Compute nothing, until ``resume``."""

    def resume(self) -> None:
        """Go on after ``pause``."""

    def leave(self) -> None:
        """The person leaves: what is trained is still handed in."""

    def finish(self) -> None:
        """The run has ended."""

    async def settle(self) -> None:
        """Finish what others may still want once nothing more is handed in, within a bounded time."""

    async def close(self) -> None:
        """Give up what is under way."""

    # What happens.

    def on_commit(self, entry: Round) -> None:
        """A round's commit is the newest one."""

    def on_listed(self, listed: "ClaimListed") -> None:
        """A round has a contribution with a claim of this peer."""

    def on_fate(self, event: "FateKnown") -> None:
        """It is known what became of a contribution of this peer."""

    async def on_held(self, round_: int, parameters: Tensor, *, is_last: bool) -> None:
        """This peer holds the state after a round, with these parameters (N,), and trains nothing meanwhile."""

    async def on_handed_in(self, round_: int, contribution: bytes, base: bytes) -> None:
        """By its inclusion promise a round will have a contribution with a claim of this peer; what depends on it is durable on return."""

    # While a base is worked on.

    def why_no_more(self) -> str:
        """Return why this peer may hand in nothing any more, in words; nothing: it may."""
        return ""

    @property
    def fault(self) -> str:
        """Why the feature could not do what the person asked for, in words; nothing: it could. To be asked at the end."""
        return ""

    @property
    def has_helpers(self) -> bool:
        """Whether others compute microbatches for this peer."""
        return False

    async def take_place(self, base: CommitRef, own_cohort: OwnCohort, kept_ms: float) -> CohortSession | None:
        """Return the place of this peer in a roster of the feature's own for its work on ``base``; None: it has none.

        ``kept_ms`` of the round's time are kept for coding and handing in.
        """
        return None

    async def has_something_back(self, cohort_session: "asyncio.Future[CohortSession]") -> bool:
        """Return whether others have brought work to the place that ``take_place`` gives, once they did or are waited for no more."""
        return False

    async def on_learnt(self, vector: Vector) -> Vector:
        """Return what is handed in of a vector (N,) that was learnt."""
        return vector

    async def keep(self, round_: int, base: bytes, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors (N,) that claims of work for a round name, by their digests; ``base`` is the digest of the base of the work."""


class Features(Feature):
    """All features of a peer, in the order in which they are told of an event."""

    def __init__(self, features: Sequence[Feature] = ()) -> None:
        self._all = tuple(features)
        self.stays = any(one.stays for one in self._all)
        self.is_blind = any(one.is_blind for one in self._all)
        self.is_lease_only = any(one.is_lease_only for one in self._all)

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._all)

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """See ``Feature``; what was opened last is closed first."""
        async with contextlib.AsyncExitStack() as opened:
            for one in self._all:
                await opened.enter_async_context(one.open(session))
            yield

    async def run(self) -> None:
        """See ``Feature``."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._all:
                tasks.create_task(one.run())

    def limit(self, limits: Limits) -> None:
        """See ``Feature``."""
        for one in self._all:
            one.limit(limits)

    def pause(self) -> None:
        """See ``Feature``."""
        for one in self._all:
            one.pause()

    def resume(self) -> None:
        """See ``Feature``."""
        for one in self._all:
            one.resume()

    def leave(self) -> None:
        """See ``Feature``."""
        for one in self._all:
            one.leave()

    def finish(self) -> None:
        """See ``Feature``."""
        for one in self._all:
            one.finish()

    async def settle(self) -> None:
        """See ``Feature``."""
        for one in self._all:
            await one.settle()

    async def close(self) -> None:
        """See ``Feature``."""
        for one in self._all:
            await one.close()

    def on_commit(self, entry: Round) -> None:
        """See ``Feature``."""
        for one in self._all:
            one.on_commit(entry)

    def on_listed(self, listed: "ClaimListed") -> None:
        """See ``Feature``."""
        for one in self._all:
            one.on_listed(listed)

    def on_fate(self, event: "FateKnown") -> None:
        """See ``Feature``."""
        for one in self._all:
            one.on_fate(event)

    async def on_held(self, round_: int, parameters: Tensor, *, is_last: bool) -> None:
        """See ``Feature``."""
        for one in self._all:
            await one.on_held(round_, parameters, is_last=is_last)

    async def on_handed_in(self, round_: int, contribution: bytes, base: bytes) -> None:
        """See ``Feature``."""
        for one in self._all:
            await one.on_handed_in(round_, contribution, base)

    def why_no_more(self) -> str:
        """Return the first feature's reason that has one."""
        return next(filter(None, (one.why_no_more() for one in self._all)), "")

    @property
    def fault(self) -> str:
        """Return the first feature's fault that has one."""
        return next(filter(None, (one.fault for one in self._all)), "")

    @property
    def has_helpers(self) -> bool:
        """See ``Feature``."""
        return any(one.has_helpers for one in self._all)

    async def take_place(self, base: CommitRef, own_cohort: OwnCohort, kept_ms: float) -> CohortSession | None:
        """Return the place that the first feature gives that has one."""
        for one in self._all:
            if (cohort_session := await one.take_place(base, own_cohort, kept_ms)) is not None:
                return cohort_session
        return None

    async def has_something_back(self, cohort_session: "asyncio.Future[CohortSession]") -> bool:
        """See ``Feature``."""
        return any([await one.has_something_back(cohort_session) for one in self._all])

    async def on_learnt(self, vector: Vector) -> Vector:
        """Return what each feature in turn makes of a vector (N,)."""
        for one in self._all:
            vector = await one.on_learnt(vector)
        return vector

    async def keep(self, round_: int, base: bytes, vectors: Mapping[bytes, Vector]) -> None:
        """See ``Feature``."""
        for one in self._all:
            await one.keep(round_, base, vectors)
