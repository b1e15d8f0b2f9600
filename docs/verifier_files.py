"""A log's tree and files, for docs/verifier.py: proofs, a run's data folder, an export (§5 of docs/protocol.md), and snapshots (§13).

Imports nothing of Manta's. Only the form is looked at: what is damaged is a ValueError, what is not there BadInput.
"""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np


class BadInput(Exception):
    """There is nothing to check."""


# §5 The tree, after RFC 9162 section 2.1


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\0" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def split(size: int) -> int:
    """The largest power of two that is below a size."""
    return 1 << (size - 1).bit_length() - 1


class Tree:
    """A tree over leaf hashes."""

    def __init__(self, leaves) -> None:
        self.leaves, self._complete = list(leaves), {}

    def root(self, start: int, end: int) -> bytes:
        """The root over the leaves from `start` to before `end`; that of a complete subtree is computed once."""
        if end - start <= 1:
            return self.leaves[start] if end > start else sha256(b"").digest()
        if (start, end) in self._complete:
            return self._complete[start, end]
        middle = start + split(end - start)
        found = node_hash(self.root(start, middle), self.root(middle, end))
        if (end - start) & (end - start - 1) == 0:
            self._complete[start, end] = found
        return found

    def inclusion(self, index: int, start: int, end: int) -> list[bytes]:
        """PATH of section 2.1.3.1."""
        if end - start == 1:
            return []
        middle = start + split(end - start)
        if index < middle:
            return [*self.inclusion(index, start, middle), self.root(middle, end)]
        return [*self.inclusion(index, middle, end), self.root(start, middle)]

    def consistency(self, old: int, start: int, end: int, is_old: bool = True) -> list[bytes]:
        """SUBPROOF of section 2.1.4.1; `old` counts from 0."""
        if old == end:
            return [] if is_old else [self.root(start, end)]
        middle = start + split(end - start)
        if old <= middle:
            return [*self.consistency(old, start, middle, is_old), self.root(middle, end)]
        return [*self.consistency(old, middle, end, False), self.root(start, middle)]


def tree_root(leaves) -> bytes:
    """The root over these leaves; every root of the documents is one of such a tree."""
    hashes = [leaf_hash(leaf) for leaf in leaves]
    return Tree(hashes).root(0, len(hashes))


def root_by_inclusion(leaf: bytes, index: int, size: int, proof) -> bytes:
    """The root that an inclusion proof leads to."""
    if not 0 <= index < size or bool(proof) != (size > 1):
        raise ValueError("an inclusion proof of another length")
    if size == 1:
        return leaf
    *rest, last = proof
    if index < split(size):
        return node_hash(root_by_inclusion(leaf, index, split(size), rest), last)
    return node_hash(last, root_by_inclusion(leaf, index - split(size), size - split(size), rest))


def roots_by_consistency(old: int, new: int, proof, known: bytes | None) -> tuple[bytes, bytes]:
    """The roots of the old and the new tree that a consistency proof leads to; `known` is the old root, None below its edge."""
    if old == new:
        if len(proof) != (known is None):
            raise ValueError("a consistency proof of another length")
        return (known or proof[0],) * 2
    if not 0 < old < new or not proof:
        raise ValueError("a consistency proof of another length")
    *rest, last = proof
    if old <= split(new):
        before, after = roots_by_consistency(old, split(new), rest, known)
        return before, node_hash(after, last)
    before, after = roots_by_consistency(old - split(new), new - split(new), rest, None)
    return node_hash(last, before), node_hash(last, after)


def root_by_range(leaves: list[bytes], first: int, size: int, proof) -> bytes:
    """The root that the proof of a range leads to (§5)."""
    given, end = iter(proof), first + len(leaves)

    def found(low: int, high: int) -> bytes:
        if high <= first or end <= low:
            return next(given)
        if high - low == 1:
            return leaves[low - first]
        middle = low + split(high - low)
        return node_hash(found(low, middle), found(middle, high))

    if not 0 <= first < end <= size:
        raise ValueError("a range that there is not")
    try:
        root = found(0, size)
    except StopIteration:
        raise ValueError("a proof of a range that is too short") from None
    if next(given, None) is not None:
        raise ValueError("a proof of a range that is too long")
    return root


# Files


@dataclass
class Files:
    """What a folder or an export holds: entries, signed notes by name, and of the tree (name, level, first place, hashes)."""

    entries: list[bytes]
    notes: dict[str, str]
    nodes: list[tuple[str, int, int, bytes]]
    stored: tuple | None = None  # run, operator, size and root, as a database has them
    beside: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)  # of notes of snapshots: round, size and root that stand there


def file_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def open_folder(folder: Path) -> Files:
    """§5, on disk."""
    notes = {"tree-head.txt": file_of(folder / "tree-head.txt").decode()}  # before the entries: of a run at work these are newer
    beside = {}
    for path in sorted(folder.glob("snapshots/round-*.json")):
        name, said = f"snapshots/{path.name}", json.loads(file_of(path))
        try:
            notes[name] = said["tree_head"]
            beside[name] = int(path.stem.removeprefix("round-")), said["ledger_size"], bytes.fromhex(said["ledger_root"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name} says of no head: {error!r}") from error
    mode = "mode=ro" if (folder / "log.sqlite3-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{(folder / 'log.sqlite3').absolute().as_uri()}?{mode}", uri=True)) as database:
            database.execute("BEGIN")
            rows = database.execute("SELECT position, bytes FROM entries ORDER BY position").fetchall()
            nodes = [
                (f"node {level}/{at}", level, at, found) for level, at, found in database.execute("SELECT level, position, hash FROM nodes")
            ]
            stored = database.execute("SELECT run, operator, size, root FROM log").fetchone()
    except sqlite3.Error as error:
        raise BadInput(f"{folder / 'log.sqlite3'}: {error}") from error
    if [at for at, _ in rows] != list(range(len(rows))):
        raise ValueError("an entry is missing")
    return Files([entry for _, entry in rows], notes, nodes, stored, beside)


def open_export(folder: Path, size: int) -> Files:
    """§5, as files: the tiles and bundles of a log of `size` entries."""
    entries, nodes = [], []

    def tiles(kind: str, count: int):
        for at in range(-(-count // 256)):
            digits = f"{at:03d}"
            digits = digits.zfill(-(-len(digits) // 3) * 3)
            groups, width = re.findall("...", digits), min(256, count - 256 * at)
            path = "/".join(["tile", kind, *(f"x{each}" for each in groups[:-1]), groups[-1]]) + ("" if width == 256 else f".p/{width}")
            yield path, 256 * at, width, file_of(folder / path)

    for path, _, width, data in tiles("entries", size):
        at = 0
        for _ in range(width):
            end = at + 2 + int.from_bytes(data[at : at + 2], "big")
            entries.append(data[at + 2 : end])
            at = end
        if at != len(data):
            raise ValueError(f"{path} has not just its entries")
    level = 0
    while size >> 8 * level:
        nodes += [(path, 8 * level, first, data) for path, first, _, data in tiles(str(level), size >> 8 * level)]
        level += 1
    notes = {name: file_of(folder / name).decode() for name in ("checkpoint", "witnessed") if (folder / name).exists()}
    return Files(entries, notes, nodes)


def kept_bodies(path: Path):
    """§5: yield the packed header and the body of each contribution that is stored. What a crash tore off at the end is left out."""
    data, at = file_of(path), 0
    while len(data) - at >= 24:
        length, header = (int.from_bytes(data[at + place : at + place + 8], "big") for place in (8, 16))
        start, end = at + 24 + header, at + 16 + length
        if sha256(data[at:end]).digest() != data[end : end + 32]:
            break
        yield data[at + 24 : start], data[start:end]
        at = end + 32


def snapshot(path: Path) -> tuple[dict[str, str], int, list[np.ndarray], bytes]:
    """§13: what a safetensors file says of a state, and the round, the vectors and the teacher of that."""
    data = file_of(path)
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        said, names = header.pop("__metadata__"), ["parameters", *(f"moment{at}" for at in range(len(header) - 1))]
        spans = [header[name]["data_offsets"] for name in names]
        vectors = [np.frombuffer(data[start + first : start + last], "<f4") for first, last in spans]
        number, teacher = int(said["round"]), bytes.fromhex(said["teacher"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no snapshot: {error!r}") from error
    if start + sum(4 * vector.size for vector in vectors) != len(data):
        raise ValueError("bytes that are of no vector")
    return said, number, vectors, teacher
