"""What a gateway leases on one base, and what a return has to be: the terms of a lease, whichever way it travels. Nothing here waits."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.light import Places, done_microbatches, leased_microbatches, leased_samples, num_covered, scattered
from manta_swarm.codec.coding import parse
from manta_swarm.codec.residuals import given, vector_digest
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.gateway.cohort_session import LeaseSession
from manta_swarm.peer.submit.making import ZEROS, Residual
from manta_swarm.peer.train.work import Vector
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.leases import Leased
from manta_swarm.protocol.light import CODEC, Lease, LightReturn
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rounds import CommitRef


@dataclass(frozen=True, slots=True)
class LentResidual:
    """A residual of a gateway: what its last contribution left, which all hold whose claims that contribution lists."""

    residual: Residual
    contribution: bytes  # that left it; empty: not known


NOTHING_LENT = LentResidual(ZEROS, b"")


@dataclass
class LeasedBase:
    """The base that a gateway leases microbatches of, with its weights and the leases that are out."""

    base: CommitRef
    cohort: str  # this peer's, as its claim names it
    architectures: tuple[Architecture, ...]
    architecture: Architecture
    weights: bytes
    weights_digest: bytes
    lent: LentResidual
    of_lent: frozenset[bytes]  # the keys to whom the log left that residual
    keeper: Feature  # keeps the vectors that claims name
    cohort_session: LeaseSession
    samples: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)  # digest and bytes, of leases that are out, by key
    ready: dict[bytes, "asyncio.Task[Lease]"] = field(default_factory=dict)  # the same leases, by key

    def is_on(self, base: CommitRef, cohort: str, lent: LentResidual) -> bool:
        """Return whether what is leased here is what would be leased on a base, and may still be handed in."""
        own = (self.base.commit, self.cohort, self.lent.residual.digest, self.lent.contribution)
        return own == (base.commit, cohort, lent.residual.digest, lent.contribution) and not self.cohort_session.is_closed

    def keep(self, keys: frozenset[bytes]) -> None:
        """Forget what was made ready for other keys: strangers may let any number of leases expire."""
        for key in self.ready.keys() - keys:
            self.ready.pop(key).cancel()
            self.samples.pop(key, None)


class Terms:
    """Makes a gateway's leases in one run, and checks returns against them."""

    def __init__(self, manifest: Manifest, training_spec: RunTrainingSpec, run: bytes, gateway: bytes, num_train: int) -> None:
        """Lease microbatches of ``num_train`` samples in the name of the key ``gateway``."""
        self._manifest = manifest
        self._training_spec = training_spec
        self._run = run
        self._gateway = gateway
        self._num_train = num_train
        self._steps = manifest.exchange.local_steps

    def places(self, work: LeasedBase, leased: Leased) -> Places:
        """Return where the microbatches of a lease stand."""
        return leased_microbatches(
            work.architectures,
            work.architecture,
            work.base.commit,
            leased.key,
            local_steps=self._steps,
            microbatches_a_step=leased.microbatches_a_step,
        )

    def samples_of(self, work: LeasedBase, leased: Leased) -> Sequence[int]:
        """Return which samples the microbatches of a lease are of."""
        key, places = leased.key, self.places(work, leased)
        seed, count, of_microbatch = self._manifest.seed, self._num_train, self._manifest.microbatch_samples
        return leased_samples(places, seed=seed, base=work.base.commit, key=key, num_train=count, microbatch_samples=of_microbatch)

    def lease(self, work: LeasedBase, leased: Leased, samples: bytes, samples_bytes: int) -> Lease:
        """Return a lease whose samples have this digest and size."""
        return Lease(
            run=self._run,
            gateway=self._gateway,
            key=leased.key,
            round=work.base.round + 1,
            base=work.base.commit,
            min_exponent=work.base.min_exponent,
            cohort=work.cohort,
            architecture=work.architecture.text,
            microbatches_a_step=leased.microbatches_a_step,
            good_ms=0,  # what is left is said when it is handed out
            weights=work.weights_digest,
            weights_bytes=len(work.weights),
            samples=samples,
            samples_bytes=samples_bytes,
            num_train=self._num_train,
            residual=work.lent.residual.digest if leased.key in work.of_lent else b"",
        )

    def checked(self, work: LeasedBase, leased: Leased, claim: Claim, back: LightReturn) -> tuple[Vector, Vector]:
        """Return what the contributor gives (N,), and what it learnt (N,), if the lease asks for it: of each step the first microbatches.

        Raises:
            RemoteFault: it is not.
        """
        if len(back.counts) != self._steps or max(back.counts) > leased.microbatches_a_step:
            raise EncodingError("more microbatches, or other steps, than the lease has")
        places = done_microbatches(self.places(work, leased), back.counts)
        counts = [0] * len(work.architectures)
        for _, index in places:
            counts[place_of_microbatch(len(counts), work.base.commit, leased.key, index)] += 1
        residual = self.residual(work, leased)
        expected = (self._run, work.base.round + 1, work.base.commit, self._gateway, work.cohort, self._steps, residual.digest)
        if (claim.run, claim.round, claim.base, claim.founder, claim.cohort, len(claim.steps), claim.residual) != expected:
            raise EncodingError("the claim is not the lease's")
        if tuple(step.count for step in claim.steps) != back.counts:  # so few, nobody has to count far below
            raise EncodingError("the claim counts other microbatches of its steps than came back")
        if [index for step in claim.steps for index in step.indices()] != [index for _, index in places]:
            raise EncodingError("the claim names other indices than came back")
        if claim.work != tuple(counts):
            raise EncodingError("the claim counts other microbatches than came back")
        space = self._training_spec.plan.space
        count = num_covered(space, work.architecture)
        values = parse(CODEC, back.body, count).values(work.base.min_exponent)
        learnt = scattered(values, space, work.architecture)
        names = {claim.given} if self._steps > 1 else {claim.given, claim.steps[0].vector}
        if names != {vector_digest(learnt)}:
            raise EncodingError("the body is not what the claim says was learnt")
        coverage = self._training_spec.coverage(work.base.round + 1, work.cohort)
        return given(learnt, residual.values, self._manifest.exchange.residual_percent, coverage), learnt

    def residual(self, work: LeasedBase, leased: Leased) -> Residual:
        """Return the residual of which a part is given too."""
        return work.lent.residual if leased.key in work.of_lent else ZEROS
