"""A gateway's service of a small run, and light contributors that do their leases for real, without HTTP between them."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.peer.cohort.cohort_session import Accepted, Gathered
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.gateway.cohort_session import LeaseSession
from manta_swarm.peer.features.gateway.service import GatewayService
from manta_swarm.peer.features.gateway.work import NOTHING_LENT, LentResidual
from manta_swarm.peer.features.light.work import LeaseWork, LightWork
from manta_swarm.peer.features.light.work_gate import WorkGate
from manta_swarm.peer.train.work import ClaimTerms, ComputeThread, GradientAccumulator, Work, claim_of
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.light import Lease, LeaseAnswer, LeaseRequest, LightWord, ReturnFate
from manta_swarm.protocol.records import Claim, Contribution, InclusionPromise
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.runtime.clock import SystemClock
from tests.claim_steps import all_of, means_of
from tests.memory_log import MICROBATCH, OPERATOR, signed_manifest, start_of
from tests.peer.contexts import context_of

GATEWAY = Identity(sha256(b"gateway"))
LIGHTS = [Identity(sha256(b"light %d" % number)) for number in range(4)]
LEFT_MS = 60_000.0


@cache
def digits() -> Dataset:
    return load_dataset("digits")


class _ClockOf(SystemClock):
    """The clock of a gateway in a test, which moves it."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def now_ms(self) -> float:
        """Return the time that the test says."""
        return self._gateway.now_ms


class Gateway:
    """A service, its clock, and the base that it works on."""

    def __init__(self, *, is_lease_only: bool = False, **changes: Any) -> None:
        self.signed = signed_manifest(**changes)
        self.manifest = self.signed.open()
        self.training_spec = RunTrainingSpec(self.manifest)
        self.state: State = start_of(Plan.of(self.manifest))
        self.now_ms = 0.0
        self.compute = ComputeThread()
        count = self.state.parameters.numel()
        self.context = context_of(
            None, GATEWAY, self.signed, None, self.compute, training_spec=self.training_spec, num_weights=count, clock=_ClockOf(self)
        )
        self.service = GatewayService(self.context, digits(), is_lease_only=is_lease_only)
        self.keeper = Feature()
        self.base = CommitRef.start(self.manifest, self.signed.run)

    async def convene(
        self, base: CommitRef | None = None, *, lent: LentResidual = NOTHING_LENT, left_ms: float = LEFT_MS, cohort: str = "here"
    ) -> LeaseSession:
        """Begin to work on a base."""
        self.base = self.base if base is None else base
        return await self.service.convene(self.base, self.state, cohort, lent, self.keeper, left_ms=left_ms, next_ms=left_ms + 5_000)

    def after(self, round_: int) -> CommitRef:
        """Return a commit that the gateway might go on to."""
        return replace(self.base, round=round_, commit=sha256(b"commit %d" % round_))

    def accepted(self, *claims: Signed[Claim]) -> Accepted:
        """Return what the log says to a contribution of these claims."""
        digests = tuple(signed.digest for signed in sorted(claims, key=lambda signed: signed.open().key))
        opened = Contribution(
            run=self.signed.run,
            round=self.base.round + 1,
            base=self.base.commit,
            founder=GATEWAY.public_key,
            claims=digests,
            included=all_of(digests),
            steps=means_of([signed.open() for signed in claims]),
            body=sha256(b"body"),
            residual=b"",
        )
        contribution = Signed.sign(opened, GATEWAY)
        return Accepted(contribution, Signed.sign(InclusionPromise(self.signed.run, opened.round, contribution.digest), OPERATOR), None)


def own_claim(gateway: Gateway, cohort_session: LeaseSession, *, residual: bytes = b"") -> tuple[Signed[Claim], np.ndarray]:  # type: ignore[type-arg]
    """Return the gateway's own claim on its base, and what it gives: about as long as what a microbatch teaches."""
    gifts = [gift.vector for gift in cohort_session._gifts.values()]
    vector = np.abs(gifts[0]) * np.float32(0.75)
    steps = gateway.manifest.exchange.local_steps
    accumulator = GradientAccumulator(vector.size, gateway.training_spec.plan.architectures(gateway.base.round + 1, "here"))
    accumulator._counts[0] = steps
    for step in range(steps):
        accumulator._indices.append(step)
        if steps > 1:
            accumulator.end_step(bytes(32), bytes(32))
    terms, digest = ClaimTerms(GATEWAY, gateway.signed.run, GATEWAY.public_key), vector_digest(vector)
    return claim_of(terms, Work(gateway.base, "here", accumulator), digest, GATEWAY.public_key, 10, given=digest, residual=residual), vector


async def gathered_by(gateway: Gateway, cohort_session: LeaseSession) -> Gathered:
    """Return what the gateway gathers with its own claim among it."""
    claim, own = own_claim(gateway, cohort_session)
    gathered = await cohort_session.gather(claim, own, MICROBATCH)
    assert gathered is not None
    return gathered


class Light:
    """A light contributor of a gateway."""

    def __init__(self, gateway: Gateway, number: int) -> None:
        self.gateway = gateway
        self.identity = LIGHTS[number]
        self.work = LightWork(gateway.manifest, gateway.signed.run, self.identity)

    def request(self, *, microbatch_ms: int = 0, **changes: Any) -> bytes:
        """Return a request for work."""
        request = LeaseRequest(self.gateway.signed.run, GATEWAY.public_key, self.identity.public_key, microbatch_ms, 0)
        return pack(Signed.sign(replace(request, **changes), self.identity))

    async def ask(self, *, microbatch_ms: int = 0) -> LeaseAnswer:
        """Ask for work."""
        return await self.gateway.service.lease(self.request(microbatch_ms=microbatch_ms), "here")

    async def lease(self, *, microbatch_ms: int = 0) -> Lease:
        """Ask for work and get it."""
        answer = await self.ask(microbatch_ms=microbatch_ms)
        assert answer.lease, answer.reason
        return answer.lease[0].open()

    def do(self, lease: Lease, *, until_s: float = math.inf) -> LeaseWork:
        """Do a lease with what it names."""
        weights, samples = self.gateway.service.blob(lease.weights), self.gateway.service.blob(lease.samples)
        assert weights is not None
        assert samples is not None
        assert (len(weights), len(samples)) == (lease.weights_bytes, lease.samples_bytes)
        return self.work.do(lease, weights, samples, WorkGate(), until_s=until_s)

    async def give_back(self, done: LeaseWork) -> LightWord:
        """Bring back what came of a lease."""
        return await self.gateway.service.take(pack(done.back))

    async def contribute(self, *, microbatch_ms: int = 0) -> LeaseWork:
        """Lease, do, bring back; the gateway has it then."""
        done = self.do(await self.lease(microbatch_ms=microbatch_ms))
        word = await self.give_back(done)
        assert word.fate == ReturnFate.HELD, word.reason
        return done


@asynccontextmanager
async def gateway_with(**changes: Any) -> AsyncIterator[Gateway]:
    """Yield a gateway, with changes to the run's manifest."""
    gateway = Gateway(**changes)
    try:
        yield gateway
    finally:
        gateway.service.close()
        gateway.compute.close()
