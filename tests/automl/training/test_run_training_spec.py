"""What the log's rules are told of a run's training, against the plan and the prices that it stands for, in every schedule."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from manta_swarm.automl.spaces.cost import cost_table, macs
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.coverage import RunTrainingSpec, coverage
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.protocol.errors import LedgerError, UserError
from manta_swarm.protocol.manifest import ALGORITHMS, SCHEDULES, Manifest
from manta_swarm.protocol.records import MAX_ARCHITECTURES, MAX_ROLES
from manta_swarm.protocol.rewards import TrainingSpec, architecture_cost
from manta_swarm.protocol.signing import Identity
from tests.runs import manifest_of

OPERATOR = Identity(b"\x0b" * 32)
ROUNDS = 40
COHORTS = ("home", "away")


def run_of(algorithm: str = "data-parallel", schedule: str = "sandwich", supernet: str = "classifier-tiny") -> Manifest:
    costs = cost_table(space_named(supernet))
    return manifest_of(OPERATOR, algorithm=algorithm, schedule=schedule, num_rounds=ROUNDS, supernet=supernet, costs=costs)


RUNS = [
    run_of(algorithm, schedule, supernet)
    for algorithm in ALGORITHMS
    for schedule in SCHEDULES
    for supernet in ("classifier-tiny", "stereo-tiny")
]
every_run = pytest.mark.parametrize("manifest", RUNS, ids=lambda run: f"{run.algorithm} {run.schedule} {run.supernet}")


@every_run
def test_costs_roles_and_the_rounds_that_sort_are_the_plans_and_a_round_entry_has_room_for_all(manifest: Manifest) -> None:
    training_spec: TrainingSpec = RunTrainingSpec(manifest)
    plan, prices, roles = Plan.of(manifest), manifest.cost_table(), set[int]()
    for round_ in range(1, ROUNDS + 1):
        for cohort in COHORTS:
            asked = plan.architectures(round_, cohort)
            expected = tuple(architecture_cost(one.text, prices) for one in asked)
            assert training_spec.costs(round_, cohort) == expected == tuple(macs(one, plan.space) for one in asked)
            assert len(expected) == (4 if manifest.algorithm == "data-parallel" else 1) <= MAX_ARCHITECTURES
            roles.add(training_spec.role(round_, cohort))
            assert training_spec.role(round_, cohort) == plan.role(round_, cohort) < MAX_ROLES
    assert roles == ({0} if manifest.algorithm == "data-parallel" else {0, 1, 2})
    sorts = [round_ for round_ in range(ROUNDS + 1) if training_spec.sorts_after(round_)]
    assert sorts == ([28] if manifest.schedule == "shrinking" else [])  # 70 % of 40: the depths are done


@pytest.mark.parametrize(("algorithm", "asked_for"), [("data-parallel", 1), ("model-parallel", 1000)])
def test_a_round_is_priced_once_however_many_cohorts_ask_unless_each_has_its_own(algorithm: str, asked_for: int) -> None:
    training_spec = RunTrainingSpec(run_of(algorithm))
    with patch.object(Plan, "architectures", autospec=True, side_effect=Plan.architectures) as architectures:
        first = [training_spec.costs(1, f"cohort-{number}") for number in range(1000)]
        assert [training_spec.costs(1, f"cohort-{number}") for number in range(1000)] == first
    assert architectures.call_count == asked_for
    assert len(set(first)) == 1 or algorithm == "model-parallel"


def test_strangers_cannot_fill_the_memory_with_names_of_cohorts() -> None:
    training_spec = RunTrainingSpec(run_of("model-parallel"))
    for number in range(4100):
        training_spec.costs(1, f"cohort-{number}")
    assert training_spec._asked.cache_info().currsize == 4096


@every_run
@pytest.mark.parametrize("local_steps", [1, 10])
def test_only_in_model_parallel_with_local_steps_is_a_contribution_about_a_part_of_the_weights(
    manifest: Manifest, local_steps: int
) -> None:
    training_spec = RunTrainingSpec(replace(manifest, exchange=replace(manifest.exchange, local_steps=local_steps)))
    assert training_spec.plan.local_steps == local_steps
    for round_ in (1, 17, ROUNDS):
        for cohort in COHORTS:
            found = training_spec.coverage(round_, cohort)
            if manifest.algorithm == "data-parallel" or local_steps == 1:
                assert found is None
            else:
                assert found is not None
                assert np.array_equal(found, coverage(training_spec.plan.space, *training_spec.plan.architectures(round_, cohort)))


def test_what_has_no_price_or_no_supernet_is_refused() -> None:
    with pytest.raises(LedgerError, match="no price"):
        RunTrainingSpec(manifest_of(OPERATOR, costs=(("r32", 10),))).costs(1, "home")
    with pytest.raises(UserError, match="unknown supernet 'classifier-huge'"):
        RunTrainingSpec(manifest_of(OPERATOR, supernet="classifier-huge"))


def test_a_round_that_the_run_does_not_have_has_no_costs() -> None:
    for round_ in (0, ROUNDS + 1):
        with pytest.raises(ValueError, match=f"between 1 and {ROUNDS}"):
            RunTrainingSpec(RUNS[0]).costs(round_, "home")
