"""What the log asks of the process that computes lots again, and what it answers: a small file each, so that neither waits for the other.

DIR/audits/<name>.job     a Job; the name begins with the round of the state that it needs
DIR/audits/<name>.found   a Found; whoever asked removes both
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protocol.encoding import pack, unpack
from protocol.errors import RemoteFault
from protocol.fields import check_digest
from protocol.records import SignedClaim
from swarm.disk import disk_errors, make_directory, replace_file

FOLDER = "audits"
VECTORS = f"{FOLDER}/vectors"  # that peers showed, below a run's directory (``swarm.vectors``)
MISSED = "missed"  # an outcome: nothing can be found of it any more, by no fault of the claim's
_MAX_BYTES = 16_384

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Job:
    """One question about a claim."""

    claim: SignedClaim
    check: str
    lot: int  # its place under the claim's root
    round: int  # whose table has the claim
    contribution: bytes  # digest of that which lists it
    floor: int  # of its base
    state: bytes  # digest of the base's state
    step: int  # whose gradient is looked at, of several
    deep: int  # 1: by the vectors that its contribution was made of, also where the records of lots are enough otherwise
    left: int  # 1: the residual that the claim names, if it names one, was left to its key

    def __post_init__(self) -> None:
        for what in ("contribution", "state"):
            check_digest(getattr(self, what), what)

    @property
    def name(self) -> str:
        """Of its file: those on one base stand together."""
        return f"{self.claim.open().round:08d}-{self.claim.digest.hex()}-{self.check}-{self.lot}"


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    outcome: str  # of ``protocol.audits.OUTCOMES``, or MISSED
    projection: bytes
    reason: str  # for people
    cpu_ms: int
    lots: int  # that were computed


class JobFolder:
    """The files of both sides."""

    def __init__(self, directory: Path) -> None:
        """Use the folder for a run in ``directory``; it is made when it is first needed."""
        self._directory = directory / FOLDER

    def ask(self, job: Job) -> None:
        """Put a question.

        Raises:
            StorageError: the disk refuses.
        """
        if not self._directory.exists():
            make_directory(self._directory)
        replace_file(self._path(job.name, "job"), pack(job))

    def open(self) -> list[str]:
        """Return the names of what waits for an answer, the oldest base first."""
        answered = {path.stem for path in self._directory.glob("*.found")}
        return sorted(path.stem for path in self._directory.glob("*.job") if path.stem not in answered)

    def job(self, name: str) -> Job | None:
        """Return a question; None: it was taken back."""
        return self._read(Job, self._path(name, "job"))

    def answer(self, name: str, found: Found) -> None:
        """Answer a question.

        Raises:
            StorageError: the disk refuses.
        """
        replace_file(self._path(name, "found"), pack(found))

    def found(self, name: str) -> Found | None:
        """Return the answer to a question; None: there is none yet."""
        return self._read(Found, self._path(name, "found"))

    def forget(self, name: str) -> None:
        """Remove a question and its answer.

        Raises:
            StorageError: the disk refuses.
        """
        for kind in ("job", "found"):
            self._remove(self._path(name, kind))

    def clear(self) -> None:
        """Remove all that an earlier start left.

        Raises:
            StorageError: the disk refuses.
        """
        for kind in ("job", "found"):
            for path in self._directory.glob(f"*.{kind}"):
                self._remove(path)

    def _path(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"

    @staticmethod
    def _remove(path: Path) -> None:
        with disk_errors(path):
            path.unlink(missing_ok=True)

    @staticmethod
    def _read(type_: type[Record], path: Path) -> Record | None:
        try:
            return unpack(type_, path.read_bytes(), max_bytes=_MAX_BYTES)
        except (OSError, RemoteFault):
            return None
