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
from protocol.delegations import Delegation, Grant, Owners, SignedGrant
from protocol.signing import Identity, peer_name, sha256
from tests.aggregator.small_run import PEERS, POOL, course_of, create, grow, signed_manifest
from tests.command import typed

RICH, NEW, GUILTY = (peer.public_key for peer in PEERS[:3])


@pytest.fixture
def found(tmp_path: Path) -> Verification:
    """A log that was verified, with accounts of an audited run: two rounds are pending, one key lied."""
    directory = tmp_path / "log"
    with create(directory, signed_manifest()) as log:
        grow(log, 1)
    accounts = Accounts(rounds=2)
    for round_, shares in enumerate(({RICH: 10, GUILTY: 7}, {RICH: 20}, {RICH: 30, GUILTY: 5}, {RICH: 1, NEW: 4}), 1):
        accounts.earn(round_, shares)
    accounts.take_back(GUILTY, Fault(4, "differs", sha256(b"claim")))
    return replace(verify_directory(directory, course_of=course_of), accounts=accounts, rounds=4)


def test_lines_say_what_is_final_what_is_pending_until_when_and_what_is_void_and_why(found: Verification) -> None:
    assert list(as_lines(found))[2:] == [
        f"{peer_name(RICH)} final 30, pending 31 (final with round 6)",
        f"{peer_name(GUILTY)} final 7, void 5 (differs, round 4, claim {sha256(b'claim').hex()[:16]})",
        f"{peer_name(NEW)} final 0, pending 4 (final with round 6)",
    ]


def test_what_stays_pending_since_the_run_ends_before_it_is_final_is_said_in_each_form(found: Verification) -> None:
    ends = replace(found, num_rounds=5)  # one round is left: it makes final what round 3 paid
    owner = Identity(b"\x51" * 32)
    for key in (RICH, NEW):
        ends.owners.take([Delegation(ends.run, key, key, 1, (SignedGrant.sign(Grant(owner.public_key, key, 1), owner),))])
    assert list(as_lines(ends))[2:] == [
        f"{peer_name(RICH)} final 30, pending 31 (30 of it final with round 5; 1 stays pending: the run ends with round 5)",
        f"{peer_name(GUILTY)} final 7, void 5 (differs, round 4, claim {sha256(b'claim').hex()[:16]})",
        f"{peer_name(NEW)} final 0, pending 4 (stays pending: the run ends with round 5)",
        f"account {peer_name(owner.public_key)} of 2 keys: final 30, "
        "pending 35 (30 of it final with round 5; 5 stays pending: the run ends with round 5), void 0",
    ]
    rows = list(csv.DictReader(io.StringIO(as_csv(ends))))
    assert [(row["pending"], row["all_final_with_round"], row["stays_pending"]) for row in rows] == [
        ("31", "", "1"),
        ("0", "", "0"),
        ("4", "", "4"),
    ]
    assert [row["all_final_with_round"] for row in csv.DictReader(io.StringIO(as_csv(found)))] == ["6", "", "6"]
    said = json.loads(as_json(ends))
    assert (said["num_rounds"], said["last_final_round"]) == (5, 3)
    assert [one["stays_pending"] for one in said["accounts"]] == [1, 0, 4]
    assert [each["final_with"] for each in said["accounts"][0]["pending"]] == [5, None]
    assert said["by_account"][0]["stays_pending"] == 5


def test_a_table_and_json_say_the_same_and_add_up_to_the_credits(found: Verification) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    said = json.loads(as_json(found))
    assert (said["run"], said["round"], said["pending_rounds"]) == (found.run.hex(), 4, 2)
    assert [row["peer"] for row in rows] == [one["peer"] for one in said["accounts"]]
    for row, one in zip(rows, said["accounts"], strict=True):
        assert int(row["final"]) == one["final"]
        assert int(row["pending"]) == sum(each["amount"] for each in one["pending"])
        assert int(row["void"]) == sum(each["amount"] for each in one["void"])
        credit = found.credits.get(bytes.fromhex(one["key"]), 0)
        assert int(row["final"]) + int(row["pending"]) == credit
    assert rows[1]["reasons"].startswith("differs, round 4")
    assert said["accounts"][1]["void"] == [{"amount": 5, "round": 4, "reason": "differs", "claim": sha256(b"claim").hex()}]


def test_the_credit_of_an_accounts_machines_adds_up(found: Verification) -> None:
    owner, run = Identity(b"\x51" * 32), found.run
    owners = Owners()
    for key in (NEW, RICH):
        owners.take([Delegation(run, key, key, 1, (SignedGrant.sign(Grant(owner.public_key, key, 1), owner),))])
    owned = replace(found, owners=owners)
    name = peer_name(owner.public_key)
    assert list(as_lines(owned))[-1] == f"account {name} of 2 keys: final 30, pending 35, void 0"
    said = json.loads(as_json(owned))
    assert said["by_account"] == [
        {
            "account": name,
            "peers": [peer_name(key) for key in sorted((RICH, NEW))],
            "final": 30,
            "pending": 35,
            "stays_pending": 0,
            "void": 0,
        }
    ]
    assert [one["account"] for one in said["accounts"]] == [name, None, name]
    assert [row["account"] for row in csv.DictReader(io.StringIO(as_csv(owned)))] == [name, "", name]


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
