"""What a verified log says of credit: paid, pending, and what was found out, in three forms that say the same."""

import csv
import io
import json
from pathlib import Path

import pytest

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.copies import verify as verify_export
from manta_swarm.aggregator.log.credits import as_csv, as_json, as_lines, earned_by_account
from manta_swarm.aggregator.log.tiles import export
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.protocol.verdicts import Outcome
from tests.aggregator.audited_log import AuditedRun
from tests.aggregator.small_run import POOL, create, grow, signed_manifest, training_spec_of
from tests.audited import audit_of, verdict_of
from tests.command import typed
from tests.contributions import PEERS

HONEST, LIAR, SILENT = PEERS[:3]
OWNER = Identity(b"\x51" * 32).public_key


def name(peer: Identity) -> str:
    return peer_name(peer.public_key)


@pytest.fixture
def run(tmp_path: Path) -> AuditedRun:
    """Seven rounds of a run of nine: the first is paid, one key was found false, one has not shown its work."""
    made = AuditedRun(tmp_path / "run", num_rounds=9, proven=PEERS[:3])
    for _ in range(2):
        made.round()
    made.round(verdict_of(made.ledger, HONEST), verdict_of(made.ledger, LIAR, Outcome.VOID))
    for _ in range(3):
        made.round(peers=[HONEST])
    made.round(verdict_of(made.ledger, SILENT, Outcome.DEMOTED, round=1), peers=[HONEST])
    return made


def test_lines_say_what_is_paid_what_is_pending_until_when_and_what_was_found_out(run: AuditedRun) -> None:
    found, reputation = run.verified(), run.ledger.reputation
    standing = reputation.standing(HONEST.public_key)
    of_liar, of_silent = ((reputation.faults[peer.public_key][0].contribution.hex()[:16]) for peer in (LIAR, SILENT))
    pending = sum(amount for _, amount in standing.pending)
    lines = list(as_lines(found))[2:]
    assert lines[:2] == [
        "rounds up to 1 are paid; round 7 is paid with the settlement",
        f"{name(HONEST)} paid {standing.paid}, pending {pending} (all paid with the settlement)",
    ]
    assert f"{name(LIAR)} paid 0; found false, round 3, contribution {of_liar}" in lines
    assert f"{name(SILENT)} paid 0; not shown, round 7, contribution {of_silent}" in lines
    assert 0 < standing.paid < pending


def test_a_table_and_json_say_the_same_and_add_up_to_the_credits(run: AuditedRun) -> None:
    run.round(peers=[HONEST], payout=OWNER)
    found = run.verified()
    rows, said = list(csv.DictReader(io.StringIO(as_csv(found)))), json.loads(as_json(found))
    assert (said["run"], said["round"], said["pending_rounds"], said["is_audited"], said["is_settled"]) == (
        found.run.hex(),
        8,
        6,
        True,
        False,
    )
    plain = [(one, peer) for one in said["accounts"] for peer in one["peers"]]
    assert [(row["account"], row["peer"]) for row in rows] == [(one["account"], peer["peer"]) for one, peer in plain]
    for row, (_, peer) in zip(rows, plain, strict=True):
        assert int(row["paid"]) == peer["paid"]
        assert int(row["pending"]) == sum(each["amount"] for each in peer["pending"])
        assert row["all_paid_with"] == ("settlement" if peer["pending"] else "")
        assert row["faults"].startswith({name(LIAR): "found false, round 3", name(SILENT): "not shown, round 7"}.get(peer["peer"], ""))
        assert all(each["paid_with"] == (each["round"] + 6 if each["round"] <= 3 else None) for each in peer["pending"])
    for one in said["accounts"]:
        assert one["paid"] == sum(peer["paid"] for peer in one["peers"]) == found.credits.get(bytes.fromhex(one["key"]), 0)
        assert one["pending"] == sum(each["amount"] for peer in one["peers"] for each in peer["pending"])
    paid_and_pending = {peer.public_key: run.ledger.reputation.standing(peer.public_key).credit for peer in PEERS[:3]}
    for peer in PEERS[:3]:
        of_key = [keys[peer.public_key].credit for keys in earned_by_account(found.reputation).values() if peer.public_key in keys]
        assert sum(of_key) == paid_and_pending[peer.public_key]
    (liar,) = [peer for _, peer in plain if peer["peer"] == name(LIAR)]
    fault = run.ledger.reputation.faults[LIAR.public_key][0]
    assert liar["faults"] == [{"round": 3, "reason": "false", "contribution": fault.contribution.hex()}]
    assert (liar["is_proven"], liar["found_good"]) == (False, 0)


def test_after_the_settlement_all_is_paid_and_nothing_is_pending(run: AuditedRun) -> None:
    run.rounds_to_the_end(peers=[HONEST])
    assert not run.verified().is_settled
    before = run.ledger.reputation.standing(HONEST.public_key).credit
    run.settle()
    found = run.verified()
    said, lines = json.loads(as_json(found)), list(as_lines(found))
    assert found.is_settled
    assert said["is_settled"]
    assert lines[2:4] == ["settled: all that the run pays is paid", f"{name(HONEST)} paid {before}"]
    assert not any(one["pending"] for one in said["accounts"])


def test_the_credit_of_an_accounts_machines_adds_up(tmp_path: Path) -> None:
    run = AuditedRun(tmp_path / "run", proven=PEERS[:2])
    for _ in range(3):
        run.round(peers=PEERS[:2], payout=OWNER)
    run.round(verdict_of(run.ledger, LIAR, Outcome.VOID), peers=PEERS[:2], payout=OWNER)
    found = run.verified()
    lines, (one,) = list(as_lines(found)), json.loads(as_json(found))["accounts"]
    pending = sum(run.ledger.reputation.standing(peer.public_key).credit for peer in PEERS[:2])
    assert lines[2] == "no round is paid yet; round 4 is paid with round 10"
    assert lines[3] == f"account {peer_name(OWNER)} of 2 keys: paid 0, pending {pending} (all paid with round 10)"
    assert [line[:2] for line in lines[4:]] == ["  ", "  "]
    assert [peer["peer"] for peer in one["peers"]] == [name(HONEST), name(LIAR)]
    assert (one["account"], one["paid"], one["pending"]) == (peer_name(OWNER), 0, pending)


def test_in_an_unaudited_run_all_is_paid_at_once(tmp_path: Path) -> None:
    with create(tmp_path / "log", signed_manifest()) as log:
        grow(log, 2)
    found = verify_directory(tmp_path / "log", training_spec_of=training_spec_of)
    said = json.loads(as_json(found))
    assert (sum(one["paid"] for one in said["accounts"]), said["is_audited"]) == (2 * POOL, False)
    assert not any(one["pending"] for one in said["accounts"])
    assert list(as_lines(found))[2].endswith(f" paid {max(one['paid'] for one in said['accounts'])}")


def test_an_export_of_an_audited_run_says_the_same_as_its_folder(run: AuditedRun, tmp_path: Path) -> None:
    run.rounds_to_the_end(peers=[HONEST])
    late = verdict_of(run.ledger, HONEST, Outcome.DEMOTED, round=audit_of(run.ledger, HONEST, 5).round)
    run.settle(late)
    export(run.directory, tmp_path / "export")
    shown, found = verify_export(tmp_path / "export", training_spec_of=training_spec_of), run.verified()
    assert shown.is_settled
    assert shown.reputation == found.reputation
    assert shown.credits == found.credits == run.ledger.credits()


def test_the_command_takes_one_form_and_a_folder_with_a_log(tmp_path: Path) -> None:
    for arguments, words in (
        (("credits", "--dir", tmp_path, "--csv", "--json"), "--csv or --json, not both"),
        (("credits", "--dir", tmp_path), "holds no"),
    ):
        ended = typed(main, *arguments)
        assert ended.exit_code == 2
        assert words in ended.errors
