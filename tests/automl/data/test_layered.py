import hashlib

import numpy as np
import numpy.typing as npt
import pytest

from manta_swarm.automl.data.layered import HEIGHT, MAX_DISPARITY, WIDTH, CameraView, layers, make_pair, make_views
from manta_swarm.automl.data.views import StereoDataset

DIGEST = "13d4e228c2bd8c45be5a51419e075694f7a03f46870b2060b4324991a7c629cf"
Mask = npt.NDArray[np.bool_]


@pytest.fixture(scope="module")
def dataset() -> StereoDataset:
    return layers()


def visible(left: CameraView, right: CameraView) -> tuple[Mask, npt.NDArray[np.int64]]:
    """Where a left pixel of a whole disparity is seen in the right view as well, and the right column it is at."""
    column = np.arange(WIDTH) - (left.disparity_256 >> 8)
    inside = (column >= 0) & (left.disparity_256 & 255 == 0)
    matched = np.take_along_axis(right.disparity_256, np.clip(column, 0, None), axis=1)
    return inside & (matched == left.disparity_256), np.clip(column, 0, None)


def test_where_both_views_see_a_surface_they_show_the_same_pixels() -> None:
    shares = []
    for index in range(30):
        left, right = make_views("train", index)
        seen, column = visible(left, right)
        warped = np.take_along_axis(right.image, column[..., None], axis=1)
        assert np.array_equal(warped[seen], left.image[seen])
        shares.append(seen.mean())
    assert np.mean(shares) > 0.3


def test_whatever_is_not_seen_from_the_right_is_hidden_there_by_something_nearer() -> None:
    hidden = 0
    for index in range(30):
        left, right = make_views("train", index)
        seen, column = visible(left, right)
        in_view = (left.disparity_256 & 255 == 0) & (np.arange(WIDTH) >= left.disparity_256 >> 8)
        unseen = in_view & ~seen
        assert (np.take_along_axis(right.disparity_256, column, axis=1)[unseen] > left.disparity_256[unseen]).all()
        hidden += unseen.sum()
    assert hidden > 1000


def test_warping_by_the_disparity_explains_slanted_surfaces_as_well() -> None:
    warped_error, plain_error = [], []
    for index in range(30):
        left, right = make_views("train", index)
        disparity = left.disparity_256 / 256
        place = np.arange(WIDTH) - disparity
        low = np.clip(np.floor(place).astype(int), 0, WIDTH - 2)
        part = (place - low)[..., None]
        first, second = (np.take_along_axis(right.image, (low + step)[..., None], axis=1) for step in (0, 1))
        matched = np.take_along_axis(right.disparity_256, low, axis=1) / 256
        seen = (place >= 0) & (abs(matched - disparity) < 0.5) & (disparity > 0)
        warped_error.append(abs(first * (1 - part) + second * part - left.image)[seen].mean())
        plain_error.append(abs(right.image.astype(float) - left.image)[seen].mean())
    assert np.mean(warped_error) < 6
    assert np.mean(plain_error) > 5 * np.mean(warped_error)


def test_pairs_differ_and_fill_the_range_of_disparities(dataset: StereoDataset) -> None:
    pairs = [dataset.train[index] for index in range(40)]
    assert len({one.left.tobytes() for one in pairs}) == 40
    assert {one.disparity.shape for one in pairs} == {(HEIGHT, WIDTH)}
    disparities = np.stack([one.disparity for one in pairs])
    assert (disparities.min(), disparities.max()) == (0, MAX_DISPARITY)
    assert 8 < disparities.mean() < 24
    assert disparities.std(axis=(1, 2)).mean() > 4
    assert np.mean([len(np.unique(one.disparity)) > 100 for one in pairs]) > 0.5
    contrasts = np.array([one.left.std() for one in pairs])
    assert contrasts.min() < 45 < 60 < contrasts.max()


def test_a_pair_does_not_depend_on_what_was_asked_for_before(dataset: StereoDataset) -> None:
    assert np.array_equal(dataset.train[17].left, make_pair("train", 17).left)
    assert np.array_equal(dataset.held_out[3].right, make_pair("held out", 3).right)
    assert not np.array_equal(dataset.held_out[3].right, dataset.train[3].right)


def test_the_pixels_are_the_same_on_every_machine(dataset: StereoDataset) -> None:
    assert dataset.digest.hex() == DIGEST
    batch = dataset.training_batch([0, 5, 4095], 7, 48)
    data = batch.inputs.numpy().tobytes() + batch.targets.numpy().tobytes()
    assert hashlib.sha256(data).hexdigest().startswith("3e5fefc1e3622c3c")


def test_there_are_thousands_of_pairs_and_two_equal_halves_held_out(dataset: StereoDataset) -> None:
    assert (dataset.task, dataset.num_train, dataset.num_held_out, dataset.image_channels, dataset.num_classes) == (
        "stereo",
        4096,
        64,
        3,
        0,
    )
    assert [len(batch.inputs) for batch in dataset.held_out_batches(16, 20, "search")] == [20, 12]
