"""Which weights decay: matrices, by name, and the steps that leave the others alone."""

from dataclasses import replace

import pytest
import torch

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.optimizers import decaying, num_own_moments, own_step
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import usual
from manta_swarm.protocol.manifest import Recipe


def plan_of(task: str, decay: str) -> Plan:
    settings = usual(task)
    return Plan(settings.supernet, "sandwich", "data-parallel", settings.optimizer, 4, seed=0, recipe=Recipe(decay=decay))


@pytest.mark.parametrize("supernet", ["classifier-tiny", "classifier-base-3x10", "stereo-tiny"])
def test_norms_biases_and_transforms_do_not_decay_and_all_else_does(supernet: str) -> None:
    plan = replace(plan_of("stereo" if supernet == "stereo-tiny" else "classification", "matrices"), supernet=supernet)
    decays_N = decaying(plan)
    assert decays_N is not None
    for name, (start, stop) in build(space_named(plan.supernet)).slices().items():
        is_kept = any(part in name for part in ("transforms", "norm", "bias"))
        assert bool(decays_N[start:stop].all()) is not is_kept, name
        assert bool(decays_N[start:stop].any()) is not is_kept, name


def test_where_all_decay_there_is_nothing_to_look_up() -> None:
    assert decaying(plan_of("classification", "all")) is None


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_decays_what_is_named_alone(name: str) -> None:
    optimizer = replace(usual("classification").optimizer, name=name, weight_decay="0.5")
    weights = torch.tensor([1.0, -2.0, 3.0, -4.0])
    moments = tuple(torch.zeros(4) for _ in range(num_own_moments(optimizer)))
    gradient = torch.tensor([0.25, 0.0, -1.0, 0.5])
    decays = torch.tensor([True, False, True, False])
    found, _ = own_step(weights, moments, gradient, optimizer, rate=0.1, number=1, decays_N=decays)
    whole, _ = own_step(weights, moments, gradient, optimizer, rate=0.1, number=1)
    without, _ = own_step(weights, moments, gradient, replace(optimizer, weight_decay="0"), rate=0.1, number=1)
    assert torch.equal(found, torch.where(decays, whole, without))
    assert not torch.equal(whole, without)
