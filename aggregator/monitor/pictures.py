"""Pictures of what subnets answer: DIR/monitor/pictures/index.json and the PNG files that it names, by the SHA-256 of their bytes."""

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from manta_swarm.aggregator.written import bounded, read_written
from manta_swarm.protocol.signing import sha256

PICTURES = "pictures"
INDEX = "index.json"
NAME_DIGITS = 32
_MAX_INDEX_BYTES = 262_144
_MAX_PICTURE_BYTES = 2 * 1024 * 1024
_NAME = re.compile(rf"[0-9a-f]{{{NAME_DIGITS}}}")


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
    """What two subnets make of one image, and what it is."""

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
        """All of its pictures' names."""
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
