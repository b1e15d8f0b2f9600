"""Labelled images as integers, and what a network is fed of them: exactly resized, augmented from a lot's seed.

Everything random comes from SHAKE-256 and is applied with integers, so a lot is the same pixels on every machine.

Shapes: N images of the set, B of a batch, C channels, H and W as stored, R the resolution.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.encoding import encode
from protocol.signing import Digest, sha256

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]

_ONE = 256  # fixed point of the augmentation's geometry: 8 bits behind the point
_MAX_SHIFT = 3 * _ONE  # pixels at resolution 32; grows with it
_MAX_SLOPE = 40  # of 256: scales by up to 16 %, turns and shears by up to 9 degrees


@dataclass(frozen=True, slots=True)
class ImageDataset:
    """A labelled image set with a fixed held-out part; pixels run from 0 to ``white``."""

    name: str
    white: int
    num_classes: int
    train_images: Pixels = field(repr=False)  # (N, C, H, W)
    train_labels: Indices = field(repr=False)  # (N,)
    held_out_images: Pixels = field(repr=False)
    held_out_labels: Indices = field(repr=False)

    @property
    def digest(self) -> Digest:
        """SHA-256 over name, shapes, raw pixels and labels of both parts: what a manifest pins down."""
        train, held_out = self.train_images, self.held_out_images
        header = encode(("manta/images/v1", self.name, self.white, self.num_classes, train.shape, held_out.shape))
        labels = [part.astype("<i8").tobytes() for part in (self.train_labels, self.held_out_labels)]
        return sha256(b"".join([header, train.tobytes(), labels[0], held_out.tobytes(), labels[1]]))


def resize(images_NCHW: Pixels, white: int, resolution: int) -> Tensor:
    """Return the images as fp32 (N, C, R, R) from 0 to 1, bilinear and exact: the weights are integers, the one division is last."""
    rows = _interpolation(images_NCHW.shape[2], resolution)
    columns = _interpolation(images_NCHW.shape[3], resolution)
    scaled_NCRR = np.einsum("rh,nchw,sw->ncrs", rows, images_NCHW.astype(np.int64), columns, optimize=True)
    scale = white * (2 * resolution) ** 2
    return torch.from_numpy((scaled_NCRR / scale).astype(np.float32))


def _interpolation(size: int, resolution: int) -> Indices:
    """Return the (R, size) integer weights of a bilinear resize with half-pixel centres; each row sums to 2 R."""
    weights = np.zeros((resolution, size), dtype=np.int64)
    unit = 2 * resolution
    for row in range(resolution):
        position = max((2 * row + 1) * size - resolution, 0)  # in parts of 2 R
        low, part = divmod(position, unit)
        weights[row, min(low, size - 1)] += unit - part
        weights[row, min(low + 1, size - 1)] += part
    return weights


def augment(images_BCRR: Tensor, seed: int) -> Tensor:
    """Return each image moved, turned, sheared and scaled a little, as a lot's 64-bit seed says; what comes in from outside is 0."""
    batch, channels, resolution, _ = images_BCRR.shape
    stream = hashlib.shake_256(b"manta/augment/v1\n" + seed.to_bytes(8, "little")).digest(batch * 6 * 2)
    uniform_B6 = np.frombuffer(stream, dtype="<u2").reshape(batch, 6).astype(np.int64)
    shift = _MAX_SHIFT * resolution // 32
    limits_6 = np.array([_MAX_SLOPE] * 4 + [shift] * 2)
    # Of each image: how far a step down and a step right in the result go in the source, and the shift; in 256ths of a pixel.
    (down_y, down_x, right_y, right_x, shift_y, shift_x) = torch.from_numpy((uniform_B6 * (2 * limits_6 + 1) >> 16) - limits_6).T[
        :, :, None, None
    ]
    step = 2 * torch.arange(resolution) + 1 - resolution  # twice the distance from the centre
    y, x = step[:, None], step[None, :]
    centre = _ONE * resolution  # twice the centre's position in 256ths
    source_y = (y * (down_y + _ONE) + x * right_y + 2 * shift_y + centre) // (2 * _ONE)
    source_x = (y * down_x + x * (right_x + _ONE) + 2 * shift_x + centre) // (2 * _ONE)
    inside = (source_y >= 0) & (source_y < resolution) & (source_x >= 0) & (source_x < resolution)
    flat = torch.where(inside, source_y * resolution + source_x, 0).view(batch, 1, -1).expand(-1, channels, -1)
    moved_BCRR = images_BCRR.flatten(2).gather(2, flat).view_as(images_BCRR)
    return torch.where(inside.unsqueeze(1), moved_BCRR, 0.0)
