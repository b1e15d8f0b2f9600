"""Where a run and its aggregator stand: the one model of it, DIR/status.json.

``manta-aggregator status``, the monitor's page, the report of ``manta-swarm`` and other programs print this. What the log says of the run
they may read there instead.
"""

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from manta_swarm.aggregator.commit.timeline import Times
from manta_swarm.aggregator.log.contents import STATUS
from manta_swarm.protocol.errors import RemoteFault, StorageError
from manta_swarm.protocol.private import SHARED, AccuracySpread
from manta_swarm.runtime.disk import replace_file

if TYPE_CHECKING:
    from manta_swarm.automl.evaluation.held_out import QualityReport

_MAX_BYTES = 8 * 1024 * 1024

logger = logging.getLogger("manta.aggregator")
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]  # in hexadecimal


def unix_ms() -> int:
    """Return the time that people's clocks show, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class Quality(_Part):
    """How good subnets are on held-out data: accuracies from 0 to 1, or mean errors of a disparity in pixels ("epe")."""

    metric: str  # "accuracy" | "epe"
    largest: float
    smallest: float
    random: tuple[float, ...]
    baseline: float | None = None  # the same of the best constant disparity, the held-out data's median

    @classmethod
    def of(cls, report: "QualityReport") -> "Quality":
        """Return the quality that an evaluation found."""
        random = tuple(report["random"])
        return cls(
            metric=report["metric"], largest=report["largest"], smallest=report["smallest"], random=random, baseline=report["baseline"]
        )

    def words(self) -> str:
        """Return the figures in one line: in percent, or pixels of disparity."""

        def shown(value: float) -> str:
            return f"{value:.1%}" if self.metric == "accuracy" else f"{value:.2f}px"

        spread = f"{shown(min(self.random))} to {shown(max(self.random))}"
        constant = "" if self.baseline is None else f" constant={shown(self.baseline)}"
        return f"{self.metric}: largest={shown(self.largest)} smallest={shown(self.smallest)} random={spread}{constant}"


class OwnQuality(_Part):
    """How good the peers say that the largest and the smallest subnet are on held-out images of their own, where data are private."""

    peers: int
    samples: int  # held-out images of all of them
    first_round: int  # of the states that were measured
    last_round: int
    largest: AccuracySpread
    smallest: AccuracySpread

    def words(self) -> str:
        """Return the quality in one line."""

        def shown(which: AccuracySpread) -> str:
            return " / ".join(f"{value:.1%}" for value in (which.least, which.median, which.best))

        where = f"{self.samples} held-out images of {self.peers} peers, as they say"
        return f"on {where} (least / median / best): largest={shown(self.largest)} smallest={shown(self.smallest)}"


class AmongOperators(_Part):
    """Where an operator stands among several."""

    acts_as: str  # "leader" | "follower" | "newcomer"
    term: int
    leader: str | None  # None: it hears nobody who is
    heard: tuple[str, ...]  # the others
    waits_for: tuple[str, ...] = ()  # of a newcomer: those that have not answered yet
    from_round: int = 0  # and the round with which it takes part once they have


class AuditCounts(_Part):
    """Counts of audits and their verdicts at this operator."""

    waiting: int  # contributions that were drawn, of which something is not decided
    verdicts: int  # of contributions of rounds that are not paid yet
    brought_bytes: int  # of vectors that are here
    without_room: int  # contributions whose vectors had no room
    volunteers: int  # who audit


class HandedContribution(_Part):
    """A contribution that has a place in the open round or the next."""

    round: int
    keys: tuple[Key, ...]  # of its claims
    body: str  # "header": not here yet | "body": it came, and is being checked | "good"


class OpenRound(_Part):
    """The round that is open."""

    round: int
    stage: str  # of protocol.closing.Stage
    open_ms: int
    opened_at: int | None
    deadline_at: int | None  # milliseconds since 1970, as all that ends in _at
    expected: tuple[Key, ...]  # of the last table
    handed: tuple[HandedContribution, ...]


@dataclass(slots=True)
class CallCounts:
    """Counts of the calls of one method since the start."""

    calls: int = 0
    in_bytes: int = 0
    out_bytes: int = 0


class AggregatorStatus(_Part):
    """A moment of a run and its aggregator."""

    run: str
    name: str
    num_rounds: int
    task: str = ""
    dataset: str = ""
    data: str = SHARED
    supernet: str = ""
    pid: int = 0
    started_at: int = 0
    addresses: tuple[str, ...] = ()
    join: tuple[str, ...] = ()  # what volunteers type
    gateway: str = ""  # where its gateway leases microbatches to light contributors, once it has answered
    monitor: str | None = None  # the address of its page, as a URL
    round: int = 0
    state: str = ""
    ledger_size: int = 0
    ledger_root: str = ""
    quality: Quality | None = None  # the aggregator's own full evaluation
    quality_round: int | None = None
    own_quality: OwnQuality | None = None
    finished: bool = False  # the last round is committed and evaluated
    settled: bool = False  # and all is paid
    open_ms: int = 0  # how long the next round is open
    counted: int = 0  # samples of the last table
    operators: AmongOperators | None = None  # None: it is alone
    audits: AuditCounts | None = None  # None: nothing is audited
    written_at: int = 0  # from here on what changes all the time
    open: OpenRound | None = None  # None: the run is finished
    times: tuple[Times, ...] = ()  # of the newest rounds
    sent_bytes: int = 0  # of the whole node since its start
    received_bytes: int = 0
    calls: Mapping[str, CallCounts] = {}
    heard: Mapping[Key, int] = {}  # when
    refused: Mapping[str, int] = {}  # by reason
    refused_of: Mapping[str, Mapping[str, int]] = {}  # by peer and reason, of those refused last

    @classmethod
    def read(cls, directory: Path) -> "AggregatorStatus | None":
        """Return the status in a run's folder, of the aggregator at work or the last; None: there is none.

        Raises:
            StorageError: it cannot be read.
            RemoteFault: it is damaged, or of another version.
        """
        path = directory / STATUS
        try:
            with path.open("rb") as file:
                return cls.model_validate_json(file.read(_MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"{path.name} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise RemoteFault(f"{path.name} is damaged, or of another version: {error.error_count()} fields are wrong") from error


class StatusFile:
    """Keeps DIR/status.json, with a thread of its own, a status at a time: where the disk is slower, statuses are left out.

    A disk that refuses it stops nothing: where it matters, the log's own writes fail.
    """

    def __init__(self, directory: Path) -> None:
        """Write into the run's ``directory``."""
        self._path = directory / STATUS
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="status")
        self._mutex = threading.Lock()
        self._newest: AggregatorStatus | None = None  # not written yet
        self._is_writing = False
        self._is_failing = False

    def put(self, status: AggregatorStatus) -> None:
        """Have this status written; nobody waits for it."""
        with self._mutex:
            self._newest = status
            if not self._is_writing:
                self._is_writing = True
                self._thread.submit(self._write)

    def close(self) -> None:
        """Return once the last status is written."""
        self._thread.shutdown()

    def _write(self) -> None:
        while True:
            with self._mutex:
                status, self._newest = self._newest, None
                if status is None:
                    self._is_writing = False
                    return
            try:
                replace_file(self._path, status.model_dump_json(indent=1).encode())
                self._is_failing = False
            except StorageError as error:
                if not self._is_failing:
                    logger.error("status not written path=%s reason=%s", self._path, error)
                self._is_failing = True
