"""Peers that audit for a run of real programs: their work counts, and who accuses everybody or says yes to everything is found out."""

from pathlib import Path

import pytest

from aggregator.log.verify import verify_directory
from aggregator.settings.sections import TrustSection
from protocol.audits import DIFFERS, WHOLE
from protocol.ledger import Ledger
from protocol.standing import OUTVOTED
from protocol.trust import Question
from tests.swarm.processes import Programs, small_run

pytestmark = pytest.mark.swarm

HONEST, AUDITS = ("one", "two"), ("--audit", "100%")


def test_volunteers_audit_and_those_who_do_not_look_are_found_out(tmp_path: Path) -> None:
    trust = TrustSection(mode="audited", proven_samples=64, whole_percent=100)
    config = small_run(rounds=10_000, first_open_s=2, max_open_s=4).model_copy(update={"trust": trust})
    with Programs(tmp_path, config) as programs:
        programs.start_aggregator()
        programs.start_peer("one", "one", *AUDITS)
        programs.start_peer("two", "two")
        programs.start_cheat("accuser", "accuse", *AUDITS)
        programs.expect_end("accuser")
        programs.wait_until(lambda: programs.status("accuser").get("audits_against", 0) > 0, "one of them accuses")
        programs.wait_until(lambda: programs.status("one").get("audits", 0) > 0, "another one looks")
        programs.wait_until(lambda: programs.status("one").get("whole_audits", 0) > 0, "it looks at all lots of a claim, too")
        programs.start_cheat("yes", "yes", *AUDITS)
        programs.expect_end("yes")
        programs.wait_until(lambda: programs.status("yes").get("audits", 0) > 0, "a third one says yes")
        programs.start_cheat("noise", "noise")
        programs.expect_end("noise")
        programs.wait_until(lambda: audits(programs)["against"] > 0, "the operator found noise")
        round_ = int(programs.status("aggregator")["round"])
        programs.wait_until(lambda: int(programs.status("aggregator")["round"]) >= round_ + 4, "what was found is in the log")
        assert [programs.wait_for_end(name) for name in ("accuser", "yes", "noise")] == [4, 4, 4]
        assert programs.status("one")["audits"] > 0
        assert audits(programs)["left"] > 0
        key = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in (*HONEST, "accuser", "yes", "noise")}
        for name in (*HONEST, "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
    last, whole = list[Ledger](), set[Question]()  # what the honest auditor found of whole claims

    def read(ledger: Ledger) -> None:
        last[:] = [ledger]
        votes = ledger.standing.votes.items()
        whole.update(question for question, said in votes if any(vote.auditor == key["one"] for vote in said) and question.check == WHOLE)

    verify_directory(tmp_path / "aggregator", on_round=read)
    assert whole
    standing = last[0].standing
    found = {key: fault.reason for key, fault in standing.guilty.items()}
    assert found == {key["accuser"]: OUTVOTED, key["yes"]: OUTVOTED, key["noise"]: DIFFERS}
    assert all(standing.account(key[name]).void for name in ("accuser", "yes", "noise"))
    assert not any(standing.account(key[name]).void for name in HONEST)


def audits(programs: Programs) -> dict[str, int]:
    """Return what the aggregator says of audits."""
    found: dict[str, int] = programs.status("aggregator").get("audits") or {"volunteers": 0, "against": 0, "left": 0}
    return found
