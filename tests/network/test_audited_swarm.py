"""Audited runs of real programs: who hands in noise is found guilty, nobody honest is accused, all is paid, and the log is verified."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import AggregatorSection, ExchangeSection, RecipeSection, TrustSection
from manta_swarm.automl.training.settings import first_min_exponent
from manta_swarm.peer.commands.earnings import runs_of
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.reputation import FALSE, WITHHELD
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.disk import IDENTITY, load_identity
from tests.network.processes import LITTLE_WORK, Programs, small_run

pytestmark = pytest.mark.swarm

CODEC = "topk-256-4"
TRUST = TrustSection(
    mode="audited", proven_after=2, audit_percent=100, newcomer_percent=100, kept_rounds=20, pending_rounds=30, settle_s=60.0
)
SHORT = {"first_open_s": 3, "min_open_s": 3, "max_open_s": 6, **LITTLE_WORK}
SECTIONS = {"trust": TRUST, "aggregator": AggregatorSection(audit_share=1.0), "recipe": RecipeSection(taught_percent=100)}


def audited(config: RunConfig, **sections: object) -> RunConfig:
    """Return a run with audits, whose microbatches are taught: whoever audits needs the teacher, too."""
    return config.model_copy(update={**SECTIONS, **sections})


def ledger_of(directory: Path) -> tuple[Ledger, list[int]]:
    """Return the ledger after the last round of a log that holds, and how many keys each contribution of its rounds has."""
    last, cohorts = list[Ledger](), list[int]()

    def look(ledger: Ledger) -> None:
        last[:] = [ledger]
        cohorts.extend(len(listed.keys) for listed in ledger.table_at(ledger.round) or ())

    verify_directory(directory, on_round=look)
    return last[0], cohorts


def test_whoever_hands_in_noise_is_found_guilty_and_who_is_honest_is_paid_when_the_run_is_settled(tmp_path: Path) -> None:
    honest, key = ("one", "two"), load_identity(tmp_path / "auditor" / IDENTITY).public_key
    trust = TRUST.model_copy(update={"auditors": (peer_name(key),), "settle_s": 10.0})
    config = audited(small_run(rounds=10, **{**SHORT, "min_open_s": 2}), trust=trust)
    with Programs(tmp_path, config) as programs:
        aggregator = programs.start_aggregator()
        where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"], "--dir", str(tmp_path / "auditor"))
        limits = ("--audit", "100%", "--evaluation", "0%", "--threads", "1", "--gpus", "none")
        programs.start_command("auditor", "-P", "-m", "manta_swarm.peer.cli", "join", *where, "--listen", "none", "--audit-only", *limits)
        programs.wait_until(lambda: bool(programs.status("auditor")), "the run's auditor looks on")
        for name in honest:
            programs.start_peer(name, name)
        programs.start_cheat("cheat", "noise")
        programs.expect_end("cheat")

        # Rounds do not wait for audits, however busy the machine is: here everybody stands still until one has found something.
        everybody = (*honest, "cheat")
        programs.wait_until(lambda: all(programs.status(name).get("brought_bytes") for name in everybody), "all bring what audits need")
        for name in everybody:
            programs.pause(name)
        programs.wait_until(lambda: bool(programs.status("auditor")["audits_against"]), "something is found")
        for name in everybody:
            programs.resume(name)
        assert programs.wait_for_end("cheat") == 4  # it does not go on working for nothing
        assert "audits found this peer guilty with round" in programs.status("cheat")["verdict"]
        assert "run manta-peer doctor" in programs.log("cheat")
        for name in honest:
            assert programs.wait_for_end(name) == 0
            assert programs.status(name)["brought_bytes"] > 0
        programs.wait_until(lambda: bool(programs.status("aggregator").get("settled")), "the run is settled")
        programs.interrupt("aggregator")
        assert programs.wait_for_end("aggregator") == 0
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in (*honest, "cheat")}
    ledger, _ = ledger_of(tmp_path / "aggregator")
    reputation = ledger.reputation
    assert set(reputation.guilty) == set(reputation.faults) == {keys["cheat"]}
    reasons = {fault.reason for fault in reputation.faults[keys["cheat"]]}
    assert FALSE in reasons
    assert reasons <= {FALSE, WITHHELD}  # it was gone by the time that its last ones were asked for
    verified = verify_directory(tmp_path / "aggregator")
    assert verified.is_settled
    paid = dict(verified.credits)
    assert paid.get(keys["cheat"], 0) == 0
    for name in honest:
        assert reputation.is_proven(keys[name])
        assert paid[keys[name]] > 0
    for name in keys:
        (earned,) = runs_of(tmp_path / name, verify=True)
        assert earned.problems == []
        assert {one.key for one in earned.rounds} == {keys[name]}
    assert earned.total("lost") == sum(one.amount or 0 for one in earned.rounds)


@pytest.mark.faults
def test_of_local_steps_a_false_mean_is_found_and_a_cohort_that_is_honest_is_found_good(tmp_path: Path) -> None:
    settings = {**SHORT, "first_open_s": 6, "min_open_s": 6, "max_open_s": 12, "weight_cap": 64, "max_claim_samples": 64}
    exchange = ExchangeSection(local_steps=4, codec=CODEC, first_min_exponent=first_min_exponent(CODEC))
    with Programs(tmp_path, audited(small_run(rounds=10_000, **settings), exchange=exchange)) as programs:
        programs.start_aggregator()
        for name in ("one", "two"):
            programs.start_peer(name, "home", environment={"MANTA_COHORT_TOKEN": "7a" * 32})
        programs.start_cheat("step", "step")
        programs.expect_end("step")
        assert programs.wait_for_end("step") == 4
        programs.wait_until(
            lambda: all(int(programs.status(name).get("good", 0)) > 0 for name in ("one", "two")), "the others are found good"
        )
        for name in ("one", "two"):
            programs.interrupt(name)
            assert programs.wait_for_end(name) == 0
        programs.interrupt("aggregator")
        programs.wait_for_end("aggregator")
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in ("one", "two", "step")}
    ledger, cohorts = ledger_of(tmp_path / "aggregator")
    assert set(ledger.reputation.guilty) == set(ledger.reputation.faults) == {keys["step"]}
    assert all(ledger.reputation.good[keys[name]] > 0 for name in ("one", "two"))
    assert max(cohorts) == 2
