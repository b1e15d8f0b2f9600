"""What the monitor added up is taken up again where it is of this very log, and thrown away where it is not."""

import asyncio
import logging
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.monitor import kept, view
from manta_swarm.aggregator.monitor.kept import KEPT, KeptView
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.monitor.tables import RoundColumns
from manta_swarm.aggregator.monitor.view import View
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import sha256
from tests.aggregator.monitor.asgi import live_of, times_of, write_live
from tests.aggregator.small_run import ENTRIES, create, grow, next_round, signed_manifest, training_spec_of

KEPT_CLAIMS = 3
ROUNDS = KEPT_CLAIMS + 2  # so that there are peers whose first claims are not kept
MAX_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def few_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (kept, view):
        monkeypatch.setattr(each, "KEPT_CLAIMS", KEPT_CLAIMS)


@pytest.fixture
def log(log: Log, directory: Path) -> Log:
    grow(log, ROUNDS)
    write_live(directory, live_of(times=(times_of(2, 1_000_000),)))
    return log


def alarms_of(sight: Sight) -> list[str]:
    """What is wrong, but for the silence of an aggregator that these tests do not have."""
    return [alarm.cause.kind for alarm in sight.alarms.on if alarm.cause.kind != "silent"]


def looked(directory: Path) -> Sight:
    """Return what a monitor sees that was started just now, after two looks: times of rounds come with the second."""
    sight = Sight(directory, training_spec_of)
    for _ in range(2):
        asyncio.run(sight.look())
    return sight


def opened_entries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of entries that any view opens."""
    counts: list[int] = []
    take = View.take

    def counted(self: View, entries: list[bytes]) -> None:
        counts.append(len(entries))
        take(self, entries)

    monkeypatch.setattr(View, "take", counted)
    return counts


def peer_row(view: View) -> tuple[object, ...]:
    """Return what a view's audits add up to, without what was paid with the newest entry."""
    audits, reputation = view.audits, view.reputation
    if not view.manifest.is_audited:  # only what was paid is kept
        return reputation.paid, reputation.earned
    counts = (audits.drawn, audits.unjudged, audits.drawn_samples, audits.samples, audits.outcomes)
    return replace(reputation, _shares={}), audits.waiting, audits.ended, counts


def assert_same(view: View, other: View) -> None:
    """Assert that two views are of the same log."""
    assert (view.size, view.root(), view.folded, view.settlement) == (other.size, other.root(), other.folded, other.settlement)
    assert (view.round, view.pool_paid, view.newest) == (other.round, other.pool_paid, other.newest)
    assert view.peers == other.peers
    assert peer_row(view) == peer_row(other)
    assert view.rounds.counted_total == other.rounds.counted_total
    for round_ in range(1, view.round + 1):
        assert replace(view.rounds.row(round_), committed_at=None, round_ms=None) == replace(
            other.rounds.row(round_), committed_at=None, round_ms=None
        )


def test_a_later_start_opens_only_the_entries_that_came_since(directory: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    first = looked(directory)
    counts = opened_entries(monkeypatch)
    second = looked(directory)
    assert counts == []
    assert_same(first.view, second.view)
    assert second.newest_head is not None
    assert second.newest_head.head == log.head
    grow(log, 2)
    third = looked(directory)
    assert sum(counts) == 2 * ENTRIES
    assert alarms_of(third) == []
    assert third.view.round == first.view.round + 2
    assert third.num_read == third.reading_to == third.size
    (directory / DIRECTORY / KEPT).unlink()
    anew = looked(directory)
    assert sum(counts) == (2 + ROUNDS + 2) * ENTRIES
    assert_same(third.view, anew.view)


def test_times_of_rounds_are_kept_too(directory: Path, log: Log) -> None:
    rounds = looked(directory).view.rounds
    again = RoundColumns.of(rounds.columns())
    assert again.row(2).committed_at == 1_000_000
    assert again.series(1, ROUNDS, 10) == rounds.series(1, ROUNDS, 10)


def of_file(data: bytes) -> KeptView:
    """Return what is in a file."""
    return unpack(KeptView, zlib.decompress(data[32:]), max_bytes=1 << 24)


def whole(data: bytes, **changes: object) -> bytes:
    """Return a file that is whole, with changes."""
    data = pack(replace(of_file(data), **changes))  # type: ignore[arg-type]
    return sha256(data) + zlib.compress(data)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-7],
    "flipped": lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
    "empty": lambda _: b"",
    "of another version": lambda data: whole(data, form="manta view 0"),
    "of another run": lambda data: whole(data, run=bytes(32)),
    "of another root": lambda data: whole(data, root=bytes(32)),
    "longer than the log": lambda data: whole(data, size=10**6),
    "with short columns": lambda data: whole(data, claims=tuple(column[:-8] for column in of_file(data).claims)),
    "with no such cohort": lambda data: whole(data, cohorts="[]"),
    "a bomb": lambda data: whole(data, cohorts=of_file(data).cohorts + " " * MAX_BYTES),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_of_something_else_is_thrown_away(
    directory: Path, log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(kept, "MAX_BYTES", MAX_BYTES)
    first, path = looked(directory), directory / DIRECTORY / KEPT
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    counts = opened_entries(monkeypatch)
    with caplog.at_level(logging.WARNING):
        second = looked(directory)
    assert "thrown away" in caplog.text
    assert sum(counts) == ROUNDS * ENTRIES, "the log was read from its beginning"
    assert_same(first.view, second.view)
    assert alarms_of(second) == []
    caplog.clear()
    looked(directory)
    assert "thrown away" not in caplog.text, "a good one took its place"


def test_of_another_log_it_is_thrown_away_also_where_that_has_as_many_entries(directory: Path, log: Log, tmp_path: Path) -> None:
    """Figures of a history that this log does not hold are never shown."""
    looked(directory)
    with create(tmp_path / "other", signed_manifest()) as other:
        for _ in range(ROUNDS):
            other.commit(next_round(other.ledger, mean=b"another"))
        (tmp_path / "other" / DIRECTORY).mkdir()
        shutil.copy(directory / DIRECTORY / KEPT, tmp_path / "other" / DIRECTORY)
        sight = looked(tmp_path / "other")
        assert sight.view.root() == other.head.root != log.head.root
        assert alarms_of(sight) == []
