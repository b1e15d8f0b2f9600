"""Training in one process with several cohorts and local steps: both tasks, algorithms and schedules, and after a kill the same bits."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.training.cohorts import LocalCohort, LocalExchange
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import TASKS, first_min_exponent, thin, usual
from manta_swarm.automl.training.trainer import SimulatedSwarm, Trainer, TrainingDirectory
from manta_swarm.automl.training.update import LocalSteps, initial_state, next_state, state_digest
from manta_swarm.codec.coding import body_num_bytes, encode, parse
from manta_swarm.protocol.encoding import encode as cbor
from manta_swarm.protocol.exchange import MAX_LOCAL_STEPS, codec_named
from manta_swarm.protocol.signing import sha256
from tests.automl.commands.mistakes import assert_one_line
from tests.automl.small import SMALL
from tests.automl.training.recorders import microbatches_of

pytestmark = pytest.mark.usefixtures("small_known")

SPARSE = "topk-256-4"


@pytest.fixture(scope="module")
def layers() -> Dataset:
    return load_dataset("layers", None)


def plan_of(
    task: str = "classification", algorithm: str = "data-parallel", schedule: str = "sandwich", rounds: int = 6, local_steps: int = 2
) -> Plan:
    supernet = SMALL.name if task == "classification" else usual(task).supernet
    return Plan(supernet, schedule, algorithm, usual(task).optimizer, rounds, seed=4, local_steps=local_steps)


def trainer(data: Dataset, plan: Plan, cohorts: int = 2, codec: str | None = SPARSE, percent: int = 100) -> Trainer:
    batch = 2 * cohorts * plan.local_steps  # one microbatch a cohort and step
    return Trainer(plan, data, SimulatedSwarm(2, batch, cohorts, codec, percent))


def kept(directory: Path, data: Dataset, plan: Plan, codec: str | None = SPARSE) -> tuple[Trainer, TrainingDirectory]:
    training = trainer(data, plan, codec=codec)
    return training, TrainingDirectory(directory, training, data)


def test_every_microbatch_of_a_round_is_another_one_and_each_cohort_goes_on_in_its_own_sweep(few: ImageDataset) -> None:
    plan = plan_of(local_steps=2)
    training = Trainer(plan, few, SimulatedSwarm(2, 24, cohorts=3, codec=SPARSE))
    microbatches = microbatches_of(training, 2)
    assert len(microbatches) == 2 * 3 * 2 * 2  # rounds, cohorts, steps, and two microbatches of two samples make the 24
    assert len({(microbatch.base, microbatch.key, microbatch.index) for microbatch in microbatches}) == len(microbatches)
    for round_, cohort in itertools.product((1, 2), range(3)):
        of_round = microbatches[12 * (round_ - 1) : 12 * round_]
        of_cohort = [microbatch for microbatch in of_round if microbatch.key == LocalCohort.numbered(cohort).key]
        assert len({microbatch.base for microbatch in of_round}) == 1
        assert [microbatch.step for microbatch in of_cohort] == [0, 0, 1, 1]
        assert [microbatch.index for microbatch in of_cohort] == list(range(4))
        architectures = plan.architectures(round_, "any")
        first = of_cohort[0].base[0] + cohort
        assert [microbatch.architecture for microbatch in of_cohort] == [architectures[(first + index) % 8] for index in range(4)]


def test_in_model_parallel_each_cohort_trains_its_own_architecture_in_all_steps_of_a_round(few: ImageDataset) -> None:
    plan = plan_of(algorithm="model-parallel", local_steps=3)
    for round_ in (1, 2):
        training = trainer(few, plan, cohorts=3)
        microbatches = microbatches_of(training, round_)[-9:]
        for cohort in (LocalCohort.numbered(number) for number in range(3)):
            architectures = {microbatch.architecture for microbatch in microbatches if microbatch.key == cohort.key}
            assert architectures == set(plan.architectures(round_, cohort.name))


def test_a_training_of_one_cohort_without_a_codec_is_the_mean_gradient_and_the_optimisers_step(few: ImageDataset) -> None:
    plan = plan_of(local_steps=1)
    training = Trainer(plan, few, SimulatedSwarm(4, 12))
    assert training.traffic is None
    worker, state = Worker(plan.supernet, few), initial_state(plan)
    for round_ in range(1, 4):
        worker.load(state.parameters)
        base, architectures = sha256(cbor(("local round", round_ - 1))), plan.architectures(round_, "any")
        microbatches = [Microbatch(plan.seed, base, 0, bytes(32), index, architectures[(base[0] + index) % 4], 4) for index in range(3)]
        results = [worker.train(microbatch) for microbatch in microbatches]
        mean = (torch.zeros(worker.num_weights) + results[0].gradient + results[1].gradient + results[2].gradient) / 3
        state = next_state(state, mean, plan)
        assert training.step().loss == (results[0].loss + results[1].loss + results[2].loss) / 3
        assert state_digest(training.state) == state_digest(state)


def test_a_cohort_with_local_steps_is_made_by_hand_with_the_same_bits(few: ImageDataset) -> None:
    plan = plan_of(local_steps=3)
    training = trainer(few, plan, cohorts=1)
    worker, state = Worker(plan.supernet, few), initial_state(plan)
    residual, min_exponent = np.zeros(worker.num_weights, np.float32), first_min_exponent(SPARSE)
    for round_ in (1, 2):
        base, architectures = sha256(cbor(("local round", round_ - 1))), plan.architectures(round_, "any")
        local = LocalSteps(state, plan)
        for step in range(3):
            worker.load(local.weights)
            microbatch = Microbatch(plan.seed, base, step, bytes(32), step, architectures[(base[0] + step) % 12], 2)
            local.step(worker.train(microbatch).gradient)
        given = local.learnt().numpy() + residual
        body = parse(SPARSE, encode(SPARSE, given, min_exponent), len(given))
        residual = given - body.values(min_exponent)
        state = next_state(state, torch.from_numpy(body.values(min_exponent)), plan)  # the mean of one row is what it decodes to
        training.step()
        assert state_digest(training.state) == state_digest(state)
        memory = training.memory
        assert memory is not None
        assert memory.residuals[0] is not None
        assert np.array_equal(memory.residuals[0], residual)
        min_exponent = memory.min_exponent


@pytest.mark.parametrize(
    ("algorithm", "schedule", "local_steps"),
    [
        ("data-parallel", "sandwich", 1),
        ("data-parallel", "shrinking", 2),
        ("model-parallel", "sandwich", 2),
        ("model-parallel", "shrinking", 1),
        ("model-parallel", "shrinking", 2),
    ],
)
def test_digits_train_through_all_phases_and_after_a_kill_end_on_the_same_bits(
    algorithm: str, schedule: str, local_steps: int, few: ImageDataset, tmp_path: Path
) -> None:
    plan = plan_of("classification", algorithm, schedule, local_steps=local_steps)
    whole = trainer(few, plan)
    expected = [whole.step() for _ in range(6)]
    assert all(np.isfinite(step.loss) for step in expected)
    assert whole.state.parameters.isfinite().all()
    assert len(whole.state.moments) == (1 if local_steps > 1 else 2)

    for step in kept(tmp_path / "out", few, plan)[1].rounds(2):
        if step.round == 5:
            break  # as sudden as a kill: nothing is saved for it
    again, directory = kept(tmp_path / "out", few, plan)
    assert again.state.round >= 4
    assert [step.round for step in directory.rounds(2)][-1] == 6
    assert state_digest(again.state) == state_digest(whole.state)
    assert again.memory is not None
    assert whole.memory is not None
    assert (again.memory.min_exponent, again.memory.thresholds) == (whole.memory.min_exponent, whole.memory.thresholds)
    for one, other in zip(again.memory.residuals, whole.memory.residuals, strict=True):
        assert np.array_equal(np.zeros(1) if one is None else one, np.zeros(1) if other is None else other)
    assert {path.name for path in (tmp_path / "out").glob("exchange-*")} == {"exchange-00000006.safetensors"}


@pytest.mark.parametrize(("algorithm", "schedule"), [("data-parallel", "sandwich"), ("model-parallel", "shrinking")])
def test_layers_train_with_local_steps_through_all_phases(algorithm: str, schedule: str, layers: Dataset) -> None:
    expected = ["sandwich"] * 2 if schedule == "sandwich" else ["full", "kernel", "depth", "width", "width"]
    training = trainer(layers, plan_of("stereo", algorithm, schedule, rounds=len(expected)), cohorts=2 if schedule == "sandwich" else 1)
    steps = [training.step() for _ in expected]
    assert all(np.isfinite(step.loss) for step in steps)
    assert training.state.parameters.isfinite().all()
    assert [step.phase for step in steps] == expected
    assert (training.state.teacher != b"") == (schedule == "shrinking")


def test_the_round_that_sorts_channels_leaves_no_residuals(few: ImageDataset) -> None:
    plan = plan_of(schedule="shrinking", rounds=6)
    training = trainer(few, plan)
    for round_ in range(1, 7):
        training.step()
        memory = training.memory
        assert memory is not None
        assert all((residual is None) == plan.sorts_after(round_) for residual in memory.residuals)
    assert any(plan.sorts_after(round_) for round_ in range(1, 7))


def test_in_model_parallel_with_local_steps_what_no_cohort_covers_stays_as_it_is(few: ImageDataset) -> None:
    plan = plan_of(algorithm="model-parallel", rounds=40)
    smallest = plan.space.smallest()
    round_ = next(each for each in range(1, 41) if plan.architectures(each, "local-0") == (smallest,))
    training = trainer(few, plan, cohorts=1)
    training.resume(replace(initial_state(plan), round=round_ - 1), None)
    before = training.state.parameters
    training.step()
    is_moved = (training.state.parameters != before).numpy()
    assert is_moved.any()
    assert not (is_moved & ~coverage(plan.space, smallest)).any()


def test_cohorts_send_what_their_bodies_weigh(few: ImageDataset) -> None:
    for codec, local_steps, ratio in (("int16", 1, 1.0), ("int8", 4, 8.0), (SPARSE, 10, 255.2)):
        plan = replace(plan_of(local_steps=local_steps), supernet="classifier-tiny")
        traffic = trainer(few, plan, cohorts=3, codec=codec).traffic
        assert traffic is not None
        assert traffic.sent_bytes == 3 * body_num_bytes(codec, 205_696)
        assert traffic.fp16_ratio == pytest.approx(ratio, rel=1e-3)
    assert trainer(few, plan_of(local_steps=2), codec=None).memory is not None


def test_a_training_does_not_go_on_with_other_cohorts_or_another_codec(few: ImageDataset, tmp_path: Path) -> None:
    kept(tmp_path, few, plan_of())
    for other, said in ((plan_of(local_steps=3), "local_steps 2, not 3"), (plan_of(algorithm="model-parallel"), "algorithm")):
        with pytest.raises(Exception, match=said):
            kept(tmp_path, few, other)
    with pytest.raises(Exception, match="codec 'topk-256-4', not 'int8'"):
        kept(tmp_path, few, plan_of(), codec="int8")


def test_a_folder_whose_exchange_is_gone_says_so(few: ImageDataset, tmp_path: Path) -> None:
    _, directory = kept(tmp_path, few, plan_of())
    next(rounds := directory.rounds(1))
    next(rounds)
    directory.save()
    (tmp_path / "exchange-00000002.safetensors").unlink()
    with pytest.raises(Exception, match="exchange-00000002"):
        kept(tmp_path, few, plan_of())


def test_a_round_of_a_training_needs_cohorts_and_a_codec_that_there_are(few: ImageDataset) -> None:
    for wrong in ({"cohorts": 0}, {"cohorts": 1025}, {"codec": "zip"}, {"percent": 101}):
        with pytest.raises(ValueError, match=r"cohorts|codec|percent"):
            trainer(few, plan_of(), **wrong)  # type: ignore[arg-type]
    for steps in (0, MAX_LOCAL_STEPS + 1):
        with pytest.raises(ValueError, match="local steps"):
            plan_of(local_steps=steps)


@pytest.mark.parametrize("task", TASKS)
def test_the_thin_settings_have_the_updates_and_samples_of_the_usual_ones_and_150_times_fewer_bytes(task: str) -> None:
    one, other = usual(task), thin(task)
    assert one.local_steps == 1
    assert other.num_rounds * other.local_steps == one.num_rounds
    assert other.target_batch == one.target_batch * other.local_steps
    assert codec_named(other.codec).is_sparse
    weights = len(initial_state(replace(plan_of(task), supernet=one.supernet)).parameters)
    assert 2 * weights * other.local_steps > 150 * LocalExchange(other.codec, 100, weights, 1).contribution_bytes


def test_settings_with_other_local_steps_have_no_fewer_updates() -> None:
    for steps in (1, 3, 7, 16, 200, 999):
        settings = usual("classification").with_local_steps(steps)
        assert settings.num_rounds * steps >= 200 > (settings.num_rounds - 1) * steps
        assert settings.target_batch == 512 * steps


def test_the_command_trains_cohorts_and_says_what_they_sent(tmp_path: Path) -> None:
    small = ["--rounds", "2", "--microbatch-samples", "2", "--target-batch", "4", "--threads", "1"]
    thinly = ["--local-steps", "2", "--cohorts", "2", "--codec", SPARSE, "--residual-percent", "95", "--algorithm", "model-parallel"]
    arguments = ["train", "--out", str(tmp_path / "out"), *small, *thinly]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    sent = 2 * body_num_bytes(SPARSE, 205_696)
    assert (
        f"{sent:,} bytes a round, {2 * sent:,} in all; with 2 bytes a weight after every update it were 51.0 times as many" in result.output
    )
    assert CliRunner().invoke(main, arguments).exit_code == 0
    other = CliRunner().invoke(main, [*arguments, "--cohorts", "3"])
    assert other.exit_code == 2
    assert "cohorts 2, not 3" in other.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--local-steps", "0"],
        ["--local-steps", "1025"],
        ["--cohorts", "0"],
        ["--cohorts", "1025"],
        ["--codec", "fp16"],
        ["--codec", "topk-4096-4"],
        ["--codec", "topk-256-4", "--residual-percent", "101"],
        ["--codec", "topk-256-4", "--residual-percent", "-1"],
        ["--codec", "int8", "--residual-percent", "95"],
        ["--residual-percent", "95"],
        ["--schedule", "shrinking", "--taught", "50"],
    ],
)
def test_a_wrong_word_about_the_exchange_is_one_line_and_exit_code_two(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["train", "--out", "out", *arguments])
    assert_one_line(result, f"manta-search: {arguments[-2]}")
    assert list(tmp_path.iterdir()) == []
