"""The lots of one base at one peer: their gradients summed up, what is claimed of them and made of them, and where the time went."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.lots import Lot, LotResult
from manta_swarm.codec.coding import Body, body_groups, encode, parse
from manta_swarm.codec.residuals import covered, left_over, residual_digest, vector_digest
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.records import MAX_SKIPPED, Claim, ClaimStep, Contribution, Header, StepMean
from manta_swarm.protocol.rosters import MAX_LEFT_OUT
from manta_swarm.protocol.rounds import Standing
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK

Vector = NDArray[np.float32]

_BLIND = bytes(32)  # in the place of a digest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def nobody() -> bytes:
    """Return that no other peer has a view of this one's samples."""
    return b""


now_ms = SYSTEM_CLOCK.now_ms  # for what has no context: workers, and a gateway's HTTP


class Pile:
    """The lots of one base at one peer: local step after local step, and what a claim says of them all."""

    def __init__(self, num_weights: int, architectures: Sequence[Architecture], *, is_blind: bool = False, every: int = 1) -> None:
        """Begin with the first step.

        Args:
            num_weights: N.
            architectures: those that the round asks for, in order.
            is_blind: the steps in its claim say nothing of what was computed: a digest of it would tell whoever guesses the samples.
            every: how far apart the indices of its lots are.
        """
        self.is_blind = is_blind
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
    def step_lots(self) -> int:
        """Lots of the step under way."""
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
        """Lots of each architecture."""
        return tuple(self._counts)

    def has_room(self, index: int) -> bool:
        """Return whether a lot of this index may be added to the step: a claim says of few indices that they were left out."""
        indices = self._indices
        between = (index - indices[0]) // self._every - len(indices) if indices else 0
        return between <= min(MAX_SKIPPED, MAX_LEFT_OUT - sum(len(step.skipped) for step in self._ended))

    def add(self, lot: Lot, place: int, result: LotResult) -> None:
        """Add a lot of the architecture at ``place``, its gradient weighted by its samples; there is room for it."""
        self._indices.append(lot.index)
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
class Learnt:
    """What the lots of a base taught a peer."""

    base: Standing
    cohort: str  # that the claim names
    pile: Pile
    vector: Vector  # (N,): the mean gradient, or the change of the weights over the local steps
    coverage: NDArray[np.bool_] | None  # (N,): the weights that it is about; None: all


@dataclass(frozen=True, slots=True)
class Made:
    """A contribution, signed, its body, and what coding left out of it."""

    header: Header
    blob: Blob  # of the body, in its groups
    body: Body
    left: Vector | None  # (N,): the residual of each member once this is listed; None: zeros, as with codecs that are not sparse


def claim_of(
    learnt: Learnt,
    identity: Identity,
    run: bytes,
    *,
    payout: PublicKey,
    founder: PublicKey,
    given: bytes,
    residual: bytes,
    lot_ms: int,
    shards: int = 0,
    partner: bytes = b"",
) -> Signed[Claim]:
    """Return the claim of what was learnt, for a contribution of ``founder`` or one alone.

    Its credit adds up to the key ``payout``. ``given`` is the digest of what is given for the body, ``residual`` that of the residual of
    which a part is in it.
    """
    vector = vector_digest(learnt.vector) if learnt.pile.step_lots else b""  # of one local step it is what was learnt
    claim = _claim(learnt.base, learnt.cohort, learnt.pile, vector, identity.public_key, run, payout, founder, lot_ms, shards)
    return Signed.sign(replace(claim, given=given, residual=residual, partner=partner), identity)


def claim_so_far(
    base: Standing,
    cohort: str,
    pile: Pile,
    vector: bytes,
    identity: Identity,
    run: bytes,
    *,
    payout: PublicKey,
    founder: PublicKey,
    lot_ms: int,
    shards: int = 0,
    partner: bytes = b"",
) -> Signed[Claim]:
    """Return the claim up to the step under way, of whose mean gradient ``vector`` is the digest: what a member gives with that."""
    claim = _claim(base, cohort, pile, vector, identity.public_key, run, payout, founder, lot_ms, shards)
    return Signed.sign(replace(claim, partner=partner), identity)


def _claim(
    base: Standing,
    cohort: str,
    pile: Pile,
    vector: bytes,
    key: bytes,
    run: bytes,
    payout: bytes,
    founder: bytes,
    lot_ms: int,
    shards: int,
) -> Claim:
    return Claim(
        run=run,
        round=base.round + 1,
        base=base.commit,
        key=key,
        payout=payout,
        founder=founder,
        cohort=cohort,
        steps=pile.claimed(vector),
        work=pile.work,
        given=b"",
        residual=b"",
        lot_ms=max(1, lot_ms),
        shards=shards,
    )


def made_of(
    claims: Sequence[Signed[Claim]],
    given: Vector,
    learnt: Learnt,
    founder: Identity,
    run: bytes,
    codec: str,
    dropped: Sequence[Signed[Claim]] = (),
) -> Made:
    """Return the contribution of these claims whose body is the coded ``given`` (N,).

    ``dropped`` are claims of those who counted in a local step and are not in the body.

    Raises:
        ValueError: ``given`` holds values that are not finite.
    """
    base = learnt.base
    every = [*((signed, 1) for signed in claims), *((signed, 0) for signed in dropped)]
    listed = sorted(((signed.unchecked(), signed, is_in) for signed, is_in in every), key=lambda one: one[0].key)
    means = learnt.pile.means or (vector_digest(given),)
    steps = [
        StepMean(mean, sum(1 << place for place, (claim, _, _) in enumerate(listed) if len(claim.steps) > number))
        for number, mean in enumerate(means)
    ]
    counted = sum(is_in << place for place, (_, _, is_in) in enumerate(listed))
    data = encode(codec, covered(given, learnt.coverage), base.floor)
    body = parse(codec, data, len(given))
    left = left_over(given, body, base.floor) if codec_named(codec).is_sparse else None
    blob = Blob.of(body_groups(codec, data, len(given)))
    digests = tuple(signed.digest for _, signed, _ in listed)
    residual = b"" if left is None else residual_digest(left)
    opened = Contribution(run, base.round + 1, base.commit, founder.public_key, digests, counted, tuple(steps), blob.root, residual)
    header = Header(Signed.sign(opened, founder), tuple(signed for _, signed, _ in listed))
    return Made(header, blob, body, left if residual else None)


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
    """Seconds between the events of a round, for the log."""

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
