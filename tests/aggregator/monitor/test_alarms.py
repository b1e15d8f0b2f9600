"""What is wrong with a run is said, and nothing is said where nothing is wrong."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.contents import STATUS
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import TREE_HEAD
from manta_swarm.aggregator.monitor.alarms import AlarmCause, Alarms, of_the_aggregator
from manta_swarm.aggregator.monitor.quality import QUALITY
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from tests.aggregator.monitor.asgi import Shown, live_of, looked, open_round, write_live
from tests.aggregator.small_run import OPERATOR, STRANGER, create, grow, next_round, signed_manifest


@pytest.fixture
def log(directory: Path) -> Iterator[Log]:
    with create(directory, signed_manifest()) as log:
        grow(log, 2)
        write_live(directory, live_of())
        yield log


def kinds(shown: Shown) -> list[tuple[str, str]]:
    """Return what is wrong, and how much."""
    return [(alarm["kind"], alarm["level"]) for alarm in shown.json("/api/now")["alarms"]]


def other_log(directory: Path, rounds: int) -> Path:
    """Return the directory of another log of the same run, by the same operator."""
    with create(directory, signed_manifest()) as log:
        log.commit(next_round(log.ledger, mean=b"another mean"))
        grow(log, rounds - 1)
    return directory


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_another_log_in_the_place_of_the_one_that_was_seen_is_a_fork(log: Log, directory: Path, tmp_path: Path, rounds: int) -> None:
    shown = looked(directory)
    log.close()
    other = other_log(tmp_path / "other", rounds)
    for path in directory.glob("log.sqlite3*"):
        path.unlink()
    for path in (*other.glob("log.sqlite3*"), other / TREE_HEAD):
        shutil.copy(path, directory / path.name)
    shown.look()
    assert ("fork", "alarm") in kinds(shown)
    shown.look()
    assert ("fork", "alarm") in kinds(shown), "evidence does not go away"
    assert shown.json("/api/now")["head"]["size"] == 8, "what was seen first is shown still"


def test_a_tree_head_that_the_log_once_signed_and_does_not_hold_is_a_fork(log: Log, directory: Path) -> None:
    name = origin(log.ledger.run)
    (directory / "snapshots").mkdir()
    for size, root, which in ((4, log._tree.root(4), 1), (8, bytes(32), 2)):
        note = sign_tree_head(TreeHead(name, size, root), name, OPERATOR)
        (directory / "snapshots" / f"round-0000000{which}.json").write_text(json.dumps({"tree_head": note}))
    (directory / "snapshots" / "round-00000003.json").write_text("half wri")
    shown = looked(directory)
    asyncio.run(shown.sight.look_back())
    (alarm,) = shown.json("/api/now")["alarms"]
    assert alarm["kind"] == "fork"
    assert "8 entries" in alarm["text"]


def test_nothing_is_wrong_with_a_log_that_grows_also_while_it_is_looked_back_on(log: Log, directory: Path) -> None:
    (directory / "snapshots").mkdir()
    shown = looked(directory)
    grow(log, 1)
    certificate = directory / "snapshots" / "round-00000003.json"
    certificate.write_text(json.dumps({"tree_head": log.tree_head}))
    asyncio.run(shown.sight.look_back())
    shown.look()
    assert kinds(shown) == []
    name = origin(log.ledger.run)
    certificate.write_text(json.dumps({"tree_head": sign_tree_head(TreeHead(name, 22, bytes(32)), name, OPERATOR)}))
    asyncio.run(shown.sight.look_back())
    shown.look()
    assert kinds(shown) == [("fork", "alarm")], "it signed for more than it has now"


def test_a_tree_head_by_another_key_is_not_believed(log: Log, directory: Path) -> None:
    name = origin(log.ledger.run)
    shown = looked(directory)
    grow(log, 1)
    (directory / TREE_HEAD).write_text(sign_tree_head(TreeHead(name, 21, log.head.root), name, STRANGER))
    shown.look()
    assert kinds(shown) == [("unreadable", "warning")]
    (directory / TREE_HEAD).write_text(log.tree_head)
    shown.look()
    assert kinds(shown) == []
    assert shown.json("/api/now")["round"] == 3


@pytest.mark.parametrize("data", ["{", '{"written_at": "now"}', '{"heard": {"zz": 1}}'])
def test_words_of_the_aggregator_that_make_no_sense_are_passed_over(log: Log, directory: Path, data: str) -> None:
    shown = looked(directory)
    (directory / STATUS).write_text(data)
    shown.look()
    assert kinds(shown) == [("unreadable", "warning")]
    assert shown.json("/api/now")["round"] == 2
    write_live(directory, live_of())
    shown.look()
    assert kinds(shown) == []


def test_a_snapshot_that_is_not_the_state_of_the_log_is_divergence(log: Log, directory: Path) -> None:
    line = {"round": 2, "state": "00" * 32, "at": 1, "seconds": 1.0, "held_out": 1, "points": []}
    (directory / DIRECTORY / QUALITY).write_text(json.dumps(line) + "\n")
    shown = looked(directory)
    (alarm,) = shown.json("/api/now")["alarms"]
    assert (alarm["kind"], alarm["level"], alarm["round"]) == ("divergence", "alarm", 2)


def test_many_contributions_for_another_log_are_a_warning(log: Log, directory: Path) -> None:
    write_live(directory, live_of(refused={"not for this log": 3}))
    shown = looked(directory)
    assert kinds(shown) == []
    write_live(directory, live_of(refused={"not for this log": 40}))
    shown.look()
    assert kinds(shown) == [("divergence", "warning")]


def test_an_aggregator_that_says_nothing_is_noticed_and_forgiven() -> None:
    alarms, now = Alarms(), 1_000_000
    live = live_of(written_at=now)
    assert of_the_aggregator(live, 0, now + 9_000, is_finished=False) == []
    assert of_the_aggregator(None, now, now + 9_000, is_finished=False) == []
    (cause,) = of_the_aggregator(live, 0, now + 11_000, is_finished=True)
    assert cause.kind == "silent"
    alarms.look([cause], now)
    alarms.look([cause], now + 5_000)
    assert [alarm.since for alarm in alarms.on] == [now]
    alarms.look([], now + 6_000)
    assert alarms.on == []


def test_a_round_that_lasts_far_too_long_is_noticed() -> None:
    usual, stalled = (live_of(open=open_round(4, [], {}, left_ms=100, lasts_ms=lasts)) for lasts in (20_000, 40_000))
    now = unix_ms()
    assert of_the_aggregator(usual, 0, now, is_finished=False) == []
    (cause,) = of_the_aggregator(stalled, 0, now, is_finished=False)
    assert (cause.kind, cause.level, cause.round) == ("stalled", "alarm", 4)
    assert "nothing that counts" in cause.text
    assert of_the_aggregator(stalled, 0, now, is_finished=True) == []


def test_evidence_is_kept_in_bounded_number() -> None:
    alarms = Alarms()
    for number in range(1_000):
        alarms.keep(AlarmCause("fork", "alarm", f"log {number}"), number)
    alarms.look([AlarmCause("stalled", "alarm", "now")], 5_000)
    assert len(alarms.on) == 20
    assert alarms.on[0].cause.kind == "stalled"


def test_where_the_run_lies_is_not_told_to_strangers(log: Log, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    shown = looked(directory)
    (directory / STATUS).unlink(missing_ok=True)
    (directory / STATUS).mkdir()
    shown.look()
    (alarm,) = shown.json("/api/now")["alarms"]
    assert "status.json cannot be read" in alarm["text"]
    (directory / "log.sqlite3").rename(directory / "elsewhere.sqlite3")
    for _ in range(3):
        got = shown.get("/api/ledger/entries")
        assert got.status == 503
        assert got.headers["retry-after"] == "2"
        assert "cannot be read now" in got.reason
        assert str(directory) not in got.body.decode() + alarm["text"]
    assert len([record for record in caplog.records if "log.sqlite3" in record.getMessage()]) == 1, "the operator's log has it, once"
