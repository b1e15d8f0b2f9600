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

from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.preparing import Integers, below, words
from manta_swarm.automl.data.scaling import Pixels, rescale_pixels
from manta_swarm.automl.data.views import Pair, StereoDataset

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
_RANK_BITS = 4  # enough for all layers: where two are equally near, the first one is seen
_LAST_RANK = (1 << _RANK_BITS) - 1

Grid = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


class CameraView(NamedTuple):
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
    colours: Pixels  # (3, 256): red, green and blue of each level of the texture


def layers() -> StereoDataset:
    """Return the synthetic pairs: 128 x 256 pixels, disparities from 0 to 40, all known."""
    parameters = (HEIGHT, WIDTH, MAX_DISPARITY, NUM_TRAIN, NUM_HELD_OUT)
    train, held_out = (LazyPairs(partial(make_pair, part), count) for part, count in (("train", NUM_TRAIN), ("held out", NUM_HELD_OUT)))
    return StereoDataset("layers", train, held_out, origin=("layers", _VERSION, *parameters))


def make_pair(part: str, index: int) -> Pair:
    """Return a pair; the disparity is exact to a 256th of a pixel."""
    left, right = make_views(part, index)
    return Pair(left.image, right.image, (left.disparity_256 / _ONE).astype(np.float32))


def make_views(part: str, index: int) -> tuple[CameraView, CameraView]:
    """Return the left and the right view of pair ``index`` of the "train" or the "held out" part."""
    first = words(f"layers {part}", index, 1 + _MAX_LAYERS * _WORDS)
    count = _MIN_LAYERS + int(below(first[0], _MAX_LAYERS - _MIN_LAYERS + 1))
    scene = [_layer(words_W, is_background=place == 0) for place, words_W in enumerate(first[1:].reshape(_MAX_LAYERS, _WORDS)[:count])]
    return _view(scene, is_right=False), _view(scene, is_right=True)


def _layer(words_W: Integers, *, is_background: bool) -> _Layer:
    numbers: list[int] = words_W.tolist()
    draw = iter(numbers)

    def between(low: int, high: int) -> int:
        return low + below(next(draw), high - low + 1)

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
    level = np.arange(256, dtype=np.uint16)
    dark, light = np.array(ends[:3], np.uint16)[:, None], np.array(ends[3:], np.uint16)[:, None]
    blend: Pixels = ((dark * (255 - level) + light * level + 127) // 255).astype(np.uint8)
    return blend


def _view(scene: list[_Layer], *, is_right: bool) -> CameraView:
    """Return what one camera sees: of each pixel the nearest layer, and the place in the left view that it shows."""
    # The largest of a pixel is of the nearest layer, and of equally near ones of the first; outside of a layer there is 0.
    nearest = np.zeros((HEIGHT, WIDTH), dtype=np.int32)
    for number, layer in enumerate(scene):
        rows, columns = _bounds(layer, is_right=is_right)
        y, x = np.arange(rows.start, rows.stop, dtype=np.int32)[:, None], np.arange(columns.start, columns.stop, dtype=np.int32)
        disparity_256 = _plane(layer, y, x, is_right=is_right)
        ranked = (disparity_256 << _RANK_BITS) + (_LAST_RANK - number)
        if layer.shape != _BACKGROUND:
            ranked = ranked * _inside(layer, y, x + (disparity_256 + _ONE // 2 >> 8) if is_right else x)
        np.maximum(nearest[rows, columns], ranked, out=nearest[rows, columns])
    disparity_256 = nearest >> _RANK_BITS
    seen = (_LAST_RANK - (nearest & _LAST_RANK)).astype(np.intp)
    return CameraView(_painted(scene, seen, disparity_256 if is_right else None), disparity_256)


def _bounds(layer: _Layer, *, is_right: bool) -> tuple[slice, slice]:
    """Return the rows and columns of a view that a layer can reach, and some more: those of a box around its turned outline."""
    if layer.shape == _BACKGROUND:
        return slice(0, HEIGHT), slice(0, WIDTH)
    square = layer.cosine_256**2 + layer.sine_256**2  # somewhat less than 1, so the outline is somewhat larger than it says
    high = _ONE * (layer.half_width * abs(layer.sine_256) + layer.half_height * layer.cosine_256) // square + 2
    wide = _ONE * (layer.half_width * layer.cosine_256 + layer.half_height * abs(layer.sine_256)) // square + 2
    nearest, farthest = (MAX_DISPARITY + 1, 0) if is_right else (0, 0)
    if is_right and _faces(layer):
        nearest = farthest = layer.disparity_256 >> 8
    top, bottom = max(layer.row - high, 0), min(layer.row + high + 1, HEIGHT)
    left, right = max(layer.column - wide - nearest, 0), min(layer.column + wide + 1 - farthest, WIDTH)
    return slice(top, max(bottom, top)), slice(left, max(right, left))


def _faces(layer: _Layer) -> bool:
    """Return whether a layer has one disparity everywhere."""
    return layer.right_slope_256 == layer.down_slope_256 == 0


def _plane(layer: _Layer, y: Grid, x: Grid, *, is_right: bool) -> Grid:
    """Return a layer's disparities, of a shape that fits (h, w), at the rows y (h, 1) and columns x (w,) of a view.

    In the left view D = d + a (x - column) + b (y - row). Right x' shows left x = x' + D, so there (1 - a) D = d + a (x' - column) + ...
    """
    if _faces(layer):  # 0 <= d <= MAX_DISPARITY
        return np.full((1, 1), layer.disparity_256, np.int32)
    sum_256: Grid = (layer.disparity_256 + layer.right_slope_256 * (x - layer.column)) + layer.down_slope_256 * (y - layer.row)
    if is_right and layer.right_slope_256:
        share = _ONE - layer.right_slope_256  # 1 - a
        sum_256 *= 2 * _ONE
        sum_256 += share
        sum_256 //= 2 * share  # rounded; nothing is lost where D is a whole number
    return np.clip(sum_256, 0, MAX_DISPARITY * _ONE, out=sum_256)


def _inside(layer: _Layer, y: Grid, x: Grid) -> Mask:
    """Return where a layer is, at rows y (h, 1) and columns x (w,) or (h, w) of the left view."""
    down, right = y - layer.row, x - layer.column
    across_256 = right * layer.cosine_256 + down * layer.sine_256
    along_256 = down * layer.cosine_256 - right * layer.sine_256
    if layer.shape in (_RECTANGLE, _BAR):
        inside: Mask = np.abs(across_256, out=across_256) <= layer.half_width * _ONE
        inside &= np.abs(along_256, out=along_256) <= layer.half_height * _ONE
        return inside
    across_256 >>= 4
    along_256 >>= 4
    # As doubles, which hold these whole numbers exactly and are multiplied faster than 64-bit integers.
    across = np.multiply(across_256, layer.half_height, dtype=np.float64)
    along = np.multiply(along_256, layer.half_width, dtype=np.float64)
    across *= across
    along *= along
    across += along
    radius = layer.half_width * layer.half_height * (_ONE >> 4)
    inside = across <= radius**2
    if layer.shape == _FOLIAGE:
        leaves = _bank()[layer.texture % len(_SCALES)]  # the plain noise, with holes where it is dark
        inside &= leaves[y + layer.texture_row & _BANK_ROWS - 1, x & _BANK_COLUMNS - 1] > 112
    return inside


def _painted(scene: list[_Layer], seen: Places, disparity_256: Grid | None) -> Pixels:
    """Return the picture (H, W, 3) of the layers ``seen``; right pixels are shifted by their disparity, left ones by nothing."""
    x_256 = np.array([layer.texture_256 for layer in scene], np.int32).take(seen)
    x_256 += np.arange(WIDTH, dtype=np.int32) * _ONE
    if disparity_256 is not None:
        x_256 += disparity_256
    rows = np.array([layer.texture_row for layer in scene])[:, None] + np.arange(HEIGHT) & _BANK_ROWS - 1
    starts = (np.array([layer.texture * _BANK_ROWS for layer in scene])[:, None] + rows) * _BANK_COLUMNS
    place = starts.reshape(-1).take(seen * HEIGHT + np.arange(HEIGHT)[:, None])
    place += x_256 >> 8 & _BANK_COLUMNS - 1
    texels = _neighbours().take(place)
    low, high = texels & 255, texels >> 8
    high -= low
    high *= (x_256 & _ONE - 1).astype(np.uint16)
    level = (low << 8) + high + _ONE // 2 >> 8  # 16 bits are enough: what is too much on the way goes again
    place = seen * 256 + level
    planes: Pixels = np.empty((3, HEIGHT, WIDTH), np.uint8)  # each in one piece, as whoever cuts windows out of them takes them
    for plane, palette in zip(planes, np.concatenate([layer.colours for layer in scene], axis=1), strict=True):
        palette.take(place, out=plane, mode="clip")  # "clip" copies nothing: no place is outside
    return planes.transpose(1, 2, 0)


@cache
def _neighbours() -> npt.NDArray[np.uint16]:
    """Return of each texel of all textures, one after the other, its own level and in the upper byte that of the next column."""
    bank = _bank().astype(np.uint16)
    pairs: npt.NDArray[np.uint16] = bank | np.roll(bank, -1, axis=2) << np.uint16(8)
    return pairs.reshape(-1)


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
