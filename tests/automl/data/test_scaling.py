import hashlib
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from automl.data.scaling import Pixels, rescale, rescale_pixels
from tests.automl.data.files import noise


def mean_of_boxes(images: Pixels, height: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """By definition: every pixel becomes a block, so large that both grids fall on its edges."""
    rows, columns = images.shape[2:]
    tall, wide = math.lcm(rows, height) // rows, math.lcm(columns, width) // columns
    blocks = images.astype(np.float64).repeat(tall, axis=2).repeat(wide, axis=3)
    size = blocks.shape[2] // height, blocks.shape[3] // width
    return blocks.reshape(*images.shape[:2], height, size[0], width, size[1]).mean((3, 5))


@pytest.mark.parametrize(("height", "width"), [(5, 7), (1, 1), (6, 8), (4, 9), (11, 13)])
def test_shrinking_takes_the_mean_over_boxes(height: int, width: int) -> None:
    images = noise(2, 3, 12, 16)
    expected = mean_of_boxes(images, height, width) / 255
    torch.testing.assert_close(rescale(images, 255, height, width), torch.from_numpy(expected).float())


@pytest.mark.parametrize(("height", "width"), [(12, 16), (13, 16), (24, 33), (100, 40)])
def test_enlarging_is_bilinear(height: int, width: int) -> None:
    images = noise(2, 3, 12, 16)
    expected = F.interpolate(torch.from_numpy(images).double() / 255, (height, width), mode="bilinear", align_corners=False)
    torch.testing.assert_close(rescale(images, 255, height, width), expected.float())


def test_one_axis_may_shrink_while_the_other_grows() -> None:
    images = noise(1, 1, 12, 5)
    narrow = torch.from_numpy(mean_of_boxes(images, 4, 5) / 255)
    expected = F.interpolate(narrow, (4, 10), mode="bilinear", align_corners=False)
    torch.testing.assert_close(rescale(images, 255, 4, 10), expected.float())


def test_whole_pixels_are_rounded_half_up() -> None:
    images = np.array([[[[0, 1], [1, 0]]], [[[3, 4], [3, 4]]], [[[255, 255], [255, 254]]]], dtype=np.uint8)
    assert rescale_pixels(images, 1, 1).ravel().tolist() == [1, 4, 255]
    assert rescale_pixels(images, 1, 1).dtype == np.uint8


def test_an_image_comes_out_the_same_alone_and_among_others() -> None:
    images = noise(40, 3, 31, 33)
    together = rescale(images, 255, 24, 24)
    assert all(torch.equal(rescale(images[[place]], 255, 24, 24)[0], together[place]) for place in range(len(images)))


def test_the_bits_are_the_same_on_every_machine() -> None:
    images = np.random.RandomState(0).randint(0, 256, (4, 3, 40, 50)).astype(np.uint8)
    assert hashlib.sha256(rescale(images, 255, 33, 64).numpy().tobytes()).hexdigest().startswith("6de77d8e18de0fc4")
