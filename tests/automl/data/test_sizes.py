import numpy as np
import pytest

from manta_swarm.automl.data import scaling
from manta_swarm.automl.data.scaling import has_colours, of_one_size, rescale_pixels, side_of, squares
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import noise


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
