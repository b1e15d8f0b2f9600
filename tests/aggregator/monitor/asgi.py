"""Requests to the monitor's application without a network, and a run for it to show. For the tests of this folder."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from manta_swarm.aggregator.commit.timeline import Times
from manta_swarm.aggregator.log.contents import STATUS
from manta_swarm.aggregator.monitor.answers import Answers
from manta_swarm.aggregator.monitor.app import MonitorApp, load_files
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.settings import DIRECTORY, MonitorSection
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.monitor.streams import EventStreams
from manta_swarm.aggregator.status import AggregatorStatus, CallCounts, HandedContribution, OpenRound, unix_ms
from manta_swarm.runtime.disk import make_directory
from tests.aggregator.real_run import PEERS
from tests.aggregator.small_run import training_spec_of

LOCAL = {"host": "127.0.0.1:8787"}


@dataclass(frozen=True, slots=True)
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body)

    @property
    def reason(self) -> str:
        """Why there is no other answer."""
        error = self.json["error"]
        assert error["status"] == self.status
        return str(error["reason"])


class Shown:
    """A run's directory, shown."""

    def __init__(self, directory: Path, *, settings: MonitorSection | None = None, is_loopback: bool = True, **of_sight: Any) -> None:
        """Show it, as it is now."""
        settings = settings or MonitorSection()
        self.sight = Sight(directory, **of_sight)
        self.present = Present(self.sight)
        self.streams = EventStreams(settings.streams, lambda: [("now", self.present.now(unix_ms()))])
        answers = Answers(self.sight, self.present, settings)
        self.app = MonitorApp(self.sight, self.present, answers, self.streams, load_files(), settings.host_names if is_loopback else None)
        self.look()

    def look(self) -> None:
        """Read what is new."""
        asyncio.run(self.sight.look())
        self.present.note_traffic()
        self.app.next_moment()

    def get(self, target: str, *, method: str = "GET", headers: Mapping[str, str] = LOCAL) -> Got:
        """Return the answer to a request, the whole of it."""
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 40_000),
            "server": ("127.0.0.1", 8787),
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        start, *parts = sent
        return Got(
            start["status"],
            {name.decode(): value.decode() for name, value in start["headers"]},
            b"".join(part.get("body", b"") for part in parts),
        )

    def json(self, target: str) -> Any:
        """Return what a route answers."""
        got = self.get(target)
        assert got.status == 200, got.body
        return got.json


def looked(directory: Path) -> Shown:
    """Show a run that trains as all of ``tests.aggregator.small_run`` do."""
    return Shown(directory, training_spec_of=training_spec_of)


def live_of(**changes: Any) -> AggregatorStatus:
    """Return what an aggregator says a moment ago, with changes."""
    now = unix_ms()
    return AggregatorStatus(
        run="ab" * 32,
        name="test",
        num_rounds=9,
        written_at=now,
        started_at=now - 60_000,
        pid=1,
        join=("manta-peer join",),
        received_bytes=5_000,
        sent_bytes=9_000,
        calls={"body": CallCounts(calls=3, in_bytes=4_000, out_bytes=100)},
        refused={"bad body": 2},
    ).model_copy(update=changes)


def write_live(directory: Path, status: AggregatorStatus) -> None:
    """Write it where the aggregator does."""
    make_directory(directory / DIRECTORY)
    (directory / STATUS).write_text(status.model_dump_json())


def open_round(round_: int, expected: list[bytes], handed: dict[bytes, str], *, left_ms: int = 1_000, lasts_ms: int = 500) -> OpenRound:
    """Return an open round in which these keys are that far."""
    now = unix_ms()
    return OpenRound(
        round=round_,
        stage="open" if left_ms > 0 else "waiting",
        open_ms=1_500,
        opened_at=now - lasts_ms,
        deadline_at=now + left_ms,
        expected=tuple(key.hex() for key in expected),
        handed=tuple(HandedContribution(round=round_, keys=(key.hex(),), body=body) for key, body in handed.items()),
    )


def times_of(round_: int, committed_at: int) -> Times:
    """Return what happened when in a round that was committed then, a second after it was opened."""
    opened_at = committed_at - 1_000
    return Times(
        round=round_,
        opened_at=opened_at,
        first_header_at=opened_at + 600,
        last_body_at=opened_at + 700,
        deadline_at=opened_at + 800,
        closed_at=opened_at + 900,
        committed_at=committed_at,
        first_fetch_at=committed_at + 10,
        last_fetch_at=committed_at + 50,
    )


def shown_now(directory: Path) -> Shown:
    """Show the run ``played``, of which the aggregator says a moment ago that its fourth round is open."""
    now = unix_ms()
    keys = [peer.public_key for peer in PEERS]
    open_ = open_round(4, keys, {keys[0]: "good", keys[1]: "header"}, left_ms=600_000)
    times = tuple(times_of(round_, now - 1_200 * (4 - round_)) for round_ in (1, 2, 3))
    write_live(directory, live_of(open=open_, times=times, heard={key.hex(): now - 100 for key in keys}))
    return Shown(directory)
