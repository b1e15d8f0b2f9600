"""The microbatches of one base at one peer: their gradients summed up, the claim, where the time went, the thread that computes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.protocol.records import MAX_SKIPPED, Claim, ClaimStep
from manta_swarm.protocol.rosters import MAX_LEFT_OUT
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK

Vector = NDArray[np.float32]

_BLIND = bytes(32)  # in the place of a digest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


now_ms = SYSTEM_CLOCK.now_ms  # for what has no context: workers, and a gateway's HTTP


class GradientAccumulator:
    """Adds up the gradients of one base at one peer, local step after local step, and what a claim says of them all."""

    def __init__(self, num_weights: int, architectures: Sequence[Architecture], *, is_blind: bool = False, every: int = 1) -> None:
        """Begin with the first step.

        Args:
            num_weights: N.
            architectures: those that the round asks for, in order.
            is_blind: the steps in its claim say nothing of what was computed: a digest of it would tell whoever guesses the samples.
            every: how far apart the indices of its microbatches are.
        """
        self.architectures = tuple(architectures)
        self.is_blind = is_blind
        self.partner = b""  # the other site of the newest microbatch that took two
        self._every = every
        self._indices: list[int] = []  # of the step under way
        self._ended: list[ClaimStep] = []
        self._sum = torch.zeros(num_weights)
        self._step_samples = 0
        self._means: list[bytes] = []  # of the steps that have ended
        self._counts = [0] * len(architectures)
        self._samples = 0
        self._loss_sum = 0.0

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def step_microbatches(self) -> int:
        """Microbatches of the step under way."""
        return len(self._indices)

    @property
    def samples(self) -> int:
        """Samples of all steps."""
        return self._samples

    @property
    def loss(self) -> float:
        """Mean loss over the samples."""
        return self._loss_sum / self._samples

    @property
    def work(self) -> tuple[int, ...]:
        """Microbatches of each architecture."""
        return tuple(self._counts)

    def has_room(self, index: int) -> bool:
        """Return whether a microbatch of this index may be added to the step: a claim says of few indices that they were left out."""
        indices = self._indices
        between = (index - indices[0]) // self._every - len(indices) if indices else 0
        return between <= min(MAX_SKIPPED, MAX_LEFT_OUT - sum(len(step.skipped) for step in self._ended))

    def add(self, microbatch: Microbatch, place: int, result: MicrobatchResult, partner: bytes = b"") -> None:
        """Add a microbatch of the architecture at ``place``, its gradient weighted by its samples; there is room for it.

        ``partner``: the key of the site with the other view of its samples, which trained it too.
        """
        self.partner = partner or self.partner
        self._indices.append(microbatch.index)
        self._sum.add_(result.gradient, alpha=result.samples)
        self._loss_sum += result.loss * result.samples
        self._samples += result.samples
        self._step_samples += result.samples
        self._counts[place] += 1

    def gradient(self) -> Vector:
        """Return the mean gradient over the samples of the step under way (N,)."""
        gradient: Vector = (self._sum / float(self._step_samples)).numpy()
        return gradient

    def end_step(self, vector: bytes, mean: bytes) -> None:
        """Begin the next step; of the one before it were, by their digests, this peer's gradient and the mean."""
        if self.is_blind:
            vector = mean = _BLIND
        self._ended.append(self._claimed(vector))
        self._means.append(mean)
        self._indices.clear()
        self._sum.zero_()
        self._step_samples = 0

    def _claimed(self, vector: bytes) -> ClaimStep:
        """Return what a claim says of the step under way, of which ``vector`` is the digest."""
        first, last, every = self._indices[0], self._indices[-1], self._every
        return ClaimStep(first, last, tuple(sorted(set(range(first, last, every)) - set(self._indices))), vector, every)

    def claimed(self, vector: bytes) -> tuple[ClaimStep, ...]:
        """Return what a claim says of the steps; with one under way it is the last one, and ``vector`` the digest of its mean gradient."""
        return (*self._ended, self._claimed(vector)) if self._indices else tuple(self._ended)

    @property
    def means(self) -> tuple[bytes, ...]:
        """The digests of the means of the steps that have ended."""
        return tuple(self._means)


@dataclass(frozen=True, slots=True)
class Work:
    """What a peer has trained so far on one base."""

    base: CommitRef
    cohort: str  # that its claims name
    accumulator: GradientAccumulator


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a peer learnt on one base."""

    work: Work
    vector: Vector  # (N,): the mean gradient, or the change of the weights over the local steps
    coverage: NDArray[np.bool_] | None  # (N,): the weights that it is about; None: all


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What every claim of a peer says beside the work."""

    identity: Identity
    run: bytes
    payout: PublicKey  # the account that its credit adds up to
    shards: int = 0  # of those that microbatches are drawn from (``Claim.shards``)


def claim_of(
    terms: ClaimTerms, work: Work, vector: bytes, founder: PublicKey, microbatch_ms: int, *, given: bytes = b"", residual: bytes = b""
) -> Signed[Claim]:
    """Return the claim of a work as far as it is, for a contribution of ``founder`` or one alone.

    Args:
        terms: of this peer.
        work: with a step under way that step is the last one.
        vector: digest of that step's mean gradient; with no step under way it is not used.
        founder: whom the claim names.
        microbatch_ms: median duration of its microbatches.
        given: digest of what is given for the body; empty before the end.
        residual: digest of the residual of which a part is in that.
    """
    claim = Claim(
        run=terms.run,
        round=work.base.round + 1,
        base=work.base.commit,
        key=terms.identity.public_key,
        payout=terms.payout,
        founder=founder,
        cohort=work.cohort,
        steps=work.accumulator.claimed(vector),
        work=work.accumulator.work,
        given=given,
        residual=residual,
        microbatch_ms=max(1, microbatch_ms),
        shards=terms.shards,
        partner=work.accumulator.partner,
    )
    return Signed.sign(claim, terms.identity)


class ComputeThread:
    """One thread for all heavy work of a peer, so that its event loop stays awake and its device has one user."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.busy_ms = 0.0  # of the thread, so far

    async def run(self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Return what ``work`` returns, called in the thread."""

        def counted() -> Result:
            started_ms = now_ms()
            try:
                return work(*args, **kwargs)
            finally:
                self.busy_ms += now_ms() - started_ms

        return await asyncio.get_running_loop().run_in_executor(self._executor, counted)

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Lap:
    """Measures the seconds between the events of a round, for what is logged."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Count the time since the last mark as ``name``."""
        now = time.monotonic()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def line(self) -> str:
        """Return what was counted since it was asked for last, and begin anew."""
        line = " ".join(f"{name}_s={seconds:.2f}" for name, seconds in self._seconds.items())
        self._seconds.clear()
        return line
