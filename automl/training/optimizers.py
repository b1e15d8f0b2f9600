"""The exact steps of optimisers: the same bits on whatever hardware.

Only elementwise operations that IEEE 754 rounds exactly, each on its own: multiply, add, subtract, divide, square root. Never a
fused one, no power, no reduction, no device but the CPU, and denormals are kept. A step makes new tensors, and leaves those it is given
alone.

By a run's recipe all weights decay, or those that are matrices: a scale, a bias or the transform of a kernel that is pulled to zero is
no simpler network, only a worse one.

Shapes: N all weights of the supernet. Every vector is (N,) fp32 on the CPU.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.codec.scaling import check_denormals
from manta_swarm.protocol.manifest import Optimizer

Moments = tuple[Tensor, ...]


def num_own_moments(optimizer: Optimizer) -> int:
    """Return how many moment vectors ``own_step`` has: AdamW a first and a second moment, SGD a momentum."""
    return 2 if optimizer.name == "adamw" else 1


def own_step(
    weights_N: Tensor,
    moments: Moments,
    gradient_N: Tensor,
    optimizer: Optimizer,
    *,
    rate: float,
    number: int,
    decays_N: Tensor | None = None,
) -> tuple[Tensor, Moments]:
    """Return weights and moments after the optimiser's own step along a gradient.

    Args:
        weights_N: the weights before it.
        moments: ``num_own_moments`` of them, before it.
        gradient_N: of the loss.
        optimizer: AdamW or SGD.
        rate: of this step.
        number: how many steps the moments are of, with this one: AdamW's bias correction.
        decays_N: bool, which weights decay; None: all of them.

    Raises:
        OwnFault: as ``codec.scaling.check_denormals``.
    """
    check_denormals()
    if optimizer.name == "adamw":
        return _adamw(weights_N, moments, gradient_N, optimizer, rate, number, decays_N)
    return _sgd(weights_N, moments, gradient_N, optimizer, rate, decays_N)


def outer_step(weights_N: Tensor, momentum_N: Tensor, change_N: Tensor, optimizer: Optimizer) -> tuple[Tensor, Tensor]:
    """Return weights and momentum after a step of SGD with Nesterov momentum along the mean change of the weights (arXiv:2311.08105).

    Args:
        weights_N: the weights before it.
        momentum_N: before it.
        change_N: weights before less weights after the local steps, so it stands where a gradient would.
        optimizer: whose ``outer_rate`` and ``outer_momentum`` are taken.

    Raises:
        OwnFault: as ``codec.scaling.check_denormals``.
    """
    check_denormals()
    decay, rate = float(optimizer.outer_momentum), float(optimizer.outer_rate)
    momentum_N = (momentum_N * decay) + change_N
    return weights_N - ((change_N + (momentum_N * decay)) * rate), momentum_N


def are_finite(*vectors: Tensor) -> bool:
    """Return whether every value is a finite number: a step to anything else is not taken."""
    return all(bool(vector_N.isfinite().all()) for vector_N in vectors)


def _adamw(
    weights_N: Tensor, moments: Moments, gradient_N: Tensor, optimizer: Optimizer, rate: float, number: int, decays_N: Tensor | None
) -> tuple[Tensor, Moments]:
    """AdamW with decoupled decay (arXiv:1711.05101, algorithm 2)."""
    beta1, beta2 = float(optimizer.beta1), float(optimizer.beta2)
    first_N = (moments[0] * beta1) + (gradient_N * (1.0 - beta1))
    second_N = (moments[1] * beta2) + ((gradient_N * gradient_N) * (1.0 - beta2))
    correction1 = 1.0 - _power(beta1, number)
    correction2 = 1.0 - _power(beta2, number)
    direction_N = (first_N / correction1) / (_square_root(second_N / correction2) + float(optimizer.epsilon))
    factor = 1.0 - rate * float(optimizer.weight_decay)
    decayed_N = weights_N * factor if decays_N is None else torch.where(decays_N, weights_N * factor, weights_N)
    return decayed_N - (direction_N * rate), (first_N, second_N)


def _sgd(
    weights_N: Tensor, moments: Moments, gradient_N: Tensor, optimizer: Optimizer, rate: float, decays_N: Tensor | None
) -> tuple[Tensor, Moments]:
    """SGD with momentum, the decay added to the gradient; as torch.optim.SGD without dampening."""
    decayed_N = gradient_N + (weights_N * float(optimizer.weight_decay))
    if decays_N is not None:
        decayed_N = torch.where(decays_N, decayed_N, gradient_N)
    momentum_N = (moments[0] * float(optimizer.beta1)) + decayed_N
    return weights_N - (momentum_N * rate), (momentum_N,)


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


def decaying(plan: Plan) -> Tensor | None:
    """Return (N,) bool, which weights decay; None: all. Nobody writes into it."""
    return None if plan.recipe.decay == "all" else _matrices(plan.supernet)


def is_matrix(weight: Tensor) -> bool:
    """Return whether a parameter is one of a convolution or of a linear layer, and not a scale or a bias."""
    return weight.dim() > 1


@cache
def _matrices(supernet_name: str) -> Tensor:
    supernet = build(space_named(supernet_name))
    parameters = dict(supernet.named_parameters())
    decays_N = torch.zeros(supernet.num_weights, dtype=torch.bool)
    for name, (start, stop) in supernet.slices().items():
        decays_N[start:stop] = is_matrix(parameters[name]) and ".transforms." not in name
    return decays_N
