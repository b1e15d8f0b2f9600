import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aggregator.follower import Follower
from automl.snapshot import load_snapshot, save_snapshot
from automl.update import State, state_digest
from protocol.errors import EncodingError, LedgerError, StorageError
from protocol.ledger import Ledger
from protocol.notes import TreeHead
from protocol.records import Round, SignedManifest, claim_entry, round_entry
from protocol.signing import sha256
from tests.aggregator.real_run import CONFIG, DATASET, NUM_WEIGHTS, SHRINKING, STATE, Attempt, attempt, mean_of, signed_manifest, some_mean

SIGNED = signed_manifest()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(SIGNED)


def new_follower(directory: Path, *, keep_snapshots: int = 3, signed: SignedManifest = SIGNED) -> Follower:
    return Follower(directory / "snapshots", signed.open(), signed.run, DATASET, keep_snapshots=keep_snapshots)


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    follower = new_follower(tmp_path)
    follower.save(STATE)
    follower.adopt(STATE)
    return follower


def commit(ledger: Ledger, made: Attempt) -> None:
    proposal = made.proposal()
    for one in made.claims:
        ledger.append(claim_entry(one))
    ledger.append(round_entry(Round(proposal.statement, tuple(one.digest for one in made.claims), proposal.votes)))


def rounds(follower: Follower, ledger: Ledger, count: int) -> None:
    """Take the follower and the log through that many honest rounds."""
    for seed in range(count):
        assert follower.state is not None
        made = attempt(ledger, follower.state, seed=seed)
        state = follower.follow(made.statement, made.mean.data)
        follower.save(state)
        commit(ledger, made)
        follower.adopt(state)
        follower.certify(head_of(ledger), f"note of {ledger.size}")


def head_of(ledger: Ledger) -> TreeHead:
    return TreeHead("a log", ledger.size, sha256(b"root of %d" % ledger.size))


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "snapshots").iterdir())


def test_an_honest_proposal_leads_to_the_state_it_names(follower: Follower, ledger: Ledger) -> None:
    made = attempt(ledger, STATE)
    state = follower.follow(made.statement, made.mean.data)
    assert state_digest(state) == made.statement.state
    assert follower.state is STATE  # following is not adopting


def test_a_false_digest_of_the_mean_is_refused(follower: Follower, ledger: Ledger) -> None:
    made = attempt(ledger, STATE)
    with pytest.raises(LedgerError, match="mean does not have the statement's digest"):
        follower.follow(made.proposal(mean=sha256(b"another")).statement, made.mean.data)
    with pytest.raises(LedgerError, match="mean does not have the statement's digest"):
        follower.follow(made.statement, some_mean(99).data)
    assert follower.state is STATE


def test_a_false_digest_of_the_state_is_refused(follower: Follower, ledger: Ledger) -> None:
    made = attempt(ledger, STATE)
    for lie in (sha256(b"another"), state_digest(STATE), state_digest(replace(made.state, round=2))):
        with pytest.raises(LedgerError, match="does not lead to the state"):
            follower.follow(made.proposal(state=lie).statement, made.mean.data)
    assert follower.state is STATE


@pytest.mark.parametrize("damage", ["shorter", "longer", "empty", "header alone", "of another size", "in another codec"])
def test_a_mean_that_is_none_is_refused(follower: Follower, ledger: Ledger, damage: str) -> None:
    made = attempt(ledger, STATE)
    data = {
        "shorter": made.mean.data[:-1],
        "longer": made.mean.data + b"\x00",
        "empty": b"",
        "header alone": made.mean.data[:20],
        "of another size": mean_of(torch.zeros(NUM_WEIGHTS - 1)).data,
        "in another codec": some_mean(0, "fp16").data,
    }[damage]
    with pytest.raises(EncodingError):
        follower.follow(made.proposal(mean=sha256(data)).statement, data)


@pytest.mark.parametrize("poison", [b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff", b"\x00\x00\xc0\x7f"], ids=["inf", "-inf", "nan"])
def test_a_mean_that_is_not_finite_is_refused(follower: Follower, ledger: Ledger, poison: bytes) -> None:
    made = attempt(ledger, STATE)
    data = made.mean.data[:-4] + poison
    with pytest.raises(EncodingError, match="not finite"):
        follower.follow(made.proposal(mean=sha256(data)).statement, data)


def test_a_finite_mean_that_leads_to_a_state_that_is_not_is_refused(follower: Follower, ledger: Ledger) -> None:
    made = attempt(ledger, STATE)
    moment, *others = STATE.moments
    follower.adopt(replace(STATE, moments=(torch.full_like(moment, 3e38), *others)))  # about to overflow
    before = follower.state
    with pytest.raises(EncodingError, match="a state that is not finite"):
        follower.follow(made.statement, made.mean.data)
    assert follower.state is before


def test_a_restarted_follower_has_the_same_bits_and_goes_on(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    rounds(follower, ledger, 2)
    again = new_follower(tmp_path)
    again.restore(ledger)
    assert again.state is not None
    assert again.num_weights == NUM_WEIGHTS
    assert state_digest(again.state) == ledger.state
    rounds(again, ledger, 1)
    assert ledger.round == 3


def test_before_the_first_round_the_state_is_the_first_one(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    again = new_follower(tmp_path)
    again.restore(ledger)
    assert again.state is not None
    assert state_digest(again.state) == SIGNED.open().initial_state


def test_a_snapshot_that_was_written_for_a_round_that_was_never_committed_does_no_harm(
    follower: Follower, ledger: Ledger, tmp_path: Path
) -> None:
    rounds(follower, ledger, 1)
    assert follower.state is not None
    follower.save(attempt(ledger, follower.state, seed=50).state)  # and then the power went
    again = new_follower(tmp_path)
    again.restore(ledger)
    rounds(again, ledger, 1)
    third = new_follower(tmp_path)
    third.restore(ledger)
    assert third.state is not None
    assert third.state.round == 2


def test_a_missing_snapshot_is_a_storage_error_that_names_it(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    rounds(follower, ledger, 1)
    path = tmp_path / "snapshots" / "round-00000001.safetensors"
    path.unlink()
    with pytest.raises(StorageError, match=rf"{path} is missing.*backup"):
        new_follower(tmp_path).restore(ledger)


def test_a_snapshot_of_another_state_is_a_storage_error(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    rounds(follower, ledger, 1)
    path = tmp_path / "snapshots" / "round-00000001.safetensors"
    state, metadata = load_snapshot(path)
    one_bit_else = state.parameters.view(torch.int32).clone()
    one_bit_else[1000] ^= 1
    save_snapshot(path, State(state.round, one_bit_else.view(torch.float32), state.moments), metadata)
    with pytest.raises(StorageError, match=r"not the state that the log names.*backup"):
        new_follower(tmp_path).restore(ledger)


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "a directory"])
def test_a_damaged_snapshot_is_a_storage_error(follower: Follower, ledger: Ledger, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "snapshots" / "round-00000000.safetensors"
    data = path.read_bytes()
    path.unlink()
    if damage == "a directory":
        path.mkdir()
    else:
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "garbage": bytes(1000)}[damage])
    with pytest.raises(StorageError, match=r"no snapshot.*backup"):
        new_follower(tmp_path).restore(ledger)


def test_only_the_newest_snapshots_are_kept(ledger: Ledger, tmp_path: Path) -> None:
    follower = new_follower(tmp_path, keep_snapshots=2)
    follower.save(STATE)
    follower.adopt(STATE)
    rounds(follower, ledger, 4)
    assert snapshots(tmp_path) == [
        "round-00000003.json",
        "round-00000003.safetensors",
        "round-00000004.json",
        "round-00000004.safetensors",
    ]


def test_beside_a_snapshot_stands_what_the_log_said_when_it_had_the_round(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    rounds(follower, ledger, 1)
    path = tmp_path / "snapshots" / "round-00000001.json"
    expected = {"ledger_size": 4, "ledger_root": sha256(b"root of 4").hex(), "tree_head": "note of 4"}
    assert json.loads(path.read_text()) == expected
    again = new_follower(tmp_path)
    again.restore(ledger)
    again.certify(TreeHead("a log", 9, sha256(b"a later root")), "a later note")  # what is there stays
    assert json.loads(path.read_text()) == expected
    path.unlink()
    again.certify(TreeHead("a log", 9, sha256(b"a later root")), "a later note")  # the power went before it was written
    assert json.loads(path.read_text())["ledger_size"] == 9


def test_the_teacher_is_kept_found_after_a_restart_and_let_go_with_the_run(tmp_path: Path) -> None:
    signed = signed_manifest(SHRINKING)
    ledger, follower = Ledger(signed), new_follower(tmp_path, keep_snapshots=1, signed=signed)
    follower.save(STATE)
    follower.adopt(STATE)
    teacher_round = follower.plan.teacher_round
    assert teacher_round is not None
    rounds(follower, ledger, teacher_round - 1)
    assert follower.teacher(ledger) is None
    rounds(follower, ledger, 1)
    teacher = follower.state
    assert teacher is not None
    rounds(follower, ledger, 3)
    assert [name for name in snapshots(tmp_path) if name.endswith(".json")] == [
        f"round-{teacher_round:08d}.json",
        f"round-{teacher_round + 3:08d}.json",
    ]
    again = new_follower(tmp_path, signed=signed)
    again.restore(ledger)
    found = again.teacher(ledger)
    assert found is not None
    assert again.state is not None
    assert state_digest(found) == state_digest(teacher) == again.state.teacher
    (tmp_path / "snapshots" / f"round-{teacher_round:08d}.safetensors").unlink()
    with pytest.raises(StorageError, match=r"is missing, the state that later rounds learn from; restore it from a backup"):
        again.teacher(ledger)
    rounds(again, ledger, ledger.manifest.num_rounds - ledger.round)
    assert again.teacher(ledger) is None  # nobody needs it any more


def test_a_snapshot_says_where_it_comes_from(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    rounds(follower, ledger, 1)
    state, metadata = load_snapshot(tmp_path / "snapshots" / "round-00000001.safetensors")
    assert metadata == {
        "run": SIGNED.run.hex(),
        "format": "manta/state/v2",
        "round": "1",
        "state": state_digest(state).hex(),
        "supernet": CONFIG.data.supernet,
        "dataset": "digits",
        "schedule": "sandwich",
        "teacher": "",
    }


def test_a_full_disk_is_a_storage_error_and_the_state_stays(follower: Follower, ledger: Ledger, tmp_path: Path) -> None:
    made = attempt(ledger, STATE)
    (tmp_path / "snapshots" / "round-00000001.safetensors.part").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        follower.save(follower.follow(made.statement, made.mean.data))
    assert follower.state is STATE
