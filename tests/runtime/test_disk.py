"""Identities, whole files and locks on a real file system."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.runtime.disk import check_directory, load_identity, make_directory, only_process, replace_file, write_durably


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_identity_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    first = load_identity(path)
    assert mode_of(path) == 0o600
    assert load_identity(path).public_key == first.public_key
    assert load_identity(tmp_path / "another.key").public_key != first.public_key


def test_an_identity_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    key = load_identity(path).public_key
    path.chmod(0o640)
    with pytest.raises(UserError, match=f"chmod 600 {path}"):
        load_identity(path)
    path.chmod(0o600)
    assert load_identity(path).public_key == key


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x01\x12\x40" + bytes(64)])
def test_a_file_that_is_no_identity_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    write_durably(path, content, mode=0o600)
    with pytest.raises(UserError, match="is no identity"):
        load_identity(path)
    assert path.read_bytes() == content


def test_an_identity_that_is_a_directory_is_a_users_error(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.mkdir(mode=0o700)
    with pytest.raises(UserError, match="cannot read the identity"):
        load_identity(path)


@pytest.mark.parametrize("write", [write_durably, replace_file])
def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path, write: object) -> None:
    path = tmp_path / "file"
    for data in (b"first, which is longer", b"second"):
        write(path, data)  # type: ignore[operator]
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("write", [write_durably, replace_file])
def test_a_write_that_fails_leaves_the_old_file_and_says_what_to_do(tmp_path: Path, write: object) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    (tmp_path / "file.part").mkdir()  # in the way, also of root
    with pytest.raises(StorageError, match="make room, or check the disk"):
        write(path, b"new")  # type: ignore[operator]
    assert path.read_bytes() == b"old"


def test_what_a_crash_left_half_written_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"half of something much longer")
    write_durably(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_lies_where_a_private_file_is_written_opens_it_to_nobody(tmp_path: Path) -> None:
    part, elsewhere = tmp_path / "key.part", tmp_path / "elsewhere"
    part.touch(0o644)
    write_durably(tmp_path / "key", b"secret", mode=0o600)
    assert mode_of(tmp_path / "key") == 0o600
    elsewhere.write_bytes(b"of somebody")
    part.symlink_to(elsewhere)
    write_durably(tmp_path / "key", b"another secret", mode=0o600)
    assert (elsewhere.read_bytes(), (tmp_path / "key").read_bytes()) == (b"of somebody", b"another secret")
    assert not (tmp_path / "key").is_symlink()


def test_a_new_directory_is_the_users_own(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "run"
    make_directory(directory)
    assert mode_of(directory) == 0o700
    make_directory(directory)


def test_a_file_where_a_directory_should_be_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="--dir"):
            make_directory(path)


def test_a_directory_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"), only_process(tmp_path / "missing"):
        pass


def test_a_directory_belongs_to_one_program_at_a_time(tmp_path: Path) -> None:
    with only_process(tmp_path):
        with pytest.raises(UserError, match="another peer or aggregator uses"), only_process(tmp_path):
            pass
        with pytest.raises(UserError, match="--dir"), only_process(tmp_path / "." / ".." / tmp_path.name):
            pass
    with only_process(tmp_path):
        pass


_HOLD = """
import os, signal, sys
from pathlib import Path
from manta_swarm.runtime.disk import only_process
with only_process(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        signal.pause()
    print(child, flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_program_is_free_though_its_child_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            with pytest.raises(UserError), only_process(tmp_path):
                pass
            process.kill()
            process.wait()
            with only_process(tmp_path):
                os.kill(child, 0)  # it still lives
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_directory_that_cannot_be_made_is_told_before_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "new" / "newer"):
        with pytest.raises(UserError, match="file is a file; choose another"):
            check_directory(directory)
    check_directory(tmp_path / "new" / "newer")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_nobody_may_write_to_is_told_before_it_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write to the directory"):
        check_directory(tmp_path / "new")
