import errno
import os
from pathlib import Path

import pytest

from manta_swarm.automl.files import check_writable, read_bounded, staged, write_whole
from manta_swarm.protocol.errors import UserError


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(UserError, match="more than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(UserError, match="cannot read"):
        read_bounded(tmp_path, 4)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(UserError, match="No space left"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_place_that_cannot_be_written_to_is_refused_beforehand(tmp_path: Path) -> None:
    check_writable(tmp_path / "file")
    for path in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(UserError, match="folder"):
            check_writable(path)


def test_what_is_staged_comes_all_together(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("old")
    (tmp_path / "other").write_text("not named")
    with staged(tmp_path, ["one", "two"]) as stage:
        (stage / "one").write_text("new")
        (stage / "two").mkdir()
        (stage / "two" / "inside").write_text("new")
        assert (tmp_path / "one").read_text() == "old"
    assert (tmp_path / "one").read_text() == (tmp_path / "two" / "inside").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "two"]


def stage(folder: Path, *names: str, reason: str = "") -> None:
    """Stage a file of each name, and fail for a reason if there is one."""
    with staged(folder, names) as stage:
        for name in names:
            (stage / name).write_text("new")
        if reason:
            raise RuntimeError(reason)


def test_nothing_of_what_is_staged_comes_when_something_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("old")
    with pytest.raises(RuntimeError, match="in between"):
        stage(tmp_path, "one", reason="in between")

    def refusing(source: Path, target: Path) -> None:
        if target == tmp_path / "two":
            raise OSError(errno.EIO, "Input/output error")
        os.replace(source, target)

    monkeypatch.setattr("os.rename", refusing)
    with pytest.raises(UserError, match="Input/output error"):
        stage(tmp_path, "one", "two")
    assert (tmp_path / "one").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
