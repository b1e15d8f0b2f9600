"""A run's directory: made, opened again where it was, refused when it is another's; and the program around it without a network."""

import asyncio
import shutil
import stat
from pathlib import Path

import pytest
import torch

from manta_swarm.aggregator.log.storage import DATABASE, MANIFEST
from manta_swarm.aggregator.program import Aggregator
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import AggregatorSection
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.aggregator.states.opening import OpenedRun, filled_blob_store, open_run
from manta_swarm.automl.training.update import state_digest
from manta_swarm.protocol.errors import StorageError, UserError
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, SHRINKING, commit, everybodys, opened, play, with_aggregator
from tests.command import contents
from tests.consoles import Lines

SNAPSHOT = "snapshots/round-00000000.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


def changed(**sections: dict[str, object]) -> RunConfig:
    """Return ``CONFIG`` with other values in some sections."""
    values = CONFIG.model_dump()
    return RunConfig.model_validate({**values, **{name: values[name] | changes for name, changes in sections.items()}})


def make(directory: Path) -> bytes:
    """Make the run of ``CONFIG`` in ``directory`` and return its id."""
    run = opened(directory)
    run.log.close()
    return run.signed.run


def stands_on(run: OpenedRun) -> bytes:
    """Return the digest of the state that the run's state keeper has, which is the log's."""
    assert run.state_keeper.state is not None
    assert state_digest(run.state_keeper.state) == run.log.ledger.state
    return run.log.ledger.state


def test_a_new_directory_gets_a_run_whose_first_state_is_the_operators(directory: Path) -> None:
    run = opened(directory)
    with run.log as log:
        manifest = run.signed.open()
        assert (log.ledger.round, log.ledger.size) == (0, 0)
        assert log.ledger.run == run.signed.run
        assert manifest == CONFIG.manifest(OPERATOR, manifest.initial_state, DATASET)
        assert stands_on(run) == manifest.initial_state
        assert (directory / SNAPSHOT).exists()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert run.bodies.rounds() == []


def test_the_same_run_file_opens_the_same_run_again_where_it_was(directory: Path) -> None:
    run = opened(directory)
    with run.log:
        states = play(run, 2)
    before = contents(directory / "snapshots")
    again = opened(directory)
    with again.log as log:
        assert again.signed == run.signed
        assert (log.ledger.round, log.ledger.size) == (2, 8)
        assert stands_on(again) == state_digest(states[-1])
        assert contents(directory / "snapshots") == before
        play(again, 1)
        assert log.ledger.round == 3


# Killed between the log's transaction and the snapshot: what was committed is computed again.


def test_rounds_whose_snapshots_were_not_written_are_computed_again(directory: Path) -> None:
    run = opened(directory)
    with run.log:
        play(run, 1)
        for _ in range(3):
            after = commit(run, everybodys(run.log.ledger), is_saved=False)
        rounds = run.state_keeper.snapshots.rounds()
    assert rounds == [0, 1]
    again = opened(directory)
    with again.log as log:
        assert stands_on(again) == after.blob.root
        assert again.state_keeper.snapshots.rounds() == [0, 1, log.ledger.round]  # at once: the next start is a short one
        assert (directory / "snapshots" / f"round-{log.ledger.round:08d}.json").exists()
        play(again, 1)


def test_a_snapshot_of_a_round_that_was_never_committed_does_no_harm(directory: Path) -> None:
    run = opened(directory)
    with run.log:
        (state,) = play(run, 1)
    shutil.copytree(directory, directory.with_name("other"))
    other = opened(directory.with_name("other"))
    with other.log:
        play(other, 1)
    shutil.copy(directory.with_name("other") / "snapshots" / "round-00000002.safetensors", directory / "snapshots")
    again = opened(directory)
    with again.log:
        assert stands_on(again) == state_digest(state)
        play(again, 1)


def test_the_teachers_snapshot_is_written_if_its_round_is_computed_again(directory: Path) -> None:
    config = with_aggregator(SHRINKING, keep_snapshots=1, keep_bodies=4)
    run = opened(directory, config)
    teacher_round = run.state_keeper.plan.teacher_round
    assert teacher_round == 3
    with run.log:
        play(run, teacher_round - 1)
        for _ in range(2):
            commit(run, everybodys(run.log.ledger), is_saved=False)
    again = opened(directory, config)
    with again.log as log:
        teacher = again.state_keeper.teacher(log.ledger)
        assert teacher is not None
        assert teacher.round == teacher_round
        blob_store = filled_blob_store(log, again.state_keeper)
        assert blob_store.get(state_digest(teacher)) is not None
        assert blob_store.get(log.ledger.state) is not None


def test_without_a_body_the_newest_round_cannot_be_computed_again_and_that_is_said(directory: Path) -> None:
    run = opened(directory)
    with run.log:
        play(run, 1)
        commit(run, everybodys(run.log.ledger), is_saved=False)
    shutil.move(directory / "bodies" / "round-00000002.bodies", directory.parent / "kept")
    with pytest.raises(StorageError, match=r"^a body of round 2 is missing; restore the bodies from a backup$"):
        opened(directory)
    shutil.move(directory.parent / "kept", directory / "bodies" / "round-00000002.bodies")
    opened(directory).log.close()  # the refusal has kept no lock


def test_without_any_near_snapshot_that_is_said(directory: Path) -> None:
    config = with_aggregator(CONFIG, keep_snapshots=1, keep_bodies=4)
    run = opened(directory, config)
    with run.log:
        play(run, 7)
    assert run.state_keeper.snapshots.rounds() == [4, 6, 7]
    for round_ in (6, 7):
        (directory / "snapshots" / f"round-{round_:08d}.safetensors").unlink()
    again = opened(directory, config)
    with again.log:
        stands_on(again)
    for round_ in (4, 7):
        (directory / "snapshots" / f"round-{round_:08d}.safetensors").unlink()
    with pytest.raises(StorageError, match=r"snapshots holds no state of the run; restore it from a backup"):
        opened(directory, config)


def test_what_is_no_part_of_the_run_may_change(directory: Path) -> None:
    run = make(directory)
    other = changed(aggregator=AggregatorSection(evaluate_every=3, keep_snapshots=9, data_root="elsewhere").model_dump())
    again = open_run(other, directory, OPERATOR, DATASET)
    again.log.close()
    assert again.signed.run == run


def test_a_run_file_that_makes_no_run_is_refused_and_makes_no_directory_and_keeps_no_lock(directory: Path) -> None:
    for is_there in (False, True):
        with pytest.raises(UserError, match="plain lower-case name"):
            open_run(changed(run={"name": "My Run"}), directory, OPERATOR, DATASET)
        assert directory.exists() is is_there
        make(directory)


def test_a_start_that_was_killed_before_the_log_was_there_begins_anew(directory: Path) -> None:
    make(directory)
    (directory / DATABASE).rename(directory / f"{DATABASE}.new")
    make(directory)


def test_a_new_run_may_begin_with_the_weights_of_another_one(directory: Path, tmp_path: Path) -> None:
    run = opened(directory)
    with run.log:
        (*_, state) = play(run, 2)
    snapshot = directory / "snapshots" / "round-00000002.safetensors"
    longer = changed(run={"rounds": 99})
    again = open_run(longer, tmp_path / "again", OPERATOR, DATASET, snapshot)
    with again.log as log:
        first = again.state_keeper.state
        assert first is not None
        assert (log.ledger.round, first.round, log.ledger.run != run.signed.run) == (0, 0, True)
        assert torch.equal(first.parameters, state.parameters)
        assert not any(moment.any() for moment in first.moments)
        assert stands_on(again) == again.signed.open().initial_state
        play(again, 1)
    with open_run(longer, tmp_path / "again", OPERATOR, DATASET).log as log:
        assert log.ledger.round == 1
    with pytest.raises(UserError, match="holds a run already"):
        open_run(longer, tmp_path / "again", OPERATOR, DATASET, snapshot)
    other = CONFIG.model_copy(update={"data": CONFIG.data.model_copy(update={"supernet": "classifier-base"})})
    with pytest.raises(UserError, match="has the weights of classifier-tiny"):
        open_run(other, tmp_path / "other", OPERATOR, DATASET, snapshot)
    with pytest.raises(UserError):
        open_run(CONFIG, tmp_path / "other", OPERATOR, DATASET, directory / "manifest.cbor")
    assert not (tmp_path / "other").exists()


def test_a_lost_file_is_a_storage_error_that_says_where_and_keeps_no_lock(directory: Path) -> None:
    run = make(directory)
    for lost, named in ((SNAPSHOT, "snapshots holds no state"), (MANIFEST, MANIFEST)):
        kept = (directory / lost).read_bytes()
        (directory / lost).unlink()
        with pytest.raises(StorageError, match=named):
            open_run(CONFIG, directory, OPERATOR, DATASET)
        (directory / lost).write_bytes(kept)
        assert make(directory) == run


def test_a_lost_key_is_not_replaced_by_a_new_one(directory: Path) -> None:
    make(directory)
    with pytest.raises(UserError, match=r"identity\.key is missing.*backup"):
        asyncio.run(Aggregator(Start(CONFIG, directory, page=""), Lines()).run())
    assert not (directory / "identity.key").exists()
