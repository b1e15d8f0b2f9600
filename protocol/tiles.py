"""A log as files: the tiles and entry bundles of C2SP tlog-tiles (https://c2sp.org/tlog-tiles), in the form that existing tools read.

A tile holds up to 256 hashes of one row of the tree: those of level 8 L, from 256 N on. A bundle holds the entries under a tile of the
lowest row. One that is full never changes; one at the tree's edge is partial, and its width is a part of its name: it never changes either.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.merkle import HASH_BYTES, MAX_SIZE, Subtrees

WIDTH = 256
MAX_TILE_BYTES = WIDTH * HASH_BYTES
MAX_BUNDLE_ENTRY_BYTES = 0xFFFF  # two bytes say how long an entry is
HEIGHT = 8  # levels of the tree that a tile spans
_MAX_LEVEL = 62 // HEIGHT
_PATH = re.compile(r"tile/(entries|0|[1-9][0-9]?)/((?:x[0-9]{3}/)*)([0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """Where a tile is, or a bundle: ``level`` is None for a bundle."""

    level: int | None  # L: of its hashes, in tiles' heights from the leaves
    index: int  # N: in its row
    width: int = WIDTH  # hashes, or entries

    def __post_init__(self) -> None:
        if self.level is not None and not 0 <= self.level <= _MAX_LEVEL:
            raise ValueError(f"{self.level} is no level of tiles")
        if not 0 <= self.index < MAX_SIZE or not 1 <= self.width <= WIDTH:
            raise ValueError("no tile has that index or width")

    @property
    def row(self) -> int:
        """The level of the tree that its hashes are of."""
        return HEIGHT * (self.level or 0)

    @property
    def first(self) -> int:
        """The index of its first hash in that level, or of its first entry."""
        return self.index * WIDTH

    @property
    def is_full(self) -> bool:
        """Whether it is as wide as any."""
        return self.width == WIDTH

    @property
    def path(self) -> str:
        """The tile's name among a log's files: ``tile/0/x001/234.p/5``."""
        digits = f"{self.index:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        groups = [digits[start : start + 3] for start in range(0, len(digits), 3)]
        name = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
        return f"tile/{'entries' if self.level is None else self.level}/{name}" + ("" if self.is_full else f".p/{self.width}")

    @classmethod
    def named(cls, path: str) -> "Tile":
        """Return the tile of that name.

        Raises:
            EncodingError: no tile has it.
        """
        found = _PATH.fullmatch(path)
        if found is None or len(path) > 64:
            raise EncodingError(f"no tile is called {path[:80]!r}")
        level, groups, last, width = found.groups()
        try:
            tile = cls(
                None if level == "entries" else int(level), int(groups.replace("x", "").replace("/", "") + last), int(width or WIDTH)
            )
        except ValueError as error:
            raise EncodingError(f"no tile is called {path[:80]!r}: {error}") from error
        if tile.path != path:  # "tile/0/x000/005" is tile/0/005, "005.p/256" is 005
            raise EncodingError(f"no tile is called {path[:80]!r}, but {tile.path}")
        return tile


def tiles_of(size: int, since: int = 0) -> Iterator[Tile]:
    """Yield the tiles and bundles that a log of ``size`` entries has and one of ``since`` has not: bundles first, then the lowest row."""
    for level in (None, *range(_MAX_LEVEL + 1)):
        shift = HEIGHT * (level or 0)
        there, before = size >> shift, since >> shift
        if there == before:
            if level is None:
                continue
            break
        for index in range(before // WIDTH, -(-there // WIDTH)):
            width = min(WIDTH, there - index * WIDTH)
            yield Tile(level, index, width)


def pack_bundle(entries: Sequence[bytes]) -> bytes:
    """Return the bytes of a bundle of ``entries``: each after its length.

    Raises:
        ValueError: one is too long.
    """
    if any(len(entry) > MAX_BUNDLE_ENTRY_BYTES for entry in entries):
        raise ValueError(f"an entry of a bundle has at most {MAX_BUNDLE_ENTRY_BYTES} bytes")
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def open_bundle(data: bytes, width: int) -> list[bytes]:
    """Return the ``width`` entries in a bundle's bytes.

    Raises:
        EncodingError: it has not just those.
    """
    entries = bundled(data)
    if len(entries) != width:
        raise EncodingError(f"a bundle has not just {width} entries")
    return entries


def bundled(data: bytes) -> list[bytes]:
    """Return all entries in the bytes of a bundle, or of a part of one.

    Raises:
        EncodingError: it has not just whole ones, or more than a bundle has.
    """
    entries: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            raise EncodingError("a bundle of entries is cut off")
        if len(entries) == WIDTH:
            raise EncodingError(f"a bundle has at most {WIDTH} entries")
        entries.append(data[at + 2 : end])
        at = end
    return entries


def tile_hashes(tree: Subtrees, tile: Tile) -> bytes:
    """Return the bytes of ``tile``, not of a bundle, of a tree that has it."""
    return b"".join(tree.node(tile.row, index) for index in range(tile.first, tile.first + tile.width))
