import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Batch
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.space import STEREO_TINY
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker, fetch
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices
from tests.automl.small import SMALL

MICROBATCH = Microbatch(
    run_seed=7, base=b"b" * 32, step=0, key=b"k" * 32, index=1, architecture=SMALL.sample(random.Random("microbatch")), samples=16
)

OTHER_DEVICE = "cpu:0"  # computes as the CPU does, and is not called "cpu"
DEVICES = [OTHER_DEVICE, *(["cuda:0"] if torch.cuda.is_available() else [])]
ONE = torch.ones(())  # a loss


@pytest.fixture
def supernet(small: Classifier) -> Classifier:
    return small


@pytest.fixture
def worker(digits: ImageDataset, supernet: Classifier) -> Worker:
    worker = Worker(SMALL.name, digits)
    worker.load(supernet.flat_weights_N)
    return worker


def test_a_microbatch_is_a_pure_function_of_its_seed_and_the_weights(worker: Worker, digits: ImageDataset, supernet: Classifier) -> None:
    first = worker.train(MICROBATCH)
    worker.train(replace(MICROBATCH, index=2, architecture=SMALL.largest()))
    torch.rand(3), random.random(), np.random.random()
    other = Worker(SMALL.name, digits)
    other.load(supernet.flat_weights_N)
    for again in (worker.train(MICROBATCH), other.train(MICROBATCH)):
        assert torch.equal(again.gradient, first.gradient)
        assert (again.loss, again.samples) == (first.loss, 16)


@pytest.mark.parametrize("change", [{"run_seed": 8}, {"base": b"c" * 32}, {"step": 1}, {"key": b"l" * 32}, {"index": 2}, {"samples": 17}])
def test_each_part_of_its_identity_makes_another_microbatch(worker: Worker, change: dict[str, object]) -> None:
    assert worker.train(replace(MICROBATCH, **change)).loss != worker.train(MICROBATCH).loss  # type: ignore[arg-type]


def test_a_microbatch_leaves_the_weights_and_the_global_generators_alone(worker: Worker, supernet: Classifier) -> None:
    before = (torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[union-attr]
    first = worker.train(MICROBATCH)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tobytes() == before[2]  # type: ignore[union-attr]
    worker.load(supernet.flat_weights_N * 2)
    assert worker.train(MICROBATCH).loss != first.loss
    worker.load(supernet.flat_weights_N)
    assert worker.train(MICROBATCH).loss == first.loss


def test_warming_up_changes_nothing_that_a_microbatch_gives(digits: ImageDataset, supernet: Classifier) -> None:
    worker = Worker(SMALL.name, digits, OTHER_DEVICE)
    worker.load(supernet.flat_weights_N)
    before = worker.train(MICROBATCH)
    worker.warm_up()
    after = worker.train(MICROBATCH)
    assert torch.equal(after.gradient, before.gradient)
    assert after.loss == before.loss


class Elsewhere:
    """A data set whose samples another device makes in a way of its own."""

    def __init__(self, dataset: ImageDataset, makes: Callable[[Tensor], Tensor]) -> None:
        self._dataset, self._makes = dataset, makes

    @property
    def num_train(self) -> int:
        return self._dataset.num_train

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        made = self._dataset.training_batch(indices, seed, resolution, strength, device)
        return made if device == "cpu" else Batch(self._makes(made.inputs), made.targets)


def not_there(inputs: Tensor) -> Tensor:
    raise NotImplementedError("\"index_select\" not implemented for 'Int'")


def no_memory(inputs: Tensor) -> Tensor:
    raise torch.cuda.OutOfMemoryError("out of memory")


def test_a_device_makes_the_samples_once_it_made_the_same_as_the_cpu(digits: ImageDataset, supernet: Classifier, worker: Worker) -> None:
    there = Worker(SMALL.name, Elsewhere(digits, Tensor.clone), OTHER_DEVICE)
    there.load(supernet.flat_weights_N)
    assert there.makes_samples == "cpu"
    there.warm_up()
    assert there.makes_samples == OTHER_DEVICE
    assert torch.equal(there.train(MICROBATCH).gradient, worker.train(MICROBATCH).gradient)


@pytest.mark.parametrize(("makes", "said"), [(lambda inputs: inputs * (1 + 2e-7), "other bits"), (not_there, "cannot make them")])
def test_a_device_that_makes_other_samples_or_none_leaves_them_to_the_cpu(
    makes: Callable[[Tensor], Tensor],
    said: str,
    digits: ImageDataset,
    supernet: Classifier,
    worker: Worker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = Worker(SMALL.name, Elsewhere(digits, makes), OTHER_DEVICE)
    there.load(supernet.flat_weights_N)
    there.warm_up()
    assert there.makes_samples == "cpu"
    assert said in caplog.text
    assert torch.equal(there.train(MICROBATCH).gradient, worker.train(MICROBATCH).gradient)


def test_a_device_that_has_no_memory_for_samples_is_not_taken_for_one_that_cannot_make_them(digits: ImageDataset) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError):
        Worker(SMALL.name, Elsewhere(digits, no_memory), OTHER_DEVICE).warm_up()


def test_a_microbatches_gradient_is_that_of_the_mean_loss_over_its_samples(
    worker: Worker, digits: ImageDataset, supernet: Classifier
) -> None:
    identity = (MICROBATCH.run_seed, MICROBATCH.base, MICROBATCH.step, MICROBATCH.key, MICROBATCH.index)
    indices = list(sample_indices(*identity, len(digits.train_labels), 16))
    batch = digits.training_batch(indices, microbatch_seed(*identity), MICROBATCH.architecture.resolution)
    losses = F.cross_entropy(supernet(batch.inputs, MICROBATCH.architecture), batch.targets, reduction="none", label_smoothing=0.1)
    parameters = dict(supernet.named_parameters())
    gradients = torch.autograd.grad(losses.sum() / 16, [parameters[name] for name in supernet.slices()], materialize_grads=True)
    result = worker.train(MICROBATCH)
    torch.testing.assert_close(result.gradient, torch.cat([gradient.flatten() for gradient in gradients]))
    assert result.loss == pytest.approx(losses.mean().item())


@pytest.mark.parametrize("by", [lambda gradient: MicrobatchResult(gradient, 1.0, 2), lambda gradient: fetch(gradient, ONE, 2)])
def test_a_result_is_finite_if_every_value_of_its_gradient_is(by: Callable[[Tensor], MicrobatchResult]) -> None:
    for place in (0, 77, 40_000):
        for value in (np.inf, -np.inf, np.nan):
            gradient = torch.ones(40_001)
            assert by(gradient).is_finite
            gradient[place] = value
            assert not by(gradient).is_finite


def test_a_finite_gradient_whose_sum_is_too_large_is_finite_all_the_same() -> None:
    assert fetch(torch.full((40_000,), 3e38), ONE, 2).is_finite


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_fetched_from_a_device_is_what_is_there_in_memory_of_its_own(device: str) -> None:
    there = torch.randn(40_000, generator=torch.Generator().manual_seed(3)).to(device)
    results = []
    for value in (0.1, 2.5):
        there += 1
        expected = there.cpu().clone()
        results.append((fetch(there, torch.tensor(value, device=device), 7), expected, value))
    for result, expected, value in results:
        assert torch.equal(result.gradient, expected)
        assert (result.gradient.device.type, result.samples, result.loss) == ("cpu", 7, np.float32(value))


def test_a_microbatch_of_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="2 samples"):
        replace(MICROBATCH, samples=1)


def test_weights_of_another_supernet_are_refused(worker: Worker) -> None:
    for in_place in (False, True):
        with pytest.raises(ValueError, match="weights"):
            worker.load(torch.zeros(10), in_place=in_place)


def test_weights_and_teacher_that_are_used_where_they_lie_give_the_same_bits_and_follow_what_is_written_there(
    worker: Worker, digits: ImageDataset, supernet: Classifier
) -> None:
    weights, teacher = supernet.flat_weights_N.clone(), supernet.flat_weights_N * 0.9
    there = Worker(SMALL.name, digits)
    there.load(weights, in_place=True)
    for factor in (1.0, 0.5):
        weights.copy_(factor * supernet.flat_weights_N)
        worker.load(weights)
        for taught in (None, teacher):
            worker.teach(taught)
            there.teach(taught, in_place=True)
            one, other = worker.train(MICROBATCH), there.train(MICROBATCH)
            assert torch.equal(one.gradient, other.gradient)
            assert one.loss == other.loss
    assert torch.equal(weights, 0.5 * supernet.flat_weights_N)


def test_weights_that_are_not_aligned_are_not_used_where_they_lie(worker: Worker, supernet: Classifier) -> None:
    crooked = torch.zeros(len(supernet.flat_weights_N) + 1)[1:]
    with pytest.raises(ValueError, match="aligned"):
        worker.load(crooked, in_place=True)


def test_a_teacher_adds_to_the_loss_and_only_while_it_teaches(worker: Worker, supernet: Classifier) -> None:
    alone = worker.train(MICROBATCH)
    worker.teach(supernet.flat_weights_N * 0.9)
    taught = worker.train(MICROBATCH)
    assert taught.loss > alone.loss
    assert not torch.equal(taught.gradient, alone.gradient)
    worker.teach(supernet.flat_weights_N * 0.8)
    assert worker.train(MICROBATCH).loss != taught.loss
    worker.teach(None)
    again = worker.train(MICROBATCH)
    assert again.loss == alone.loss


def test_the_largest_network_learns_nothing_from_itself_as_its_teacher(worker: Worker, supernet: Classifier) -> None:
    # The cross entropy to one's own probabilities is smallest where they are equal: no gradient comes from it.
    largest = replace(MICROBATCH, architecture=SMALL.largest())
    alone = worker.train(largest).gradient
    worker.teach(supernet.flat_weights_N)
    torch.testing.assert_close(worker.train(largest).gradient, alone, rtol=1e-3, atol=1e-5)


def test_a_stereo_microbatch_is_a_pure_function_of_its_seed_and_the_weights(stereo: Stereo) -> None:
    dataset = load_dataset("motorcycle")
    microbatch = replace(MICROBATCH, architecture=STEREO_TINY.smallest(), samples=2)
    results = []
    for _ in range(2):
        worker = Worker("stereo-tiny", dataset)
        worker.load(stereo.flat_weights_N)
        results.append(worker.train(microbatch))
        worker.teach(stereo.flat_weights_N * 0.9)
        results.append(worker.train(microbatch))
    assert torch.equal(results[0].gradient, results[2].gradient)
    assert results[0].loss == results[2].loss < results[1].loss == results[3].loss
    assert bool(results[0].gradient.isfinite().all())
    assert bool(results[0].gradient.any())
