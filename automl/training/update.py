"""A run's state, a cohort's local steps from it, and the exact update, which may sort channels: the same bits on whatever hardware.

Local steps lead from a committed state along a cohort's own gradients, until the next exchange; everybody who has the gradients has the
bits. Moments begin at zero, so a newcomer needs the committed state alone.

The update is a step (``automl.training.optimizers``) and what the schedule changes at the end of a phase: channels are sorted, and the
state that the later phases learn from is remembered by its digest. Where a round has one local step, the step is the optimiser's own along
the mean gradient; where it has several, those were the optimiser's own (``LocalSteps``), and the round ends with an outer step along the
mean change of the weights. ``self_test`` shows that this machine computes the bits that everybody else does.

Channel sorting puts the channels that matter most first, so that a smaller width, which is a prefix, keeps them: the expanded channels of
each layer, and where a unit has a choice of widths, those that it hands on. Its sums are of doubles in the order of the index, the sort is
stable, and moments move along with their weights. The largest network computes what it did before, but for the order of its sums.

Shapes: N all weights of the supernet, O channels out, E expanded channels, C channels in, W channels that a unit hands on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import SCALE_OF_UNIT, Elastic
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.optimizers import Moments, are_finite, decaying, num_own_moments, outer_step, own_step
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.snapshot_header import FORMAT
from manta_swarm.codec.vectors import joined, vector_group_sizes, vector_groups
from manta_swarm.protocol.encoding import decode, encode
from manta_swarm.protocol.errors import EncodingError, OwnFault
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.manifest import Optimizer
from manta_swarm.protocol.merkle import leaf_hash, root
from manta_swarm.protocol.signing import Digest

Span = tuple[int, int]  # start and stop in the flat vector
Columns = tuple[Span, int]  # and how many rows there are

_MAX_HEADER_BYTES = 96
_MAX_MOMENTS = 2

# SHA-256 over three steps of ``_known_vector``s with each optimiser, and three outer ones; the same under ATEN_CPU_CAPABILITY=default, avx2
# and avx512.
_KNOWN_DIGEST = "4a59e0afd4e793fc34bb8a7ff0fe00c73c6ce5738af68e32dfe8f2d44a03711d"
_KNOWN_LENGTH = 70_001  # long enough to be split over threads, odd so that vector tails are covered


@dataclass(frozen=True, slots=True)
class _Group:
    """Where in the flat vector the expanded channels of one layer are."""

    channels: int
    blocks: int  # they stay in theirs; see ``automl.spaces.shapes.LayerShape``
    rows: tuple[Span, ...]  # (E, ...)
    columns: tuple[Columns, ...]  # (O, E) or (S, E)
    project: Span  # (O, E)


@dataclass(frozen=True, slots=True)
class _Handed:
    """Where in the flat vector the channels are that one unit hands on."""

    channels: int
    rows: tuple[Span, ...]  # (W, ...), or (W times as many, ...) where each channel has several filters of its own
    columns: tuple[Columns, ...]  # (..., W), or (..., W times as many)
    scales: tuple[Span, ...]  # (W,) of the normalisation that ends each layer


@cache
def _groups(supernet_name: str) -> tuple[tuple[_Group, ...], tuple[_Handed, ...]]:
    supernet = build(space_named(supernet_name))
    slices, groups, handed = supernet.slices(), [], []

    def rows_of(names: Iterable[str]) -> tuple[Span, ...]:
        return tuple(slices[name] for name in names)

    def columns_of(names: Iterable[str]) -> tuple[Columns, ...]:
        return tuple((slices[name], len(supernet.get_parameter(name))) for name in names)

    for name, layer in supernet.named_modules():
        if isinstance(layer, Elastic):
            rows, columns = ([f"{name}.{part}" for part in parts] for parts in layer.expanded_parts())
            project = slices[f"{name}.project"]
            groups.append(_Group(layer.project.shape[1], layer.shape.blocks, rows_of(rows), columns_of(columns), project))
    for unit, choices in enumerate(supernet.space.units):
        if choices.widths:
            rows, columns = supernet.handed_parts(unit)
            scales = [name for name in rows if name.endswith(SCALE_OF_UNIT)]
            handed.append(_Handed(choices.width, rows_of(rows), columns_of(columns), rows_of(scales)))
    return tuple(groups), tuple(handed)


def sort_channels(parameters_N: Tensor, moments: Sequence[Tensor], supernet_name: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the parameters and the moments with each layer's expanded channels in falling order of importance, and each unit's channels.

    An expanded channel's importance is the sum of the magnitudes of its projecting weights (arXiv:1908.09791, section 3.3); that of a
    channel that a unit hands on the sum of the magnitudes of what the unit's last normalisations scale it by (arXiv:1708.06519).
    """
    vectors = [vector.clone() for vector in (parameters_N, *moments)]
    groups, handed = _groups(supernet_name)
    for group in groups:
        order = torch.from_numpy(_order(parameters_N[slice(*group.project)].view(-1, group.channels), group.blocks))
        _reorder(vectors, order, group.rows, group.columns)
    for each in handed:
        scales_LW = torch.stack([parameters_N[slice(*span)] for span in each.scales])
        _reorder(vectors, torch.from_numpy(_order(scales_LW, 1)), each.rows, each.columns)
    return vectors[0], tuple(vectors[1:])


def _reorder(vectors: Sequence[Tensor], order: Tensor, rows: Sequence[Span], columns: Sequence[Columns]) -> None:
    """Put rows and columns in order; where there are several for each channel, they stay together."""
    for vector in vectors:
        for span in rows:
            of_channels = vector[slice(*span)].view(len(order), -1)
            of_channels.copy_(of_channels[order])
        for span, count in columns:
            of_channels = vector[slice(*span)].view(count, len(order), -1)
            of_channels.copy_(of_channels[:, order])


def _order(weights_OE: Tensor, blocks: int) -> npt.NDArray[np.int64]:
    """Return the channels of each block by falling importance, the magnitudes of a column; equal ones in the order they have."""
    importance_E = np.zeros(weights_OE.shape[1])
    for row_E in weights_OE.numpy():  # one row after the other: a reduction would add in an order that differs between machines
        importance_E = importance_E + np.abs(row_E.astype(np.float64))
    in_blocks = importance_E.reshape(blocks, -1)
    places = np.argsort(-in_blocks, axis=1, kind="stable").astype(np.int64)
    return (places + in_blocks.shape[1] * np.arange(blocks)[:, None]).ravel()


@dataclass(frozen=True, slots=True)
class State:
    """Model and optimiser after ``round`` updates. Nobody writes into its tensors: a step makes new ones."""

    round: int
    parameters: Tensor  # (N,) fp32, CPU
    moments: Moments  # of the step that ends a round, see ``num_moments``; each (N,) fp32, CPU
    teacher: bytes = b""  # digest of the state that the schedule's later phases learn from; empty up to that state itself


def initial_state(plan: Plan) -> State:
    """Return a run's state of round 0. Its maker's machine decides the bits; everybody else fetches it by digest."""
    supernet = build(plan.space)
    supernet.initialise(torch.Generator().manual_seed(plan.seed))
    parameters_N = supernet.flat_weights_N.clone()
    count = num_moments(plan.optimizer, plan.local_steps)
    return State(0, parameters_N, tuple(torch.zeros_like(parameters_N) for _ in range(count)))


def num_moments(optimizer: Optimizer, local_steps: int) -> int:
    """Return how many moment vectors a run's states have: the optimiser's own, or with several local steps the outer momentum alone."""
    return num_own_moments(optimizer) if local_steps == 1 else 1


@torch.no_grad()
def next_state(state: State, mean: Tensor, plan: Plan) -> State:
    """Return the state after one more round of ``plan``; ``state`` stays as it is.

    A step that would lead to a value that is not finite is not taken: weights and moments stay what they were.

    Args:
        state: of the round before.
        mean: (N,) the round's mean of what cohorts learnt: the gradient, or with several local steps the change of the weights.
        plan: of the run.

    Raises:
        ValueError: the mean or the moments do not fit.
        OwnFault: this thread flushes denormals to zero, so it would compute other bits than everybody else.
    """
    if mean.shape != state.parameters.shape or mean.dtype != torch.float32 or mean.device.type != "cpu":
        raise ValueError("the mean is an fp32 CPU vector as long as the parameters")
    expected = num_moments(plan.optimizer, plan.local_steps)
    if len(state.moments) != expected:
        raise ValueError(
            f"a state of {plan.optimizer.name} with {plan.local_steps} local steps has {expected} moments, not {len(state.moments)}"
        )
    round_ = state.round + 1
    parameters_N, moments = _step(state, mean, plan)
    if not are_finite(parameters_N, *moments):
        parameters_N, moments = state.parameters, state.moments
    if plan.sorts_after(round_):
        parameters_N, moments = sort_channels(parameters_N, moments, plan.supernet)
    return State(round_, parameters_N, moments, state_digest(state) if state.round == plan.teacher_round else state.teacher)


def _step(state: State, mean_N: Tensor, plan: Plan) -> tuple[Tensor, Moments]:
    if plan.local_steps == 1:
        number = state.round + 1
        rate, decays_N = plan.learning_rate(number), decaying(plan)
        return own_step(state.parameters, state.moments, mean_N, plan.optimizer, rate=rate, number=number, decays_N=decays_N)
    parameters_N, momentum_N = outer_step(state.parameters, state.moments[0], mean_N, plan.optimizer)
    return parameters_N, (momentum_N,)


def teacher_digest(state: State, plan: Plan) -> bytes | None:
    """Return the digest of the state that the round after ``state`` learns from; None where it learns from the samples alone.

    In the first round that has a teacher it is ``state`` itself, and in every one whose phase teaches itself.
    """
    phase = plan.phase(state.round + 1)
    if not phase.distils:
        return None
    return state_digest(state) if phase.teaches_itself or state.round == plan.teacher_round else state.teacher


def state_pieces(state: State) -> list[bytes | memoryview]:
    """Return a state's canonical bytes in pieces: its CBOR header, then the groups of each vector. They are the leaves of its digest."""
    header = encode((FORMAT, state.round, state.parameters.numel(), len(state.moments), state.teacher))
    return [header, *(group for vector in (state.parameters, *state.moments) for group in vector_groups(vector.numpy()))]


def state_digest(state: State) -> Digest:
    """Return a state's digest: the root over its pieces (RFC 9162 section 2.1)."""
    return Digest(root(leaf_hash(bytes(piece)) for piece in state_pieces(state)))


def state_piece_sizes(num_weights: int, optimizer: Optimizer, local_steps: int) -> tuple[int, ...]:
    """Return the most bytes that each piece of a run's states can have: what a reader bounds a download by."""
    return (_MAX_HEADER_BYTES, *vector_group_sizes(num_weights) * (1 + num_moments(optimizer, local_steps)))


def state_from_pieces(pieces: Sequence[bytes | memoryview], expected_num: int) -> State:
    """Return the state of ``state_pieces``; ``expected_num`` is the supernet's number of weights.

    Raises:
        EncodingError: not the pieces of a state of that supernet, or a number in it is not finite.
    """
    header = decode(bytes(pieces[0]), max_bytes=_MAX_HEADER_BYTES) if pieces else ()
    if type(header) is not tuple or len(header) != 5 or header[0] != FORMAT:
        raise EncodingError(f"not a header of {FORMAT}")
    _, round_, count, moments, teacher = header
    if type(round_) is not int or not 0 <= round_ <= MAX_ROUND:
        raise EncodingError("the state's round is out of range")
    if type(count) is not int or count != expected_num:
        raise EncodingError(f"the state has {count!r} weights, not {expected_num}")
    if type(moments) is not int or not 1 <= moments <= _MAX_MOMENTS:
        raise EncodingError(f"a state has 1 to {_MAX_MOMENTS} moments")
    if type(teacher) is not bytes or len(teacher) not in (0, 32):
        raise EncodingError("the digest of a state's teacher has 32 bytes, or none")
    groups = len(vector_group_sizes(count))
    if len(pieces) != 1 + groups * (1 + moments):
        raise EncodingError(f"{len(pieces)} pieces are not those of {1 + moments} vectors of {count} weights")
    vectors = [torch.from_numpy(joined(pieces[start : start + groups], count)) for start in range(1, len(pieces), groups)]
    return State(round_, vectors[0], tuple(vectors[1:]), teacher)


def self_test() -> None:
    """Check that this machine computes the exact update as everybody else does; takes some milliseconds.

    Raises:
        OwnFault: it does not. This machine must not take part in a run.
    """
    if known_digest() != _KNOWN_DIGEST:
        raise OwnFault("this machine computes other bits than it should (self-test of the update): it cannot take part in a run")


@torch.no_grad()
def known_digest() -> str:
    """Return the digest that ``self_test`` compares, in hex."""
    digest = hashlib.sha256()
    for name in ("adamw", "sgd"):
        optimizer = Optimizer(name, "0.002", "0.9", "0.999", "0.00000001", "0.01", 30, "0.9", "0.5")
        weights_N = _known_vector(1)
        moments: Moments = tuple(_known_vector(2 + place).abs() for place in range(num_own_moments(optimizer)))
        for step in range(3):
            weights_N, moments = own_step(weights_N, moments, _known_vector(7 + step), optimizer, rate=0.001, number=step + 1)
        _add(digest, weights_N, *moments)
    weights_N, momentum_N = _known_vector(1), _known_vector(2).abs()
    for step in range(3):
        weights_N, momentum_N = outer_step(weights_N, momentum_N, _known_vector(7 + step), optimizer)
    _add(digest, weights_N, momentum_N)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", *vectors: Tensor) -> None:
    for vector in vectors:
        digest.update(np.ascontiguousarray(vector.numpy(), dtype="<f4").data)


def _known_vector(salt: int) -> Tensor:
    """Return fp32 values made of integers: of all signs, magnitudes from 2^-149 to 2^10, a quarter of them denormal."""
    words = np.frombuffer(hashlib.shake_256(b"manta/self-test" + bytes([salt])).digest(4 * _KNOWN_LENGTH), dtype="<u4")
    exponents = np.where(words >> 30 == 0, 0, (words >> 23) % 137).astype(np.uint32)
    bits = (words & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))
    return torch.from_numpy(bits.astype(np.uint32).view(np.float32).copy())


class LocalSteps:
    """The weights of one cohort in one round, from local step to local step."""

    def __init__(self, state: State, plan: Plan, part: slice = slice(None)) -> None:
        """Begin at a committed state, in the round after it. ``state`` and gradients may have a ``part`` of the weights only."""
        self._base_N = self._weights_N = state.parameters
        self._moments = tuple(torch.zeros_like(state.parameters) for _ in range(num_own_moments(plan.optimizer)))
        self._optimizer = plan.optimizer
        self._rate = plan.learning_rate(state.round + 1)
        decays_N = decaying(plan)
        self._decays_N = None if decays_N is None else decays_N[part]
        self._number = 0
        self._taken = 0

    @property
    def weights(self) -> Tensor:
        """What the next step's microbatches are trained on, (N,) fp32, CPU. Nobody writes into it: a step makes a new one."""
        return self._weights_N

    @property
    def number(self) -> int:
        """How many steps there were."""
        return self._number

    @property
    def taken(self) -> int:
        """How many of them were taken: those that led to finite values."""
        return self._taken

    @torch.no_grad()
    def step(self, gradient: Tensor) -> bool:
        """Make one step along a gradient (N,), the cohort's mean; return whether it was taken.

        A step that would lead to a value that is not finite is not taken: weights and moments stay what they were, and the next step is
        the next one all the same.

        Raises:
            ValueError: the gradient does not fit.
            OwnFault: as ``codec.scaling.check_denormals``.
        """
        if gradient.shape != self._base_N.shape or gradient.dtype != torch.float32 or gradient.device.type != "cpu":
            raise ValueError("a gradient is an fp32 CPU vector as long as the weights")
        self._number += 1
        weights_N, moments = own_step(
            self._weights_N,
            self._moments,
            gradient,
            self._optimizer,
            rate=self._rate,
            number=self._number,
            decays_N=self._decays_N,
        )
        is_taken = are_finite(weights_N, *moments)
        if is_taken:
            self._weights_N, self._moments = weights_N, moments
            self._taken += 1
        return is_taken

    def pass_over(self) -> None:
        """Count a step that is known not to have been taken."""
        self._number += 1

    @torch.no_grad()
    def learnt(self) -> Tensor:
        """Return the weights at the base less those now, (N,) fp32: it stands where a gradient would."""
        return self._base_N - self._weights_N
