"""What a verified log says of credit: final, pending, void and why, in three forms that say the same."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.cli import main
from aggregator.log.credits import as_csv, as_json, as_lines
from aggregator.log.verify import Verification, verify_directory
from protocol.accounts import Accounts, Fault
from protocol.signing import Identity, peer_name, sha256
from tests.aggregator.small_run import PEERS, POOL, course_of, create, grow, signed_manifest
from tests.command import typed

RICH, NEW, GUILTY = (peer.public_key for peer in PEERS[:3])
OWNER = Identity(b"\x51" * 32).public_key


@pytest.fixture
def found(tmp_path: Path) -> Verification:
    """A log that was verified, with accounts of an audited run: two rounds are pending, one key lied."""
    directory = tmp_path / "log"
    with create(directory, signed_manifest()) as log:
        grow(log, 1)
    return replace(verify_directory(directory, course_of=course_of), accounts=accounts_of({}), rounds=4)


def accounts_of(payouts: dict[bytes, bytes]) -> Accounts:
    """Return the accounts of three keys after four rounds, whose claims name these."""
    accounts = Accounts(rounds=2)
    accounts.name(payouts)
    for round_, shares in enumerate(({RICH: 10, GUILTY: 7}, {RICH: 20}, {RICH: 30, GUILTY: 5}, {RICH: 1, NEW: 4}), 1):
        accounts.earn(round_, shares)
    accounts.take_back(GUILTY, Fault(4, "differs", sha256(b"claim")))
    return accounts


def test_lines_say_what_is_final_what_is_pending_until_when_and_what_is_void_and_why(found: Verification) -> None:
    assert list(as_lines(found))[2:] == [
        f"{peer_name(RICH)} final 30, pending 31 (final with round 6)",
        f"{peer_name(GUILTY)} final 7, void 5 (differs, round 4, claim {sha256(b'claim').hex()[:16]})",
        f"{peer_name(NEW)} final 0, pending 4 (final with round 6)",
    ]


def test_what_stays_pending_since_the_run_ends_before_it_is_final_is_said_in_each_form(found: Verification) -> None:
    ends = replace(found, num_rounds=5, accounts=accounts_of({RICH: OWNER, NEW: OWNER}))  # one is left: it makes final what round 3 paid
    assert list(as_lines(ends))[2:] == [
        f"account {peer_name(OWNER)} of 2 keys: final 30, "
        "pending 35 (30 of it final with round 5; 5 stays pending: the run ends with round 5), void 0",
        f"  {peer_name(RICH)} final 30, pending 31 (30 of it final with round 5; 1 stays pending: the run ends with round 5)",
        f"  {peer_name(NEW)} final 0, pending 4 (stays pending: the run ends with round 5)",
        f"{peer_name(GUILTY)} final 7, void 5 (differs, round 4, claim {sha256(b'claim').hex()[:16]})",
    ]
    rows = list(csv.DictReader(io.StringIO(as_csv(ends))))
    assert [(row["pending"], row["all_final_with_round"], row["stays_pending"]) for row in rows] == [
        ("31", "", "1"),
        ("4", "", "4"),
        ("0", "", "0"),
    ]
    assert [row["all_final_with_round"] for row in csv.DictReader(io.StringIO(as_csv(found)))] == ["6", "", "6"]
    said = json.loads(as_json(ends))
    assert (said["num_rounds"], said["last_final_round"]) == (5, 3)
    assert [one["stays_pending"] for one in said["accounts"]] == [5, 0]
    assert [one["stays_pending"] for one in said["accounts"][0]["peers"]] == [1, 4]
    assert [each["final_with"] for each in said["accounts"][0]["peers"][0]["pending"]] == [5, None]


def test_a_table_and_json_say_the_same_and_add_up_to_the_credits(found: Verification) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    said = json.loads(as_json(found))
    assert (said["run"], said["round"], said["pending_rounds"]) == (found.run.hex(), 4, 2)
    assert [row["account"] for row in rows] == [row["peer"] for row in rows] == [one["account"] for one in said["accounts"]]
    for row, one in zip(rows, said["accounts"], strict=True):
        (peer,) = one["peers"]
        assert int(row["final"]) == one["final"] == peer["final"]
        assert int(row["pending"]) == one["pending"] == sum(each["amount"] for each in peer["pending"])
        assert int(row["void"]) == one["void"] == sum(each["amount"] for each in peer["void"])
        credit = found.credits.get(bytes.fromhex(one["key"]), 0)
        assert int(row["final"]) + int(row["pending"]) == credit
    assert rows[1]["reasons"].startswith("differs, round 4")
    assert said["accounts"][1]["peers"][0]["void"] == [{"amount": 5, "round": 4, "reason": "differs", "claim": sha256(b"claim").hex()}]


def test_the_credit_of_an_accounts_machines_adds_up(found: Verification) -> None:
    owned = replace(found, accounts=accounts_of({NEW: OWNER, RICH: OWNER, GUILTY: OWNER}))
    name = peer_name(OWNER)
    assert list(as_lines(owned))[2] == f"account {name} of 3 keys: final 37, pending 35, void 5"
    (one,) = json.loads(as_json(owned))["accounts"]
    assert [peer["peer"] for peer in one.pop("peers")] == [peer_name(key) for key in (RICH, GUILTY, NEW)]
    assert one == {"account": name, "key": OWNER.hex(), "final": 37, "pending": 35, "stays_pending": 0, "void": 5}
    rows = list(csv.DictReader(io.StringIO(as_csv(owned))))
    assert [(row["account"], row["peer"]) for row in rows] == [(name, peer_name(key)) for key in (RICH, GUILTY, NEW)]
    assert owned.credits == {OWNER: 72}
    assert owned.accounts.credits_of_keys() == found.credits


def test_who_names_another_account_has_a_line_for_each(found: Verification) -> None:
    accounts = accounts_of({})
    accounts.name({NEW: OWNER})
    accounts.earn(5, {NEW: 9})
    lines = list(as_lines(replace(found, accounts=accounts, rounds=5)))
    assert f"account {peer_name(OWNER)} of 1 key: final 0, pending 9, void 0" in lines
    assert f"  {peer_name(NEW)} final 0, pending 9 (final with round 7)" in lines
    assert f"{peer_name(NEW)} final 0, pending 4 (final with round 6)" in lines


def test_in_an_open_run_all_is_final_at_once(tmp_path: Path) -> None:
    with create(tmp_path / "log", signed_manifest()) as log:
        grow(log, 2)
    found = verify_directory(tmp_path / "log", course_of=course_of)
    accounts = json.loads(as_json(found))["accounts"]
    assert sum(one["final"] for one in accounts) == 2 * POOL
    assert not any(one["pending"] or one["void"] for one in accounts)


def test_the_command_takes_one_form_and_a_folder_with_a_log(tmp_path: Path) -> None:
    for arguments, words in (
        (("credits", "--dir", tmp_path, "--csv", "--json"), "--csv or --json, not both"),
        (("credits", "--dir", tmp_path), "holds no"),
    ):
        ended = typed(main, *arguments)
        assert ended.exit_code == 2
        assert words in ended.errors
