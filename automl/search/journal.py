"""What a search has measured so far, in memory or in a file, and what an earlier search measured, for another one to start from.

Nothing is ever measured twice. The file has one JSON object a line. The first names the format and the settings of the search; each other
one is an architecture, the part of the held-out data, and how good it is there: quality, loss of each sample, samples with a wrong class. A
line without its end is what was being written when the program was killed. Lines of version 1 have the quality alone: they are read, but
what a search ranks by is not in them, so that it measures those architectures again.

Nothing is written that could not be read again: what a full file has no room for is known to this program alone, and a later one measures
it once more.
"""

import fcntl
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from manta_swarm.automl.data.dataset import SEARCH
from manta_swarm.automl.evaluation.held_out import Quality, metric_of, score
from manta_swarm.automl.evaluation.samples import MAX_LOSS, Measured
from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.search.constraints import Cost, Region
from manta_swarm.automl.search.evaluators import Evaluator
from manta_swarm.automl.search.evolution import Point, by_merit, front, spread
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.protocol.errors import StorageError, UserError

_ADVICE = "remove it to begin anew, or choose another folder with --out"

Settings = Mapping[str, str | int | float | bool | None]

FORMAT = "manta/search/v2"
MAX_BYTES = 1 << 30  # some thousand architectures on 25,000 samples
MAX_LINE_BYTES = 4 << 20  # about 500,000 samples

_FORMATS = ("manta/search/v1", FORMAT)
_QUALITY_ALONE = frozenset(("part", "architecture", "quality"))
_FIELDS = _QUALITY_ALONE | {"losses", "wrong"}

SAME = ("state", "data", "precision")  # settings of two searches whose figures are of the same thing

_WARM_START_ADVICE = "give --warm-start the folder of another search, or none"


@dataclass(frozen=True, slots=True)
class Entry:
    """One architecture on one part of the held-out data."""

    part: str
    architecture: Architecture
    quality: Quality
    measured: Measured | None  # None: of version 1, the quality alone


@dataclass(slots=True)
class Reader:
    """Reads the lines of one journal; all that have samples have equally many on a part."""

    path: Path  # for what is said
    space: SearchSpace
    advice: str  # what to do where it is damaged
    _num_samples: dict[str, int] = field(default_factory=dict)

    def settings(self, line: bytes) -> dict[str, object]:
        """Return the settings in the first line.

        Raises:
            UserError: it is none of a journal.
        """
        found = self._parsed(1, line, frozenset(("format", "settings")))
        settings = found["settings"]
        if found["format"] not in _FORMATS or not isinstance(settings, dict):
            raise self.damaged(f"it does not begin as one of format {FORMAT}")
        return settings

    def entry(self, number: int, line: bytes) -> Entry:
        """Return what line ``number``, from 2, says.

        Raises:
            UserError: it is not of this space, or damaged.
        """
        entry = self._parsed(number, line, _FIELDS, _QUALITY_ALONE)
        try:
            part, quality = str(entry["part"]), entry["quality"]
            architecture = Architecture.parse(str(entry["architecture"]), self.space)
            if not isinstance(quality, dict) or not all(type(value) in (int, float) and math.isfinite(value) for value in quality.values()):
                raise ValueError("its qualities are no finite numbers")
            quality[metric_of(self.space.task)]
            return Entry(part, architecture, quality, self._measured(part, quality, entry) if "losses" in entry else None)
        except (ValueError, KeyError) as error:
            raise self.damaged(f"line {number} is none of this search ({error})") from error

    def check_samples(self, part: str, measured: Measured) -> None:
        """Refuse what was measured on another number of samples than what the journal has.

        Raises:
            UserError: so it is.
        """
        there, here = self._num_samples.setdefault(part, len(measured.losses)), len(measured.losses)
        if there != here:
            raise UserError(f"{self.path} has networks measured on {there} held-out samples, and now it is {here}; {self.advice}")

    def _measured(self, part: str, quality: Quality, entry: dict[str, object]) -> Measured:
        losses = _whole_numbers(entry["losses"], MAX_LOSS)
        wrong = _whole_numbers(entry["wrong"], len(losses) - 1)
        if not losses or len(losses) != self._num_samples.setdefault(part, len(losses)) or sorted(set(wrong)) != wrong.tolist():
            raise ValueError("its samples are not those of the others")
        return Measured(quality, losses, wrong)

    def _parsed(self, number: int, line: bytes, *fields: frozenset[str]) -> dict[str, object]:
        try:
            value = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or set(value) not in fields:
            raise self.damaged(f"line {number} does not have the fields {', '.join(sorted(fields[0]))}")
        return value

    def damaged(self, why: str) -> UserError:
        """Return what to raise, and what a person is told."""
        return UserError(f"{self.path} is damaged: {why}; {self.advice}")


def _whole_numbers(value: object, most: int) -> "array[int]":
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= most for each in value):
        raise ValueError(f"its samples are no whole numbers from 0 to {most}")
    return array("i", value)


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


class EarlierSearch:
    """The journal of a search, read only; that search may still be going on."""

    def __init__(self, path: Path, space: SearchSpace) -> None:
        """Read the journal ``path``; a last line without its end is left out.

        Raises:
            UserError: it is none, of another supernet, or damaged.
        """
        data = read_bounded(path, MAX_BYTES)
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        reader = Reader(path, space, _WARM_START_ADVICE)
        if not lines:
            raise reader.damaged("it is empty")
        self.settings = reader.settings(lines[0])
        if self.settings.get("supernet") != space.name:
            raise UserError(
                f"{path} is of a search of {self.settings.get('supernet')}, and this one is of {space.name}; {_WARM_START_ADVICE}"
            )
        self._entries: dict[tuple[str, Architecture], Entry] = {}
        for number, line in enumerate(lines[1:], 2):
            entry = reader.entry(number, line)
            self._entries[entry.part, entry.architecture] = entry

    def is_of(self, settings: Settings) -> bool:
        """Return whether its figures are those of another search: of the same weights and the same data, computed in the same precision."""
        return all(self.settings.get(name) == settings.get(name) for name in SAME)

    def measured(self, part: str, architecture: Architecture) -> Measured | None:
        """Return what it measured; None where it did not, or without losses."""
        entry = self._entries.get((part, architecture))
        return None if entry is None else entry.measured

    def promising(self, region: Region, axes: Sequence[Cost], count: int) -> list[Architecture]:
        """Return at most ``count`` of its architectures that are of the region: half of them spread over their front, the others the best.

        They are ranked by loss, or, where it measured no losses, by accuracy or EPE.
        """
        entries = [entry for (part, architecture), entry in self._entries.items() if part == SEARCH and architecture in region]
        with_losses = [(entry, -entry.measured.loss) for entry in entries if entry.measured is not None]
        scored = with_losses or [(entry, score(entry.quality)) for entry in entries]
        points = [Point(entry.architecture, tuple(axis.of(entry.architecture) for axis in axes), value) for entry, value in scored]
        ranked = [*spread(front(points), max(1, count // 2)), *sorted(points, key=by_merit)]
        return list(dict.fromkeys(point.architecture for point in ranked))[:count]


class Recalling:
    """An Evaluator that asks another one only for what an earlier search of the same weights and data did not measure."""

    def __init__(self, evaluator: Evaluator, earlier: EarlierSearch) -> None:
        """Recall what ``earlier`` has; ask ``evaluator`` for all else."""
        self._evaluator = evaluator
        self._earlier = earlier

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        """Yield how good each architecture is in the order asked for; see Evaluator."""
        unknown = [architecture for architecture in architectures if self._earlier.measured(part, architecture) is None]
        answers = iter(self._evaluator.measure(unknown, part)) if unknown else iter(())
        for architecture in architectures:
            yield self._earlier.measured(part, architecture) or next(answers)
