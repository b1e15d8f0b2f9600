"""What subnets answer to a few held-out samples, always the same ones, and the pictures of it, drawn beside each other.

A picture is a sheet of held-out images, or for stereo views disparities and errors in colours.

Shapes: H and W height and width; images are (C, H, W) from 0 to 1, disparities (H, W) in pixels, below 0 where unknown.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from manta_swarm.aggregator.monitor.quality import Answer, PicturesIndex, Scene, Sheet, picture_name
from manta_swarm.automl.data.dataset import CLASSIFICATION, STEREO, Dataset
from manta_swarm.automl.evaluation.held_out import answers, some_held_out
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.protocol.errors import UserError

Pixels = NDArray[np.uint8]
Values = NDArray[np.float32]

COLUMNS = 8
_LEAST_TILE, _MOST_TILE = 64, 128  # pixels: smaller images are enlarged by whole factors
_SHADES = 255
_COLOURS = np.array(  # dark to bright, evenly in lightness, also for those who do not tell red from green
    [(13, 8, 45), (70, 18, 98), (126, 32, 110), (181, 48, 96), (226, 86, 63), (246, 146, 33), (246, 211, 81), (252, 253, 191)],
    dtype=np.float64,
)

_IMAGES, _SCENES = 24, 2
_ERROR_SHARE = 0.25  # of the largest disparity: what is drawn as brightly as can be

Named = tuple[PicturesIndex, dict[str, bytes]]
Mask = NDArray[np.bool_]


def sheet_png(images: Sequence[Values]) -> tuple[bytes, int, int]:
    """Return a PNG of equally large images, row by row in ``COLUMNS`` columns, and a tile's width and height."""
    tiles = [_tile(image) for image in images]
    height, width, channels = tiles[0].shape
    rows = -(-len(tiles) // COLUMNS)
    whole = np.zeros((rows * height, COLUMNS * width, channels), np.uint8)
    for place, tile in enumerate(tiles):
        top, left = place // COLUMNS * height, place % COLUMNS * width
        whole[top : top + height, left : left + width] = tile
    return _png(whole), width, height


def view_png(image: Values) -> bytes:
    """Return a PNG of one image."""
    return _png(_bytes(image))


def coloured_png(values: Values, most: float, is_known: NDArray[np.bool_]) -> bytes:
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


class Drawn(Protocol):
    """What one subnet answers."""

    def beside(self, other: "Drawn", round_: int) -> Named:
        """Return the index and the pictures by name, this subnet being the largest and ``other`` the smallest one."""
        ...


def draw(supernet: Supernet, dataset: Dataset, architecture: Architecture) -> Drawn:
    """Return what a subnet, for which the supernet is recalibrated, answers."""
    most, of_each = (_SCENES, 1) if dataset.task == STEREO else (_IMAGES, 2)  # of each batch, so that they are spread over the set
    batches = [(batch.inputs[:of_each], batch.targets[:of_each]) for batch in some_held_out(dataset, architecture.resolution)]
    inputs, targets = torch.cat([some for some, _ in batches])[:most], torch.cat([some for _, some in batches])[:most]
    result = answers(supernet, inputs, architecture)
    if dataset.task == STEREO:
        return DrawnDisparities(inputs[:, :3], targets, result)
    return DrawnAnswers(inputs, targets, result, _class_names(dataset))


def _class_names(dataset: Dataset) -> tuple[str, ...]:
    names = getattr(dataset, "class_names", None)
    return tuple(names) if names else tuple(map(str, range(dataset.num_classes)))


@dataclass(frozen=True, slots=True)
class DrawnAnswers:
    """Classification: images (B, C, H, W), labels (B,), logits (B, K)."""

    images: Tensor
    labels: Tensor
    logits: Tensor
    names: tuple[str, ...]

    def beside(self, other: Drawn, round_: int) -> Named:
        """See ``Drawn``."""
        assert isinstance(other, DrawnAnswers)
        data, width, height = sheet_png([image.numpy() for image in self.images])
        name = picture_name(data)
        pairs = zip(self.labels.tolist(), self._answers(), other._answers(), strict=True)
        shown = tuple(
            Answer(label=self.names[label], largest=largest, largest_sure=sure, smallest=smallest, smallest_sure=less_sure)
            for label, (largest, sure), (smallest, less_sure) in pairs
        )
        sheet = Sheet(picture=name, tile_width=width, tile_height=height, columns=COLUMNS, count=len(shown))
        return PicturesIndex(round=round_, kind=CLASSIFICATION, sheet=sheet, answers=shown), {name: data}

    def _answers(self) -> list[tuple[str, float]]:
        sure, places = self.logits.softmax(1).max(1)
        return [(self.names[place], round(value, 4)) for place, value in zip(places.tolist(), sure.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class DrawnDisparities:
    """Stereo: left views (B, 3, H, W), truths and disparities (B, H, W)."""

    left: Tensor
    truth: Tensor
    disparity: Tensor

    def beside(self, other: Drawn, round_: int) -> Named:
        """See ``Drawn``."""
        assert isinstance(other, DrawnDisparities)
        known = self.truth[self.truth >= 0]
        if not known.numel():
            raise UserError("the held-out pairs have no disparity to compare with")
        most = max(1.0, round(float(known.max()), 1))
        most_error = round(most * _ERROR_SHARE, 1)
        pictures: dict[str, bytes] = {}

        def keep(data: bytes) -> str:
            pictures[name := picture_name(data)] = data
            return name

        scenes = []
        for place in range(len(self.truth)):
            truth, mine = self.truth[place].numpy(), self.disparity[place].numpy()
            height, width = truth.shape
            others = resized(other.disparity[place].numpy(), height, width)
            is_known: Mask = truth >= 0
            everywhere = np.ones_like(is_known)
            errors = [np.abs(one - truth) for one in (mine, others)]
            scenes.append(
                Scene(
                    width=width,
                    height=height,
                    left=keep(view_png(self.left[place].numpy())),
                    truth=keep(coloured_png(truth, most, is_known)),
                    largest=keep(coloured_png(mine, most, everywhere)),
                    largest_error=keep(coloured_png(errors[0], most_error, is_known)),
                    smallest=keep(coloured_png(others, most, everywhere)),
                    smallest_error=keep(coloured_png(errors[1], most_error, is_known)),
                    largest_epe=_mean(errors[0], is_known),
                    smallest_epe=_mean(errors[1], is_known),
                )
            )
        index = PicturesIndex(round=round_, kind=STEREO, max_disparity=most, max_error=most_error, scenes=tuple(scenes))
        return index, pictures


def _mean(errors: Values, is_known: Mask) -> float:
    return round(float(errors[is_known].mean()), 3) if is_known.any() else 0.0
