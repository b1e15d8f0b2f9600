import hashlib
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from manta_swarm.automl.data import scaling
from manta_swarm.automl.data.scaling import Pixels, has_colours, of_one_size, rescale, rescale_pixels, side_of, squares
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import noise

SIZES = [(1, 1), (1, 5), (2, 1), (3, 2), (7, 7), (8, 32), (28, 32), (31, 24), (33, 32), (64, 64), (65, 64), (97, 64), (127, 128), (150, 37)]


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


def weights_by_definition(size: int, target: int) -> tuple[list[list[int]], int]:
    """Of each new pixel how much of each old one, as a dense matrix of integers, and what its rows sum to."""
    if target < size:
        overlap = [[min((r + 1) * size, (h + 1) * target) - max(r * size, h * target) for h in range(size)] for r in range(target)]
        return [[max(each, 0) for each in row] for row in overlap], size
    rows = [[0] * size for _ in range(target)]
    for place, row in enumerate(rows):
        low, part = divmod(max((2 * place + 1) * size - target, 0), 2 * target)
        row[min(low, size - 1)] += 2 * target - part
        row[min(low + 1, size - 1)] += part
    return rows, 2 * target


@pytest.mark.parametrize(("rows", "height"), SIZES)
@pytest.mark.parametrize(("columns", "width"), [(4, 9), (9, 4), (131, 128)])
def test_the_pixels_are_those_of_the_definition_to_the_bit(rows: int, height: int, columns: int, width: int) -> None:
    images = noise(2, 3, rows, columns)
    (down, down_total), (across, across_total) = weights_by_definition(rows, height), weights_by_definition(columns, width)
    sums = np.array(down) @ images.astype(np.int64) @ np.array(across).T
    total = down_total * across_total
    expected = torch.from_numpy((sums.astype(np.float64) / (255 * total)).astype(np.float32))
    assert torch.equal(rescale(images, 255, height, width), expected)
    assert np.array_equal(rescale_pixels(images, height, width), (2 * sums + total) // (2 * total))


def test_sums_that_need_more_than_32_bits_are_exact() -> None:
    images = np.full((1, 1, 4200, 2100), 255, np.uint8)
    images[..., ::2] = 254
    assert rescale(images, 255, 3, 1).unique().tolist() == [np.float32(254.5 / 255)]
    assert rescale_pixels(images, 3, 1).ravel().tolist() == [255] * 3


def test_pixels_that_nobody_may_write_to_and_those_in_any_order_are_taken() -> None:
    images = noise(2, 3, 12, 16)
    kept = images.copy()
    kept.setflags(write=False)
    backwards = images.transpose(3, 2, 1, 0).copy().transpose(3, 2, 1, 0)
    assert torch.equal(rescale(kept, 255, 5, 20), rescale(images, 255, 5, 20))
    assert torch.equal(rescale(backwards, 255, 5, 20), rescale(images, 255, 5, 20))
    assert rescale(images[:0], 255, 5, 20).shape == (0, 3, 5, 20)


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


def test_the_centre_square_is_kept_and_scaled_down_only() -> None:
    wide, tall, large = noise(4, 9), noise(10, 4, 3), noise(30, 20)
    kept = squares([wide, tall, large], 3, 8, "some")
    assert np.array_equal(kept[0], wide[:, 2:6])
    assert np.array_equal(kept[1], tall[3:7])
    assert np.array_equal(kept[2], rescale_pixels(large[None, None, 5:25], 8, 8)[0, 0])


def test_all_come_to_the_median_side_and_to_colours_if_any_has_them() -> None:
    pictures = [noise(side, side) for side in (3, 6, 5, 90, 6)] + [noise(6, 6, 3), noise(2, 2, 3)]
    assert side_of(pictures) == 6
    assert has_colours(pictures)
    images = of_one_size(list(pictures), 6, 3)
    assert images.shape == (7, 3, 6, 6)
    assert all(np.array_equal(images[1, channel], pictures[1]) for channel in range(3))
    assert np.array_equal(images[5].transpose(1, 2, 0), pictures[5])
    assert np.array_equal(images[3, 0], rescale_pixels(pictures[3][None, None], 6, 6)[0, 0])


def test_a_set_that_would_not_fit_in_memory_is_refused_early_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "MAX_BYTES", 1 << 20)
    seen = []

    def pictures():  # type: ignore[no-untyped-def]
        for index in range(10_000):
            seen.append(index)
            yield noise(16, 16)

    with pytest.raises(UserError, match="some-64px"):
        squares(pictures(), 10_000, 256, "some")
    assert len(seen) == 100
