"""Backups while a run goes on, and folders made of them: whole, checked, marked; and mistakes, which leave nothing behind."""

import os
import re
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.contents import COPIED, NOT_COPIED
from manta_swarm.aggregator.log.guard import RollbackGuard, is_marked_restored, mark_handed_over, mark_restored
from manta_swarm.aggregator.log.moving import back_up, restore
from manta_swarm.aggregator.log.storage import DATABASE
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.update import state_digest
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.disk import IDENTITY, DirectoryLock
from tests.aggregator.full_disk import file_size_limit
from tests.aggregator.real_run import CONFIG, OPERATOR, STRANGER, commit, everybodys, opened, play, with_aggregator
from tests.command import contents
from tests.consoles import Lines


def put_key(path: Path, identity: Identity = OPERATOR) -> Path:
    """Write an operator's key as the program does."""
    path.touch(0o600)
    path.write_bytes(identity.to_libp2p())
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three rounds, at rest."""
    directory = tmp_path_factory.mktemp("made") / "run"
    run = opened(directory)
    with run.log:
        play(run, 3)
    put_key(directory / IDENTITY)
    return directory


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def command(*arguments: object) -> Result:
    """Type a command."""
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_a_backup_of_a_run_at_work_is_one_moment_of_it_and_goes_on_as_it_was(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    with run.log as log:
        play(run, 2)
        commit(run, everybodys(log.ledger), is_saved=False)  # its state is to be computed again from the bodies
        run.bodies.append([(4, one.kept) for one in everybodys(log.ledger)])  # of the open round: they have inclusion promises
        put_key(tmp_path / "run" / IDENTITY)
        copied = back_up(tmp_path / "run", tmp_path / "backup", with_key=False)
        assert (copied.log.rounds, copied.log.size, copied.log.root) == (3, log.head.size, log.head.root)
        assert (copied.snapshot, copied.has_key) == (2, False)
        state = log.ledger.state
        play(run, 1)  # it goes on meanwhile
    assert not (tmp_path / "backup" / IDENTITY).exists()
    restore(tmp_path / "backup", tmp_path / "again", key=tmp_path / "run" / IDENTITY)
    assert stat.S_IMODE((tmp_path / "again" / IDENTITY).stat().st_mode) == 0o600
    again = opened(tmp_path / "again")
    with again.log as log:
        assert (log.ledger.round, log.ledger.state) == (3, state)
        assert again.state_keeper.state is not None
        assert state_digest(again.state_keeper.state) == state
        assert len(again.bodies.read(4)) == len(everybodys(log.ledger))  # no inclusion promise is lost
        assert RollbackGuard(tmp_path / "again", log, Lines()).why == "was made from a backup"


def test_a_backup_gets_its_name_once_all_of_it_is_on_the_disk_and_is_done_once_its_name_is(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, fsync = tmp_path / "backup", os.fsync
    synced: dict[int, tuple[int, bool]] = {}  # by inode: how long it was when it was synced last, and whether the backup had its name

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        synced[status.st_ino] = (status.st_size, backup.exists())

    monkeypatch.setattr(os, "fsync", noted)
    back_up(directory, backup, with_key=True)
    for path in (backup, *backup.rglob("*")):
        status = path.stat()
        assert synced.get(status.st_ino) == (status.st_size, False), path
    assert synced[tmp_path.stat().st_ino][1]


def test_a_backup_that_somebody_copies_by_hand_is_marked_too(directory: Path, tmp_path: Path) -> None:
    back_up(directory, tmp_path / "backup", with_key=True)
    with opened(tmp_path / "backup").log as log:
        assert RollbackGuard(tmp_path / "backup", log, Lines()).why == "was made from a backup"
    assert not is_marked_restored(directory)


def test_an_auditors_key_goes_where_the_operators_goes(directory: Path, tmp_path: Path) -> None:
    (directory / "auditor").mkdir()
    put_key(directory / "auditor" / IDENTITY, STRANGER)
    back_up(directory, tmp_path / "without", with_key=False)
    assert not (tmp_path / "without" / "auditor").exists()
    back_up(directory, tmp_path / "with", with_key=True)
    restore(tmp_path / "with", tmp_path / "restored")
    there = tmp_path / "restored" / "auditor" / IDENTITY
    assert there.read_bytes() == STRANGER.to_libp2p()
    assert stat.S_IMODE(there.stat().st_mode) == 0o600


def test_backups_change_nothing_where_they_are_taken_from(directory: Path, tmp_path: Path) -> None:
    before = contents(directory)
    back_up(directory, tmp_path / "one", with_key=True)
    back_up(directory, tmp_path / "two", with_key=True)
    assert contents(directory) == before
    assert verify_directory(tmp_path / "one") == verify_directory(tmp_path / "two")


def test_what_is_damaged_makes_no_backup_and_no_folder(directory: Path, tmp_path: Path) -> None:
    back_up(directory, tmp_path / "backup", with_key=True)
    with sqlite3.connect(tmp_path / "backup" / DATABASE) as connection:
        connection.execute("UPDATE entries SET bytes = x'00' WHERE position = 3")
    connection.close()
    with pytest.raises(StorageError, match="entry 3"):
        restore(tmp_path / "backup", tmp_path / "again")
    for path in (directory / "snapshots").glob("*.safetensors"):
        path.unlink()
    with pytest.raises(StorageError, match="no state from which round 3"):
        back_up(directory, tmp_path / "other", with_key=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["backup", "run"]


def test_a_snapshot_that_was_pruned_needs_the_bodies_after_the_one_before(tmp_path: Path) -> None:
    config = with_aggregator(CONFIG, keep_snapshots=1, keep_bodies=4)
    run = opened(tmp_path / "run", config)
    with run.log:
        play(run, 5)
        (tmp_path / "run" / "snapshots" / "round-00000005.safetensors").unlink()
        copied = back_up(tmp_path / "run", tmp_path / "backup", with_key=False)
        assert copied.snapshot == 4
        (tmp_path / "run" / "bodies" / "round-00000005.bodies").unlink()
        with pytest.raises(StorageError, match="no state from which round 5"):
            back_up(tmp_path / "run", tmp_path / "other", with_key=False)


def test_mistakes_are_told_in_one_line_and_nothing_is_written(directory: Path, tmp_path: Path) -> None:
    back_up(directory, tmp_path / "backup", with_key=False)
    strange = put_key(tmp_path / "strange.key", STRANGER)
    nothing = tmp_path / "nothing"
    before = contents(tmp_path)
    for words, expected in (
        (("backup", nothing / "to", "--dir", nothing), "holds no log"),
        (("backup", tmp_path / "backup", "--dir", directory), "not empty"),
        (("backup", directory / "inside", "--dir", directory), "lies inside of"),
        (("backup", strange, "--dir", directory), "is a file"),
        (("restore", nothing, "--dir", tmp_path / "new"), "holds no log"),
        (("restore", tmp_path / "backup", "--dir", tmp_path / "new"), "made without it; name the file with --key"),
        (("restore", tmp_path / "backup", "--dir", tmp_path / "new", "--key", nothing), "check the path"),
        (("restore", tmp_path / "backup", "--dir", tmp_path / "new", "--key", strange), "another operator"),
        (("restore", tmp_path / "backup", "--dir", directory, "--key", directory / IDENTITY), "not empty"),
        (("restore", tmp_path / "backup", "--dir", tmp_path / "new", "--key", directory / "manifest.cbor"), "Ed25519"),
        (("snapshot", tmp_path / "state.txt", "--dir", directory), "ends with .safetensors"),
        (("snapshot", nothing / "state.safetensors", "--dir", directory), "there is no folder"),
        (("snapshot", tmp_path / "state.safetensors", "--dir", nothing), "holds no log"),
        (("status", "--dir", nothing), "holds no run"),
        (("stop", "--dir", directory), "no aggregator runs on"),
        (("stop", "--dir", directory, "--reason", "x" * 300), "at most 200 characters"),
    ):
        result = command(*words)
        assert (result.exit_code, expected in result.output) == (2, True), (words, result.output)
        assert len(result.output.splitlines()) == 1 or "Usage" in result.output
    assert contents(tmp_path) == before
    (directory / IDENTITY).unlink()
    with pytest.raises(UserError, match="no key to put"):
        back_up(directory, tmp_path / "other", with_key=True)


def test_what_lies_where_a_copy_is_made_is_kept_unless_it_is_a_copy_that_was_cut_off(directory: Path, tmp_path: Path) -> None:
    part = tmp_path / "backup.part"
    part.mkdir()
    (part / "of somebody").write_text("work of years")
    with pytest.raises(UserError, match="in the way, and is no copy that was cut off"):
        back_up(directory, tmp_path / "backup", with_key=False)
    assert contents(part) == {part / "of somebody": b"work of years"}
    mark_restored(part)  # the first thing in a copy
    back_up(directory, tmp_path / "backup", with_key=False)
    assert not part.exists()


def test_the_newest_state_is_taken_out_with_its_proof(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "state.safetensors"
    result = command("snapshot", out, "--dir", directory)
    assert result.exit_code == 0, result.output
    state, _ = load_snapshot(out)
    assert state.round == 3
    assert state_digest(state).hex() in result.output
    assert out.with_suffix(".json").read_bytes() == (directory / "snapshots" / "round-00000003.json").read_bytes()
    assert command("snapshot", out, "--dir", directory).exit_code == 2


def test_a_full_disk_is_told_as_that_and_leaves_nothing_of_a_snapshot(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "state.safetensors"
    out.parent.mkdir()
    with file_size_limit(1000):
        result = command("snapshot", out, "--dir", directory)
    assert (result.exit_code, "File too large" in result.output) == (1, True), result.output
    assert list(out.parent.iterdir()) == []


def test_a_run_is_not_stopped_to_be_handed_to_a_folder_that_cannot_be_made(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "something").touch()
    lock = DirectoryLock(directory, "aggregator")  # whoever has it is at work, and cannot be told to stop here
    try:
        result = command("hand-over", tmp_path / "given", "--dir", directory)
    finally:
        lock.release()
    assert (result.exit_code, "not empty" in result.output) == (2, True), result.output


def test_a_run_that_is_handed_over_goes_on_there_and_not_here(directory: Path, tmp_path: Path) -> None:
    result = command("hand-over", tmp_path / "given", "--dir", directory)
    assert result.exit_code == 0, result.output
    assert "3 rounds" in result.output
    result = command("restore", tmp_path / "given", "--dir", tmp_path / "there")
    assert result.exit_code == 0, result.output
    with opened(tmp_path / "there").log as log:
        assert log.ledger.round == 3
    (tmp_path / "run.toml").write_text("")
    result = command("start", tmp_path / "run.toml", "--dir", directory)
    assert (result.exit_code, "handed over" in result.output) == (2, True), result.output
    shutil.rmtree(tmp_path / "given")
    mark_handed_over(directory, "given")


@pytest.mark.parametrize("text", ["", "[]", '{"name": "a"}', '{STATUS, "refused": [1]}'])
def test_a_status_that_cannot_be_read_is_told_in_a_line(tmp_path: Path, text: str) -> None:
    status = '"name": "a", "run": "b", "round": 1, "num_rounds": 2, "ledger_size": 3, "ledger_root": "c"'
    (tmp_path / "status.json").write_text(text.replace("STATUS", status))
    result = command("status", "--dir", tmp_path)
    assert (result.exit_code, "status.json cannot be read" in result.output) == (1, True), result.output
    (tmp_path / "status.json").write_text(f"{{{status}}}")
    result = command("status", "--dir", tmp_path)
    assert (result.exit_code, "not at work" in result.output) == (0, True), result.output


def test_all_that_a_run_has_in_its_folder_stands_in_the_documents() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operators.md").read_text()
    rows = [line.split("|")[1] for line in text.partition("## Files")[2].partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = {name.split("/")[0] for row in rows for name in re.findall("`([^`]+)`", row)}
    held = {name.removeprefix(DATABASE) if name != DATABASE else name for name in (*COPIED, *NOT_COPIED)}
    assert held == named
