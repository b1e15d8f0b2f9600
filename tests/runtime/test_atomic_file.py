"""A file that is whole or absent: after a kill, on a full disk, and when the disk changed it."""

import os
import random
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import StorageError
from manta_swarm.runtime.atomic_file import DIGEST_BYTES, AtomicFile, DamagedFile
from tests.aggregator.full_disk import file_size_limit


@dataclass(frozen=True, slots=True)
class Note:
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Other:
    text: str


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for all examples of a test."""
    return tmp_path_factory.mktemp("examples") / "file"


def test_what_was_written_is_read_and_before_that_nothing(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "made" / "file", 100)
    assert (file.read(), file.load(Note)) == (None, None)
    for data in (b"first, which is longer", b""):
        file.write(data)
        assert file.read() == data
    file.save(Note(3, "three"))
    assert file.load(Note) == Note(3, "three")
    assert os.listdir(tmp_path / "made") == ["file"]
    file.remove()
    file.remove()
    assert file.read() is None


def test_it_is_on_the_disk_before_it_has_its_name_and_its_name_before_a_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any moment leaves what was there, or the new bytes: a name may reach the disk before bytes that were not synced."""
    path, done, fsync, replace = tmp_path / "file", list[str](), os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        done.append(f"{source} -> {target}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    AtomicFile(path, 100).write(b"new")
    assert done == [f"{path}.part", f"{path}.part -> {path}", str(tmp_path)]
    done.clear()
    AtomicFile(path, 100).remove()
    assert done == [str(tmp_path)]


def test_a_private_file_is_its_owners_and_so_is_a_directory_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    AtomicFile(path, 100, mode=0o600).write(b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_more_than_the_bound_is_never_read(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "file", 4, remedy="delete it")
    file.path.write_bytes(b"12345")
    with pytest.raises(DamagedFile, match="it has more than 4 bytes\\); delete it"):
        file.read()
    with pytest.raises(AssertionError):
        file.write(b"12345")


def test_what_cannot_be_read_or_written_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Is a directory; make room, or check the disk and the permissions"):
        AtomicFile(tmp_path / "folder", 4).read()
    with pytest.raises(StorageError, match="Not a directory; make room"):
        AtomicFile(tmp_path / "file" / "below", 4).write(b"")
    with pytest.raises(StorageError, match="cannot make the directory"):
        AtomicFile(tmp_path / "file" / "far" / "below", 4).write(b"")


@pytest.mark.parametrize("is_synced", [True, False])
def test_on_a_full_disk_what_was_there_stays_and_one_line_says_so(tmp_path: Path, is_synced: bool) -> None:
    file = AtomicFile(tmp_path / "file", 1 << 20, is_synced=is_synced)
    file.save(Note(1, "old"))
    with file_size_limit(1000), pytest.raises(StorageError, match=r"File too large; make room"):
        file.save(Note(2, "x" * 2000))
    assert file.load(Note) == Note(1, "old")
    file.save(Note(3, "x" * 2000))
    assert file.load(Note) == Note(3, "x" * 2000)


def test_a_full_disk_is_not_filled_further_by_what_could_not_be_written(tmp_path: Path) -> None:
    with file_size_limit(1000), pytest.raises(StorageError):
        AtomicFile(tmp_path / "file", 1 << 20).write(b"x" * 2000)
    assert os.listdir(tmp_path) == []


@given(number=st.integers(0, 2**53), text=st.text(max_size=50), place=st.integers(0), change=st.integers(1, 255), cut=st.integers(0, 40))
def test_a_changed_bit_or_another_end_is_damage(path: Path, number: int, text: str, place: int, change: int, cut: int) -> None:
    file = AtomicFile(path, 1 << 12, remedy="bring it back")
    file.save(Note(number, text))
    data = bytearray(file.path.read_bytes())
    data[place % len(data)] ^= change
    for damaged in (bytes(data), bytes(data[:cut]), file.path.read_bytes() + b"x"):
        file.path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=r"is damaged .*; bring it back"):
            file.load(Note)


def test_a_record_of_another_kind_is_damage(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "file", 100)
    file.save(Note(1, "one"))
    with pytest.raises(DamagedFile):
        file.load(Other)
    file.path.write_bytes(b"x" * DIGEST_BYTES)
    with pytest.raises(DamagedFile):
        file.load(Note)


_WRITER = """
import sys
from pathlib import Path
from manta_swarm.runtime.atomic_file import AtomicFile
file = AtomicFile(Path(sys.argv[1]), 1 << 20)
number = int(sys.argv[2])
while True:
    number += 1
    file.write(number.to_bytes(8, "big") * 5000)
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_has_what_was_acknowledged_or_newer_and_whole(tmp_path: Path, seed: int) -> None:
    chance, file, number = random.Random(seed), AtomicFile(tmp_path / "file", 1 << 20), 0
    for _ in range(3):
        command = [sys.executable, "-c", _WRITER, str(file.path), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randint(1, 20)):
                number = int(writer.stdout.readline())
            for _ in range(chance.randint(0, 30_000)):  # into the middle of whatever it does next
                pass
            os.kill(writer.pid, signal.SIGKILL)
            number = max([number, *(int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n"))])
        data = file.read()
        assert data is not None
        found = int.from_bytes(data[:8], "big")
        assert found >= number
        assert data == found.to_bytes(8, "big") * 5000
        number = found
