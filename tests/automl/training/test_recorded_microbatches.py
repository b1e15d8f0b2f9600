"""Recorded steps: on the CPU by the twin that calls them again, and on a GPU, where there is one, by CUDA graphs."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.devices import CallRecorder, CudaGraphs, DeviceWork, Recorded, Recorder
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, Architecture
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.replays import MOST_KEPT, Replays
from tests.automl.small import SMALL
from tests.automl.training.recorders import Counted, Replay

BY_CALLS = ("cpu:0", CallRecorder)
BY_GPU = pytest.param(("cuda:0", CudaGraphs), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))
MICROBATCH = Microbatch(run_seed=7, base=b"b" * 32, step=0, key=b"k" * 32, index=1, architecture=SMALL.largest(), samples=8)


def microbatches(architectures: list[Architecture], count: int) -> list[Microbatch]:
    """Return microbatches of these architectures in turn, each of other samples."""
    return [replace(MICROBATCH, index=index, architecture=architectures[index % len(architectures)]) for index in range(count)]


def same(one: Worker, other: Worker, microbatch: Microbatch) -> None:
    expected, result = one.train(microbatch), other.train(microbatch)
    assert torch.equal(result.gradient, expected.gradient)
    assert result.loss == expected.loss
    assert result.gradient.any()


def near(one: Worker, other: Worker, microbatch: Microbatch) -> None:
    expected, result = one.train(microbatch), other.train(microbatch)
    assert (result.gradient - expected.gradient).norm() < 0.01 * expected.gradient.norm()
    assert result.loss == pytest.approx(expected.loss, rel=5e-4)


@pytest.mark.parametrize("device", [BY_CALLS, BY_GPU])
def test_replayed_microbatches_are_the_same_to_the_bit_as_weights_teachers_and_microbatches_change(
    device: tuple[str, type[Recorder]], digits: ImageDataset, small: Classifier
) -> None:
    name, kind = device
    recorder = Counted(kind())
    eager, replaying = Worker(SMALL.name, digits, name), Worker(SMALL.name, digits, name, recorder=recorder)
    for worker in (eager, replaying):
        worker.warm_up()
    before = recorder.recorded
    assert before == 2
    asked = [SMALL.largest(), SMALL.smallest(), SMALL.sample(random.Random("microbatch"))]
    for factor in (1.0, 0.5):
        for taught in (None, 0.9, 0.8):
            for worker in (eager, replaying):
                worker.load(factor * small.flat_weights_N)
                worker.teach(None if taught is None else taught * small.flat_weights_N)
            for microbatch in microbatches(asked, 6):
                same(eager, replaying, microbatch)
            same(eager, replaying, replace(MICROBATCH, samples=9))
    # Weights are loaded where those before lay, and so are a teacher's that was not the first: three recordings in the beginning and when a
    # teacher came or went, of microbatches of nine samples but for the beginning. What was recorded was replayed at once, and all else
    # later, but for the first microbatch of each kind.
    assert recorder.recorded - before == 4 * 3 + 3
    assert recorder.replayed - before == 42 - 4


@pytest.mark.parametrize("device", [BY_CALLS, BY_GPU])
def test_a_stereo_microbatch_is_replayed_on_a_cpu_to_the_bit(device: tuple[str, type[Recorder]], stereo: Stereo) -> None:
    name, kind = device
    dataset, recorder = load_dataset("motorcycle"), Counted(kind())
    eager, replaying = Worker("stereo-tiny", dataset, name), Worker("stereo-tiny", dataset, name, recorder=recorder)
    for worker in (eager, replaying):
        worker.load(stereo.flat_weights_N)
        worker.teach(stereo.flat_weights_N * 0.9)
    for index in range(3):
        compare = same if device == BY_CALLS else near  # a GPU adds up gradients of what is gathered in whatever order
        compare(eager, replaying, replace(MICROBATCH, architecture=STEREO_TINY.smallest(), index=index, samples=2))
    assert (recorder.recorded, recorder.replayed) == (1, 2)


def test_weights_that_are_used_where_they_lie_are_recorded_anew_when_they_lie_elsewhere(digits: ImageDataset, small: Classifier) -> None:
    recorder = Counted(CallRecorder())
    eager, replaying = Worker(SMALL.name, digits), Worker(SMALL.name, digits, recorder=recorder)
    one, other = small.flat_weights_N.clone(), small.flat_weights_N * 0.7
    for weights, recorded in ((one, 1), (one, 1), (other, 2)):
        replaying.load(weights, in_place=True)
        for factor in (1.0, 0.9):
            weights *= factor
            eager.load(weights)
            for microbatch in microbatches([SMALL.smallest()], 3):
                same(eager, replaying, microbatch)
        assert recorder.recorded == recorded


class Step:
    """A step small enough to see through: the gradient is twice the inputs, the loss their sum and that of the targets."""

    def __init__(self) -> None:
        self.gradient_N = torch.zeros(4)
        self.calls = 0

    def step(self, inputs: Tensor, targets: Tensor, architecture: Architecture) -> Tensor:
        self.calls += 1
        self.gradient_N.copy_(2 * inputs.flatten())
        return (inputs.sum() + targets.sum()).float()


class Wrong:
    """A recorder whose recordings compute something else."""

    def __init__(self, harm: Callable[[], None], scale: float = 1.0) -> None:
        self._harm, self._scale = harm, scale

    def record(self, work: DeviceWork) -> Recorded:
        made = work.run() * self._scale

        def replay() -> None:
            work.run()
            self._harm()

        return Replay(made, replay)


class Restless(Step):
    """A step that gives other bits each time."""

    def __init__(self, far: float) -> None:
        super().__init__()
        self._far = far

    def step(self, inputs: Tensor, targets: Tensor, architecture: Architecture) -> Tensor:
        loss = super().step(inputs, targets, architecture)
        self.gradient_N *= 1 + self._far * self.calls
        return loss


class Unable:
    """A recorder of a device that cannot."""

    def record(self, work: DeviceWork) -> Recorded:
        work.run().fill_(0)
        raise RuntimeError("operation not permitted when stream is capturing\nlong trace")


def fed(replays: Replays, step: Step, count: int) -> None:
    """Let ``count`` microbatches of one kind go through, and check each."""
    for value in range(1, count + 1):
        inputs, targets = torch.full((1, 1, 2, 2), float(value)), torch.full((3,), value)
        loss = replays.loss(inputs, targets, TINY.smallest(), ())
        assert loss.item() == 7 * value
        assert step.gradient_N.tolist() == [2.0 * value] * 4


def test_a_kind_of_microbatches_is_recorded_when_it_comes_for_the_second_time(caplog: pytest.LogCaptureFixture) -> None:
    step, recorder = Step(), Counted(CallRecorder())
    replays = Replays(step, recorder, step.gradient_N)
    fed(replays, step, 1)
    assert recorder.recorded == 0
    fed(replays, step, 5)
    assert (recorder.recorded, recorder.replayed, replays.num_kept) == (1, 5, 1)
    assert not caplog.records


@pytest.mark.parametrize("what", ["gradient", "loss", "unable"])
def test_what_cannot_be_recorded_or_gives_other_bits_is_computed_as_before_and_said_once(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step()

    def harm() -> None:
        step.gradient_N[3] += 1e-6

    wrong = {"gradient": Wrong(harm), "loss": Wrong(lambda: None, 1 + 2e-7), "unable": Unable()}
    replays = Replays(step, wrong[what], step.gradient_N)
    fed(replays, step, 6)
    (record,) = caplog.records
    assert ("capturing long trace" if what == "unable" else "another gradient") in record.getMessage()
    assert replays.num_kept == 0


@pytest.mark.parametrize(("far", "kept"), [(1e-3, 1), (1e-2, 0)])
def test_of_a_step_that_gives_other_bits_each_time_a_recording_has_to_be_near(far: float, kept: int) -> None:
    step = Restless(far)
    replays = Replays(step, CallRecorder(), step.gradient_N)
    for _ in range(2):
        replays.loss(torch.ones(1, 1, 2, 2), torch.ones(3), TINY.smallest(), ())
    assert replays.num_kept == kept
    assert step.gradient_N.tolist() == [pytest.approx(2 * (1 + 2 * far))] * 4  # that of the second microbatch itself


def test_of_a_step_that_gives_other_bits_each_time_a_recording_has_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    step = Restless(1e-4)
    replays = Replays(step, Wrong(lambda: None, 1.001), step.gradient_N)
    for _ in range(2):
        replays.loss(torch.ones(1, 1, 2, 2), torch.ones(3), TINY.smallest(), ())
    assert replays.num_kept == 0
    assert "another gradient" in caplog.text


def test_a_gradient_that_is_no_number_is_recorded_like_others(caplog: pytest.LogCaptureFixture) -> None:
    step, recorder = Step(), Counted(CallRecorder())
    replays = Replays(step, recorder, step.gradient_N)
    for _ in range(3):
        replays.loss(torch.full((1, 1, 2, 2), torch.nan), torch.zeros(1), TINY.smallest(), ())
        assert step.gradient_N.isnan().all()
    assert recorder.replayed == 2
    assert not caplog.records


def test_the_recordings_that_were_not_used_for_longest_go_first() -> None:
    step, recorder = Step(), Counted(CallRecorder())
    replays = Replays(step, recorder, step.gradient_N)
    asked = [TINY.sample(random.Random(seed)) for seed in range(MOST_KEPT + 1)]

    def microbatch(architecture: Architecture) -> None:
        replays.loss(torch.ones(1, 1, 2, 2), torch.ones(3), architecture, ())

    for architecture in asked[:-1]:
        microbatch(architecture)
        microbatch(architecture)
    microbatch(asked[0])
    microbatch(asked[-1])
    microbatch(asked[-1])
    assert (recorder.recorded, replays.num_kept) == (MOST_KEPT + 1, MOST_KEPT)
    calls = step.calls
    microbatch(asked[0])
    assert step.calls == calls + 1  # by its replay, and not to record it
    assert recorder.recorded == MOST_KEPT + 1
    microbatch(asked[1])
    assert recorder.recorded == MOST_KEPT + 2


def test_autocast_is_not_recorded(digits: ImageDataset) -> None:
    with pytest.raises(ValueError, match="autocast"):
        Worker("classifier-tiny", digits, precision="bf16", recorder=CallRecorder())
