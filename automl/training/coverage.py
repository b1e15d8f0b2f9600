"""Which of the flat weights an architecture's subnet is made of, and what a run's log and tables need to know of its training.

A cohort that trains an architecture has something to say about these weights alone. They are found by differentiating what the one slicing
function returns (``automl.models.layers``), with every weight 1: the sum of all that the subnet uses grows with a weight if and only if the
subnet uses it. What is not among these weights belongs to every architecture.

Shapes: N all weights of the supernet.
"""

from functools import cache, lru_cache
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec

_REMEMBERED = 256  # of the latest: a table of model-parallel asks for a random architecture for every second row

_in_use: WeakValueDictionary[tuple[str, Architecture], NDArray[np.bool_]] = WeakValueDictionary()


def coverage(space: SearchSpace, architecture: Architecture) -> NDArray[np.bool_]:
    """Return (N,) whether a subnet of ``space`` uses each weight, normalisations' and kernel transforms' included; nobody may write to it.

    Weight decay and momentum move the others too; gradients don't. As long as somebody has it, all get the same array.
    """
    known = _in_use.get((space.name, architecture))
    if known is None:
        packed, count = _packed(space.name, architecture)
        known = np.unpackbits(packed, count=count).view(np.bool_)
        known.flags.writeable = False
        _in_use[space.name, architecture] = known
    return known


def coverage_of(plan: Plan, round: int, cohort: str) -> NDArray[np.bool_] | None:
    """Return (N,) which weights a cohort's contribution is about, see ``coverage``; None: all.

    All in data-parallel, and with one local step: a gradient is zero where there is nothing to say, and counts as that.

    Args:
        plan: of the run.
        round: the one after the contribution's base, in whichever it counts.
        cohort: the name that model-parallel's architectures follow from.
    """
    if plan.algorithm == "data-parallel" or plan.local_steps == 1:
        return None
    (architecture,) = plan.architectures(round, cohort)
    return coverage(plan.space, architecture)


@lru_cache(_REMEMBERED)
def _packed(supernet_name: str, architecture: Architecture) -> tuple[NDArray[np.uint8], int]:
    """Return the coverage, eight weights a byte, and N."""
    supernet = _of_ones(supernet_name)
    weights = dict(supernet.named_parameters())
    total = torch.zeros(())
    with torch.enable_grad():
        for used in supernet.searchable_weights_for(architecture):
            total = total + used.sum()
        # Not ``backward``: it would write into the supernet, which other threads may be using.
        slopes = dict(zip(weights, torch.autograd.grad(total, list(weights.values()), allow_unused=True), strict=True))
    covered_N = np.ones(supernet.num_weights, np.bool_)
    for name, (start, stop) in supernet.slices().items():
        slope = slopes[name]
        if slope is not None:
            covered_N[start:stop] = slope.flatten().numpy() != 0.0
        elif name.startswith("units."):
            covered_N[start:stop] = False
    return np.packbits(covered_N), covered_N.size


@cache
def _of_ones(supernet_name: str) -> Supernet:
    supernet = build(space_named(supernet_name))
    supernet.load(torch.ones(supernet.num_weights))
    return supernet


class RunTrainingSpec(ManifestTrainingSpec):
    """The training spec of a manifest, with which weights a contribution is about. Implements ``protocol.rewards.TrainingSpec``."""

    def coverage(self, round: int, cohort: str) -> NDArray[np.bool_] | None:
        """Return (N,) which weights a cohort's contribution to a round is about; None: all, see ``coverage_of``."""
        return coverage_of(self.plan, round, cohort)
