"""A run's state and the exact update: the same bits on whatever hardware.

The update is the optimiser's step and what the schedule changes at the end of a phase: channels are sorted, and the state that the later
phases learn from is remembered by its digest.

Only elementwise operations that IEEE 754 rounds exactly, each on its own: multiply, add, subtract, divide, square root. Never a
fused one, no power, no reduction, no device but the CPU, and denormals are kept. ``self_test`` shows that this machine does so.

Shapes: N all weights of the supernet.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from automl.networks import build
from automl.schedule import Plan
from automl.sorting import sort_channels
from exact.vectors import joined, vector_group_sizes, vector_groups
from protocol.encoding import decode, encode
from protocol.errors import EncodingError, OwnFault
from protocol.merkle import leaf_hash, root
from protocol.records import MAX_ROUND, Optimizer
from protocol.signing import Digest

FORMAT = "manta/state/v3"
_MAX_HEADER_BYTES = 96
_MAX_MOMENTS = 2


@dataclass(frozen=True, slots=True)
class State:
    """Model and optimiser after ``round`` updates. Nobody writes into its tensors: a step makes new ones."""

    round: int
    parameters: Tensor  # (N,) fp32, CPU
    moments: tuple[Tensor, ...]  # AdamW: first and second moment; SGD: momentum; each (N,) fp32, CPU
    teacher: bytes = b""  # digest of the state that the schedule's later phases learn from; empty up to that state itself


def initial_state(plan: Plan) -> State:
    """Return a run's state of round 0. Its maker's machine decides the bits; everybody else fetches it by digest."""
    supernet = build(plan.space)
    supernet.initialise(torch.Generator().manual_seed(plan.seed))
    parameters_N = supernet.flat_weights_N.clone()
    return State(0, parameters_N, tuple(torch.zeros_like(parameters_N) for _ in range(num_moments(plan.optimizer))))


def num_moments(optimizer: Optimizer) -> int:
    """Return how many moment vectors a state of this optimiser has."""
    return 2 if optimizer.name == "adamw" else 1


@torch.no_grad()
def next_state(state: State, mean: Tensor, plan: Plan) -> State:
    """Return the state after one more round of ``plan`` with the averaged gradient ``mean`` (N,); ``state`` stays as it is.

    A step that would lead to a value that is not finite is not taken: weights and moments stay what they were.

    Raises:
        ValueError: the mean or the moments do not fit.
        OwnFault: this thread flushes denormals to zero, so it would compute other bits than everybody else.
    """
    if mean.shape != state.parameters.shape or mean.dtype != torch.float32 or mean.device.type != "cpu":
        raise ValueError("the mean is an fp32 CPU vector as long as the parameters")
    if len(state.moments) != num_moments(plan.optimizer):
        raise ValueError(f"a state of {plan.optimizer.name} has {num_moments(plan.optimizer)} moments, not {len(state.moments)}")
    round_ = state.round + 1
    parameters_N, moments = _step(state, mean, plan.optimizer, plan.learning_rate(round_))
    if not all(bool(vector_N.isfinite().all()) for vector_N in (parameters_N, *moments)):
        parameters_N, moments = state.parameters, state.moments
    if plan.sorts_after(round_):
        parameters_N, moments = sort_channels(parameters_N, moments, plan.supernet)
    return State(round_, parameters_N, moments, state_digest(state) if state.round == plan.teacher_round else state.teacher)


def teacher_digest(state: State, plan: Plan) -> bytes | None:
    """Return the digest of the state that the round after ``state`` learns from; None where it learns from the samples alone.

    In the first round that has a teacher it is ``state`` itself.
    """
    if not plan.phase(state.round + 1).distils:
        return None
    return state_digest(state) if state.round == plan.teacher_round else state.teacher


def _step(state: State, mean_N: Tensor, optimizer: Optimizer, rate: float) -> tuple[Tensor, tuple[Tensor, ...]]:
    _check_denormals()
    return (_adamw if optimizer.name == "adamw" else _sgd)(state, mean_N, optimizer, rate)


def _adamw(state: State, mean_N: Tensor, optimizer: Optimizer, rate: float) -> tuple[Tensor, tuple[Tensor, ...]]:
    """AdamW with decoupled decay (arXiv:1711.05101, algorithm 2)."""
    beta1, beta2 = float(optimizer.beta1), float(optimizer.beta2)
    first_N = (state.moments[0] * beta1) + (mean_N * (1.0 - beta1))
    second_N = (state.moments[1] * beta2) + ((mean_N * mean_N) * (1.0 - beta2))
    correction1 = 1.0 - _power(beta1, state.round + 1)
    correction2 = 1.0 - _power(beta2, state.round + 1)
    direction_N = (first_N / correction1) / (_square_root(second_N / correction2) + float(optimizer.epsilon))
    decayed_N = state.parameters * (1.0 - rate * float(optimizer.weight_decay))
    return decayed_N - (direction_N * rate), (first_N, second_N)


def _sgd(state: State, mean_N: Tensor, optimizer: Optimizer, rate: float) -> tuple[Tensor, tuple[Tensor, ...]]:
    """SGD with momentum, the decay added to the gradient; as torch.optim.SGD without dampening."""
    gradient_N = mean_N + (state.parameters * float(optimizer.weight_decay))
    momentum_N = (state.moments[0] * float(optimizer.beta1)) + gradient_N
    return state.parameters - (momentum_N * rate), (momentum_N,)


def _square_root(values_N: Tensor) -> Tensor:
    """Return the square roots, rounded exactly: torch's own may come from a vector library that is one bit off, and not everywhere."""
    return torch.from_numpy(np.sqrt(values_N.numpy()))


def _power(value: float, exponent: int) -> float:
    """Return ``value`` to an integer power by multiplications in a fixed order: libm's pow differs between machines."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= value
        value *= value
        exponent >>= 1
    return result


def _check_denormals() -> None:
    smallest = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    if (smallest * 1.0).view(torch.int32).item() != 1:
        raise OwnFault("this thread flushes denormal numbers to zero: something called torch.set_flush_denormal(True); remove that call")


def state_pieces(state: State) -> list[bytes | memoryview]:
    """Return a state's canonical bytes in pieces: its CBOR header, then the groups of each vector. They are the leaves of its digest."""
    header = encode((FORMAT, state.round, state.parameters.numel(), len(state.moments), state.teacher))
    return [header, *(group for vector in (state.parameters, *state.moments) for group in vector_groups(vector.numpy()))]


def state_digest(state: State) -> Digest:
    """Return a state's digest: the root over its pieces (RFC 9162 section 2.1)."""
    return Digest(root(leaf_hash(bytes(piece)) for piece in state_pieces(state)))


def state_piece_sizes(num_weights: int, optimizer: Optimizer) -> tuple[int, ...]:
    """Return the most bytes that each piece of a run's states can have: what a reader bounds a download by."""
    return (_MAX_HEADER_BYTES, *vector_group_sizes(num_weights) * (1 + num_moments(optimizer)))


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


# SHA-256 over three updates of ``_known_state`` with each optimiser; the same under ATEN_CPU_CAPABILITY=default, avx2 and avx512.
_KNOWN_DIGEST = "e5e3b94e917faaf11d71330533a5abe76dbf49754fc168d95d69ade7e1d6da29"
_KNOWN_LENGTH = 70_001  # long enough to be split over threads, odd so that vector tails are covered


def self_test() -> None:
    """Check that this machine computes the exact update as everybody else does; takes some milliseconds.

    Raises:
        OwnFault: it does not. This machine must not take part in a run.
    """
    if known_digest() != _KNOWN_DIGEST:
        raise OwnFault("this machine computes other bits than it should (self-test of the update): it cannot take part in a run")


def known_digest() -> str:
    """Return the digest that ``self_test`` compares, in hex."""
    digest = hashlib.sha256()
    for name in ("adamw", "sgd"):
        optimizer = Optimizer(name, "0.002", "0.9", "0.999", "0.00000001", "0.01", 30)
        state = _known_state(num_moments(optimizer))
        for step in range(3):
            state = State(step + 1, *_step(state, _known_vector(7 + step), optimizer, 0.001))
        for vector in (state.parameters, *state.moments):
            digest.update(np.ascontiguousarray(vector.numpy(), dtype="<f4").data)
    return digest.hexdigest()


def _known_state(moments: int) -> State:
    return State(0, _known_vector(1), tuple(_known_vector(2 + i).abs() for i in range(moments)))


def _known_vector(salt: int) -> Tensor:
    """Return fp32 values made of integers: of all signs, magnitudes from 2^-149 to 2^10, a quarter of them denormal."""
    words = np.frombuffer(hashlib.shake_256(b"manta/self-test" + bytes([salt])).digest(4 * _KNOWN_LENGTH), dtype="<u4")
    exponents = np.where(words >> 30 == 0, 0, (words >> 23) % 137).astype(np.uint32)
    bits = (words & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))
    return torch.from_numpy(bits.astype(np.uint32).view(np.float32).copy())
