"""One sample's bytes in a shard: from a picture file, or a pair, to bytes and their row in the shard's head, and back."""

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import PIL

from manta_swarm.automl.data.pictures import picture_of, png_of, rgb_of
from manta_swarm.automl.data.scaling import Pixels, rescale_pixels
from manta_swarm.automl.data.shards.layout import ROW, LayoutError
from manta_swarm.automl.data.views import UNKNOWN, Disparity, Pair

_ZLIB_LEVEL = 4


class Coded:
    """A sample as it goes into a shard."""

    __slots__ = ("parts", "row")

    def __init__(self, parts: Sequence[bytes], label: int, pixels: Sequence[npt.NDArray[np.generic]]) -> None:
        """Describe these parts, which decode to ``pixels``: of a picture (H, W) or (H, W, 3), of a pair three arrays."""
        rows, columns, *channels = pixels[0].shape
        sizes = [len(part) for part in parts] + [0] * (3 - len(parts))
        digests = [np.frombuffer(digest, np.uint8) for digest in (hashlib.sha256(b"".join(parts)).digest(), pixels_digest(pixels))]
        self.parts = tuple(parts)
        self.row = np.array((label, rows, columns, *(channels or [1]), sizes, *digests), ROW)

    @property
    def size_bytes(self) -> int:
        """Of the parts."""
        return sum(map(len, self.parts))


def coded_picture(data: bytes, label: int, where: str, side: int | None) -> Coded:
    """Return the sample of a picture file: the file as it is, or where the shorter side is above ``side`` a PNG that is scaled down to it.

    Raises:
        UserError: it is no picture; ``where`` is named.
    """
    picture = picture_of(data, where)
    if side is not None and min(picture.shape[:2]) > side:
        picture = _scaled(picture, side)
        data = png_of(picture)
    return Coded([data], label, [picture])


def coded_pair(pair: Pair) -> Coded:
    """Return the sample of a pair: PNG files of its views, and its disparities."""
    disparity = np.where(pair.disparity < 0, UNKNOWN, pair.disparity).astype("<f4")
    parts = [png_of(pair.left), png_of(pair.right), zlib.compress(disparity.tobytes(), _ZLIB_LEVEL)]
    return Coded(parts, 0, [pair.left, pair.right, disparity])


def _scaled(picture: Pixels, side: int) -> Pixels:
    rows, columns = picture.shape[:2]
    shorter = min(rows, columns)
    planes = picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
    scaled = rescale_pixels(planes[None], rows * side // shorter, columns * side // shorter)[0]
    return scaled[0] if picture.ndim == 2 else np.ascontiguousarray(scaled.transpose(1, 2, 0))


def picture_in(data: bytes, row: np.void, where: str) -> Pixels:
    """Return the picture (H, W) or (H, W, 3) of these bytes, which are known to be those that ``row`` names.

    Raises:
        UserError: they are no picture.
        LayoutError: they decode to another one than where they were written.
    """
    picture = picture_of(data, where)
    shape = (int(row["rows"]), int(row["columns"]), *((3,) if row["channels"] == 3 else ()))
    _check_pixels(picture.shape == shape, [picture], row)
    return picture


def pair_in(data: bytes, row: np.void, where: str) -> Pair:
    """Return the pair of these bytes; raises as ``picture_in``."""
    first, second = int(row["sizes"][0]), int(row["sizes"][0] + row["sizes"][1])
    rows, columns = int(row["rows"]), int(row["columns"])
    left, right = (rgb_of(part, where) for part in (data[:first], data[first:second]))
    disparity = _unfolded(data[second:], rows, columns)
    _check_pixels(left.shape == right.shape == (rows, columns, 3), [left, right, disparity], row)
    try:
        return Pair(left, right, disparity)
    except ValueError as error:
        raise LayoutError(str(error)) from error


def _unfolded(data: bytes, rows: int, columns: int) -> Disparity:
    """Return disparities (H, W) that were packed by zlib.

    Raises:
        LayoutError: these are others, or too many.
    """
    size, unfolding = 4 * rows * columns, zlib.decompressobj()
    try:
        values = unfolding.decompress(data, size)
        more = unfolding.decompress(unfolding.unconsumed_tail, 1)
    except zlib.error as error:
        raise LayoutError(f"disparities that cannot be unfolded: {error}") from error
    if len(values) != size or more or not unfolding.eof or unfolding.unused_data:
        raise LayoutError(f"disparities that are not {columns} x {rows}")
    disparity = np.frombuffer(values, "<f4").astype(np.float32).reshape(rows, columns)
    if not np.isfinite(disparity).all():
        raise LayoutError("a disparity that is not finite")
    return disparity


def _check_pixels(is_of_shape: bool, parts: Sequence[npt.NDArray[np.generic]], row: np.void) -> None:
    if not is_of_shape or pixels_digest(parts) != row["pixels"].tobytes():
        raise LayoutError(
            f"decoded here by Pillow {PIL.__version__} it has other pixels than where the shards were made: install the version that its "
            "operator names"
        )


def pixels_digest(parts: Sequence[npt.NDArray[np.generic]]) -> bytes:
    """Return the SHA-256 of a sample's pixels: its picture's, or a pair's left, right and disparities."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(np.ascontiguousarray(part).data)
    return hasher.digest()
