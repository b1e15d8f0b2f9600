"""What the monitor's evaluator leaves for the page: how good a few subnets were, and pictures of what they answer, as files in DIR/monitor.

quality.jsonl has a line for each evaluation. Whoever reads takes whole lines only, so an evaluator that was killed in the middle of one
disturbs nobody. pictures/index.json names the pictures, PNG files called by the SHA-256 of their bytes.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.atomic_file import bounded, read_written

QUALITY = "quality.jsonl"
COSTS = ("macs", "latency")
MAX_LINE_BYTES = 65_536
_MAX_READ_BYTES = 64 * 1024 * 1024  # at a time

Item = TypeVar("Item")

PICTURES = "pictures"
INDEX = "index.json"
NAME_DIGITS = 32
_MAX_INDEX_BYTES = 262_144
_MAX_PICTURE_BYTES = 2 * 1024 * 1024
_NAME = re.compile(rf"[0-9a-f]{{{NAME_DIGITS}}}")


class QualityPoint(BaseModel):
    """The quality of one subnet."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    macs: int  # of one sample
    kind: Literal["largest", "smallest", "random"]
    quality: float  # accuracy from 0 to 1, or EPE in pixels
    loss: float | None = None  # mean cross-entropy in nats; None in stereo
    latency_ms: float | None = None  # one core of the evaluator's computer, for one sample: the least that was measured so far


class EvaluationSeen(BaseModel):
    """What one evaluation found."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    round: int = Field(ge=0)
    state: str  # the digest of what was evaluated
    at: int
    seconds: float
    held_out: int = Field(ge=0)  # samples
    baseline: float | None = None
    points: tuple[QualityPoint, ...] = Field(max_length=32)

    def timed_by(self, newest: "EvaluationSeen") -> "EvaluationSeen":
        """Return this one with the latencies of the newest, if both are of the same subnets: weights do not change them."""
        if [(one.kind, one.macs) for one in self.points] != [(one.kind, one.macs) for one in newest.points]:
            return self
        pairs = zip(self.points, newest.points, strict=True)
        points = tuple(mine.model_copy(update={"latency_ms": timed.latency_ms}) for mine, timed in pairs)
        return self.model_copy(update={"points": points})

    def of_kind(self, kind: str) -> list[QualityPoint]:
        """Return the subnets of one kind."""
        return [point for point in self.points if point.kind == kind]

    def front(self, higher_is_better: bool, cost: str = "macs") -> list[tuple[QualityPoint, bool]]:
        """Return the subnets whose ``cost`` is known, by it, each with whether none that costs less, or as much, is at least as good."""
        sign = 1 if higher_is_better else -1
        prices = ((point.macs if cost == "macs" else point.latency_ms, point) for point in self.points)
        priced = [(price, point) for price, point in prices if price is not None]
        shown, best = [], float("-inf")
        for _, point in sorted(priced, key=lambda one: (one[0], -sign * one[1].quality)):
            shown.append((point, sign * point.quality > best))
            best = max(best, sign * point.quality)
        return shown


def evaluation_of(line: bytes) -> EvaluationSeen | None:
    """Return what a line of the file says; None: it is damaged."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        return EvaluationSeen.model_validate_json(line)
    except ValidationError:
        return None


class Evaluations:
    """The evaluations in the file, in the order of their rounds."""

    def __init__(self, directory: Path) -> None:
        """Read the file in ``directory``, when told."""
        self._path = directory / QUALITY
        self._offset = 0
        self.seen: list[EvaluationSeen] = []
        self.passed_over = 0  # lines that are not what the evaluator writes

    @property
    def newest(self) -> EvaluationSeen | None:
        """The newest evaluation."""
        return self.seen[-1] if self.seen else None

    def read_on(self) -> bool:
        """Take the lines that are new; return whether there were any. Blocks for as long as the disk takes.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return False
        if size < self._offset:  # another file
            self._offset, self.seen = 0, []
        if size == self._offset:
            return False
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_MAX_READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return bool(whole)

    def _take(self, line: bytes) -> None:
        one = evaluation_of(line)
        if one is None or (self.seen and one.round < self.seen[-1].round):
            self.passed_over += 1
        elif self.seen and one.round == self.seen[-1].round:
            self.seen[-1] = one
        else:
            self.seen.append(one)

    def chosen(self, first: int, last: int, most: int) -> list[EvaluationSeen]:
        """Return at most so many evaluations of rounds ``first`` to ``last``: evenly chosen, the first and the newest among them."""
        return evenly([one for one in self.seen if first <= one.round <= last], most)


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many of the items in their order, evenly chosen, the last one and, of more than one, the first among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def spread(points: Sequence[QualityPoint]) -> tuple[float | None, float | None, float | None]:
    """Return the least, the median and the most of some subnets' figures; None of none."""
    values = [point.quality for point in points]
    return (min(values), median(values), max(values)) if values else (None, None, None)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sheet(_Part):
    """Tiles in one picture, row by row."""

    picture: str
    tile_width: int
    tile_height: int
    columns: int
    count: int


class Answer(_Part):
    """What the largest and the smallest subnet say of one image, and its label."""

    label: str
    largest: str
    largest_sure: float  # the probability that it gives its answer
    smallest: str
    smallest_sure: float


class Scene(_Part):
    """A pair of views: pictures by name, and the errors in pixels."""

    width: int
    height: int
    left: str
    truth: str
    largest: str
    largest_error: str
    smallest: str
    smallest_error: str
    largest_epe: float
    smallest_epe: float

    @property
    def pictures(self) -> tuple[str, ...]:
        """The names of all pictures of the scene."""
        return (self.left, self.truth, self.largest, self.largest_error, self.smallest, self.smallest_error)


class PicturesIndex(_Part):
    """All pictures of one evaluation."""

    round: int | None
    kind: str  # the task
    sheet: Sheet | None = None
    answers: tuple[Answer, ...] = Field(default=(), max_length=64)
    max_disparity: float | None = None
    max_error: float | None = None
    scenes: tuple[Scene, ...] = Field(default=(), max_length=4)

    @property
    def pictures(self) -> list[str]:
        """The names of all pictures, each once."""
        names = [self.sheet.picture] if self.sheet else []
        return list(dict.fromkeys([*names, *(name for scene in self.scenes for name in scene.pictures)]))


def picture_name(data: bytes) -> str:
    """Return what a PNG is called."""
    return sha256(data).hex()[:NAME_DIGITS]


class Pictures:
    """The newest pictures, in memory."""

    def __init__(self, directory: Path, task: str) -> None:
        """Read those under ``directory``, when told; until then there are none."""
        self._directory = directory / PICTURES
        self._stamp: tuple[int, int] | None = None
        self.index = PicturesIndex(round=None, kind=task)
        self._data: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """Return a picture of the index."""
        return self._data.get(name)

    def read_on(self) -> bool:
        """Take the pictures if there are new ones; return whether. Blocks for as long as the disk takes.

        Raises:
            OSError: a file cannot be read, or is gone: newer ones are being written.
            ValueError: the files are not what the evaluator writes.
        """
        path = self._directory / INDEX
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        index = read_written(path, PicturesIndex, _MAX_INDEX_BYTES)
        data = {name: self._picture(name) for name in index.pictures}
        self.index, self._data, self._stamp = index, data, stamp
        return True

    def _picture(self, name: str) -> bytes:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} names no picture")
        data = self._data.get(name) or bounded(self._directory / f"{name}.png", _MAX_PICTURE_BYTES)
        if picture_name(data) != name:
            raise ValueError(f"the picture {name} has other bytes than its name says")
        return data
