"""Files, for docs/verifier.py: a run's data folder, and an export of its log (§5 of docs/protocol.md), and snapshots (§13).

Imports nothing of Manta's. Only the form is looked at: what is damaged is a ValueError, what is not there BadInput.
"""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np


class BadInput(Exception):
    """There is nothing to check."""


@dataclass
class Files:
    """What a folder or an export holds: entries, signed notes by name, and of the tree (name, level, first place, hashes)."""

    entries: list[bytes]
    notes: dict[str, str]
    nodes: list[tuple[str, int, int, bytes]]
    stored: tuple | None = None  # run, operator, size and root, as a database has them


def file_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def open_folder(folder: Path) -> Files:
    """§5, on disk."""
    notes = {"tree-head.txt": file_of(folder / "tree-head.txt").decode()}  # before the entries: of a run at work these are newer
    for path in sorted(folder.glob("snapshots/round-*.json")):
        notes[f"snapshots/{path.name}"] = json.loads(file_of(path))["tree_head"]
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
    return Files([entry for _, entry in rows], notes, nodes, stored)


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
        header, body = (int.from_bytes(data[at + place : at + place + 8], "big") for place in (8, 16))
        start, end = at + 24 + header, at + 24 + header + body
        if sha256(data[at:end]).digest() != data[end : end + 32]:
            break
        yield data[at + 24 : start], data[start:end]
        at = end + 32


def snapshot(path: Path) -> tuple[int, list[np.ndarray], bytes]:
    """§13: the round, the vectors and the teacher of a state in a safetensors file."""
    data = file_of(path)
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        said, names = header.pop("__metadata__"), ["parameters", *(f"moment{at}" for at in range(len(header) - 1))]
        spans = (header[name]["data_offsets"] for name in names)
        return (
            int(said["round"]),
            [np.frombuffer(data[start + first : start + last], "<f4") for first, last in spans],
            bytes.fromhex(said["teacher"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no snapshot: {error!r}") from error
