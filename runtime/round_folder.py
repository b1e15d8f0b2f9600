"""Files by round in one directory: the oldest rounds go first, and none that is pinned.

DIR/<prefix><round, 8 digits>   a folder, or a file
DIR/<prefix><round, 8 digits>.* files of that round

What is in them is for the one who uses this to say.
"""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.runtime.disk import disk_errors


class NoRoom(RemoteFault):
    """The budget is spent on rounds that may not go."""


def round_path(directory: Path, round_: int, suffix: str = "", *, prefix: str = "") -> Path:
    """Return the folder or file of a round in one directory."""
    return directory / f"{prefix}{round_:08d}{suffix}"


class RoundFolder:
    """Files by round in one directory, under a budget. Its methods block; one thread at a time uses it."""

    def __init__(self, directory: Path, *, prefix: str = "", max_bytes: int | None = None) -> None:
        """Use ``directory``, which is made by whoever writes the first file.

        Args:
            directory: of the rounds.
            prefix: of all their names.
            max_bytes: the budget of all rounds together, which holds as far as every write is counted; None: there is none.

        Raises:
            StorageError: it cannot be read.
        """
        self._directory = directory
        self._prefix = prefix
        self._name = re.compile(rf"{re.escape(prefix)}([0-9]{{8,}})(\..*)?")
        self._max_bytes = max_bytes
        self._sizes: dict[int, int] = {}  # bytes by round, where there is a budget
        if max_bytes is not None:
            with disk_errors(directory):
                self._sizes = {round_: sum(map(_size, paths)) for round_, paths in self._found().items()}

    def rounds(self, suffix: str = "") -> list[int]:
        """Return the rounds of which something whole is there, with this ``suffix``, the oldest first.

        Raises:
            StorageError: the directory cannot be read.
        """
        with disk_errors(self._directory):
            found = self._found()
        return sorted(
            round_ for round_, paths in found.items() if any(path.suffix != ".part" and path.name.endswith(suffix) for path in paths)
        )

    @property
    def num_bytes(self) -> int:
        """What is counted takes so many bytes. For any thread."""
        return sum(list(self._sizes.values()))

    def path(self, round_: int, suffix: str = "") -> Path:
        """Return the folder of a round, or its file with this suffix."""
        return round_path(self._directory, round_, suffix, prefix=self._prefix)

    def make_room(self, round_: int, num_bytes: int, pinned: Collection[int] = ()) -> list[int]:
        """Make sure that there is room for so many bytes more of a round; return the older rounds that went for it.

        Raises:
            NoRoom: there is none, not even in the place of all older rounds but the ``pinned``; nothing went.
            StorageError: the disk refuses.
        """
        assert self._max_bytes is not None
        lacking, gone = self.num_bytes + num_bytes - self._max_bytes, list[int]()
        for old in sorted(each for each in self._sizes if each < round_ and each not in pinned):
            if lacking <= 0:
                break
            lacking -= self._sizes[old]
            gone.append(old)
        if lacking > 0:
            raise NoRoom("there is no room for more of this round")
        for old in gone:
            self.remove(old)
        return gone

    def count(self, round_: int, num_bytes: int) -> None:
        """So many bytes of a round are there now, or, less than none, no more."""
        self._sizes[round_] = max(0, self._sizes.get(round_, 0) + num_bytes)

    def prune(self, oldest: int, pinned: Collection[int] = ()) -> list[int]:
        """Remove the rounds before ``oldest`` but the ``pinned``; return those that went.

        Raises:
            StorageError: the disk refuses.
        """
        with disk_errors(self._directory):
            found = self._found()
        gone = [each for each in sorted(found.keys() | self._sizes.keys()) if each < oldest and each not in pinned]
        for round_ in gone:
            self.remove(round_)
        return gone

    def remove(self, round_: int) -> None:
        """Remove all of a round.

        Raises:
            StorageError: the disk refuses.
        """
        with disk_errors(self._directory):
            for path in self._found().get(round_, ()):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        self._sizes.pop(round_, None)

    def _found(self) -> dict[int, list[Path]]:
        found = dict[int, list[Path]]()
        for path in self._directory.iterdir() if self._directory.exists() else ():
            if name := self._name.fullmatch(path.name):
                found.setdefault(int(name[1]), []).append(path)
        return found


def _size(path: Path) -> int:
    paths = path.rglob("*") if path.is_dir() else (path,)
    return sum(each.stat().st_size for each in paths if each.is_file())
