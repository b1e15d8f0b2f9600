"""Folders by round under one budget of bytes: what audits may ask for, of the newest rounds.

DIR/<round, 8 digits>/   what is in it is for the one who uses this to say
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from protocol.errors import RemoteFault
from runtime.disk import disk_errors


class NoRoom(RemoteFault):
    """The budget is spent on rounds that are not older."""


def folder_of(directory: Path, round_: int) -> Path:
    """Return the folder of a round in one directory."""
    return directory / f"{round_:08d}"


class RoundFolders:
    """The folders of one directory. Not for several threads at once."""

    def __init__(self, directory: Path, *, kept_rounds: int, max_bytes: int, on_removed: Callable[[int], None] = lambda _: None) -> None:
        """Use ``directory``, which is made when it is first needed; the newest rounds stay, at most so many bytes of them.

        ``on_removed`` is told of each round whose folder goes.
        """
        self._directory = directory
        self._kept_rounds = kept_rounds
        self._max_bytes = max_bytes
        self._on_removed = on_removed
        self._sizes: dict[int, int] = {}  # bytes by round
        for folder in directory.glob("[0-9]*"):
            if folder.name.isdecimal():
                self._sizes[int(folder.name)] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    @property
    def rounds(self) -> list[int]:
        """Those that have a folder, the newest first."""
        return sorted(self._sizes, reverse=True)

    @property
    def num_bytes(self) -> int:
        """What is in them takes so many bytes. For any thread."""
        return sum(list(self._sizes.values()))

    def path(self, round_: int) -> Path:
        """Return the folder of a round."""
        return folder_of(self._directory, round_)

    def make_room(self, round_: int, num_bytes: int) -> None:
        """Make sure that there is room for so many bytes more of a round; older rounds go, if there has to be.

        Raises:
            NoRoom: there is none, not even in the place of older ones.
            StorageError: the disk refuses.
        """
        while sum(self._sizes.values()) + num_bytes > self._max_bytes:
            oldest = min(self._sizes, default=round_)
            if oldest >= round_:
                raise NoRoom("there is no room for more of this round")
            self._remove(oldest)

    def count(self, round_: int, num_bytes: int) -> None:
        """So many bytes of a round are there now, or, less than none, no more."""
        self._sizes[round_] = max(0, self._sizes.get(round_, 0) + num_bytes)

    def prune(self, newest: int) -> None:
        """Remove what is too old, ``newest`` being the last committed round.

        Raises:
            StorageError: the disk refuses.
        """
        for round_ in [each for each in self._sizes if each <= newest - self._kept_rounds]:
            self._remove(round_)

    def _remove(self, round_: int) -> None:
        folder = self.path(round_)
        with disk_errors(folder):
            if folder.exists():
                shutil.rmtree(folder)
        del self._sizes[round_]
        self._on_removed(round_)
