"""Kills and lies among real programs: what the log has is what every honest peer has, and nobody earns what was not given."""

from pathlib import Path

import pytest

from aggregator.storage import is_at_rest, read_manifest, reading
from aggregator.verify import Replay, replay, verify_directory
from automl.latency import LatencyTable
from automl.schedule import Plan
from protocol.records import Round
from tests.latency_table import table_of
from tests.swarm.processes import LISTEN, Programs, Status, small_run

pytestmark = pytest.mark.swarm

HERE = Path(__file__).parent


def start_strange_peer(programs: Programs, name: str, script: str, argument: str, cohort: str) -> None:
    """Start one of this folder's peers."""
    aggregator = programs.status("aggregator")
    where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"])
    own = ("--cohort", cohort, "--listen", LISTEN, "--dir", str(programs.directory / name), "--gpus", "none")
    programs.start_command(name, str(HERE / script), argument, "join", *where, *own)


def read_log(programs: Programs) -> Replay:
    """Return the log as it is now, every check held."""
    directory = programs.directory / "aggregator"
    verify_directory(directory)
    with reading(directory, at_rest=is_at_rest(directory)) as connection:
        return replay(connection, read_manifest(directory))


def rounds_of(log: Replay) -> list[Round]:
    """Return the committed rounds in order."""
    rounds = [log.ledger.round_at(number) for number in range(1, log.ledger.round + 1)]
    return [one for one in rounds if one is not None]


def rounds_with(log: Replay, key: str) -> list[int]:
    """Return the rounds whose tables have a claim of ``key`` (hex)."""
    found = []
    for round_ in rounds_of(log):
        claim = log.ledger.claim_at(round_.statement.round, bytes.fromhex(key))
        if claim is not None and claim.digest in round_.claims:
            found.append(round_.statement.round)
    return found


def assert_all_ended_on_the_logs_state(programs: Programs, names: list[str], log: Replay) -> None:
    for name in names:
        status = programs.status(name)
        assert (name, status["finished"], status["state"]) == (name, True, log.ledger.state.hex())


def test_a_peer_killed_in_the_middle_of_a_reduce_costs_one_attempt_and_earns_nothing_for_what_it_missed(tmp_path: Path) -> None:
    survivors = ["one", "two", "three"]
    with Programs(tmp_path, small_run(rounds=6, target_batch=192, max_claim_samples=64, deadline_s=8)) as programs:
        programs.start_aggregator()
        for name, cohort in zip(survivors, ("a", "a", "b"), strict=True):
            programs.start_peer(name, cohort)
        start_strange_peer(programs, "dying", "dying_peer.py", "1", "b")
        programs.expect_end("dying")
        for name in survivors:
            assert programs.wait_for_end(name) == 0
        assert programs.wait_for_end("dying") == -9
        log = read_log(programs)
        assert_all_ended_on_the_logs_state(programs, survivors, log)
        dead = programs.status("dying")
        took_part = rounds_with(log, dead["key"])
        assert len(took_part) <= 1
        assert log.ledger.round == 6
        earned_without = [one for one in rounds_of(log) if one.statement.round not in took_part]
        assert len(earned_without) >= 5
        assert sum(log.ledger.credits().values()) == 6 * log.ledger.manifest.reward_pool
        if not took_part:
            assert bytes.fromhex(dead["key"]) not in log.ledger.credits()


def test_a_killed_peer_that_starts_again_keeps_its_name_and_takes_part(tmp_path: Path) -> None:
    with Programs(tmp_path, small_run(rounds=1000, max_claim_samples=64, deadline_s=8)) as programs:
        programs.start_aggregator()
        programs.start_peer("one", "a")
        programs.start_peer("two", "b")
        programs.wait_until(lambda: programs.status("two").get("round", 0) >= 2, "the peer has rounds behind it")
        programs.kill("two")
        before = programs.status("two")
        programs.start_peer("two", "b")
        programs.wait_until(lambda: has_come_back(programs.status("two"), before), "it takes part again")
        programs.kill("two")
        after = programs.status("two")
        log = read_log(programs)
        assert after["key"] == before["key"]
        assert max(rounds_with(log, after["key"])) > after["joined_at_round"] >= before["round"]
        assert not any(log.ledger.equivocators(number) for number in range(1, log.ledger.round + 1))


def has_come_back(status: Status, before: Status) -> bool:
    """Return whether a peer, started again, has had rounds counted: one may be of the claim that it froze in its life before."""
    return status["pid"] != before["pid"] and status["joined_at_round"] is not None and status["rounds_counted"] >= 2


def collected_tables(programs: Programs) -> list[LatencyTable]:
    """Return what a visitor gets of the run's members."""
    aggregator, out = programs.status("aggregator"), programs.directory / "tables"
    where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"], "--listen", LISTEN)
    programs.start_command("visitor", "-P", "-m", "peer.cli", "tables", *where, "--out", str(out))
    assert programs.wait_for_end("visitor") == 0
    return [LatencyTable.load(path) for path in out.iterdir()]


def test_a_fifth_peer_that_comes_late_checks_the_state_it_fetches_and_takes_part(tmp_path: Path) -> None:
    names = ["one", "two", "three", "four", "late"]
    with Programs(tmp_path, small_run(rounds=1000, target_batch=256, max_claim_samples=64, deadline_s=20)) as programs:
        programs.start_aggregator()
        for index, name in enumerate(names[:4]):
            programs.start_peer(name, f"cohort-{index % 2}")
        programs.wait_for_round(1)
        table_of().save(tmp_path / "table.json")
        programs.start_peer("late", "cohort-0", "--latency-table", str(tmp_path / "table.json"))
        programs.wait_until(lambda: programs.status("late").get("rounds_counted", 0) >= 2, "the late peer takes part")
        assert collected_tables(programs) == [table_of()]
        for name in names:
            programs.interrupt(name)
        for name in names:
            assert programs.wait_for_end(name) == 0
        log = read_log(programs)
        for name in names:
            status = programs.status(name)
            committed = log.ledger.round_at(status["round"])
            assert committed is not None
            assert (name, status["state"]) == (name, committed.statement.state.hex())
        late = programs.status("late")
        joined_on = log.ledger.round_at(late["joined_at_round"])
        assert joined_on is not None
        assert f"state={joined_on.statement.state.hex()[:12]}" in programs.log("late")
        assert min(rounds_with(log, late["key"])) > late["joined_at_round"]
        assert bytes.fromhex(late["key"]) in log.ledger.credits()


def test_an_aggregator_killed_and_started_again_has_lost_nothing_and_who_waited_goes_on_with_a_newcomer(tmp_path: Path) -> None:
    config = small_run(rounds=20, schedule="shrinking", max_claim_samples=64, deadline_s=8)
    with Programs(tmp_path, config) as programs:
        address = programs.start_aggregator()["addresses"]
        programs.start_peer("one", "a")
        programs.start_peer("two", "b")
        programs.wait_until(lambda: bool(programs.status("one").get("teacher")), "the full phase is over")
        programs.kill("aggregator")
        acknowledged = max((programs.status(name) for name in ("one", "two")), key=lambda status: status["round"])
        kept = rounds_of(read_log(programs))
        assert len(kept) >= acknowledged["round"]
        assert kept[acknowledged["round"] - 1].statement.state.hex() == acknowledged["state"]
        waits = "the run's log, which cannot be reached"
        programs.wait_until(lambda: waits in programs.log("one") + programs.log("two"), "a peer says what it waits for")
        programs.kill("two")  # from now on every round waits for its deadline, until the newcomer is there
        assert programs.start_aggregator()["addresses"] == address
        programs.start_peer("late", "b")
        for name in ("one", "late"):
            assert programs.wait_for_end(name) == 0
        log = read_log(programs)
        assert rounds_of(log)[: len(kept)] == kept
        assert_all_ended_on_the_logs_state(programs, ["one", "late"], log)
        late, teacher_round = programs.status("late"), Plan.of(log.ledger.manifest).teacher_round
        assert teacher_round is not None
        assert late["joined_at_round"] > teacher_round
        assert late["rounds_counted"] >= 1, "it never was of one mind with the other"
        assert late["teacher"] == programs.status("one")["teacher"] == rounds_of(log)[teacher_round - 1].statement.state.hex()
        programs.interrupt("aggregator")
        assert programs.wait_for_end("aggregator") == 0


@pytest.mark.parametrize("lie", ["state", "mean"])
def test_a_peer_that_proposes_a_false_digest_touches_no_honest_peers_state(tmp_path: Path, lie: str) -> None:
    honest = ["one", "two"]
    with Programs(tmp_path, small_run(rounds=4, target_batch=192, max_claim_samples=64, deadline_s=20)) as programs:
        programs.start_aggregator()
        for name in honest:
            programs.start_peer(name, "a")
        start_strange_peer(programs, "liar", "lying_peer.py", lie, "b")
        for name in honest:
            assert programs.wait_for_end(name) == 0
        programs.wait_until(lambda: "lie refused" in programs.log("liar"), "the lie was told")
        log = read_log(programs)
        assert_all_ended_on_the_logs_state(programs, honest, log)
        liar = programs.status("liar")
        assert rounds_with(log, liar["key"]), "the liar was in a committed table, so its lie was outvoted, not missed"
        for round_ in rounds_of(log):
            assert bytes.fromhex(liar["key"]) not in [vote.key for vote in round_.votes]
        assert sum(programs.status("aggregator")["proposals_refused"].values()) >= 1
