"""Synthetic stereo: textured layers, flat or slanted, one before the other, each pair made from its number when it is asked for.

Integers throughout, so every machine has the same pixels. A layer lies in a plane: its disparity is linear in a view's coordinates,
and its texture and outline are fixed to the left view's. Of all layers at a pixel the one with the largest disparity is seen, in
each view by itself, so what is hidden in one view only comes out as it does in a photograph.

Shapes: H and W of a view, L layers, T textures. Fixed point: 8 bits behind the point, in names that end in 256.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from automl.data.augmentation import Integers, below, words
from automl.data.pairs import LazyPairs
from automl.data.scaling import Pixels, rescale_pixels
from automl.data.views import Pair, StereoDataset

HEIGHT = 128
WIDTH = 256
MAX_DISPARITY = 40
NUM_TRAIN = 4096
NUM_HELD_OUT = 64
_VERSION = 1

_ONE = 256
_BANK_ROWS, _BANK_COLUMNS = 256, 512  # powers of two: a texture goes on from its other end
_SCALES = (2, 3, 4, 6, 8, 12, 16, 24)  # pixels between the corners of a texture's noise
_WORDS = 28  # of each layer
_MIN_LAYERS, _MAX_LAYERS = 4, 10
_RECTANGLE, _ELLIPSE, _BAR, _FOLIAGE, _SHAPES = range(5)
_BACKGROUND = _SHAPES  # everywhere

Grid = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class View(NamedTuple):
    """One camera's picture and the disparity of what it shows."""

    image: Pixels  # (H, W, 3)
    disparity_256: Grid  # (H, W)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A plane with an outline, a texture and two colours; positions are the left view's."""

    shape: int
    row: int
    column: int
    half_height: int
    half_width: int
    cosine_256: int  # of the outline's turn
    sine_256: int
    disparity_256: int  # at its middle
    right_slope_256: int  # of the disparity, for each column to the right
    down_slope_256: int
    texture: int
    texture_row: int
    texture_256: int  # column, not a whole pixel: so that neither view is sharper than the other
    colours: Pixels  # (256, 4): of each level of the texture, red, green, blue and nothing


def layers() -> StereoDataset:
    """Return the synthetic pairs: 128 x 256 pixels, disparities from 0 to 40, all known."""
    parameters = (HEIGHT, WIDTH, MAX_DISPARITY, NUM_TRAIN, NUM_HELD_OUT)
    train, held_out = (LazyPairs(partial(make_pair, part), count) for part, count in (("train", NUM_TRAIN), ("held out", NUM_HELD_OUT)))
    return StereoDataset("layers", train, held_out, origin=("layers", _VERSION, *parameters))


def make_pair(part: str, index: int) -> Pair:
    """Return a pair; the disparity is exact to a 256th of a pixel."""
    left, right = make_views(part, index)
    return Pair(left.image, right.image, (left.disparity_256 / _ONE).astype(np.float32))


def make_views(part: str, index: int) -> tuple[View, View]:
    """Return the left and the right view of pair ``index`` of the "train" or the "held out" part."""
    first = words(f"layers {part}", index, 1 + _MAX_LAYERS * _WORDS)
    count = _MIN_LAYERS + int(below(first[0], _MAX_LAYERS - _MIN_LAYERS + 1))
    scene = [_layer(words_W, is_background=place == 0) for place, words_W in enumerate(first[1:].reshape(_MAX_LAYERS, _WORDS)[:count])]
    return _view(scene, is_right=False), _view(scene, is_right=True)


def _layer(words_W: Integers, *, is_background: bool) -> _Layer:
    draw = iter(words_W)

    def between(low: int, high: int) -> int:
        return low + int(below(next(draw), high - low + 1))

    shape = _BACKGROUND if is_background else between(0, _SHAPES - 1)
    half_height, half_width = (between(30, 110), between(3, 9)) if shape == _BAR else (between(8, 64), between(12, 90))
    sine_256 = between(-_ONE, _ONE)
    nearest = (16 if is_background else MAX_DISPARITY) * _ONE
    disparity_256 = between(0 if is_background else 2 * _ONE, nearest)
    right_slope_256, down_slope_256 = (between(-10, 10), between(-20, 60)) if is_background else (between(-40, 40), between(-50, 50))
    if between(0, 1):  # every second one faces the cameras, at a whole number of pixels
        disparity_256, right_slope_256, down_slope_256 = disparity_256 // _ONE * _ONE, 0, 0
    return _Layer(
        shape,
        HEIGHT // 2 if is_background else between(0, HEIGHT - 1),
        WIDTH // 2 if is_background else between(-20, WIDTH + 20),
        half_height,
        half_width,
        math.isqrt(_ONE**2 - sine_256**2),
        sine_256,
        disparity_256,
        right_slope_256,
        down_slope_256,
        between(0, len(_bank()) - 1),
        between(0, _BANK_ROWS - 1),
        between(0, _BANK_COLUMNS * _ONE - 1),
        _colours([between(0, 255) for _ in range(6)]),
    )


def _colours(ends: list[int]) -> Pixels:
    level = np.arange(256, dtype=np.int64)[:, None]
    dark, light = np.array([*ends[:3], 0]), np.array([*ends[3:], 0])
    blend: Pixels = ((dark * (255 - level) + light * level + 127) // 255).astype(np.uint8)
    return blend


def _view(scene: list[_Layer], *, is_right: bool) -> View:
    """Return what one camera sees: of each pixel the nearest layer, and the place in the left view that it shows."""
    nearest_256 = np.full((HEIGHT, WIDTH), -1, dtype=np.int32)
    seen = np.zeros((HEIGHT, WIDTH), dtype=np.int32)
    for number, layer in enumerate(scene):
        rows, columns = _bounds(layer)
        y, x = np.arange(rows.start, rows.stop, dtype=np.int32)[:, None], np.arange(columns.start, columns.stop, dtype=np.int32)
        disparity_256 = _plane(layer, y, x, is_right=is_right)
        place_x = x + (disparity_256 + _ONE // 2 >> 8) if is_right else x
        before = disparity_256 > nearest_256[rows, columns]
        if layer.shape != _BACKGROUND:
            before &= _inside(layer, y, place_x)
        nearest_256[rows, columns][before] = disparity_256[before]
        seen[rows, columns][before] = number
    return View(_painted(scene, seen, nearest_256 if is_right else None), nearest_256)


def _bounds(layer: _Layer) -> tuple[slice, slice]:
    """Return the rows and columns of either view that a layer can reach: a turned outline is no longer than its diagonal."""
    if layer.shape == _BACKGROUND:
        return slice(0, HEIGHT), slice(0, WIDTH)
    reach = math.isqrt(layer.half_height**2 + layer.half_width**2) + 2
    top, bottom = max(layer.row - reach, 0), min(layer.row + reach + 1, HEIGHT)
    left, right = max(layer.column - reach - MAX_DISPARITY - 1, 0), min(layer.column + reach + 1, WIDTH)
    return slice(top, max(bottom, top)), slice(left, max(right, left))


def _plane(layer: _Layer, y: Grid, x: Grid, *, is_right: bool) -> Grid:
    """Return a layer's disparities (h, w) at the rows y (h, 1) and columns x (w,) of a view.

    In the left view D = d + a (x - column) + b (y - row). Right x' shows left x = x' + D, so there (1 - a) D = d + a (x' - column) + ...
    """
    sum_256 = layer.disparity_256 + layer.right_slope_256 * (x - layer.column) + layer.down_slope_256 * (y - layer.row)
    if is_right and layer.right_slope_256:
        share = _ONE - layer.right_slope_256  # 1 - a
        sum_256 = (2 * _ONE * sum_256 + share) // (2 * share)  # rounded; nothing is lost where D is a whole number
    plane: Grid = np.clip(sum_256, 0, MAX_DISPARITY * _ONE)
    return plane


def _inside(layer: _Layer, y: Grid, x: Grid) -> Mask:
    """Return where a layer is, at rows y (h, 1) and columns x (w,) or (h, w) of the left view."""
    down, right = y - layer.row, x - layer.column
    across_256 = right * layer.cosine_256 + down * layer.sine_256
    along_256 = down * layer.cosine_256 - right * layer.sine_256
    if layer.shape in (_RECTANGLE, _BAR):
        inside: Mask = (np.abs(across_256) <= layer.half_width * _ONE) & (np.abs(along_256) <= layer.half_height * _ONE)
        return inside
    across, along = (across_256 >> 4) * layer.half_height, (along_256 >> 4) * layer.half_width
    radius = layer.half_width * layer.half_height * (_ONE >> 4)
    inside = across.astype(np.int64) ** 2 + along.astype(np.int64) ** 2 <= radius**2
    if layer.shape == _FOLIAGE:
        leaves = _bank()[layer.texture % len(_SCALES)]  # the plain noise, with holes where it is dark
        inside &= leaves[y + layer.texture_row & _BANK_ROWS - 1, x & _BANK_COLUMNS - 1] > 112
    return inside


def _painted(scene: list[_Layer], seen: Grid, disparity_256: Grid | None) -> Pixels:
    """Return the picture (H, W, 3) of the layers ``seen``; right pixels are shifted by their disparity, left ones by nothing."""
    x_256 = _of_layers([layer.texture_256 for layer in scene], seen) + np.arange(WIDTH, dtype=np.int32) * _ONE
    if disparity_256 is not None:
        x_256 += disparity_256
    row = _of_layers([layer.texture_row for layer in scene], seen) + np.arange(HEIGHT, dtype=np.int32)[:, None]
    start = (_of_layers([layer.texture * _BANK_ROWS for layer in scene], seen) + (row & _BANK_ROWS - 1)) * _BANK_COLUMNS
    column, part = x_256 >> 8, x_256 & _ONE - 1
    flat = _bank().reshape(-1)
    low, high = (flat.take(start + (place & _BANK_COLUMNS - 1)).astype(np.int32) for place in (column, column + 1))
    level = low * (_ONE - part) + high * part + _ONE // 2 >> 8
    palette = np.concatenate([layer.colours for layer in scene]).view(np.uint32)[:, 0]  # four bytes at once are looked up faster
    image: Pixels = palette.take(seen * 256 + level).view(np.uint8).reshape(HEIGHT, WIDTH, 4)[..., :3].copy()
    return image


def _of_layers(values: list[int], seen: Grid) -> Grid:
    """Return the value of the layer that each pixel sees."""
    chosen: Grid = np.array(values, dtype=np.int32).take(seen)
    return chosen


@cache
def _bank() -> Pixels:
    """Return the fixed textures (T, 256, 512) that layers take parts of: of every scale clouds, marble, spots and tiles."""
    return np.stack([texture for kind in zip(*map(_textures, _SCALES), strict=True) for texture in kind])


def _textures(scale: int) -> Iterator[Pixels]:
    noise = [_noise(scale * step, scale * 8 + step) for step in (1, 2, 4)]
    clouds = _stretched(4 * noise[0] + 2 * noise[1] + noise[2])
    yield clouds.astype(np.uint8)
    across = np.arange(_BANK_COLUMNS) + np.arange(_BANK_ROWS)[:, None] // 2
    wave = (across * 256 // scale + 3 * clouds) % 512
    yield np.minimum(wave, 511 - wave).astype(np.uint8)
    yield np.clip(6 * (clouds - 128) + 128, 0, 255).astype(np.uint8)
    tiles = words("layers tiles", scale, _BANK_ROWS // scale + 1, _BANK_COLUMNS // scale + 1) >> 8
    yield tiles[np.arange(_BANK_ROWS)[:, None] // scale, np.arange(_BANK_COLUMNS) // scale].astype(np.uint8)


def _noise(scale: int, seed: int) -> Integers:
    rows, columns = -(-_BANK_ROWS // scale), -(-_BANK_COLUMNS // scale)
    corners = (words("layers noise", seed, rows, columns) >> 8).astype(np.uint8)
    noise: Integers = rescale_pixels(corners[None, None], _BANK_ROWS, _BANK_COLUMNS)[0, 0].astype(np.int64)
    return noise


def _stretched(values: Integers) -> Integers:
    low, high = int(values.min()), int(values.max())
    stretched: Integers = (values - low) * 255 // (high - low)
    return stretched
