from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.dataset import Batch
from manta_swarm.automl.data.image_folder import part_of
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.devices import CallRecorder
from manta_swarm.automl.training.cohorts import LocalCohort
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import usual
from manta_swarm.automl.training.snapshot import save_snapshot
from manta_swarm.automl.training.trainer import SimulatedSwarm, Step, Trainer, TrainingDirectory
from manta_swarm.automl.training.update import State, next_state, state_digest
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.signing import sha256
from tests.automl.small import SMALL
from tests.automl.training.recorders import Counted

pytestmark = pytest.mark.usefixtures("small_known")

PLAN = Plan(SMALL.name, "shrinking", "data-parallel", usual("classification").optimizer, 10, seed=4)


def trainer(few: ImageDataset, plan: Plan = PLAN) -> Trainer:
    return Trainer(plan, few, SimulatedSwarm(8, 30))


def kept(directory: Path, few: ImageDataset, plan: Plan = PLAN) -> tuple[Trainer, TrainingDirectory]:
    training = trainer(few, plan)
    return training, TrainingDirectory(directory, training, few)


def train(directory: TrainingDirectory, last: int | None = None) -> None:
    """Train to the end, or to a round after which everything is saved."""
    for step in directory.rounds(1 if last is None else 100):
        if step.round == last:
            break
    directory.save()


@pytest.fixture(scope="module")
def whole(few: ImageDataset, small_known: None) -> tuple[Trainer, list[Step]]:
    """A training that nothing has broken off, and its steps."""
    training, steps = trainer(few), []
    while not training.finished:
        steps.append(training.step())
    return training, steps


def test_a_training_goes_through_all_phases_and_ends(whole: tuple[Trainer, list[Step]]) -> None:
    training, steps = whole
    assert [step.round for step in steps] == list(range(1, 11))
    assert list(dict.fromkeys(step.phase for step in steps)) == ["full", "kernel", "depth", "width"]
    assert training.teacher is not None
    assert training.teacher.round == PLAN.teacher_round
    assert training.state.teacher == state_digest(training.teacher)


def test_microbatches_of_taught_rounds_learn_from_the_state_that_their_round_begins_with(few: ImageDataset) -> None:
    plan = replace(PLAN, schedule="sandwich", num_rounds=4, recipe=replace(PLAN.recipe, taught_percent=50))
    training, untaught = (trainer(few, replace(plan, recipe=recipe)) for recipe in (plan.recipe, PLAN.recipe))
    assert [training.step().phase for _ in range(4)] == ["sandwich", "sandwich", "taught", "taught"]
    assert training.state.teacher == b""
    for _ in range(2):
        untaught.step()
    before = untaught.state  # the same, so far
    worker = Worker(plan.supernet, few)
    worker.load(before.parameters)
    worker.teach(before.parameters)
    base, cohort = sha256(encode(("local round", 2))), LocalCohort.numbered(0)
    architectures, key = plan.architectures(3, cohort.name), cohort.key
    microbatches = [
        Microbatch(plan.seed, base, 0, key, index, architectures[place_of_microbatch(4, base, key, index)], 8) for index in range(4)
    ]
    mean = sum((worker.train(microbatch).gradient for microbatch in microbatches), torch.zeros(worker.num_weights)) / 4
    again = trainer(few, plan)
    for _ in range(3):
        again.step()
    assert torch.equal(again.state.parameters, next_state(before, mean, plan).parameters)
    untaught.step()
    assert not torch.equal(untaught.state.parameters, again.state.parameters)


def test_a_device_that_makes_the_samples_itself_trains_to_the_same_state(few: ImageDataset) -> None:
    plan = replace(PLAN, schedule="sandwich", num_rounds=2)
    trainings = [Trainer(plan, few, SimulatedSwarm(8, 30), device=device) for device in ("cpu", "cpu:0")]
    for training in trainings:
        while not training.finished:
            training.step()
    assert [worker.makes_samples for training in trainings for worker in training._workers.values()] == ["cpu", "cpu:0"]
    assert state_digest(trainings[0].state) == state_digest(trainings[1].state)


def test_a_training_whose_microbatches_are_recorded_and_replayed_comes_to_the_same_state(
    few: ImageDataset, whole: tuple[Trainer, list[Step]]
) -> None:
    recorder = Counted(CallRecorder())
    training = Trainer(PLAN, few, SimulatedSwarm(8, 30), recorder=recorder)
    while not training.finished:
        training.step()
    assert state_digest(training.state) == state_digest(whole[0].state)
    assert recorder.replayed > recorder.recorded > 1


@pytest.mark.parametrize("stop", [1, 3, 7])
def test_a_training_that_was_killed_in_any_phase_goes_on_with_the_same_losses(
    stop: int, tmp_path: Path, few: ImageDataset, whole: tuple[Trainer, list[Step]]
) -> None:
    training, expected = whole
    _, directory = kept(tmp_path / "out", few)
    steps: list[Step] = []

    for step in directory.rounds(2):
        steps.append(step)
        if step.round > stop:
            break  # as sudden as a kill: nothing is saved for it
    again, directory = kept(tmp_path / "out", few)
    first = again.state.round
    assert first <= stop + 1
    rest = list(directory.rounds(2))
    assert steps == expected[: stop + 1]
    assert rest == expected[first:]
    assert state_digest(again.state) == state_digest(training.state)


def test_a_training_that_is_told_to_stop_has_saved_its_last_round(tmp_path: Path, few: ImageDataset) -> None:
    training, directory = kept(tmp_path, few)
    train(directory, 3)
    assert training.state.round == 3
    assert kept(tmp_path, few)[0].state.round == 3


def test_a_training_that_diverges_says_so_and_keeps_nothing_of_it(tmp_path: Path, few: ImageDataset) -> None:
    steep = replace(PLAN, supernet="classifier-tiny", optimizer=replace(PLAN.optimizer, learning_rate="1000000"))
    training, directory = kept(tmp_path, few, steep)
    rounds: list[int] = []
    with pytest.raises(UserError, match="has diverged: the loss of round"):
        rounds.extend(step.round for step in directory.rounds(1))
    assert kept(tmp_path, few, steep)[0].state.round == len(rounds) == training.state.round - 1


def test_a_round_that_breaks_off_leaves_all_as_it_was(few: ImageDataset) -> None:
    training = Trainer(PLAN, few, SimulatedSwarm(8, 30, cohorts=2, codec="topk-256-4"))
    whole = Trainer(PLAN, few, SimulatedSwarm(8, 30, cohorts=2, codec="topk-256-4"))
    training.step()
    with patch("manta_swarm.automl.training.trainer.next_state", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        training.step()  # when contributions are coded already
    assert training.state.round == 1
    training.step()
    for _ in range(2):
        whole.step()
    assert state_digest(training.state) == state_digest(whole.state)


def test_only_the_newest_state_and_the_teachers_are_kept(tmp_path: Path, few: ImageDataset) -> None:
    _, directory = kept(tmp_path, few)
    train(directory)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == ["round-00000003.safetensors", "round-00000010.safetensors"]
    _, directory = kept(tmp_path / "sandwich", few, replace(PLAN, schedule="sandwich", num_rounds=2))
    train(directory)
    assert [path.name for path in (tmp_path / "sandwich").glob("*.safetensors")] == ["round-00000002.safetensors"]


def test_a_training_does_not_go_on_with_other_settings_or_in_a_folder_of_something_else(tmp_path: Path, few: ImageDataset) -> None:
    kept(tmp_path / "out", few)
    with pytest.raises(UserError, match="seed"):
        kept(tmp_path / "out", few, replace(PLAN, seed=5))
    settings = tmp_path / "out" / "training.json"
    settings.write_text(settings.read_text().replace("manta/training/v3", "manta/training/v2"))  # its settings said less
    with pytest.raises(UserError, match="format 'manta/training/v2', not 'manta/training/v3'"):
        kept(tmp_path / "out", few)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("all my work")
    with pytest.raises(UserError, match="left as it is"):
        kept(tmp_path / "other", few)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "all my work"


@pytest.mark.parametrize("left", [[], ["training.json.part"], ["training.json"], ["training.json", "round-00000000.safetensors.part"]])
def test_a_folder_killed_before_its_first_snapshot_goes_on(left: list[str], tmp_path: Path, few: ImageDataset) -> None:
    whole, _ = kept(tmp_path / "whole", few)
    settings = (tmp_path / "whole" / "training.json").read_bytes()
    (tmp_path / "out").mkdir()
    for name in left:
        (tmp_path / "out" / name).write_bytes(settings if name == "training.json" else b"torn")
    training, directory = kept(tmp_path / "out", few)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["round-00000000.safetensors", "training.json"]
    train(directory, 2)
    expected = [whole.step() for _ in range(2)][-1]
    assert training.state.round == expected.round == 2
    assert state_digest(training.state) == state_digest(whole.state)


def test_a_folder_whose_teacher_is_gone_says_so(tmp_path: Path, few: ImageDataset) -> None:
    _, directory = kept(tmp_path, few)
    train(directory, 6)
    (tmp_path / "round-00000003.safetensors").unlink()
    with pytest.raises(UserError, match="round-00000003"):
        kept(tmp_path, few)


def test_a_snapshot_that_cannot_be_read_is_named(tmp_path: Path, few: ImageDataset) -> None:
    kept(tmp_path, few)
    (tmp_path / "round-00000000.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"round-00000000.*remove the folder to begin anew"):
        kept(tmp_path, few)


def test_a_folder_with_the_state_of_another_network_says_so(tmp_path: Path, few: ImageDataset) -> None:
    training, _ = kept(tmp_path, few)
    state = training.state
    shorter = State(state.round, state.parameters[1:], tuple(moment[1:] for moment in state.moments), state.teacher)
    save_snapshot(tmp_path / "round-00000000.safetensors", shorter, {})
    with pytest.raises(UserError, match="the state has 10861 weights, and classifier-small has 10862; remove the folder to begin anew"):
        kept(tmp_path, few)


class Watched:
    """A data set that remembers which of its samples were trained on."""

    def __init__(self, dataset: ImageDataset) -> None:
        self._dataset = dataset
        self.seen: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        """Remember."""
        self.seen |= set(indices)
        return self._dataset.training_batch(indices, seed, resolution, strength, device)


def test_each_cohort_trains_on_its_own_part_of_the_data_where_there_are_parts(few: ImageDataset) -> None:
    parts = [Watched(part_of(few, np.arange(first, first + 8), np.arange(0))) for first in (0, 20, 40)]
    plan = replace(PLAN, num_rounds=2, schedule="sandwich")
    trainer = Trainer(plan, few, SimulatedSwarm(4, 48, cohorts=3), parts=parts)
    trainer.step()
    assert all(part.seen and part.seen <= set(range(8)) for part in parts)
    same = [Trainer(plan, few, SimulatedSwarm(4, 12, cohorts=2), parts=each) for each in ((), (few, few))]
    assert len({trainer.step().loss for trainer in same}) == 1
    with pytest.raises(ValueError, match="2 parts of the data for 3 cohorts"):
        Trainer(plan, few, SimulatedSwarm(4, 12, cohorts=3), parts=(few, few))
