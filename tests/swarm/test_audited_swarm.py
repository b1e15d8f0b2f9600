"""Audited runs of real programs: who hands in noise is found guilty, nobody honest is accused, and the log is verified."""

from pathlib import Path

import pytest

from aggregator.log.verify import verify_directory
from aggregator.settings.config import RunConfig
from aggregator.settings.sections import LEAST_KEPT_ROUNDS, ExchangeSection, RecipeSection, TrustSection
from automl.training.settings import first_floor
from peer.commands.earnings import runs_of
from protocol.audits import DIFFERS
from protocol.ledger import Ledger
from protocol.standing import LEFT
from tests.swarm.processes import Programs, small_run

pytestmark = pytest.mark.swarm

HONEST = ("one", "two", "three")
CODEC = "topk-256-4"


def test_whoever_hands_in_noise_is_found_guilty_and_nobody_honest_is_accused(tmp_path: Path) -> None:
    taught = {"trust": TrustSection(mode="audited"), "recipe": RecipeSection(taught_percent=100)}  # whoever audits needs the teacher, too
    config = small_run(rounds=10_000, first_open_s=2, max_open_s=4).model_copy(update=taught)
    with Programs(tmp_path, config) as programs:
        programs.start_aggregator()
        for name in HONEST:
            programs.start_peer(name, name)
        programs.start_cheat("cheat", "noise")
        programs.expect_end("cheat")
        programs.wait_until(
            lambda: all(programs.status(name).get("rounds_counted", 0) for name in (*HONEST, "cheat")), "all of them count in a round"
        )
        cheat = str(programs.status("cheat")["key"])
        programs.wait_until(lambda: programs.status("aggregator").get("audits", {}).get("against", 0) > 0, "the cheat is found")
        round_ = int(programs.status("aggregator")["round"])
        programs.wait_until(lambda: int(programs.status("aggregator")["round"]) >= round_ + 4, "what was found is in the log")
        assert programs.wait_for_end("cheat") == 4  # it does not go on working for nothing
        assert "audits found this peer guilty with round" in programs.status("cheat")["verdict"]
        assert "run manta-peer doctor" in programs.log("cheat")
        for name in (*HONEST, "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
        keys = [bytes.fromhex(str(programs.status(name)["key"])) for name in HONEST]
    last: list[Ledger] = []
    verify_directory(tmp_path / "aggregator", on_round=lambda ledger: last.__setitem__(slice(None), [ledger]))
    standing = last[0].standing
    assert set(standing.guilty) == {bytes.fromhex(cheat)}
    assert standing.account(bytes.fromhex(cheat)).credit == 0
    assert standing.account(bytes.fromhex(cheat)).void
    assert all(standing.account(key).credit > 0 and not standing.account(key).void for key in keys)
    assert sum(standing.samples[key] for key in keys) > 0
    for name, key in (*zip(HONEST, keys, strict=True), ("cheat", bytes.fromhex(cheat))):
        (earned,) = runs_of(tmp_path / name, verify=True)
        assert earned.problems == []
        assert {(one.key, one.by) for one in earned.rounds[:-1]} == {(key, "word")}  # for the last one who leaves does not wait long
    assert earned.total("void") == sum(one.paid or 0 for one in earned.rounds) > 0


def stepped_run() -> RunConfig:
    """Return a run of several local steps and a sparse codec, whose rounds take some seconds, with audits."""
    settings = {"first_open_s": 6, "min_open_s": 6, "max_open_s": 12, "target_batch": 512, "weight_cap": 256, "max_claim_samples": 512}
    exchange = ExchangeSection(local_steps=4, codec=CODEC, first_floor=first_floor(CODEC))
    sections = {"trust": TrustSection(mode="audited"), "exchange": exchange, "recipe": RecipeSection(taught_percent=100)}
    return small_run(rounds=10_000, **settings).model_copy(update=sections)


def test_of_local_steps_false_lots_and_a_false_mean_are_found_and_a_cohort_that_is_honest_is_not_accused(tmp_path: Path) -> None:
    with Programs(tmp_path, stepped_run()) as programs:
        programs.start_aggregator()
        for name in ("one", "two"):
            programs.start_peer(name, "home", environment={"MANTA_COHORT_TOKEN": "7a" * 32})
        for kind in ("noise", "step"):
            programs.start_cheat(kind, kind)
            programs.expect_end(kind)
        for kind in ("noise", "step"):
            assert programs.wait_for_end(kind) == 4
            assert "audits found this peer guilty with round" in programs.status(kind)["verdict"]
        round_ = int(programs.status("aggregator")["round"])
        programs.wait_for_round(round_ + 3)  # what was found of the others, until then
        for name in ("one", "two", "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in ("one", "two", "noise", "step")}
    last: list[Ledger] = []
    cohorts: list[int] = []

    def look(ledger: Ledger) -> None:
        last[:] = [ledger]
        cohorts.extend(len(listed.keys) for listed in ledger.table_at(ledger.round) or ())

    verify_directory(tmp_path / "aggregator", on_round=look)
    standing = last[0].standing
    assert set(standing.guilty) == {keys["noise"], keys["step"]}
    assert {fault.reason for fault in standing.guilty.values()} == {DIFFERS}
    for name in ("noise", "step"):
        assert standing.account(keys[name]).credit == 0
    for name in ("one", "two"):
        assert standing.account(keys[name]).credit > 0
        assert not standing.account(keys[name]).void
        assert standing.samples[keys[name]] > 0
    assert max(cohorts) == 2


def test_who_is_killed_before_audits_could_ask_is_not_paid_for_that_and_who_leaves_is(tmp_path: Path) -> None:
    trust = TrustSection(mode="audited", kept_rounds=LEAST_KEPT_ROUNDS)
    with Programs(tmp_path, stepped_run().model_copy(update={"trust": trust})) as programs:
        programs.start_aggregator()
        names = ("stays", "leaves", "killed")
        for name in names:
            programs.start_peer(name, name)
        programs.wait_until(lambda: all(programs.status(name).get("rounds_counted", 0) for name in names), "all of them count in a round")
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in names}
        programs.kill("killed")
        programs.interrupt("leaves")
        assert programs.wait_for_end("leaves") == 0
        assert "it stays until audits could ask" in programs.log("leaves")
        assert "audits may still ask" not in programs.log("leaves")
        programs.wait_for_round(int(programs.status("aggregator")["round"]) + LEAST_KEPT_ROUNDS + 2)
        for name in ("stays", "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
    last: list[Ledger] = []
    verify_directory(tmp_path / "aggregator", on_round=lambda ledger: last.__setitem__(slice(None), [ledger]))
    standing = last[0].standing
    accounts = {name: standing.account(key) for name, key in keys.items()}
    assert standing.guilty == {}
    assert {name: {void.fault.reason for void in account.void} for name, account in accounts.items()} == {
        "stays": set(),
        "leaves": set(),
        "killed": {LEFT},
    }
    assert standing.samples[keys["leaves"]] > 0
    (earned,) = runs_of(tmp_path / "leaves", verify=True)
    assert earned.problems == []
