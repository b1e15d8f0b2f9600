"""Pictures of what subnets answer, drawn: a sheet of held-out images, and for stereo views, disparities and errors in colours.

Shapes: H and W height and width; images are (C, H, W) from 0 to 1, disparities (H, W) in pixels, below 0 where unknown.
"""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Values = NDArray[np.float32]

COLUMNS = 8
_LEAST_TILE, _MOST_TILE = 64, 128  # pixels: smaller images are enlarged by whole factors
_SHADES = 255
_COLOURS = np.array(  # dark to bright, evenly in lightness, also for those who do not tell red from green
    [(13, 8, 45), (70, 18, 98), (126, 32, 110), (181, 48, 96), (226, 86, 63), (246, 146, 33), (246, 211, 81), (252, 253, 191)],
    dtype=np.float64,
)


def sheet(images: Sequence[Values]) -> tuple[bytes, int, int]:
    """Return a PNG of equally large images, row by row in ``COLUMNS`` columns, and a tile's width and height."""
    tiles = [_tile(image) for image in images]
    height, width, channels = tiles[0].shape
    rows = -(-len(tiles) // COLUMNS)
    whole = np.zeros((rows * height, COLUMNS * width, channels), np.uint8)
    for place, tile in enumerate(tiles):
        top, left = place // COLUMNS * height, place % COLUMNS * width
        whole[top : top + height, left : left + width] = tile
    return _png(whole), width, height


def view(image: Values) -> bytes:
    """Return a PNG of one image."""
    return _png(_bytes(image))


def coloured(values: Values, most: float, is_known: NDArray[np.bool_]) -> bytes:
    """Return a PNG of values from 0 (dark) to ``most`` (bright); transparent where they are not known."""
    place = np.clip(np.nan_to_num(values.astype(np.float64)) / max(most, 1e-9), 0.0, 1.0)
    indices = np.where(is_known, 1 + np.round(place * (_SHADES - 1)), 0).astype(np.uint8)
    picture = Image.fromarray(indices, "P")
    picture.putpalette(_palette().tobytes())
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True, transparency=0)
    return file.getvalue()


def _palette() -> Pixels:
    """Return 256 colours: what is not known, then the shades from dark to bright."""
    place = np.linspace(0, len(_COLOURS) - 1, _SHADES)
    below = np.minimum(place.astype(np.int64), len(_COLOURS) - 2)
    part = (place - below)[:, None]
    shades = np.round(_COLOURS[below] * (1 - part) + _COLOURS[below + 1] * part)
    return np.concatenate((np.zeros((1, 3)), shades)).astype(np.uint8)


def resized(disparity: Values, height: int, width: int) -> Values:
    """Return a disparity at another size, its values in pixels of that size."""
    if disparity.shape == (height, width):
        return disparity
    scaled = Image.fromarray(disparity).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(scaled, dtype=np.float32) * np.float32(width / disparity.shape[1])


def _tile(image: Values) -> Pixels:
    pixels = _bytes(image)
    height, width, _ = pixels.shape
    if max(height, width) > _MOST_TILE:
        small = _image(pixels).resize((_MOST_TILE, _MOST_TILE), Image.Resampling.BILINEAR)
        return np.asarray(small, dtype=np.uint8).reshape(_MOST_TILE, _MOST_TILE, -1)
    factor = max(1, _LEAST_TILE // max(height, width))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _bytes(image: Values) -> Pixels:
    return np.round(np.clip(image, 0.0, 1.0) * 255).astype(np.uint8).transpose(1, 2, 0)


def _png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    _image(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


def _image(pixels: Pixels) -> Image.Image:
    """Return pixels (H, W, C) as a picture, grey where C is 1."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
