"""What a search has measured so far, so that it never measures anything twice: in memory, or in a file that a later run goes on with.

The file: one JSON object a line. The first names the format and the settings of the search; each other one is an architecture, the
part of the held-out data, and how good it is there: quality, loss of each sample, samples with a wrong class. A line without its end is
what was being written when the program was killed. Lines of version 1 have the quality alone: they are read, but what a search ranks by
is not in them, so that it measures those architectures again.

Nothing is written that could not be read again: what a full file has no room for is known to this program alone, and a later one measures
it once more.
"""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from manta_swarm.automl.evaluation.held_out import Quality
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.lines import FORMAT, MAX_BYTES, MAX_LINE_BYTES, Entry, Reader
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.protocol.errors import StorageError, UserError

_ADVICE = "remove it to begin anew, or choose another folder with --out"

Settings = Mapping[str, str | int | float | bool | None]


class Journal:
    """What was measured, by architecture and part of the data; this one forgets it with the program."""

    def __init__(self) -> None:
        self._measured: dict[tuple[str, Architecture], Measured] = {}
        self._qualities: dict[tuple[str, Architecture], Quality] = {}  # those of version 1

    def quality(self, part: str, architecture: Architecture) -> Quality | None:
        """Return the quality, by whatever version it was measured; None where nothing was."""
        measured = self.measured(part, architecture)
        return self._qualities.get((part, architecture)) if measured is None else measured.quality

    def measured(self, part: str, architecture: Architecture) -> Measured | None:
        """Return what was measured; None where nothing was, or the quality alone."""
        return self._measured.get((part, architecture))

    @property
    def num_outdated(self) -> int:
        """How many measurements have the quality alone."""
        return len(self._qualities.keys() - self._measured.keys())

    def add(self, part: str, architecture: Architecture, measured: Measured) -> None:
        """Remember what was measured."""
        self._measured[part, architecture] = measured


class FileJournal(Journal):
    """A journal in a file; what was added is the operating system's when ``add`` returns, so it survives a kill of the program."""

    def __init__(self, path: Path, space: SearchSpace, settings: Settings) -> None:
        """Open the file, or make it; its folder is there.

        Args:
            path: the file.
            space: that all its architectures are of.
            settings: all that decides which search it is.

        Raises:
            UserError: it belongs to a search with other settings, is damaged, or another program writes to it now.
            StorageError: the disk refuses.
        """
        super().__init__()
        self._path = path
        self._reader = Reader(path, space, _ADVICE)
        self._num_bytes = 0
        try:
            self._file: IO[bytes] = path.open("a+b", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another folder with --out") from error
        try:
            self._lock()
            lines = self._whole_lines()
            if lines:
                self._check(self._reader.settings(lines[0]), settings)
                for number, line in enumerate(lines[1:], 2):
                    self._take(self._reader.entry(number, line))
            else:
                self._write({"format": FORMAT, "settings": dict(settings)})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "FileJournal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others have the file."""
        self._file.close()

    def add(self, part: str, architecture: Architecture, measured: Measured) -> None:
        """Remember what was measured, in the file as well, if there is room.

        Raises:
            UserError: it has other samples than what was measured before.
            StorageError: the disk refuses.
        """
        self._reader.check_samples(part, measured)
        samples = {"losses": measured.losses.tolist(), "wrong": measured.wrong.tolist()}
        self._write({"part": part, "architecture": architecture.text, "quality": measured.quality, **samples})
        super().add(part, architecture, measured)

    def _lock(self) -> None:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another search is writing {self._path} now; wait for it, or choose another folder with --out") from error

    def _whole_lines(self) -> list[bytes]:
        """Return the lines that are whole; cut off one that is not."""
        self._file.seek(0)
        data = self._file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise self._reader.damaged(f"it has more than {MAX_BYTES} bytes")
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._file.truncate(len(whole))
        self._num_bytes = len(whole)
        return whole.splitlines()

    def _check(self, there: Mapping[str, object], settings: Settings) -> None:
        here = json.loads(json.dumps(dict(settings)))
        names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
        if names:
            different = ", ".join(f"{name} is {there.get(name)} there and {here.get(name)} here" for name in names)
            raise UserError(
                f"{self._path} belongs to a search with other settings: {different}; "
                "repeat the command with those, or choose another folder with --out"
            )

    def _take(self, entry: Entry) -> None:
        if entry.measured is None:
            self._qualities[entry.part, entry.architecture] = entry.quality
        else:
            super().add(entry.part, entry.architecture, entry.measured)

    def _write(self, value: Mapping[str, object]) -> None:
        line = json.dumps(value, allow_nan=False).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES or self._num_bytes + len(line) > MAX_BYTES:
            return
        self._num_bytes += len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}; make room, then start the same command again") from error
