import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manta_swarm.automl.data.pictures import MAX_PIXELS, picture_size, read_picture, read_rgb
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_picture


@pytest.mark.parametrize("ending", ["png", "bmp", "ppm", "webp"])
def test_colours_are_read_as_they_were_written(tmp_path: Path, ending: str) -> None:
    levels = noise(6, 9, 3)
    path = tmp_path / f"a.{ending}"
    Image.fromarray(levels).save(path, **({"lossless": True} if ending == "webp" else {}))
    assert np.array_equal(read_picture(path), levels)
    assert np.array_equal(read_rgb(path), levels)
    assert picture_size(path) == (6, 9)


def test_grey_pictures_have_one_channel_however_they_are_stored(tmp_path: Path) -> None:
    grey = noise(6, 9)
    plain = write_picture(tmp_path / "grey.png", grey)
    coloured = write_picture(tmp_path / "rgb.png", np.stack([grey] * 3, axis=2))
    for path in (plain, coloured):
        assert np.array_equal(read_picture(path), grey)
        assert np.array_equal(read_rgb(path), np.stack([grey] * 3, axis=2))


def test_palettes_and_transparency_become_plain_colours(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=b"\x80\xff")
    assert read_picture(tmp_path / "a.png").tolist() == [[[255, 0, 0], [0, 0, 255]]]
    Image.new("RGBA", (2, 2), (1, 2, 3, 4)).save(tmp_path / "b.png")
    assert read_picture(tmp_path / "b.png")[0, 0].tolist() == [1, 2, 3]


def test_a_photograph_taken_sideways_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it turned by a quarter
    Image.fromarray(np.array([[0, 100], [0, 100], [0, 100]], dtype=np.uint8)).save(tmp_path / "a.png", exif=exif)
    assert read_picture(tmp_path / "a.png").tolist() == [[0, 0, 0], [100, 100, 100]]


def test_levels_of_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "deep.png", noise(4, 4).astype(np.uint16) * 256)
    with pytest.raises(UserError, match=r"deep\.png has pixels of the kind"):
        read_picture(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "ppm", "webp"])
def test_truncated_pictures_are_refused_by_name(tmp_path: Path, ending: str) -> None:
    path = write_picture(tmp_path / f"a.{ending}", noise(64, 64, 3))
    cut(path)
    with pytest.raises(UserError, match=rf"a\.{ending} is (truncated|not a picture)"):
        read_picture(path)


def test_a_damaged_picture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png", noise(64, 64, 3))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.png is truncated or damaged"):
        read_picture(path)


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("cat, dog")
    (tmp_path / "empty.png").touch()
    (tmp_path / "page.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")  # Pillow would start a program for it
    for name in ("notes.png", "empty.png", "page.eps"):
        with pytest.raises(UserError, match=f"{name} is not a picture"):
            read_picture(tmp_path / name)
    with pytest.raises(UserError, match=r"gone\.png is missing"):
        read_picture(tmp_path / "gone.png")


@pytest.mark.parametrize("side", [9000, 11_000, 60_000])
def test_a_picture_too_large_for_memory_is_refused_before_it_is_decoded(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    assert side**2 > MAX_PIXELS
    for read in (read_picture, picture_size):
        with pytest.raises(UserError, match=r"bomb\.png has .*scale it down"):
            read(path)
