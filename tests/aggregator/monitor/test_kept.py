"""What the monitor added up is taken up again where it is of this very log, and thrown away where it is not."""

import asyncio
import logging
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.follow.opening import OpenRun
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE, TREE_HEAD
from manta_swarm.aggregator.monitor.kept import KEPT, Kept
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.monitor.tables import Rounds
from manta_swarm.aggregator.monitor.view import KEPT_CLAIMS, View
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import sha256
from tests.aggregator.monitor.asgi import live_of, times_of, write_live
from tests.aggregator.small_run import ENTRIES, OPERATOR, create, grow, next_round, reopen, signed_manifest, training_spec_of

ROUNDS = KEPT_CLAIMS + 2  # so that there are peers whose first claims are not kept


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of some rounds, of which each test has a copy."""
    directory = tmp_path_factory.mktemp("grown") / "run"
    with create(directory, signed_manifest()) as log:
        grow(log, ROUNDS)
    return directory


@pytest.fixture
def log(grown: Path, directory: Path) -> Iterator[Log]:
    shutil.copytree(grown, directory)
    with reopen(directory) as log:
        write_live(directory, live_of(times=(times_of(2, 1_000_000),)))
        yield log


def alarms_of(sight: Sight) -> list[str]:
    """What is wrong, but for the silence of an aggregator that these tests do not have."""
    return [alarm.wrong.kind for alarm in sight.alarms.on if alarm.wrong.kind != "silent"]


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
    assert (directory / DIRECTORY / KEPT).exists()
    grow(log, 2)
    counts = opened_entries(monkeypatch)
    second = looked(directory)
    assert sum(counts) == 2 * ENTRIES
    assert alarms_of(second) == []
    assert second.view.round == first.view.round + 2
    assert second.num_read == second.reading_to == second.size
    (directory / DIRECTORY / KEPT).unlink()
    whole = looked(directory)
    assert sum(counts) == (2 + ROUNDS + 2) * ENTRIES
    assert_same(second.view, whole.view)


def test_what_is_kept_is_of_all_claims_and_rounds_of_a_real_run(played: tuple[Path, OpenRun], tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    for path in played[0].iterdir():
        if path.is_file():
            (directory / path.name).write_bytes(path.read_bytes())
    (directory / DIRECTORY).mkdir()
    first, second = Sight(directory), Sight(directory)
    for sight in (first, second):
        asyncio.run(sight.look())
        assert alarms_of(sight) == []
    assert first.view.round == 3
    assert_same(first.view, second.view)


def test_a_log_that_did_not_grow_is_recalled_whole(directory: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    first = looked(directory)
    counts = opened_entries(monkeypatch)
    second = looked(directory)
    assert counts == []
    assert_same(first.view, second.view)
    assert second.newest_head is not None
    assert second.newest_head.head == log.head


def test_times_of_rounds_are_kept_too(directory: Path, log: Log) -> None:
    rounds = looked(directory).view.rounds
    again = Rounds.of(rounds.columns())
    assert again.row(2).committed_at == 1_000_000
    assert again.series(1, ROUNDS, 10) == rounds.series(1, ROUNDS, 10)


def kept(directory: Path) -> Kept:
    """Return what is in the file."""
    return unpack(Kept, zlib.decompress((directory / DIRECTORY / KEPT).read_bytes()[32:]), max_bytes=1 << 24)


def write(directory: Path, value: Kept) -> None:
    """Write a file that is whole."""
    data = pack(value)
    (directory / DIRECTORY / KEPT).write_bytes(sha256(data) + zlib.compress(data))


def cut(directory: Path) -> None:
    path = directory / DIRECTORY / KEPT
    path.write_bytes(path.read_bytes()[:-7])


def flip(directory: Path) -> None:
    path = directory / DIRECTORY / KEPT
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(directory: Path) -> None:
    (directory / DIRECTORY / KEPT).write_bytes(b"")


def other_version(directory: Path) -> None:
    write(directory, replace(kept(directory), form="manta view 0"))


def other_run(directory: Path) -> None:
    write(directory, replace(kept(directory), run=bytes(32)))


def other_root(directory: Path) -> None:
    write(directory, replace(kept(directory), root=bytes(32)))


def longer_than_the_log(directory: Path) -> None:
    write(directory, replace(kept(directory), size=10**6))


def short_columns(directory: Path) -> None:
    value = kept(directory)
    write(directory, replace(value, claims=tuple(column[:-8] for column in value.claims)))


def no_such_cohort(directory: Path) -> None:
    write(directory, replace(kept(directory), cohorts="[]"))


def a_bomb(directory: Path) -> None:
    (directory / DIRECTORY / KEPT).write_bytes(bytes(32) + zlib.compress(bytes(1 << 28)))


DAMAGES = (cut, flip, empty, other_version, other_run, other_root, longer_than_the_log, short_columns, no_such_cohort, a_bomb)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_of_something_else_is_thrown_away(
    directory: Path, log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, damage: object
) -> None:
    first = looked(directory)
    assert callable(damage)
    damage(directory)
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
        other_rounds(other)
        (tmp_path / "other" / DIRECTORY).mkdir()
        data = (directory / DIRECTORY / KEPT).read_bytes()
        (tmp_path / "other" / DIRECTORY / KEPT).write_bytes(data)
        sight = looked(tmp_path / "other")
        assert sight.view.root() == other.head.root != log.head.root
        assert alarms_of(sight) == []
    assert {path.name for path in directory.iterdir()} >= {DATABASE, TREE_HEAD}
    assert sight.operator == OPERATOR.public_key


def other_rounds(log: Log) -> None:
    """Commit as many rounds as the fixture, with another mean."""
    for _ in range(ROUNDS):
        log.commit(next_round(log.ledger, mean=b"another"))
