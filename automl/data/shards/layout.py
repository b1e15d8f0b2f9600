"""What a sharded data set is on the disk, as bytes: a list of shards, shards of many samples, and each sample's bytes. No files here.

A folder with ``shards.manta``, a packed ``ShardList``, and ``shard-00000.bin``, ``shard-00001.bin``, ... A shard begins with its
*head*: 16 bytes that say what it is, the number of its samples (8 bytes, little-endian), and 104 bytes a sample (``ROW``). Then come
the samples' parts, one right after the other, to the end of the file. So the SHA-256 of a head, which is in the list, pins down the
whole shard: the head says where everything lies, and has two digests of each sample, one of its bytes and one of what they decode to.
The list has another digest of each shard, by which it travels: the RFC 9162 root over the file in pieces of ``PIECE_BYTES``.

The set's digest is the RFC 9162 root over the list without its shards, and then over each shard in it.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import PIL

from manta_swarm.automl.data.pictures import MAX_PIXELS, picture_of, png_of, rgb_of
from manta_swarm.automl.data.scaling import Pixels, rescale_pixels
from manta_swarm.automl.data.views import UNKNOWN, Disparity, Pair
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.manifest import MAX_LIST_BYTES, MAX_SHARD_BYTES, MAX_SHARDS, PIECE_BYTES, TravellingShards
from manta_swarm.protocol.merkle import leaf_hash, root
from manta_swarm.protocol.signing import Digest

LIST_NAME = "shards.manta"
FORMAT = "manta/shards/v1"
IMAGES, PAIRS = KINDS = ("images", "pairs")
MAX_CLASSES = 30_000
MAX_SAMPLES = 65_536  # of a shard
_MAX_NUM_SAMPLES = 1 << 40

_MAGIC = b"manta/shard/v1\n\0"
COUNT_BYTES = 8
START_BYTES = len(_MAGIC) + COUNT_BYTES
# ``sizes``: bytes of each part; of an image one, a picture file; of a pair three: left and right, picture files, and the disparities,
# zlib. ``bytes``: SHA-256 of the parts, one after the other. ``pixels``: of what they decode to: levels, row by row, and of a pair
# left, right, and the disparities as binary32, little-endian, every unknown one -1.
ROW = np.dtype(
    [
        ("label", "<u4"),  # of a pair 0
        ("rows", "<u4"),
        ("columns", "<u4"),
        ("channels", "<u4"),  # 1: grey
        ("sizes", "<u8", (3,)),
        ("bytes", "u1", (32,)),
        ("pixels", "u1", (32,)),
    ]
)
Rows = npt.NDArray[np.void]

_ZLIB_LEVEL = 4


class LayoutError(Exception):
    """Bytes are not what a shard's head has to be; the message says why."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What the list says of a shard."""

    head: bytes  # SHA-256 of its head
    pieces: bytes  # root over its pieces, see ``pieces_root``
    size_bytes: int  # of the file
    samples: int

    def __post_init__(self) -> None:
        least = START_BYTES + (ROW.itemsize + 1) * self.samples
        if (
            (len(self.head), len(self.pieces)) != (32, 32)
            or not 1 <= self.samples <= MAX_SAMPLES
            or not least <= self.size_bytes <= MAX_SHARD_BYTES
        ):
            raise ValueError(f"no shard: {self.samples} samples in {self.size_bytes} bytes")


@dataclass(frozen=True, slots=True)
class ShardList:
    """A data set, and its shards: first those of the samples to train with, then those held out. None has samples of both."""

    format: str
    kind: str
    channels: int
    classes: tuple[str, ...]  # their names, in the order of the labels; of pairs none
    flips: int  # 1: a mirrored image is of the same class
    num_train: int
    shards: tuple[Shard, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if self.format != FORMAT or self.kind not in KINDS or self.channels not in (1, 3) or self.flips not in (0, 1):
            raise ValueError("a list of another version or kind")
        least = 2 if self.kind == IMAGES else 0
        if not least <= len(self.classes) <= (MAX_CLASSES if self.kind == IMAGES else 0) or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"{len(self.classes)} classes, or two of one name")
        if self.kind == PAIRS and (self.channels, self.flips) != (3, 0):
            raise ValueError("pairs are of three channels and not mirrored")
        if not 2 <= len(self.shards) <= MAX_SHARDS or not 1 <= self.num_train <= _MAX_NUM_SAMPLES:
            raise ValueError(f"{len(self.shards)} shards, {self.num_train} samples to train with")
        if not 1 <= self.num_train_shards < len(self.shards):
            raise ValueError("no shard ends with the last sample to train with, or none is held out")

    @property
    def num_train_shards(self) -> int:
        """How many shards are of samples to train with; 0: none ends where these do."""
        ends = np.cumsum([shard.samples for shard in self.shards])
        return int(np.searchsorted(ends, self.num_train)) + 1 if self.num_train in ends else 0

    @property
    def num_held_out(self) -> int:
        """How many samples are held out."""
        return sum(shard.samples for shard in self.shards) - self.num_train

    @property
    def size_bytes(self) -> int:
        """How many bytes all shards have together."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def digest(self) -> Digest:
        """What a manifest's ``data_digest`` is."""
        alone = pack((self.format, self.kind, self.channels, self.classes, self.flips, self.num_train))
        return Digest(root([leaf_hash(alone), *(leaf_hash(pack(shard)) for shard in self.shards)]))


def parse_list(data: bytes) -> ShardList:
    """Return the list that these bytes are.

    Raises:
        EncodingError: they are none.
    """
    return unpack(ShardList, data, max_bytes=MAX_LIST_BYTES)


def pieces_root(data: bytes) -> bytes:
    """Return the root over these bytes in pieces of ``PIECE_BYTES``, the last one of what is left: by it they are got from others."""
    view = memoryview(data)
    return root([leaf_hash(bytes(view[start : start + PIECE_BYTES])) for start in range(0, max(len(view), 1), PIECE_BYTES)])


def travelling(list_: ShardList) -> TravellingShards:
    """Return what a manifest says of a set whose shards travel."""
    data = pack(list_)
    return TravellingShards(pieces_root(data), len(data), list_.size_bytes, list_.num_train_shards)


def shard_name(number: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{number:05}.bin"


def head_bytes(samples: int) -> int:
    """Return how long the head of a shard is."""
    return START_BYTES + ROW.itemsize * samples


def head_of(rows: Rows) -> bytes:
    """Return the head of a shard with these samples."""
    return _MAGIC + len(rows).to_bytes(COUNT_BYTES, "little") + rows.astype(ROW).tobytes()


def parse_head(data: bytes, shard: Shard, of: ShardList) -> Rows:
    """Return what the head of a shard says of its samples; ``data`` is known to be the head that ``shard`` names.

    Raises:
        LayoutError: no reader of this version wrote it.
    """
    if data[: len(_MAGIC)] != _MAGIC or len(data) != head_bytes(shard.samples):
        raise LayoutError("it is no shard of this version")
    if int.from_bytes(data[len(_MAGIC) : START_BYTES], "little") != shard.samples:
        raise LayoutError("it has another number of samples than its list says")
    rows = np.frombuffer(data, ROW, offset=START_BYTES)
    area = rows["rows"].astype(np.uint64) * rows["columns"]
    num_parts = 1 if of.kind == IMAGES else 3
    is_good = (
        area.min() >= 1
        and area.max() <= MAX_PIXELS
        and np.isin(rows["channels"], (1, 3) if of.channels == 3 and of.kind == IMAGES else (of.channels,)).all()
        and rows["label"].max() < max(1, len(of.classes))
        and rows["sizes"].max() <= MAX_SHARD_BYTES
        and (rows["sizes"][:, :num_parts] > 0).all()
        and not rows["sizes"][:, num_parts:].any()
        and len(data) + int(rows["sizes"].sum()) == shard.size_bytes
    )
    if not is_good:
        raise LayoutError("its head says what cannot be")
    return rows


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
        """How many bytes the parts have together."""
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
