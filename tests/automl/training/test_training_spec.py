"""What a run asks for, and that a run whose choices this version does not know is refused."""

from dataclasses import replace

import pytest

from manta_swarm.automl.spaces.cost import cost_table, macs
from manta_swarm.automl.spaces.space import BASE, TINY, SearchSpace
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import Identity
from tests.automl.kernels import KERNELS
from tests.runs import manifest_of

OPERATOR = Identity(b"\x0a" * 32)


@pytest.mark.parametrize("space", [TINY, BASE], ids=lambda space: space.name)
def test_a_round_costs_what_its_architectures_do(space: SearchSpace) -> None:
    training_spec = ManifestTrainingSpec(manifest_of(OPERATOR, supernet=space.name, costs=cost_table(space)))
    asked = training_spec.plan.architectures(1, "home")
    assert len(asked) == 4
    assert training_spec.costs(1, "home") == tuple(macs(each, space) for each in asked)


def test_a_run_of_a_space_that_had_no_widths_yet_is_refused_with_what_to_do() -> None:
    before = replace(BASE, units=tuple(replace(unit, widths=()) for unit in BASE.units))
    with pytest.raises(UserError, match="units had no widths to choose from before; use the version that began the run"):
        ManifestTrainingSpec(manifest_of(OPERATOR, supernet="classifier-base", costs=cost_table(before)))


def test_a_run_of_a_space_that_had_more_kernels_is_refused_with_what_to_do() -> None:
    costs = cost_table(KERNELS)
    with pytest.raises(UserError, match=r"this one has no r28 u1\.0:k7e2; use the version that began the run"):
        ManifestTrainingSpec(manifest_of(OPERATOR, supernet="classifier-tiny", costs=costs))
