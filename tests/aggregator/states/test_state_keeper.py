"""The operator's own copy: what a table leads to, which snapshots stay, and that none is taken for what it is not."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from manta_swarm.aggregator.states.state_keeper import Next, StateKeeper
from manta_swarm.automl.export.subnet import statistics_path
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.update import State, initial_state, next_state, state_digest
from manta_swarm.protocol.errors import OwnFault, StorageError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.table import weights
from tests.aggregator.made import Made
from tests.aggregator.real_run import (
    CONFIG,
    DATASET,
    NUM_WEIGHTS,
    PEERS,
    SHRINKING,
    STATE,
    THIN_PARTS,
    everybodys,
    made,
    made_together,
    said_of,
    signed_manifest,
)
from tests.codec.reference import float32
from tests.contributions import commit as append

SIGNED = signed_manifest()


def ledger_of(signed: SignedManifest = SIGNED) -> Ledger:
    return Ledger(signed, RunTrainingSpec(signed.open()))


@pytest.fixture
def ledger() -> Ledger:
    return ledger_of()


def new_state_keeper(directory: Path, *, keep_snapshots: int = 3, keep_rounds: int = 4, signed: SignedManifest = SIGNED) -> StateKeeper:
    manifest = signed.open()
    state_keeper = StateKeeper(
        directory / "snapshots", manifest, signed.run, DATASET, keep_snapshots=keep_snapshots, keep_rounds=keep_rounds
    )
    state_keeper.adopt(STATE)
    return state_keeper


@pytest.fixture
def state_keeper(tmp_path: Path) -> StateKeeper:
    return new_state_keeper(tmp_path)


def after_table(state_keeper: StateKeeper, ledger: Ledger, contributions: list[Made]) -> Next:
    listed = [ledger.listed(one.header, ledger.round + 1) for one in contributions]
    return state_keeper.after_table(ledger, listed, [one.parsed for one in contributions])


def commit(ledger: Ledger, headers: list[Header], after: Next) -> None:
    append(ledger, headers, **said_of(after))


def rounds(state_keeper: StateKeeper, ledger: Ledger, count: int) -> None:
    """Take the state keeper and the log through that many rounds of everybody's contributions."""
    for _ in range(count):
        contributions = everybodys(ledger)
        after = after_table(state_keeper, ledger, contributions)
        commit(ledger, [one.header for one in contributions], after)
        state_keeper.adopt(after.state)
        state_keeper.save(after.state, head_of(ledger), f"note of {ledger.size}")


def head_of(ledger: Ledger) -> TreeHead:
    return TreeHead("a log", ledger.size, sha256(b"root of %d" % ledger.size))


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "snapshots").iterdir())


def rounds_kept(directory: Path) -> list[int]:
    """Return the rounds that have a snapshot, each with what the log said beside it."""
    names = snapshots(directory)
    kept = [int(name[6:14]) for name in names if name.endswith(".safetensors")]
    assert names == sorted(f"round-{round_:08d}.{kind}" for round_ in kept for kind in ("json", "safetensors"))
    return kept


# What a table leads to.


def test_a_table_leads_to_the_weighted_mean_and_to_the_update_by_it(state_keeper: StateKeeper, ledger: Ledger) -> None:
    contributions = [made(ledger, peer, microbatches=(microbatches, 1, 1, 1)) for peer, microbatches in zip(PEERS, (1, 2, 5), strict=True)]
    after = after_table(state_keeper, ledger, contributions)
    rows = [ledger.listed(one.header, 1).weighing for one in contributions]
    assert [row.samples for row in rows] == [4 * 32, 5 * 32, CONFIG.round.weight_cap]  # the third has more
    shares = weights(rows)
    decoded = [one.parsed.values(ledger.min_exponent_at(0)) for one in contributions]
    for place in (0, 1, 4_095, 4_096, NUM_WEIGHTS - 1):
        exact = sum(Fraction(float(values[place])) * share for values, share in zip(decoded, shares, strict=True)) / sum(shares)
        assert after.table_mean.mean[place] == float32(exact)
    expected = next_state(STATE, torch.from_numpy(after.table_mean.mean), Plan.of(ledger.manifest))
    assert state_digest(after.state) == state_digest(expected) == after.blob.root
    assert after.mean.join() == after.table_mean.mean.tobytes()
    assert state_keeper.state is STATE  # it only computes


def test_of_a_body_counts_what_its_cohorts_architecture_has_and_nobody_elses_weight_divides_the_rest(tmp_path: Path) -> None:
    signed = signed_manifest(THIN_PARTS)
    ledger, state_keeper = ledger_of(signed), new_state_keeper(tmp_path, signed=signed)
    state_keeper.adopt(initial_state(state_keeper.plan))
    training_spec = RunTrainingSpec(signed.open())
    cohorts = {training_spec.role(1, name): name for name in map("cohort-{}".format, range(20))}  # one of each role
    largest, smallest = cohorts[0], cohorts[1]
    small_N = training_spec.coverage(1, smallest)
    assert small_N is not None
    assert 0 < small_N.sum() < NUM_WEIGHTS
    contributions = [made(ledger, PEERS[0], cohort=smallest), made_together(ledger, PEERS[1:], cohort=largest)]
    found = after_table(state_keeper, ledger, contributions).table_mean
    rows = [ledger.listed(one.header, 1).weighing for one in contributions]
    part, whole = weights(rows)
    assert found.weights == (part, whole)
    values, others = (one.parsed.values(ledger.min_exponent_at(0)) for one in contributions)
    assert values[~small_N].any()  # which it has nothing to say of
    for place in (*np.flatnonzero(small_N & (values != 0))[:3], *np.flatnonzero(~small_N & (values != 0))[:3]):
        of_all = Fraction(float(others[place])) * whole
        exact = (of_all + Fraction(float(values[place])) * part) / (part + whole) if small_N[place] else of_all / whole
        assert found.mean[place] == float32(exact)
    alone = after_table(state_keeper, ledger, contributions[:1]).table_mean
    assert not alone.mean[~small_N].any()  # where nobody is, nothing moves
    assert alone.mean[small_N].tobytes() == values[small_N].tobytes()


def test_what_comes_late_is_decoded_on_the_min_exponent_of_its_own_base(state_keeper: StateKeeper, ledger: Ledger) -> None:
    late = made(ledger, PEERS[0])
    rounds_of = [everybodys(ledger)[1:]]
    after = after_table(state_keeper, ledger, rounds_of[0])
    commit(ledger, [one.header for one in rounds_of[0]], after)
    state_keeper.adopt(after.state)
    assert ledger.min_exponent_at(1) != ledger.min_exponent_at(0)
    found = after_table(state_keeper, ledger, [late])
    assert found.table_mean.mean.tobytes() == late.parsed.values(ledger.min_exponent_at(0)).tobytes()


def test_a_thread_that_flushes_denormals_to_zero_computes_nothing(state_keeper: StateKeeper, ledger: Ledger) -> None:
    contributions = everybodys(ledger)
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(OwnFault, match="flushes denormal"):
            after_table(state_keeper, ledger, contributions)
    finally:
        torch.set_flush_denormal(False)


# Snapshots.


def test_a_snapshot_has_the_same_bits_again_and_says_where_it_comes_from(state_keeper: StateKeeper, ledger: Ledger, tmp_path: Path) -> None:
    rounds(state_keeper, ledger, 2)
    again = new_state_keeper(tmp_path)
    for round_ in (1, 2):
        state = again.snapshots.load(round_, ledger.state_at(round_))
        assert (state.round, state_digest(state)) == (round_, ledger.state_at(round_))
    assert again.snapshots.rounds() == [1, 2]
    assert again.num_weights == NUM_WEIGHTS
    _, metadata = load_snapshot(tmp_path / "snapshots" / "round-00000002.safetensors")
    assert metadata == {
        "run": SIGNED.run.hex(),
        "format": "manta/state/v3",
        "round": "2",
        "state": state_digest(state).hex(),
        "supernet": CONFIG.data.supernet,
        "dataset": "digits",
        "schedule": "sandwich",
        "teacher": "",
    }


def test_a_snapshot_of_another_state_is_a_storage_error(state_keeper: StateKeeper, ledger: Ledger, tmp_path: Path) -> None:
    rounds(state_keeper, ledger, 1)
    path = tmp_path / "snapshots" / "round-00000001.safetensors"
    state, metadata = load_snapshot(path)
    one_bit_else = state.parameters.view(torch.int32).clone()
    one_bit_else[1000] ^= 1
    save_snapshot(path, State(state.round, one_bit_else.view(torch.float32), state.moments), metadata)
    with pytest.raises(StorageError, match=rf"{path} is not the state that the log names.*backup"):
        state_keeper.snapshots.load(1, ledger.state)


def test_a_damaged_or_missing_snapshot_is_a_storage_error(state_keeper: StateKeeper, ledger: Ledger, tmp_path: Path) -> None:
    state_keeper.snapshots.save(STATE)
    path = tmp_path / "snapshots" / "round-00000000.safetensors"
    data = path.read_bytes()
    for damaged in (b"", data[: len(data) // 2], bytes(1000)):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"^[^\n]*no snapshot[^\n]*backup[^\n]*$"):
            state_keeper.snapshots.load(0, ledger.state)
    path.unlink()
    with pytest.raises(StorageError, match=rf"{path} is missing.*backup"):
        state_keeper.snapshots.load(0, ledger.state)
    path.mkdir()
    with pytest.raises(StorageError, match=r"no snapshot.*backup"):
        state_keeper.snapshots.load(0, ledger.state)


def test_the_newest_snapshots_are_kept_and_now_and_then_one_to_compute_the_others_from(ledger: Ledger, tmp_path: Path) -> None:
    state_keeper = new_state_keeper(tmp_path, keep_snapshots=2, keep_rounds=4)
    state_keeper.save(STATE, head_of(ledger), "note")
    kept = []
    for _ in range(7):
        rounds(state_keeper, ledger, 1)
        kept.append(rounds_kept(tmp_path))
    # Every second round is an anchor for as long as the contributions of the four newest rounds are kept.
    assert kept == [[0, 1], [0, 1, 2], [0, 2, 3], [0, 2, 3, 4], [2, 4, 5], [2, 4, 5, 6], [4, 6, 7]]
    for newest, rounds_ in enumerate(kept, 1):
        oldest = min(rounds_)
        assert min(newest, 2) <= newest - oldest <= 4


def test_a_file_of_somebody_else_among_the_snapshots_stays(ledger: Ledger, tmp_path: Path) -> None:
    state_keeper = new_state_keeper(tmp_path, keep_snapshots=1, keep_rounds=2)
    state_keeper.save(STATE, head_of(ledger), "note")
    strange = tmp_path / "snapshots" / "round-best.safetensors"
    statistics = statistics_path(tmp_path / "snapshots" / "round-00000000.safetensors")  # an export's from here: they go with the state
    strange.touch()
    statistics.touch()
    rounds(state_keeper, ledger, 3)
    assert strange.exists()
    assert not statistics.exists()
    strange.unlink()
    assert rounds_kept(tmp_path) == [1, 2, 3]


def test_beside_a_snapshot_stands_what_the_log_said_when_it_had_the_round(
    state_keeper: StateKeeper, ledger: Ledger, tmp_path: Path
) -> None:
    rounds(state_keeper, ledger, 1)
    path = tmp_path / "snapshots" / "round-00000001.json"
    expected = {"ledger_size": 4, "ledger_root": sha256(b"root of 4").hex(), "tree_head": "note of 4"}
    assert json.loads(path.read_text()) == expected
    assert state_keeper.state is not None
    later = TreeHead("a log", 9, sha256(b"a later root"))
    state_keeper.save(state_keeper.state, later, "a later note")  # what is there stays
    assert json.loads(path.read_text()) == expected
    path.unlink()
    state_keeper.save(state_keeper.state, later, "a later note")  # the power went before it was written
    assert json.loads(path.read_text())["ledger_size"] == 9


def test_the_teacher_is_kept_and_let_go_with_the_run(tmp_path: Path) -> None:
    signed = signed_manifest(SHRINKING)
    ledger, state_keeper = ledger_of(signed), new_state_keeper(tmp_path, keep_snapshots=1, keep_rounds=1, signed=signed)
    teacher_round = state_keeper.plan.teacher_round
    assert teacher_round is not None
    rounds(state_keeper, ledger, teacher_round - 1)
    assert state_keeper.teacher(ledger) is None
    rounds(state_keeper, ledger, 1)
    teacher = state_keeper.state
    assert teacher is not None
    rounds(state_keeper, ledger, 3)
    assert {teacher_round, teacher_round + 3} <= set(rounds_kept(tmp_path))
    again = new_state_keeper(tmp_path, signed=signed)
    found = again.teacher(ledger)
    assert found is not None
    assert state_keeper.state is not None
    assert state_digest(found) == state_digest(teacher) == state_keeper.state.teacher
    path = tmp_path / "snapshots" / f"round-{teacher_round:08d}.safetensors"
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(StorageError, match=r"is missing, a state that the run needs; restore it from a backup"):
        again.teacher(ledger)
    path.write_bytes(data)
    rounds(state_keeper, ledger, ledger.manifest.num_rounds - ledger.round)
    assert state_keeper.teacher(ledger) is None  # nobody needs it any more


def test_a_full_disk_is_a_storage_error(state_keeper: StateKeeper, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "round-00000001.safetensors.part").mkdir()
    with pytest.raises(StorageError, match="make room, or check the disk"):
        rounds(state_keeper, ledger, 1)
