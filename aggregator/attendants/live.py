"""What an aggregator knows and the log does not say, for whoever looks on: DIR/monitor/live.json, replaced a few times a second at most.

It is written by a thread of its own, a state at a time: where the disk is slower, states are left out. Nobody waits for it, and a disk that
refuses it stops nothing.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from protocol.errors import StorageError
from runtime.disk import replace_file

DIRECTORY = "monitor"  # in the run's
LIVE = "live.json"
EVERY_S = 0.5
MAX_BYTES = 8 * 1024 * 1024

logger = logging.getLogger("manta.live")
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]  # in hexadecimal


def unix_ms() -> int:
    """Return the time that people's clocks show, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Handed(_Part):
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
    handed: tuple[Handed, ...]


class RoundTimes(_Part):
    """See ``aggregator.rounds.timeline.Times``."""

    round: int
    opened_at: int | None = None
    first_header_at: int | None = None
    last_body_at: int | None = None
    deadline_at: int | None = None
    closed_at: int | None = None
    committed_at: int | None = None
    first_fetch_at: int | None = None
    last_fetch_at: int | None = None


class MethodTraffic(_Part):
    """What one method came to since the start."""

    calls: int
    in_bytes: int
    out_bytes: int


class FinalQuality(_Part):
    """The aggregator's own full evaluation, after the last round or as often as the run file says."""

    round: int
    largest: float
    smallest: float
    random: tuple[float, ...]

    @classmethod
    def of(cls, round_: int, *, largest: float, smallest: float, random: Sequence[float]) -> "FinalQuality | None":
        """Return it; None where a figure is no number, as the error of a network that diverged: JSON has no word for that."""
        if not all(map(math.isfinite, (largest, smallest, *random))):
            return None
        return cls(round=round_, largest=largest, smallest=smallest, random=tuple(random))


class Live(_Part):
    """One moment of an aggregator."""

    written_at: int
    started_at: int
    pid: int
    join: tuple[str, ...] = ()
    open: OpenRound | None = None  # None: the run is finished
    times: tuple[RoundTimes, ...] = ()
    sent_bytes: int = 0  # of the whole node since its start
    received_bytes: int = 0
    calls: dict[str, MethodTraffic] = {}
    heard: dict[Key, int] = {}  # when
    refused: dict[str, int] = {}  # by reason
    refused_of: dict[Key, dict[str, int]] = {}  # by key and reason
    final: FinalQuality | None = None


class LiveFile:
    """Keeps the file up to date until it is cancelled."""

    def __init__(self, directory: Path, now: Callable[[], Live]) -> None:
        """Write into the run's ``directory`` what ``now`` returns."""
        self._path = directory / DIRECTORY / LIVE
        self._now = now

    async def keep(self) -> None:
        """Write again and again; meant to be run beside the rest, and cancelled."""
        writer = ThreadPoolExecutor(1, thread_name_prefix="live")
        is_failing = False
        try:
            while True:
                failure = await asyncio.get_running_loop().run_in_executor(writer, self._write, self._now())
                if failure is not None and not is_failing:
                    logger.warning("not written path=%s reason=%s", self._path, failure)
                is_failing = failure is not None
                await asyncio.sleep(EVERY_S)
        finally:
            writer.shutdown(wait=False)

    def _write(self, live: Live) -> str | None:
        try:
            replace_file(self._path, live.model_dump_json().encode())
        except StorageError as error:
            return str(error)
        return None
