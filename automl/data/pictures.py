"""Picture files as integers. They come from strangers: only formats that are pictures, and bounded before anything is decoded."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.protocol.errors import UserError

MAX_PIXELS = 64 << 20
_PNG_LEVEL = 2  # of 9: twice as fast as the usual 6, a few per cent larger
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
_GREY = ("1", "L", "LA")
_COLOURED = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, OverflowError, struct.error)  # what decoders make of it


def picture_size(path: Path) -> tuple[int, int]:
    """Return rows and columns, from the file's head alone.

    Raises:
        UserError: missing, no picture, or larger than ``MAX_PIXELS``.
    """
    with _opened(path, str(path)) as image:
        return image.height, image.width


def read_picture(path: Path) -> Pixels:
    """Return a picture upright: (H, W) if it is grey, otherwise (H, W, 3), red first.

    Raises:
        UserError: missing, no picture, too large, truncated, or with levels of more than 8 bits.
    """
    with _opened(path, str(path)) as image:
        return grey_or_rgb(ImageOps.exif_transpose(image), str(path))


def picture_of(data: bytes, where: str) -> Pixels:
    """Return the picture that a file with these bytes holds, as ``read_picture`` does; ``where`` is named in its place."""
    with _opened(io.BytesIO(data), where) as image:
        return grey_or_rgb(ImageOps.exif_transpose(image), where)


def png_of(picture: Pixels) -> bytes:
    """Return the PNG file of a picture (H, W) or (H, W, 3): its levels come back as they are, on every machine."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=_PNG_LEVEL)
    return file.getvalue()


def read_rgb(path: Path) -> Pixels:
    """Return a picture as it is stored, (H, W, 3), red first; raises as ``read_picture``."""
    with _opened(path, str(path)) as image:
        return _three_channels(grey_or_rgb(image, str(path)))


def rgb_of(data: bytes, where: str) -> Pixels:
    """Return the picture that a file with these bytes holds, as ``read_rgb`` does; ``where`` is named in its place."""
    with _opened(io.BytesIO(data), where) as image:
        return _three_channels(grey_or_rgb(image, where))


def _three_channels(pixels: Pixels) -> Pixels:
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)


def read_levels(path: Path) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """Return the levels (H, W) of a grey picture of 8 or of 16 bits.

    Raises:
        UserError: missing, no picture, too large, truncated, or coloured.
    """
    with _opened(path, str(path)) as image:
        if image.mode == "L":
            return np.array(image, dtype=np.uint8)
        if image.mode == "I" or image.mode.startswith("I;16"):
            levels = np.asarray(image)
            if levels.min() >= 0 and levels.max() < 1 << 16:
                return levels.astype(np.uint16)
    raise UserError(f"{path} is not a grey picture of 8 or 16 bits: save the disparities as one")


def grey_or_rgb(image: Image.Image, where: str) -> Pixels:
    """Return a picture's levels: (H, W) if it is grey, also where it is stored as colours, otherwise (H, W, 3).

    Raises:
        UserError: its levels have more than 8 bits; ``where`` is named.
    """
    if image.mode in _GREY:
        return np.array(image.convert("L"))
    if image.mode not in _COLOURED:
        raise UserError(f"{where} has pixels of the kind {image.mode!r}: save it with 8 bits a channel")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # a palette may have transparent entries
    pixels = np.array(image.convert("RGB"))
    is_grey = np.array_equal(pixels[..., 0], pixels[..., 1]) and np.array_equal(pixels[..., 0], pixels[..., 2])
    return pixels[..., 0].copy() if is_grey else pixels


@contextmanager
def _opened(source: Path | io.BytesIO, path: str) -> Iterator[Image.Image]:
    """Yield the picture, not yet decoded; whatever goes wrong with it in the block is told as the file's fault, called ``path``."""
    try:
        with Image.open(source, formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"{path} has {image.width} x {image.height} pixels, more than {MAX_PIXELS}: scale it down")
            yield image
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: put it there") from error
    except UnidentifiedImageError as error:
        raise UserError(f"{path} is not a picture that can be read ({', '.join(_FORMATS)}): remove it or replace it") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path} has more than {MAX_PIXELS} pixels: scale it down") from error
    except _DAMAGE as error:
        raise UserError(f"{path} is truncated or damaged: copy it again or remove it") from error
