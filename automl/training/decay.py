"""Which weights decay: by the run's recipe all of them, or those that are matrices.

A scale, a bias or the transform of a kernel that is pulled to zero is no simpler network, only a worse one.

Shapes: N all weights of the supernet.
"""

from functools import cache

import torch
from torch import Tensor

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.schedule import Plan


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
