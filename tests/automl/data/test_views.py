from collections.abc import Sequence

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.scaling import rescale
from manta_swarm.automl.data.views import Pair, StereoDataset
from tests.automl.data.files import noise, pair


@pytest.fixture
def dataset() -> StereoDataset:
    sizes = [(40, 90), (64, 100), (30, 200), (90, 64)]
    train = [pair(*size, seed=seed) for seed, size in enumerate(sizes)]
    return StereoDataset.from_pairs("some", train, [pair(seed=10), pair(40, 170, seed=11), pair(100, 60, seed=12), pair(seed=13)])


def as_input(one: Pair, top: int, left: int, height: int, resolution: int) -> torch.Tensor:
    """The two views of a window, resized, by the definition."""
    rows, columns = slice(top, top + height), slice(left, left + 2 * height)
    views = [image[rows, columns].transpose(2, 0, 1)[None] for image in (one.left, one.right)]
    return torch.cat([rescale(view, 255, resolution, 2 * resolution)[0] for view in views])


def test_a_training_batch_depends_on_indices_seed_and_resolution_alone(dataset: StereoDataset) -> None:
    indices = [0, 1, 2, 3, 0]
    first = dataset.training_batch(indices, 2**64 - 1, 16)
    assert first.inputs.shape == (5, 6, 16, 32)
    assert first.targets.shape == (5, 16, 32)
    assert (first.inputs.dtype, first.targets.dtype) == (torch.float32, torch.float32)
    torch.rand(3), np.random.random()
    again = dataset.training_batch(indices, 2**64 - 1, 16)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, dataset.training_batch(indices, 0, 16).inputs)
    assert not torch.equal(first.inputs[0], first.inputs[4])


def test_training_windows_are_between_half_and_all_of_the_largest_and_never_enlarged() -> None:
    numbers = np.arange(60 * 130, dtype=np.float32).reshape(60, 130)
    numbered, constant = (Pair(noise(60, 130, 3), noise(60, 130, 3), values) for values in (numbers, np.full_like(numbers, 100)))
    for resolution, smallest in ((8, 30), (50, 50), (100, 60)):
        heights, corners = set(), set()
        for seed in range(80):
            scaled, places = (
                StereoDataset.from_pairs("one", [one], [one, one]).training_batch([0], seed, resolution).targets[0].double().numpy()
                for one in (constant, numbered)
            )
            height = round(100 * resolution / scaled[0, 0])
            row, column = np.divmod(np.rint(places[:, 0] * height / resolution), 130)
            assert len(np.unique(column)) == 1
            nearest = (2 * np.arange(resolution) + 1) * height // (2 * resolution)
            assert np.array_equal(np.diff(row) * (1 if row[-1] > row[0] else -1), np.diff(nearest))
            heights.add(height)
            corners.add((min(row), column[0]))
        assert smallest <= min(heights) <= max(heights) <= 60
        assert max(heights) - min(heights) >= 0.8 * (60 - smallest)
        assert len(corners) > (10 if resolution == 100 else 40)  # the largest window moves sideways only, by ten columns


def test_some_training_windows_are_upside_down_in_both_views() -> None:
    one = pair(30, 60)
    dataset = StereoDataset.from_pairs("one", [Pair(one.left, one.left, one.disparity)], [one, one])
    flipped = 0
    for seed in range(40):
        batch = dataset.training_batch([0], seed, 40)  # never enlarged: the window is the whole picture
        views = batch.inputs[0].reshape(2, 3, 40, 80)
        whole = as_input(one, 0, 0, 30, 40)[:3]
        upside_down = (batch.targets[0, 0].max() > batch.targets[0, -1].max()).item()
        flipped += upside_down
        expected = whole.flip(1) if upside_down else whole
        for view in views:
            correlation = torch.corrcoef(torch.stack([view.flatten(), expected.flatten()]))[0, 1]
            assert correlation > 0.9
    assert 10 < flipped < 30


def test_the_two_views_are_seen_in_a_little_different_light() -> None:
    grey = np.full((30, 60, 3), 120, dtype=np.uint8)
    disparity = np.zeros((30, 60), dtype=np.float32)
    dataset = StereoDataset.from_pairs("grey", [Pair(grey, grey, disparity)] * 200, [Pair(grey, grey, disparity)] * 2)
    means = dataset.training_batch(range(200), 3, 8).inputs.mean((2, 3)).reshape(200, 2, 3) * 255
    between_views, between_channels = (means[:, 0] - means[:, 1]).abs(), (means[:, :, 0] - means[:, :, 1]).abs()
    assert 2 < between_views.mean() < between_channels.mean() < 20
    assert between_views.max() < 25
    assert means.std() > 10


def test_disparities_are_those_of_the_nearest_pixels_in_pixels_of_the_result() -> None:
    one = pair(40, 80)
    batch = next(iter(StereoDataset.from_pairs("one", [one], [one, one]).held_out_batches(20, 1)))
    picked = one.disparity[1::2, 1::2]
    expected = np.where(picked < 0, -1, picked / 2)
    assert np.array_equal(batch.targets[0].numpy(), expected)
    assert torch.equal(batch.inputs[0], as_input(one, 0, 0, 40, 20))
    assert 0.05 < (batch.targets < 0).float().mean() < 0.15


@pytest.mark.parametrize(("rows", "columns"), [(40, 80), (40, 90), (40, 170), (41, 79), (100, 60), (1, 2), (7, 1000)])
def test_the_fixed_windows_are_the_largest_and_cover_the_picture(rows: int, columns: int) -> None:
    windows = pair(rows, columns).windows
    seen = np.zeros((rows, columns), dtype=int)
    for window in windows:
        assert window.height == min(rows, columns // 2)
        assert 0 <= window.top <= rows - window.height
        assert 0 <= window.left <= columns - 2 * window.height
        seen[window.top : window.top + window.height, window.left : window.left + 2 * window.height] += 1
    assert seen.min() == 1
    assert len(windows) == -(-rows // windows[0].height) * -(-columns // (2 * windows[0].height))


def test_every_second_held_out_pair_is_of_a_half(dataset: StereoDataset) -> None:
    def inputs(part: str, batch: int) -> torch.Tensor:
        return torch.cat([one.inputs for one in dataset.held_out_batches(16, batch, part)])

    windows = [len(one.windows) for one in dataset.held_out]
    everything = torch.split(inputs("all", 3), windows)
    assert torch.equal(inputs("search", 2), torch.cat([everything[0], everything[2]]))
    assert torch.equal(inputs("test", 64), torch.cat([everything[1], everything[3]]))
    assert [len(one.inputs) for one in dataset.held_out_batches(16, 5)] == [5, 5, sum(windows) - 10]


def test_calibration_takes_fixed_windows_of_all_pairs_as_they_are(dataset: StereoDataset) -> None:
    few = list(dataset.calibration_batches(16, 4, 100))
    assert len({len(batch) for batch in few}) == 1
    assert sum(map(len, few)) <= sum(len(one.windows) for one in dataset.train)
    assert torch.equal(few[0][0], as_input(dataset.train[0], *dataset.train[0].windows[0], 16))
    assert [len(batch) for batch in dataset.calibration_batches(16, 2, 3)] == [2]
    assert [len(batch) for batch in dataset.calibration_batches(16, 2, 2)] == [2]


def test_the_digest_names_every_pixel_disparity_and_the_split(dataset: StereoDataset) -> None:
    first, *others = dataset.train

    def changed(**arrays: np.ndarray) -> list[Pair]:
        copies = {name: getattr(first, name).copy() for name in ("left", "right", "disparity")}
        return [Pair(**(copies | arrays)), *others]

    left, right, disparity = first.left.copy(), first.right.copy(), first.disparity.copy()
    left[3, 4, 1] ^= 1
    right[0, 0, 0] ^= 1
    disparity[5, 6] += 1
    variants = [
        StereoDataset.from_pairs("other", dataset.train, dataset.held_out),
        StereoDataset.from_pairs("some", changed(left=left), dataset.held_out),
        StereoDataset.from_pairs("some", changed(right=right), dataset.held_out),
        StereoDataset.from_pairs("some", changed(disparity=disparity), dataset.held_out),
        StereoDataset.from_pairs("some", dataset.train[:-1], [dataset.train[-1], *dataset.held_out]),
    ]
    assert len({dataset.digest, *(one.digest for one in variants)}) == 6


def test_all_that_is_unknown_is_alike_to_the_digest() -> None:
    one = pair()
    other = Pair(one.left, one.right, np.where(one.disparity < 0, np.float32(-7), one.disparity))
    assert StereoDataset("a", [one], [one, one]).digest == StereoDataset("a", [other], [other, one]).digest


@pytest.mark.parametrize(
    ("left", "right", "disparity"), [((4, 8), (4, 9), (4, 8)), ((4, 8), (4, 8), (5, 8)), ((4, 1), (4, 1), (4, 1)), ((0, 8), (0, 8), (0, 8))]
)
def test_views_of_different_sizes_or_none_are_no_pair(left: tuple[int, int], right: tuple[int, int], disparity: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no stereo pair"):
        Pair(noise(*left, 3), noise(*right, 3), np.zeros(disparity, dtype=np.float32))


@pytest.mark.parametrize(("train", "held_out"), [(0, 2), (1, 1), (3, 0)])
def test_a_data_set_has_pairs_to_train_with_and_two_halves_to_measure_with(train: int, held_out: int) -> None:
    with pytest.raises(ValueError, match="at least 1 and 2"):
        StereoDataset.from_pairs("few", [pair()] * train, [pair()] * held_out)


def test_lazy_pairs_are_made_when_they_are_asked_for_and_a_bounded_number_is_kept() -> None:
    made: list[int] = []

    def make(index: int) -> Pair:
        made.append(index)
        return pair(10, 20, seed=index)

    one_pair_bytes = 10 * 20 * (3 + 3 + 4)
    pairs: Sequence[Pair] = LazyPairs(make, 5, kept_bytes=2 * one_pair_bytes)
    assert (len(pairs), made) == (5, [])
    first = pairs[0]
    assert pairs[0] is first
    assert [pairs[index].left[0, 0, 0] for index in (1, 2, -5)] == [pair(10, 20, seed=seed).left[0, 0, 0] for seed in (1, 2, 0)]
    assert made == [0, 1, 2, 0]
    assert [one.left[0, 0, 0] for one in pairs[1:3]] == [pairs[1].left[0, 0, 0], pairs[2].left[0, 0, 0]]
    assert len(list(pairs)) == 5
    with pytest.raises(IndexError):
        pairs[5]


def test_strength_changes_the_light_alone(dataset: StereoDataset) -> None:
    batches = [dataset.training_batch([0, 1, 2, 3], 5, 16, strength) for strength in (0, 50, 100)]
    plain, half, whole = (batch.inputs for batch in batches)
    assert torch.equal(batches[0].targets, batches[2].targets)
    assert 0 < float((half - plain).abs().mean()) < float((whole - plain).abs().mean())
    assert torch.equal(whole, dataset.training_batch([0, 1, 2, 3], 5, 16).inputs)
