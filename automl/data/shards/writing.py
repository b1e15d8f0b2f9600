"""Shards are made: of a folder of labelled images, at their own sizes, or of the pairs of a stereo set. One pass, in bounded memory.

Samples are ordered by the SHA-256 of their names, so that each shard is a fair share of the set, and so is the fifth that is held out where
nobody has chosen.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from manta_swarm.automl.data.image_folder import ClassFiles, folder_parts
from manta_swarm.automl.data.shards.layout import (
    FORMAT,
    IMAGES,
    LIST_NAME,
    MAX_CLASSES,
    MAX_SAMPLES,
    PAIRS,
    ROW,
    Coded,
    Shard,
    ShardList,
    coded_pair,
    coded_picture,
    head_of,
    pieces_root,
    shard_name,
)
from manta_swarm.automl.data.shards.reading import in_threads
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.automl.files import read_bounded, write_whole
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import MAX_SHARD_BYTES, MAX_SHARDS

SHARD_BYTES = 64 << 20
_MAX_FILE_BYTES = 256 << 20
_HELD_OUT = 5  # of so many images of a class one is held out where nobody has chosen

Tell = Callable[[int, int], None]  # samples that are done, and of how many


class _File(NamedTuple):
    path: Path
    label: int
    place: bytes  # in its part


def shard_images(folder: Path, out: Path, tell: Tell, *, shard_bytes: int = SHARD_BYTES, side: int | None = None) -> ShardList:
    """Write the shards of a folder of labelled images to ``out``, which is new; return their list.

    The folder is as ``automl.data.image_folder`` wants it. A picture's file goes into a shard as it is; with ``side``, pictures whose
    shorter side is longer are scaled down to it. ``shard_bytes``: a shard is about as large; one sample may be larger.

    Raises:
        UserError: as ``image_folder``, too many classes or shards, or the disk refuses. ``out`` is not there then.
    """
    files, chosen = folder_parts(folder)
    if len(files) > MAX_CLASSES:
        raise UserError(f"{folder} has {len(files)} classes, more than {MAX_CLASSES}: leave some out")
    for name in files:
        if not name.isprintable():  # a name that is no text among them
            raise UserError(f"{str(folder / name)!r}: a class needs a name that can be printed: rename the folder")
    train, held_out = _parts(files, chosen)

    def coded(file: _File) -> Coded:
        return coded_picture(read_bounded(file.path, _MAX_FILE_BYTES), file.label, str(file.path), side)

    with _Writer(out, shard_bytes, len(train) + len(held_out), tell) as writer:
        for part in (train, held_out):
            writer.write(in_threads(coded, part))
        channels = writer.channels
        return writer.finish(ShardList(FORMAT, IMAGES, channels, tuple(files), int(channels == 3), len(train), writer.shards))


def shard_pairs(dataset: StereoDataset, out: Path, tell: Tell, *, shard_bytes: int = SHARD_BYTES) -> ShardList:
    """Write the shards of a stereo set to ``out``, which is new; return their list.

    Raises:
        UserError: a pair cannot be read, too many shards, or the disk refuses. ``out`` is not there then.
    """
    with _Writer(out, shard_bytes, dataset.num_train + dataset.num_held_out, tell) as writer:
        for pairs in (dataset.train, dataset.held_out):
            writer.write(in_threads(coded_pair, _Shuffled(pairs)))
        return writer.finish(ShardList(FORMAT, PAIRS, 3, (), 0, dataset.num_train, writer.shards))


def _parts(files: ClassFiles, chosen: ClassFiles | None) -> tuple[list[_File], list[_File]]:
    """Return the files to train with and those held out, each in the order of their places."""
    if chosen is not None:
        return _ordered(files), _ordered(chosen)
    train, held_out = [], []
    for label, name in enumerate(files):
        own = sorted((_file(path, label, name) for path in files[name]), key=lambda file: file.place)
        first = max(1, len(own) // _HELD_OUT)
        held_out += own[:first]
        train += own[first:]
    return _mixed(train), _mixed(held_out)


def _mixed(files: list[_File]) -> list[_File]:
    """Return the files of all classes mixed: the order of their places says already who is held out."""
    return sorted(files, key=lambda file: hashlib.sha256(file.place).digest())


def _ordered(files: ClassFiles) -> list[_File]:
    every = [_file(path, label, name) for label, (name, paths) in enumerate(files.items()) for path in paths]
    return sorted(every, key=lambda file: file.place)


def _file(path: Path, label: int, name: str) -> _File:
    return _File(path, label, hashlib.sha256(f"{name}/{path.name}".encode("utf-8", "surrogateescape")).digest())


class _Shuffled(Sequence[Pair]):
    """Pairs in the order of the SHA-256 of their numbers."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._order = sorted(range(len(pairs)), key=lambda index: hashlib.sha256(str(index).encode()).digest())

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> Pair:  # type: ignore[override]
        return self._pairs[self._order[place]]


class _Writer:
    """Shards in a folder of their own, which gets its name when they are all there.

    Until then it is locked. What is in it without a lock was left by a process that was killed, and is removed.
    """

    def __init__(self, out: Path, shard_bytes: int, total: int, tell: Tell) -> None:
        self._out = out
        self._stage = out.with_name(f".{out.name}.part")
        self._lock = contextlib.ExitStack()
        self._shard_bytes = shard_bytes
        self._total = total
        self._tell = tell
        self._done = 0
        self._shards: list[Shard] = []
        self._waiting: list[Coded] = []
        self._waiting_bytes = 0
        self._is_named = False  # the folder
        self.channels = 1

    def __enter__(self) -> "_Writer":
        if self._out.exists():
            raise UserError(f"{self._out} is there already; it is left as it is: choose another name with --shard")
        try:
            self._stage.mkdir(parents=True, exist_ok=True)
            self._take_stage()
        except OSError as error:
            self._lock.close()
            raise UserError(f"cannot write to {self._out.parent}: {error.strerror}; choose another place with --shard") from error
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if not self._is_named:
                shutil.rmtree(self._stage, ignore_errors=True)

    def _take_stage(self) -> None:
        """Lock the folder, which is empty then."""
        descriptor = os.open(self._stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._lock.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(descriptor), os.lstat(self._stage))
        except (BlockingIOError, FileNotFoundError):
            is_there = False
        if not is_there:  # somebody has it, or had it a moment ago
            self._lock.close()
            raise UserError(f"another process is writing {self._out}: wait for it, or choose another name with --shard")
        for left in self._stage.iterdir():
            left.unlink()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards that are written so far."""
        return tuple(self._shards)

    def write(self, samples: Iterable[Coded]) -> None:
        """Write the samples of a part; its last shard is ended."""
        for sample in samples:
            size_bytes = sample.size_bytes
            if self._waiting and (self._waiting_bytes + size_bytes > self._shard_bytes or len(self._waiting) == MAX_SAMPLES):
                self._end_shard()
            self._waiting.append(sample)
            self._waiting_bytes += size_bytes
            self.channels = max(self.channels, int(sample.row["channels"]))
            self._done += 1
            self._tell(self._done, self._total)
        self._end_shard()

    def finish(self, list_: ShardList) -> ShardList:
        """Write the list, and give the folder its name.

        Raises:
            UserError: the disk refuses.
        """
        write_whole(self._stage / LIST_NAME, pack(list_))
        try:
            os.rename(self._stage, self._out)
        except OSError as error:
            raise UserError(f"cannot write {self._out}: {error.strerror}; choose another name with --shard") from error
        self._is_named = True
        return list_

    def _end_shard(self) -> None:
        samples, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if len(self._shards) == MAX_SHARDS:
            raise UserError(f"there would be more than {MAX_SHARDS} shards: make larger ones, with --shard-mib")
        head = head_of(np.array([sample.row for sample in samples], ROW))
        data = b"".join([head, *(part for sample in samples for part in sample.parts)])
        if len(data) > MAX_SHARD_BYTES:
            raise UserError(f"a sample has more than {MAX_SHARD_BYTES >> 20} MiB: scale it down, with --side")
        write_whole(self._stage / shard_name(len(self._shards)), data)
        self._shards.append(Shard(hashlib.sha256(head).digest(), pieces_root(data), len(data), len(samples)))
