"""Records on the disk: what was synced is there, what a crash tore off is not, and damage is no crash."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import StorageError
from manta_swarm.runtime.appended_file import AppendedFile
from tests.aggregator.full_disk import file_size_limit

RECORDS = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=3), max_size=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for all examples of a test."""
    return tmp_path_factory.mktemp("examples") / "file"


def written(file: AppendedFile, batches: list[list[bytes]]) -> list[int]:
    """Append batches, one after the other; return how long the file was after each."""
    return [file.append(batch) for batch in batches]


def test_one_sync_covers_all_that_are_stored_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = AppendedFile(tmp_path / "file", 100), list[int]()
    file.append([b"first"])
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    file.append([b"second", b"third"])
    assert synced == [file.path.stat().st_size]  # with all of it written before
    AppendedFile(tmp_path / "other", 100).append([b"first"])
    assert len(synced) == 3  # the file, and the directory for its name


@given(batches=RECORDS, size=st.integers(0), tail=st.binary(max_size=60), mend=st.booleans())
def test_torn_off_at_any_byte_and_with_any_tail_it_has_what_was_whole(
    path: Path, batches: list[list[bytes]], size: int, tail: bytes, mend: bool
) -> None:
    path.unlink(missing_ok=True)
    file = AppendedFile(path, 100)
    ends = written(file, [[record] for batch in batches for record in batch])
    data = file.path.read_bytes() if ends else b""
    size = size % (len(data) + 1)
    file.path.write_bytes(data[:size] + tail)
    records = [record for batch in batches for record in batch]
    whole = [record for record, end in zip(records, ends, strict=True) if end <= size]
    if data[: size + len(tail)] == data[:size] + tail:  # the tail is what was there
        whole = [record for record, end in zip(records, ends, strict=True) if end <= size + len(tail)]
    assert file.read(mend=mend) == whole
    if mend:
        assert file.path.stat().st_size == ([0, *ends])[len(whole)]
        file.append([b"next"])
        assert file.read() == [*whole, b"next"]


@given(batches=st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=3), min_size=2, max_size=4), place=st.integers(0))
def test_a_flipped_bit_in_what_was_synced_is_damage_and_nothing_is_cut_off(path: Path, batches: list[list[bytes]], place: int) -> None:
    path.unlink(missing_ok=True)
    file = AppendedFile(path, 100)
    ends = written(file, batches)
    data = bytearray(file.path.read_bytes())
    starts = [0, *ends][: len(batches) - 1]  # of what was synced before something else was written
    head, start = 16, starts[place % len(starts)]
    data[start + head + place % (32 + len(batches[starts.index(start)][0]))] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(StorageError, match=rf"is damaged after its first {start} bytes; restore it from a backup"):
        file.read(mend=True)
    assert file.path.read_bytes() == data


def test_a_hole_in_the_last_batch_ends_what_is_there(tmp_path: Path) -> None:
    """The end of a file may reach the disk before its middle: nothing of that batch was synced, so nobody was told of it."""
    file = AppendedFile(tmp_path / "file", 100)
    first, _ = written(file, [[b"first"], [b"second", b"third"]])
    data = bytearray(file.path.read_bytes())
    data[first + 16] ^= 1
    file.path.write_bytes(data)
    assert file.read(mend=True) == [b"first"]
    assert file.path.stat().st_size == first


def test_on_a_full_disk_what_was_stored_stays(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "file", 1 << 20)
    file.append([b"first"])
    with file_size_limit(1000), pytest.raises(StorageError, match="File too large; make room"):
        file.append([b"x" * 2000])
    assert file.read(mend=True) == [b"first"]
    assert file.write_anew([b"other"]) == file.path.stat().st_size
    assert file.read() == [b"other"]


_WRITER = """
import sys
from pathlib import Path
from manta_swarm.runtime.appended_file import AppendedFile
file = AppendedFile(Path(sys.argv[1]), 1 << 20)
number = len(file.read(mend=True))
while True:
    file.append([each.to_bytes(8, "big") * 500 for each in range(number, number + 3)])
    number += 3
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_has_all_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    chance, file, acknowledged = random.Random(seed), AppendedFile(tmp_path / "file", 1 << 20), 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(file.path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randint(1, 20)):
                acknowledged = int(writer.stdout.readline())
            for _ in range(chance.randint(0, 30_000)):  # into the middle of whatever it does next
                pass
            os.kill(writer.pid, signal.SIGKILL)
            lines = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            acknowledged = max([acknowledged, *map(int, lines)])
        found = file.read()
        assert len(found) >= acknowledged
        assert found == [number.to_bytes(8, "big") * 500 for number in range(len(found))]
