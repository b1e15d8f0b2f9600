from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets.utils import _read_pfm

from manta_swarm.automl.data.pairs import disparity_size, read_disparity
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_pfm, write_picture


@pytest.fixture
def values() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = np.random.default_rng(0).random((5, 7), dtype=np.float32) * 100
    values[1, 2], values[3, 4], values[0, 6], values[4, 0] = np.inf, np.nan, -3, 0
    return values


@pytest.mark.parametrize("big_endian", [False, True])
def test_pfm_is_read_bottom_up_in_either_byte_order_and_what_is_no_disparity_is_unknown(
    values: np.ndarray, tmp_path: Path, big_endian: bool
) -> None:
    path = write_pfm(tmp_path / "a.pfm", values, big_endian=big_endian)
    expected = values.copy()
    expected[[1, 3, 0], [2, 4, 6]] = -1
    assert np.array_equal(read_disparity(path), expected)
    assert np.array_equal(_read_pfm(path, slice_channels=1)[0], values, equal_nan=True)  # torchvision's reader as the oracle
    assert read_disparity(path).dtype == np.float32
    assert disparity_size(path) == (5, 7)


def test_middleburys_head_with_another_scale_is_read(values: np.ndarray, tmp_path: Path) -> None:
    path = write_pfm(tmp_path / "a.pfm", values)
    path.write_bytes(path.read_bytes().replace(b"\n-1.0\n", b"\n-0.003922\n", 1))
    assert read_disparity(path)[2, 2] == values[2, 2]


def test_png_of_16_bits_has_256_levels_a_pixel_unless_another_scale_is_given(tmp_path: Path) -> None:
    levels = np.array([[0, 1, 256], [640, 65535, 40000]], dtype=np.uint16)
    path = write_picture(tmp_path / "a.png", levels)
    assert read_disparity(path).tolist() == [[-1, 1 / 256, 1], [2.5, 65535 / 256, 156.25]]
    assert read_disparity(path, scale=64).tolist() == [[-1, 1 / 64, 4], [10, 1023.984375, 625]]
    assert disparity_size(path) == (2, 3)


def test_png_of_8_bits_needs_a_scale(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png", np.array([[0, 3, 255], [6, 1, 2]], dtype=np.uint8))
    np.testing.assert_allclose(read_disparity(path, scale=3), [[-1, 1, 85], [2, 1 / 3, 2 / 3]], rtol=1e-7)
    with pytest.raises(UserError, match=r"a\.png has 8-bit disparities: .*scale"):
        read_disparity(path)


@pytest.mark.parametrize(
    "head",
    [
        b"PF\n7 5\n-1.0\n",
        b"Pf\n7\n-1.0\n",
        b"Pf\n7 5\nnan\n",
        b"Pf\n7 5\n0\n",
        b"Pf\n7 -5\n-1.0\n",
        b"Pf\n0 5\n-1.0\n",
        b"Pf\n6 5\n-1.0\n",
        b"Pf\n999999 999999\n-1.0\n",
        b"Pf\n99999999999 5\n-1.0\n",
        b"P5\n7 5\n255\n",
        b"",
    ],
)
def test_a_pfm_that_does_not_hold_what_it_says_is_refused_by_name(values: np.ndarray, tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "a.pfm"
    path.write_bytes(head + values.astype("<f4").tobytes())
    for read in (read_disparity, disparity_size):
        with pytest.raises(UserError, match=r"a\.pfm"):
            read(path)


def test_truncated_maps_are_refused_by_name(values: np.ndarray, tmp_path: Path) -> None:
    pfm, png = write_pfm(tmp_path / "a.pfm", values), write_picture(tmp_path / "b.png", noise(40, 40).astype(np.uint16) * 200)
    for path in (pfm, png):
        cut(path)
        with pytest.raises(UserError, match=rf"{path.name} is truncated"):
            read_disparity(path)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    write_picture(tmp_path / "colours.png", noise(4, 4, 3))
    (tmp_path / "text.png").write_text("disparity")
    for name, message in (
        ("colours.png", "not a grey picture"),
        ("text.png", "not a picture"),
        ("none.png", "missing"),
        ("none.pfm", "none.pfm"),
    ):
        with pytest.raises(UserError, match=message):
            read_disparity(tmp_path / name)
