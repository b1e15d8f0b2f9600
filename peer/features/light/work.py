"""The work of one lease: its microbatches, trained as any peer trains them, on the weights of their architecture, and their claim.

The other weights are zeros here, and so is what was learnt of them. What is claimed is what the body decodes to: that is what is averaged.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from manta_swarm.automl.data.snippet import load
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.coverage import RunTrainingSpec, coverage
from manta_swarm.automl.training.light import Places, leased_microbatches, leased_samples, num_covered, scattered, weights_of
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.update import LocalSteps, State
from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.peer.features.light.work_gate import LeaseOver, WorkGate
from manta_swarm.peer.train.work import ClaimTerms, GradientAccumulator, Vector, Work, claim_of
from manta_swarm.protocol.errors import EncodingError, MantaError, UserError
from manta_swarm.protocol.exchange import MAX_MICROBATCH_MS
from manta_swarm.protocol.light import CODEC, MAX_LEASE_MICROBATCHES, Lease, LightReturn, why_no_leases
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey

_REMEMBERED = 16  # microbatches


class NoUse(MantaError):
    """Training came to values that are not finite, so there is nothing to return."""


@dataclass(frozen=True, slots=True)
class LeaseWork:
    """A lease's finished work."""

    back: LightReturn
    samples: int
    loss: float


class LightWork:
    """Computes the leases of one light contributor, one after the other, on its device."""

    def __init__(self, manifest: Manifest, run: bytes, identity: Identity, payout: PublicKey | None = None) -> None:
        """Prepare. The credit of claims adds up to ``payout``; None: to the own key.

        Raises:
            UserError: a run that this version cannot train.
        """
        try:
            self._training_spec = RunTrainingSpec(manifest)
        except ValueError as error:
            raise UserError(f"{error}; install the version that the operator names") from error
        if manifest.is_private:
            raise UserError("in this run everybody trains on data of their own: there is nothing for light contributors")
        if why_no_leases(manifest):
            raise UserError("in this run several local steps are audited: there is nothing for light contributors")
        self._manifest = manifest
        self._identity = identity
        self._terms = ClaimTerms(identity, run, payout or identity.public_key)
        self._microbatches_ms: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def microbatch_ms(self) -> int:
        """The median microbatch's duration lately; 0 before there was one."""
        return min(max(1, round(statistics.median(self._microbatches_ms))), MAX_MICROBATCH_MS) if self._microbatches_ms else 0

    def architecture_of(self, lease: Lease) -> Architecture:
        """Return the architecture of a lease, which is one that its round asks for.

        Raises:
            EncodingError: the lease makes no sense in this run.
        """
        if not 1 <= lease.round <= self._manifest.num_rounds:
            raise EncodingError("a lease for a round that the run has not")
        exchange = self._manifest.exchange
        microbatches = lease.microbatches_a_step * exchange.local_steps
        if microbatches > MAX_LEASE_MICROBATCHES or microbatches * self._manifest.microbatch_samples > exchange.max_claim_samples:
            raise EncodingError(f"a lease of {microbatches} microbatches is more than a claim may have")
        if self._training_spec.plan.phase(lease.round).distils:
            raise EncodingError("a lease of microbatches that need a teacher")
        for architecture in self._training_spec.plan.architectures(lease.round, lease.cohort):
            if architecture.text == lease.architecture:
                return architecture
        raise EncodingError("a lease for an architecture that its round does not ask for")

    def do(
        self,
        lease: Lease,
        weights: bytes,
        samples: bytes,
        work_gate: WorkGate,
        *,
        over_s: float = math.inf,
        until_s: float = math.inf,
    ) -> LeaseWork:
        """Return what comes of a lease, signed; takes as long as its microbatches do.

        Args:
            lease: what to do.
            weights: that it names.
            samples: that it names.
            work_gate: holds microbatches up. With one local step the microbatches that were done before it raises ``LeaseOver`` are what
                comes of the lease. The gateway counts a rest after a microbatch as a part of that microbatch's duration.
            over_s: when the lease is over, of ``time.monotonic``.
            until_s: when all should be done, of ``time.monotonic``: microbatches that would not be are left out, but for one of each local
                step.

        Raises:
            EncodingError: the lease, its weights or its samples make no sense.
            LeaseOver: it is over before one microbatch of each local step is done.
            NoUse: the values that came out are not finite.
        """
        plan, architecture = self._training_spec.plan, self.architecture_of(lease)
        architectures = plan.architectures(lease.round, lease.cohort)
        key, steps = PublicKey(self._identity.public_key), self._manifest.exchange.local_steps
        places = leased_microbatches(
            architectures, architecture, lease.base, key, local_steps=steps, microbatches_a_step=lease.microbatches_a_step
        )
        parameters = torch.from_numpy(weights_of(weights, plan.space, architecture))
        worker = Worker(self._manifest.supernet, load(samples, self._manifest.task, lease.num_train, self._samples_of(lease, places)))
        accumulator = GradientAccumulator(worker.num_weights, architectures, every=len(architectures))
        local = LocalSteps(State(lease.round - 1, parameters, ()), plan) if steps > 1 else None
        counts: list[int] = []
        for step in range(steps):
            if step and time.monotonic() > until_s:
                raise LeaseOver("it was over before all local steps were done")
            worker.load(parameters if local is None else local.weights)
            ends_s = self._step_ends_s(until_s, steps - step)
            for _, index in places[step * lease.microbatches_a_step : (step + 1) * lease.microbatches_a_step]:
                if accumulator.step_microbatches and time.monotonic() + self.microbatch_ms / 1000 > ends_s:
                    break
                of_microbatch, strength = self._manifest.microbatch_samples, plan.augmentation(lease.round, architecture)
                microbatch = Microbatch(self._manifest.seed, lease.base, step, key, index, architecture, of_microbatch, strength)
                try:
                    work_gate.before_microbatch(over_s)
                except LeaseOver:
                    if local is not None or not accumulator.step_microbatches:
                        raise
                    break
                self._train(worker, microbatch, place_of_microbatch(len(architectures), lease.base, key, index), accumulator, work_gate)
            counts.append(accumulator.step_microbatches)
            if local is not None:
                gradient = accumulator.gradient()
                digest = vector_digest(gradient)
                accumulator.end_step(digest, digest)
                local.step(torch.from_numpy(gradient))
        vector = accumulator.gradient() if local is None else local.learnt().numpy()
        body, claim = self._made(lease, architecture, accumulator, vector)
        return LeaseWork(LightReturn(claim, tuple(counts), body), accumulator.samples, accumulator.loss)

    @staticmethod
    def _step_ends_s(until_s: float, steps: int) -> float:
        """Return when a local step should be done that begins now, the first one of ``steps`` that share what is left."""
        now_s = time.monotonic()
        return now_s + max(until_s - now_s, 0.0) / steps

    def _samples_of(self, lease: Lease, places: Places) -> Sequence[int]:
        seed, of_microbatch, key = self._manifest.seed, self._manifest.microbatch_samples, self._identity.public_key
        return leased_samples(places, seed=seed, base=lease.base, key=key, num_train=lease.num_train, microbatch_samples=of_microbatch)

    def _train(self, worker: Worker, microbatch: Microbatch, place: int, accumulator: GradientAccumulator, work_gate: WorkGate) -> None:
        started_s = time.monotonic()
        result = worker.train(microbatch)
        took_ms = 1000 * (time.monotonic() - started_s)
        self._microbatches_ms.append(took_ms + work_gate.after_microbatch(took_ms, microbatch.samples))
        if not result.is_finite:
            raise NoUse("a gradient that is not finite")
        accumulator.add(microbatch, place, result)

    def _made(
        self, lease: Lease, architecture: Architecture, accumulator: GradientAccumulator, vector: Vector
    ) -> tuple[bytes, Signed[Claim]]:
        """Return the vector coded, and the claim of what that decodes to."""
        if not bool(np.isfinite(vector).all()):
            raise NoUse("what was learnt is not finite")
        space = self._training_spec.plan.space
        body = encode(CODEC, vector[coverage(space, architecture)], lease.min_exponent)
        decoded = scattered(parse(CODEC, body, num_covered(space, architecture)).values(lease.min_exponent), space, architecture)
        work = Work(CommitRef(lease.round - 1, lease.base, b"", lease.min_exponent, None), lease.cohort, accumulator)
        digest = vector_digest(decoded)  # given too: its gateway, which has the residual, adds the part of it
        of_step = digest if accumulator.step_microbatches else b""
        claim = claim_of(self._terms, work, of_step, PublicKey(lease.gateway), self.microbatch_ms, given=digest, residual=lease.residual)
        return body, claim
