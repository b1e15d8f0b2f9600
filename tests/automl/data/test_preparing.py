"""What torch makes of stored pixels on a device is what numpy makes of them: compared on the CPU, and tried on a GPU that is not there."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from manta_swarm.automl.data.dataset import TrainingSet
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.preparing import COLUMNS, ROWS, _taps, jitter_tables, mirrored, prepare
from manta_swarm.automl.data.snippet import cut, load
from manta_swarm.automl.data.views import StereoDataset
from tests.automl.data.files import noise, pair

BY_TORCH = "cpu:0"  # the CPU, by another name than that by which numpy computes
GPU = "cuda:0"
DEVICES = [BY_TORCH, *([GPU] if torch.cuda.is_available() else [])]
SIZES = [(12, 16, 5, 7), (12, 16, 24, 33), (31, 33, 24, 40), (33, 31, 33, 31), (1, 2, 3, 1), (150, 131, 37, 128)]


@pytest.mark.parametrize("axis", [ROWS, COLUMNS])
@pytest.mark.parametrize("turned", ["none", "some", "all"])
@pytest.mark.parametrize("has_tables", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_pixels_come_out_the_same_on_any_device(device: str, axis: int, turned: str, has_tables: bool) -> None:
    tables = jitter_tables(6, 255, 5) if has_tables else None
    is_turned = {"none": None, "some": mirrored(6, 3), "all": np.ones(6, np.bool_)}[turned]
    assert turned != "some" or 0 < int(mirrored(6, 3).sum()) < 6
    for rows, columns, height, width in SIZES:
        images = noise(6, 2, rows, columns, seed=rows)
        kept = images.copy()
        here, there = (
            prepare(images, 255, height, width, tables_NL=tables, is_turned_N=is_turned, axis=axis, device=made_on)
            for made_on in ("cpu", device)
        )
        assert torch.equal(here, there.cpu())
        assert (there.shape, there.dtype) == ((6, 2, height, width), torch.float32)
        assert np.array_equal(images, kept)


def test_pixels_that_nobody_may_write_to_and_sums_of_more_than_32_bits_come_out_the_same() -> None:
    images = np.full((1, 1, 4200, 2100), 255, np.uint8)
    images[..., ::2] = 254
    images.setflags(write=False)
    assert prepare(images, 255, 3, 1, device=BY_TORCH).unique().tolist() == [np.float32(254.5 / 255)]
    thrice = np.broadcast_to(noise(9, 8), (2, 3, 9, 8))
    assert torch.equal(prepare(thrice, 255, 4, 20, device=BY_TORCH), prepare(thrice, 255, 4, 20))


def images_of(channels: int) -> ImageDataset:
    images = noise(40, channels, 21, 21)
    return ImageDataset("noise", 255, 2, images, np.arange(40) % 2, images[:2], np.arange(2), flips=channels == 3)


def stereo() -> StereoDataset:
    sizes = [(40, 90), (64, 100), (30, 200), (90, 64)]
    return StereoDataset.from_pairs("some", [pair(*size, seed=seed) for seed, size in enumerate(sizes)], [pair(seed=8), pair(seed=9)])


@pytest.mark.parametrize("kind", ["grey", "coloured", "stereo", "a snippet"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_microbatches_samples_have_the_same_bits_wherever_they_are_made(device: str, kind: str) -> None:
    dataset: TrainingSet = stereo() if kind == "stereo" else images_of(1 if kind == "grey" else 3)
    if kind == "a snippet":
        dataset = load(cut(images_of(3), [0, 2, 3]), "classification", 40, [0, 2, 3])
    for strength in (0, 60, 100):
        for resolution in (8, 20, 32):
            here, there = (dataset.training_batch([3, 0, 2, 3], 7, resolution, strength, made_on) for made_on in ("cpu", device))
            assert there.inputs.device.type == torch.device(device).type
            assert torch.equal(here.inputs, there.inputs.cpu())
            assert torch.equal(here.targets, there.targets)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built for the CPU")
@pytest.mark.parametrize("kind", ["coloured", "stereo"])
def test_on_a_gpu_that_is_only_imagined_everything_is_there_and_nothing_meets_the_cpus(kind: str) -> None:
    """Shapes and places alone: no GPU computes. What is on the CPU and on the GPU in one operation fails here as it would there."""
    dataset = stereo() if kind == "stereo" else images_of(3)
    _taps.cache_clear()
    try:
        with FakeTensorMode():
            batch = dataset.training_batch([3, 0, 2], 7, 16, device=GPU)
    finally:
        _taps.cache_clear()  # of what was only imagined
    assert (batch.inputs.device, batch.inputs.dtype) == (torch.device(GPU), torch.float32)
    assert batch.inputs.shape == dataset.training_batch([3, 0, 2], 7, 16).inputs.shape
