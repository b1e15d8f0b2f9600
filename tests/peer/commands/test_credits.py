"""What ``manta-peer credits`` says of a peer's payout receipts: what they prove, and what not once somebody touched them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.peer.cli import main
from manta_swarm.peer.credit.payout_receipts import KeptCredit, PayoutReceiptFolder, load_payout_receipt
from manta_swarm.peer.store import credit_file
from manta_swarm.protocol.notes import sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.payout_receipts import PayoutReceipt, payout_receipt_bytes
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.records import Header, open_entry
from manta_swarm.protocol.reputation import FALSE, WITHHELD, Fault
from manta_swarm.protocol.signing import Identity, key_named, peer_name, sha256
from manta_swarm.protocol.verdicts import AuditRules
from tests.command import typed
from tests.memory_log import OPERATOR, PEERS, until
from tests.peer.scene import Member, Scene, play, scene_in

ROUNDS = 3
AUDITOR = Identity(b"\x78" * 32)
OF_AUDITS = AuditRules(
    (AUDITOR.public_key,), proven=tuple(sorted(PEERS[place].public_key for place in (0, 3))), kept_rounds=1, pending_rounds=6
)


async def rounds(scene: Scene, member: Member, count: int = ROUNDS, before_commit: Callable[[], object] = lambda: None) -> None:
    """Let the member and somebody else take part in so many rounds."""
    for _ in range(count):
        round_ = scene.log.ledger.round + 1
        scene.log.give(PEERS[3], seed=round_)
        await scene.log.wait_for(2)
        before_commit()
        scene.log.commit()
        await until(lambda round_=round_: (member.store.directory / "runs" / payout_receipt_name(scene, round_)).exists())
        await until(lambda round_=round_: load_payout_receipt(folder_of(member.store.directory), round_).paid)


def payout_receipt_name(scene: Scene, round_: int) -> str:
    return f"{scene.log.signed.run.hex()[:16]}/payout_receipts/{round_:08d}"


def folder_of(directory: Path) -> Path:
    (found,) = directory.glob("runs/*/payout_receipts")
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of a peer that three rounds of an unaudited run counted, and what they paid it."""
    return played(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def audited(tmp_path: Path, quick_pauses: None) -> tuple[Path, int]:
    """The same of an audited run."""
    return played(tmp_path, audits=(OF_AUDITS,))


def played(directory: Path, **changes: Any) -> tuple[Path, int]:
    earned = list[int]()

    async def story(scene: Scene) -> None:
        member = scene.join(0)
        await rounds(scene, member)
        await member.leaves()
        earned.append(scene.log.ledger.reputation.standing(member.key).credit)

    play(directory, story, **changes)
    return directory / "peer-0", earned[0]


@pytest.fixture
def here(kept: tuple[Path, int], tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(kept[0], tmp_path / "peer"))


def said(directory: Path, *more: str) -> tuple[int, list[str]]:
    ended = typed(main, "credits", "--dir", directory, *more)
    assert not ended.errors
    return ended.exit_code, ended.output.splitlines()


def test_all_that_a_peer_earned_is_proven_without_the_log(kept: tuple[Path, int], here: Path) -> None:
    code, lines = said(here, "--verify")
    assert code == 0
    assert f"total on {ROUNDS} payout receipts: paid {kept[1]:,}, pending 0, lost 0" in lines
    assert sum(line.endswith(" (proven)  paid") for line in lines) == ROUNDS
    assert any(f"verified: {ROUNDS} rounds are in the run's log" in line and f"{ROUNDS} of them paid" in line for line in lines)
    assert f"the log says, up to round {ROUNDS}: paid {kept[1]:,}, pending 0" in lines
    found = json.loads("\n".join(said(here, "--verify", "--json")[1]))
    assert (found["verified"], found["holds"], found["runs"][0]["paid"]) == (True, True, kept[1])
    assert [one["round"] for one in found["runs"][0]["rounds"]] == [1, 2, 3]
    assert {one["known_by"] for one in found["runs"][0]["rounds"]} == {"claims"}


@pytest.mark.usefixtures("quick_pauses")
async def test_of_what_is_pending_it_is_said_round_by_round_with_what_it_is_paid(tmp_path: Path) -> None:
    async with scene_in(tmp_path, audits=(OF_AUDITS,), num_rounds=8) as scene:
        member = scene.join(0)
        await rounds(scene, member)
        await member.leaves()
        status = member.status
        assert (status.credit_until, status.credit_paid, status.is_proven, status.proven_after) == (0, 0, True, 20)
    for more in ((), ("--verify",)):
        plain = json.loads("\n".join(said(tmp_path / "peer-0", "--json", *more)[1]))["runs"][0]
        amounts = [one["amount"] for one in plain["rounds"]]
        assert (plain["num_rounds"], plain["pending_rounds"], plain["pending"], plain["paid"]) == (8, 6, sum(amounts), 0)
        assert [(one["state"], one["paid_with"]) for one in plain["rounds"]] == [("pending", 7), ("pending", 8), ("pending", None)]
        assert (plain["log_says"]["pending"], plain["log_says"]["until"], plain["log_says"]["is_proven"]) == (sum(amounts), 0, True)
        code, lines = said(tmp_path / "peer-0", *more)
        assert code == 0
        assert [line.split("  pending ")[1] for line in lines if line.startswith("  round")] == [
            "(paid with round 7: 4 rounds are not over)",
            "(paid with round 8: 5 rounds are not over)",
            "(paid when the run is settled, after its last round, unless audits find something)",
        ]
        assert f"total on 3 payout receipts: paid 0, pending {sum(amounts):,}, lost 0" in lines
        words = "paid round by round, the last of it when the run is settled after its last round, 8, unless audits find something"
        assert f"the log says, up to round 3: paid 0, pending {sum(amounts):,} ({words})" in lines
        assert any("who copies the log sees them (manta-aggregator credits)" in line for line in lines)


def forged_head(payout_receipt: PayoutReceipt) -> PayoutReceipt:
    """Return a payout receipt under a head of the same size and another root, which somebody else signed."""
    entry = open_round_receipt(payout_receipt.listing.receipt, Operators(payout_receipt.claim.open().run, (OPERATOR.public_key,), 1))
    note = sign_tree_head(replace(entry.tree_head, root=sha256(b"another")), entry.tree_head.origin, Identity(b"\x09" * 32))
    return replace(payout_receipt, listing=replace(payout_receipt.listing, receipt=replace(payout_receipt.listing.receipt, tree_head=note)))


def other_entry(payout_receipt: PayoutReceipt) -> PayoutReceipt:
    receipt = payout_receipt.listing.receipt
    return replace(payout_receipt, listing=replace(payout_receipt.listing, receipt=replace(receipt, index=receipt.index + 1)))


def other_contribution(payout_receipt: PayoutReceipt) -> PayoutReceipt:
    contribution = payout_receipt.listing.contribution
    return replace(
        payout_receipt,
        listing=replace(payout_receipt.listing, contribution=replace(contribution, entry=payout_receipt.listing.receipt.entry)),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda payout_receipt: replace(payout_receipt, paid=(payout_receipt.paid[0] + 1,)), "and its claims come to"),
        (other_contribution, "proves nothing"),
        (lambda payout_receipt: replace(payout_receipt, claim=replace(payout_receipt.claim, signature=bytes(64))), "proves nothing"),
        (
            lambda payout_receipt: replace(
                payout_receipt, claims=(replace(payout_receipt.claims[0], entries=payout_receipt.claims[0].entries[::-1]),)
            ),
            "proves nothing",
        ),
        (forged_head, "proves nothing"),
        (other_entry, "proves nothing"),
    ],
    ids=["more pay", "another contribution", "an unsigned claim", "claims of another order", "another's head", "another place"],
)
def test_a_payout_receipt_that_somebody_changed_is_named_and_the_others_hold(
    change: Callable[[PayoutReceipt], PayoutReceipt], words: str, here: Path
) -> None:
    path = folder_of(here) / "00000002"
    path.write_bytes(payout_receipt_bytes(change(load_payout_receipt(path.parent, 2))))
    code, lines = said(here, "--verify")
    (problem,) = [line for line in lines if line.startswith("PROBLEM")]
    assert code == 1
    assert problem.startswith("PROBLEM: round 2: its payout receipt proves nothing: ")
    assert words in problem
    assert any(line.startswith(f"verified: {ROUNDS - 1} rounds") for line in lines)


def test_a_payout_receipt_of_another_round_in_the_place_of_one_is_named(here: Path) -> None:
    folder = folder_of(here)
    shutil.copy(folder / "00000001", folder / "00000002")
    assert said(here, "--verify")[0] == 1
    assert any("round 2: its payout receipt proves nothing: it is of round 1" in line for line in said(here, "--verify")[1])


@pytest.mark.parametrize("name", ["payout_receipts/00000002", "payout_receipts/manifest", "credit", "newest"])
def test_a_damaged_file_is_one_clear_line(name: str, here: Path) -> None:
    path = folder_of(here).parent / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, lines = said(here)
    assert code == 1
    assert len([line for line in lines if line.startswith("PROBLEM")]) == 1


def test_what_audits_found_is_lost_with_its_reason_and_called_the_logs_word(audited: tuple[Path, int]) -> None:
    here, credit = audited
    path = folder_of(here).parent / "credit"
    kept_credit = credit_file(path.parent).load(KeptCredit)
    assert kept_credit is not None
    (word,) = kept_credit.word
    assert word.credit == word.pending == credit > 0
    contribution = open_entry(load_payout_receipt(path.parent / "payout_receipts", 1).listing.contribution.entry)
    assert isinstance(contribution, Header)
    digest = contribution.contribution.digest
    for reason, lost in ((WITHHELD, 2), (FALSE, 3)):  # who withheld goes on earning
        fault = Fault(2, reason, digest)
        credit_file(path.parent).save(KeptCredit((replace(word, pending=0, until=0, proven=0, faults=(fault,)),)))
        code, lines = said(here, "--verify")
        assert code == 0
        assert sum(line.endswith(f"  lost (found {reason} with round 2, as the log says)") for line in lines) == 1
        assert sum("  lost (another contribution of this key was found" in line for line in lines) == lost - 1
        assert any(line.startswith(f"  contribution {digest.hex()[:16]} was found {reason} with round 2: ") for line in lines)
        assert any("not proven yet: 0 of 20 contributions found good so far" in line for line in lines)


def test_a_log_that_says_less_than_the_payout_receipts_prove_does_not_hold(kept: tuple[Path, int], here: Path) -> None:
    path = folder_of(here).parent / "credit"
    kept_credit = credit_file(path.parent).load(KeptCredit)
    assert kept_credit is not None
    (word,) = kept_credit.word
    credit_file(path.parent).save(KeptCredit((replace(word, paid=kept[1] - 1),)))
    code, lines = said(here, "--verify")
    assert code == 1
    assert any(f"and its claims prove {kept[1]:,}" in line for line in lines)


def test_where_there_is_no_room_the_oldest_claims_go_first_then_the_oldest_payout_receipts(here: Path) -> None:
    folder = folder_of(here)
    payout_receipts = {round_: load_payout_receipt(folder, round_) for round_ in range(1, ROUNDS + 1)}
    sizes = {round_: len(payout_receipt_bytes(payout_receipt)) for round_, payout_receipt in payout_receipts.items()}
    small = PayoutReceiptFolder(folder, max_bytes=sum(sizes.values()) - 1)
    small.keep(3, payout_receipts[3])
    assert [bool(load_payout_receipt(folder, round_).claims) for round_ in payout_receipts] == [False, True, True]
    code, lines = said(here, "--verify")
    assert code == 0
    assert "not proven: what the other 1 paid is the log's word: their claims are not kept here" in lines
    PayoutReceiptFolder(folder, max_bytes=sizes[3] + 1).keep(3, payout_receipts[3])
    assert [path.name for path in sorted(folder.iterdir())] == ["00000003", "manifest"]


async def test_a_peer_that_was_killed_has_the_payout_receipt_of_its_last_round_again_and_learns_what_that_paid(scene: Scene) -> None:
    member = scene.join(0)
    await rounds(scene, member, 1)
    folder = folder_of(member.store.directory)
    handed_in: list[bytes] = []
    await rounds(scene, member, 1, before_commit=lambda: handed_in.append((folder.parent / "signed").read_bytes()))
    await member.stops()
    last = load_payout_receipt(folder, 2)
    for left in (None, replace(last, claims=(), paid=())):  # killed before it had written anything, and before it knew what was paid
        (folder.parent / "signed").write_bytes(handed_in[0])  # it may have gone on to the next round's work
        (folder / "00000002").unlink()
        if left is not None:
            (folder / "00000002").write_bytes(payout_receipt_bytes(left))
        again = scene.join(0)
        await until(lambda: (folder / "00000002").exists() and load_payout_receipt(folder, 2).paid)
        await again.stops()
        assert load_payout_receipt(folder, 2) == last


def test_nothing_is_said_of_a_folder_where_no_peer_ever_ran(tmp_path: Path) -> None:
    ended = typed(main, "credits", "--dir", tmp_path / "missing")
    assert (ended.exit_code, "no peer ever ran" in ended.errors) == (2, True)
    assert said(tmp_path)[1] == [f"no payout receipts in {tmp_path}: no round has counted this peer yet, as far as it knows"]


OWNER = Identity(b"\x51" * 32).public_key


def has_paid_payout_receipt(scene: Scene, directory: Path, round_: int) -> bool:
    return (directory / "runs" / payout_receipt_name(scene, round_)).exists() and bool(
        load_payout_receipt(folder_of(directory), round_).paid
    )


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, int]]:
    """The folder of three peers that a run counted, the first two of which name one account; and its credits."""
    directory, credits_ = tmp_path_factory.mktemp("machines"), dict[bytes, int]()

    async def story(scene: Scene) -> None:
        members = [scene.join(0, payout=OWNER), scene.join(1, payout=OWNER), scene.join(2)]
        for round_ in (1, 2):
            await scene.log.wait_for(3)
            scene.log.commit()
            for member in members:
                await until(partial(has_paid_payout_receipt, scene, member.store.directory, round_))
        for member in members:
            await member.leaves()
        credits_.update(scene.log.ledger.credits())

    play(directory, story)
    return directory, credits_


def added_up(*folders: Path, account: bytes = OWNER) -> tuple[int, dict[str, Any]]:
    ended = typed(main, "credits", "--account", peer_name(account), "--json", *folders)
    assert not ended.errors
    return ended.exit_code, json.loads(ended.output)


def test_the_payout_receipts_of_several_machines_add_up_to_the_account_that_their_claims_name(
    machines: tuple[Path, dict[bytes, int]],
) -> None:
    directory, credits_ = machines
    folders = [directory / f"peer-{place}" for place in range(3)]
    code, found = added_up(*folders)
    assert (code, found["holds"], found["account"]) == (0, True, peer_name(OWNER))
    (run,) = found["runs"]
    assert (run["paid"], run["payout_receipts"], run["proven"]) == (credits_[OWNER], 4, 4)
    names = [peer_name(peer.public_key) for peer in PEERS[:3]]
    assert {peer["peer"] for peer in run["peers"]} == set(names[:2])
    assert sum(peer["paid"] for peer in run["peers"]) == credits_[OWNER]
    assert (
        added_up(folders[0], folders[0], folders[1])[1]["runs"][0]["paid"] == credits_[OWNER]
    )  # two copies of one payout receipt count once
    third = key_named(names[2])
    assert added_up(*folders, account=third)[1]["runs"][0]["paid"] == credits_[third]
    lines = typed(main, "credits", "--account", peer_name(OWNER), *folders).output.splitlines()
    assert f"total of 2 peers on 4 payout receipts: paid {credits_[OWNER]:,}, pending 0, lost 0" in lines
    one = typed(main, "credits", "--account", peer_name(third), *folders).output.splitlines()
    assert f"total of 1 peer on 2 payout receipts: paid {credits_[third]:,}, pending 0, lost 0" in one
    alone = said(folders[0], "--verify")[1]
    assert f"2 of 2 payout receipts add up to account {peer_name(OWNER)}" in alone


def test_folders_of_payout_receipts_alone_add_up_too_and_what_does_not_hold_counts_for_nothing(
    machines: tuple[Path, dict[bytes, int]], tmp_path: Path
) -> None:
    payout_receipts = [
        Path(shutil.copytree(folder_of(machines[0] / f"peer-{place}"), tmp_path / name)) for place, name in enumerate(("one", "another"))
    ]
    code, found = added_up(*payout_receipts)
    assert (code, found["runs"][0]["paid"]) == (0, machines[1][OWNER])
    forged = load_payout_receipt(payout_receipts[0], 2)
    (payout_receipts[0] / "00000002").write_bytes(payout_receipt_bytes(replace(forged, paid=(forged.paid[0] + 1,))))
    code, found = added_up(*payout_receipts)
    assert (code, found["holds"], found["runs"][0]["payout_receipts"]) == (1, False, 3)
    assert "its payout receipt proves nothing" in found["runs"][0]["problems"][0]


def test_an_account_is_a_key_and_folders_are_for_one(tmp_path: Path) -> None:
    for arguments, words in (
        (("--account", "nobody"), "is no key"),
        (("--account", peer_name(OWNER), tmp_path / "missing"), "no peer ever ran"),
        ((tmp_path,), "for --account KEY"),
    ):
        ended = typed(main, "credits", *arguments)
        assert ended.exit_code == 2
        assert words in ended.errors
