"""Peers of one cohort in one event loop, on a network in memory, with what they claim and what a log would say to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.links import Greeting, Links
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.cohort.cohort import Accepted, Cohort, CohortSession, Gathered
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from manta_swarm.protocol.cohorts import AFFINITY, OwnCohort
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, InclusionPromise
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from tests.audited import RULES
from tests.claim_steps import means_of
from tests.network.virtual_time import LOOP_CLOCK, now
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

OPERATOR = Identity(sha256(b"operator"))
PEERS = sorted((Identity(sha256(b"cohort peer %d" % i)) for i in range(6)), key=lambda peer: peer.public_key)
TOKEN = sha256(b"token")
RUN = sha256(b"run")
COUNT = 1000
MICROBATCH_MS, LEFT_MS = 100, 60_000.0
TRAINING_SPEC = FixedTrainingSpec((10,))  # of one architecture


def base_of(round_: int) -> CommitRef:
    """Return the commit of a round."""
    return CommitRef(round_, sha256(b"commit %d" % round_), sha256(b"state %d" % round_), -32, None)


def vector_of(number: int, step: int = 0, count: int = COUNT) -> Any:
    """Return what a peer gives in a step: normal, as gradients are."""
    return np.random.default_rng([number, step]).standard_normal(count).astype(np.float32)


def claim_of_steps(identity: Identity, steps: Sequence[ClaimStep], *, founder: PublicKey, round_: int = 1, cohort: str = "here") -> Claim:
    """Return what a peer claims of these steps."""
    return Claim(
        run=RUN,
        round=round_,
        base=base_of(round_ - 1).commit,
        key=identity.public_key,
        payout=identity.public_key,
        founder=founder,
        cohort=cohort,
        steps=tuple(steps),
        work=(sum(step.count for step in steps),),
        given=b"",
        residual=b"",
        microbatch_ms=10,
    )


def so_far(identity: Identity, founder: PublicKey, *given: Any) -> Signed[Claim]:
    """Return what a peer claims up to a step; it gave these vectors, each of a microbatch."""
    steps = [ClaimStep(step, step, (), vector_digest(vector)) for step, vector in enumerate(given)]
    return Signed.sign(claim_of_steps(identity, steps, founder=founder), identity)


def context_in(node: Any, identity: Identity, manifest: Manifest, clock: Clock = SYSTEM_CLOCK) -> Any:
    """Return what a cohort needs of a peer's context."""
    return SimpleNamespace(node=node, key=identity.public_key, manifest=manifest, training_spec=TRAINING_SPEC, run=RUN, clock=clock)


class LinksInMemory(Links):
    """Links of a network in memory, which stand as soon as both know of each other."""

    def __init__(self, endpoint: MemoryEndpoint) -> None:
        super().__init__(endpoint, RUN)
        self.known: set[PublicKey] = set()

    def learn(self, key: PublicKey, greeting: Greeting) -> None:
        """See ``Links.learn``."""
        self.known.add(key)

    def linked(self) -> tuple[PublicKey, ...]:
        """See ``Links.linked``."""
        return tuple(sorted(self.known))


class CohortPeer:
    """One peer."""

    def __init__(self, band: "Band", number: int, *, token: bytes | None = TOKEN, name: str = "here") -> None:
        self.number = number
        self.identity = PEERS[number]
        self.key: PublicKey = self.identity.public_key
        self.band = band
        self.name = name
        self.endpoint = band.network.endpoint(self.key)
        self.neighbours = Neighbours(self.endpoint, RUN, LOOP_CLOCK)
        self.own_cohort = OwnCohort(name)
        first_cohort = FirstCohort(Choice.AFFINITY if name == AFFINITY else Choice.LABEL, name, token)
        context = context_in(self.endpoint, self.identity, band.manifest, LOOP_CLOCK)
        self.cohort = Cohort(context, first_cohort, self.neighbours, self, LinksInMemory(self.endpoint))
        self.cohort_session = CohortSession(self.key)
        self.round = 1
        self.steps: list[ClaimStep] = []  # that it gave on the base

    @property
    def founder(self) -> PublicKey:
        """Whose roster it is in."""
        return self.cohort_session.founder

    @property
    def members(self) -> tuple[PublicKey, ...]:
        """Who is in its roster."""
        return self.cohort_session.members

    @property
    def is_alone(self) -> bool:
        """Whether it is alone in its roster."""
        return self.cohort_session.is_alone

    async def meet(self) -> None:
        """Announce, look, and prove the token, as a peer does again and again."""
        await self.neighbours.announce(cohort=self.name, round_=0)
        await self.neighbours.look()
        await self.cohort.meet()

    async def convene(
        self, round_: int = 1, *, microbatch_ms: int = MICROBATCH_MS, left_ms: float = LEFT_MS, after_s: float = 0.0
    ) -> CohortSession:
        """Take a place for a round."""
        await asyncio.sleep(after_s)
        self.round = round_
        self.steps = []
        self.cohort_session = await self.cohort.convene(base_of(round_ - 1), microbatch_ms, left_ms)
        return self.cohort_session

    async def average(self, step: int, vector: Any = None, *, samples: int = 16, after_s: float | None = None, **changes: Any) -> Any:
        """Give a vector when it is due, or after some time, with the claim up to there; ``changes`` are of that."""
        ends_ms = self.cohort_session.step_ends(step)
        await asyncio.sleep(after_s if after_s is not None else max(0.0, (ends_ms or 0.0) / 1000 - now()))
        given = vector_of(self.number, step) if vector is None else vector
        return await self.cohort_session.average(step, given, self.so_far(step, given, samples=samples, **changes))

    def so_far(self, step: int, given: Any, *, samples: int = 16, **changes: Any) -> Signed[Claim]:
        """Return what this peer claims up to a step, which is noted for the claims to come."""
        count, first = samples // self.band.manifest.microbatch_samples, self.steps[step - 1].last + 1 if step else 0
        self.steps = [*self.steps[:step], ClaimStep(first, first + count - 1, (), vector_digest(given))]
        return self._claimed(self.round, changes)

    def claim(
        self, given: Any = None, round_: int | None = None, *, microbatches: int = 2, names: bytes | None = None, **changes: Any
    ) -> Signed[Claim]:
        """Return what this peer claims: the steps that it gave, and in the others as many as make ``microbatches``, but one at least.

        It names what it has ``given``, or another vector; of one step it learnt what it gave.
        """
        digest = vector_digest(vector_of(self.number, 100) if given is None else given)
        most = self.band.manifest.exchange.local_steps
        while len(self.steps) < most:
            first = self.steps[-1].last + 1 if self.steps else 0
            count = max(1, microbatches - sum(step.count for step in self.steps)) if len(self.steps) == most - 1 else 1
            self.steps.append(ClaimStep(first, first + count - 1, (), digest if most == 1 else sha256(b"vector")))
        return self._claimed(round_ or self.round, {"given": digest if names is None else names, **changes})

    def _claimed(self, round_: int, changes: dict[str, Any]) -> Signed[Claim]:
        claim = claim_of_steps(self.identity, self.steps, founder=self.cohort_session.founder, round_=round_, cohort=self.name)
        return Signed.sign(replace(claim, **changes), self.identity)

    def accepted(self, gathered: Gathered, *, with_mean: bool = False, **changes: Any) -> Accepted:
        """Return what this founder's contribution becomes at the log."""
        listed = sorted([*gathered.claims, *gathered.dropped], key=lambda signed: signed.open().key)
        digests = tuple(claim.digest for claim in listed)
        opened, steps = gathered.claims[0].open(), means_of([signed.open() for signed in listed])
        included = sum(1 << place for place, signed in enumerate(listed) if signed in gathered.claims)
        contribution = Contribution(RUN, opened.round, opened.base, self.key, digests, included, steps, sha256(b"body"), b"")
        signed = Signed.sign(replace(contribution, **changes), self.identity)
        return Accepted(signed, inclusion_promise_for(signed), gathered.mean if with_mean else None)

    async def found(
        self,
        given: Any = None,
        *,
        round_: int | None = None,
        with_mean: bool = False,
        leave_out: Iterable["CohortPeer"] = (),
        **changes: Any,
    ) -> Gathered | None:
        """Do the founder's part at the end; return what was handed in."""
        vector = vector_of(self.number, 100) if given is None else given
        gathered = await self.cohort_session.gather(self.claim(vector, round_, **changes), vector, 32)
        if gathered is not None:
            left_out = frozenset(cohort_peer.key for cohort_peer in leave_out)
            gathered = await gathered.without(left_out) if left_out else gathered
            await self.cohort_session.tell(self.accepted(gathered, with_mean=with_mean))
        return gathered

    async def hand_over(self, given: Any = None, *, round_: int | None = None, until_s: float = 60.0, **changes: Any) -> Accepted | None:
        """Do a member's part at the end."""
        vector = vector_of(self.number, 100) if given is None else given
        return await self.cohort_session.hand_over(self.claim(vector, round_, **changes), vector, 32, now() * 1000 + until_s * 1000)

    def die(self) -> None:
        """Be gone for the others, from one moment to the next."""
        self.band.network.endpoints.pop(self.key, None)


def inclusion_promise_for(signed: Signed[Contribution], operator: Identity = OPERATOR, **changes: Any) -> Signed[InclusionPromise]:
    """Return the log's inclusion promise for a contribution."""
    return Signed.sign(replace(InclusionPromise(RUN, 1, signed.digest), **changes), operator)


class Band:
    """Some cohort peers on one network."""

    def __init__(self, *, local_steps: int = 1, codec: str = "int16", is_audited: bool = False) -> None:
        self.network = MemoryNetwork()
        audits = (RULES,) if is_audited else ()
        self.manifest = manifest_of(OPERATOR, exchange=replace(EXCHANGE, local_steps=local_steps, codec=codec), audits=audits)
        self.cohort_peers: list[CohortPeer] = []

    async def join(self, number: int, **settings: Any) -> CohortPeer:
        """Let a peer join, which knows nobody yet."""
        cohort_peer = CohortPeer(self, number, **settings)
        await cohort_peer.cohort.start()
        self.cohort_peers.append(cohort_peer)
        return cohort_peer

    async def meet(self) -> None:
        """Let all meet, one after the other."""
        for cohort_peer in self.cohort_peers:
            await cohort_peer.meet()

    async def gather_round(self, count: int) -> list[CohortPeer]:
        """Let so many peers join and meet; a smaller number means a smaller key, so the first one is the founder."""
        cohort_peers = [await self.join(number) for number in range(count)]
        await self.meet()
        await asyncio.sleep(0)
        assert all(len(cohort_peer.cohort.cohort_peers()) == count - 1 for cohort_peer in cohort_peers)
        return cohort_peers

    async def end(self) -> None:
        """End everybody."""
        for cohort_peer in self.cohort_peers:
            await cohort_peer.cohort.close()


async def all_of(*work: Awaitable[Any]) -> list[Any]:
    """Return what all return, side by side."""
    return list(await asyncio.gather(*work))


@asynccontextmanager
async def band_with(**settings: Any) -> AsyncIterator[Band]:
    """Yield a band; at its end nothing runs any more."""
    band = Band(**settings)
    try:
        yield band
    finally:
        await band.end()
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
