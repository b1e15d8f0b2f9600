"""This peer's part in its cohort, founder or not: it proves the token to its cohort peers, and takes a place in a roster for each base.

Whatever goes wrong, the peer is alone, and what it did counts all the same. Only cohort peers who have proven the token are listened to.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from manta_swarm.network.links import Links
from manta_swarm.network.near_cohort_peers import CohortPeers, NotACohortPeer
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Handler
from manta_swarm.peer.cohort.cohort_membership import FirstCohort
from manta_swarm.peer.cohort.cohort_session import GONE, Accepted, CohortContext, CohortSession, Gathered, MemberSession
from manta_swarm.peer.cohort.founder import FounderSession
from manta_swarm.peer.cohort.messages import (
    ADD,
    GIVE,
    HAND_OVER,
    JOIN,
    MAX_HAND_OVER_BYTES,
    MAX_SMALL_BYTES,
    PLAN,
    SUM,
    Add,
    AskSum,
    Give,
    GiveAnswer,
    HandOver,
    Join,
    Plan,
    Word,
)
from manta_swarm.peer.cohort.roster import Rosters
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.cohorts import AFFINITY, OwnCohort
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.exchange import MAX_MICROBATCH_MS, MAX_OPEN_MS
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signing import PublicKey

__all__ = ["Accepted", "Cohort", "CohortSession", "Gathered"]


class Grouped(Protocol):
    """Knows which cohort a peer is of (``peer.cohort.cohort_membership.CohortMembership``)."""

    @property
    def own_cohort(self) -> OwnCohort:
        """The cohort at present."""


class Cohort:
    """Finds this peer's place among its cohort peers, for one base after the other. All methods run in one event loop."""

    def __init__(
        self,
        context: RunContext,
        first_cohort: FirstCohort,
        neighbours: Neighbours,
        cohort_membership: Grouped | None = None,
        links: Links | None = None,
    ) -> None:
        """Know nobody yet.

        Args:
            context: of the run.
            first_cohort: what decides which cohort this peer is in; without a token it is always alone.
            neighbours: where those who announce the cohort are found.
            cohort_membership: has the cohort at present, where it may change; None: whoever proves the token is in it.
            links: this peer's direct links; None: as its node makes them.
        """
        self._key = context.key
        self._name, token = first_cohort.proven_name, first_cohort.token
        self._cohort_membership = cohort_membership
        self._neighbours = neighbours
        self._cohort_session = CohortSession(self._key)
        self._before: CohortSession = self._cohort_session  # the place before this one: what its mean was may still be asked
        self._context: CohortContext | None = None
        if token is not None:
            self._links = links or Links(context.node, context.run)
            cohort_peers = CohortPeers(context.node, self._links, context.run, self._name, token, context.clock)
            # Audits blame the founder for a mean that does not follow: where strangers are a cohort, it adds by itself.
            self._context = CohortContext(
                context, self._links, cohort_peers, may_share=not (context.manifest.is_audited and self._name == AFFINITY)
            )
            self._rosters = Rosters(self._context)

    @property
    def _own_cohort(self) -> OwnCohort:
        return OwnCohort(self._name) if self._cohort_membership is None else self._cohort_membership.own_cohort

    async def start(self) -> None:
        """Answer cohort peers from now on."""
        if self._context is not None:
            await self._links.start()
            await self._context.cohort_peers.start()
            for method, answer in ((JOIN, self._on_join), (GIVE, self._on_give), (HAND_OVER, self._on_hand_over)):
                await self._links.serve(method, self._for_cohort_peers(self._context, answer))
            for method, answer in ((PLAN, self._on_plan), (ADD, self._on_add), (SUM, self._on_sum)):  # for this roster's only
                await self._links.serve(method, answer)

    async def leave(self) -> None:
        """Tell the cohort peers that this peer leaves."""
        if self._context is not None:
            await self._context.cohort_peers.leave()

    async def close(self) -> None:
        """Give up what is under way; cohort peers go on alone."""
        self._cohort_session.close()
        self._before.forget()
        self._cohort_session.forget()
        if self._context is not None:
            self._rosters.close()
            await self._links.close()
            await self._context.cohort_peers.close()

    async def meet(self) -> None:
        """Prove the token to who stands where the cohort meets, and to the cohort peers known again: to be called after each look."""
        if self._context is not None:
            await self._context.cohort_peers.meet(
                (*self._neighbours.at_meeting(), *(self._own_cohort.members or ())), self._neighbours.period_s
            )

    def cohort_peers(self) -> tuple[PublicKey, ...]:
        """Return those of the cohort at present who proved the token lately, in the order of their keys."""
        if self._context is None:
            return ()
        members = self._own_cohort.members
        return tuple(key for key in self._context.cohort_peers.fresh() if members is None or key in members)

    async def convene(self, base: CommitRef, microbatch_ms: int, left_ms: float, own_cohort: OwnCohort | None = None) -> CohortSession:
        """Return this peer's place for work on ``base``, within a bounded time; on any trouble one alone. The one before is given up.

        Args:
            base: whose state this peer holds.
            microbatch_ms: median duration of its microbatches; 0 or 1: not known.
            left_ms: until what was learnt has to be gathered, to be coded and handed in.
            own_cohort: the cohort, for all of this work; None: that at present.
        """
        self._cohort_session.close()
        self._before.forget()
        self._before, self._cohort_session = self._cohort_session, CohortSession(self._key)
        before = self._cohort_session
        if self._context is None or left_ms <= 0:
            return before
        cohort_session = await self._rosters.find(
            base, min(max(microbatch_ms, 0), MAX_MICROBATCH_MS), min(left_ms, float(MAX_OPEN_MS)), own_cohort or self._own_cohort
        )
        if self._cohort_session is before:
            self._cohort_session = cohort_session
        else:
            cohort_session.close()  # another place was looked for in the meantime
        return cohort_session

    # For others who have something to say to cohort peers.

    @property
    def key(self) -> PublicKey:
        """This peer's own key."""
        return self._key

    async def serve_cohort_peers(self, method: str, handler: Handler) -> None:
        """Answer calls of cohort peers, and of nobody else; without a token there are none."""
        if self._context is not None:
            await self._links.serve(method, self._for_cohort_peers(self._context, handler))

    async def call_cohort_peer(self, cohort_peer: PublicKey, method: str, request: bytes, *, timeout_s: float, largest: int) -> bytes:
        """Return the answer of a cohort peer, of ``largest`` bytes at most; raises as ``Endpoint.call``."""
        if self._context is None:
            raise Unreachable("this peer has no cohort peers")
        return await self._links.call(cohort_peer, method, request, timeout_s=timeout_s, largest=largest)

    def ways(self) -> dict[PublicKey, str]:
        """Return how each cohort peer is reached: ``unix``, ``tls`` or ``libp2p``."""
        return {cohort_peer: self._links.way(cohort_peer) for cohort_peer in self.cohort_peers()} if self._context is not None else {}

    # What cohort peers ask.

    @staticmethod
    def _for_cohort_peers(context: CohortContext, answer: Callable[[PublicKey, bytes], Awaitable[bytes]]) -> Handler:
        async def handler(caller: PublicKey, request: bytes) -> bytes:
            if not context.cohort_peers.knows(caller):
                raise NotACohortPeer("prove the cohort's token first")
            return await answer(caller, request)

        return handler

    async def _on_join(self, caller: PublicKey, request: bytes) -> bytes:
        return pack(await self._rosters.on_join(caller, unpack(Join, request, max_bytes=MAX_SMALL_BYTES)))

    async def _on_give(self, caller: PublicKey, request: bytes) -> bytes:
        give = unpack(Give, request, max_bytes=MAX_HAND_OVER_BYTES)
        cohort_session = self._founder_of(give.base)
        return pack(GiveAnswer(b"", 0, GONE, 0) if cohort_session is None else await cohort_session.on_give(caller, give))

    async def _on_hand_over(self, caller: PublicKey, request: bytes) -> bytes:
        handed = unpack(HandOver, request, max_bytes=MAX_HAND_OVER_BYTES)
        cohort_session = self._founder_of(handed.base)
        return pack(Word((), GONE) if cohort_session is None else await cohort_session.on_hand_over(caller, handed))

    async def _on_plan(self, caller: PublicKey, request: bytes) -> bytes:
        return pack(await self._member().on_plan(caller, unpack(Plan, request, max_bytes=MAX_SMALL_BYTES)))

    async def _on_add(self, caller: PublicKey, request: bytes) -> bytes:
        return pack(await self._member().on_add(caller, unpack(Add, request, max_bytes=MAX_SMALL_BYTES)))

    async def _on_sum(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskSum, request, max_bytes=MAX_SMALL_BYTES)
        for cohort_session in (self._cohort_session, self._before):
            if isinstance(cohort_session, FounderSession) and cohort_session.base.commit == ask.base:
                return cohort_session.on_sum(caller, ask)
        raise Unreachable("no such mean is here")

    def _member(self) -> MemberSession:
        if not isinstance(self._cohort_session, MemberSession):
            raise EncodingError("nothing of that is under way here")
        return self._cohort_session

    def _founder_of(self, base: bytes) -> FounderSession | None:
        return (
            self._cohort_session if isinstance(self._cohort_session, FounderSession) and self._cohort_session.base.commit == base else None
        )
