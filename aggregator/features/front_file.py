"""The file of the front that a run's members measured last, DIR/snapshots/front.json: what is in it. Light: the page's program reads it."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from manta_swarm.runtime.atomic_file import read_written

FILE = "front.json"
_MAX_BYTES, _MAX_POINTS = 1 << 20, 256


class FrontPoint(BaseModel):
    """A network that no other one with fewer MACs was as good as."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    text: str = Field(max_length=4096)  # as ``manta-search export --arch`` takes it
    macs: int = Field(ge=0)  # of one sample
    loss: float  # what the front is by
    accuracy: float | None = None
    epe: float | None = None  # of stereo, in pixels; below it shares of the pixels
    d1: float | None = None
    bad3: float | None = None


class MembersFront(BaseModel):
    """The content of the file: the front that the run's members measured."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["manta/front/v1"] = "manta/front/v1"
    round: int = Field(ge=0)
    state: str = Field(max_length=64)
    measured: int = Field(ge=0)  # networks
    members: int = Field(ge=0)  # that answered
    samples: int = Field(ge=0)  # that each was measured on
    not_believed: tuple[str, ...]  # members, by name
    front: tuple[FrontPoint, ...] = Field(max_length=_MAX_POINTS)  # by their MACs


def read_front(directory: Path) -> MembersFront:
    """Return the front in a folder of snapshots.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is damaged, or of another version.
    """
    return read_written(directory / FILE, MembersFront, _MAX_BYTES)


class FrontSeen:
    """The newest front, read when there is a newer one."""

    def __init__(self, snapshots: Path) -> None:
        """Read the file in ``snapshots``, when told."""
        self._snapshots = snapshots
        self._stamp: tuple[int, int] | None = None
        self.newest: MembersFront | None = None

    def read_on(self) -> bool:
        """Take the front if there is a newer one; return whether. Blocks for as long as the disk takes.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged; what was read before stays.
        """
        try:
            found = (self._snapshots / FILE).stat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        self.newest = read_front(self._snapshots)
        self._stamp = stamp
        return True
