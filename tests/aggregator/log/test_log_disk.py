"""The log and its disk: what is acknowledged is there, after a kill, a full disk, or files that were put back from somewhere else."""

import errno
import os
import random
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import manta_swarm.aggregator.log.log
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE, TREE_HEAD, open_database
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.signing import sha256
from tests.aggregator.full_disk import file_size_limit
from tests.aggregator.small_run import (
    ENTRIES,
    child,
    grow,
    next_round,
    opened_head,
    reopen,
    rfc_root,
    signed_manifest,
    verified,
)

SIGNED = signed_manifest()
DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")


def copy_database(source: Path, target: Path) -> None:
    """Put the database files of ``source`` in the place of those of ``target``."""
    for name in DATABASE_FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, target / name)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=[pytest.mark.swarm, pytest.mark.faults]) for seed in range(3, 53))])
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(log: Log, directory: Path, seed: int) -> None:
    log.close()
    chance = random.Random(seed)
    acknowledged: dict[int, str] = {}  # index -> digest of the entry, as the writers said
    heads: dict[int, str] = {}  # size -> root
    for _ in range(2):
        with child("append", directory) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(chance.randint(1, 30))]
            for _ in range(chance.randint(0, 30_000)):  # into the middle of whatever it does next
                pass
            os.kill(writer.pid, signal.SIGKILL)
            lines += writer.stdout.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):  # else it was killed while it printed
                size, root, *entries = line.split()
                heads[int(size)] = root
                acknowledged.update((int(index), digest) for index, digest in (entry.split(":") for entry in entries))
        with reopen(directory) as again:
            stored = again.entries(0, 100_000)
            assert len(stored) == again.ledger.size == opened_head(again).size >= max(heads)
            assert acknowledged == {index: sha256(stored[index]).hex() for index in acknowledged}
            assert all(rfc_root(stored[:size]).hex() == root for size, root in heads.items())
        assert verified(directory).size == len(stored)
    assert acknowledged  # not all of them need be: one may be stored when its writer dies before it says so


def test_a_database_restored_from_an_old_copy_is_not_signed_for(log: Log, directory: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    grow(log, 2)
    log.close()
    copy_database(directory, old)
    with reopen(directory) as again:
        grow(again, 1)
        signed_head = again.tree_head
    copy_database(old, directory)
    for look in (verified, reopen):
        with pytest.raises(StorageError, match=rf"it holds {2 * ENTRIES} and has signed a tree head of {3 * ENTRIES}; restore"):
            look(directory)
    assert (directory / TREE_HEAD).read_text() == signed_head


def test_a_database_cut_off_in_the_wal_is_not_signed_for(log: Log, directory: Path) -> None:
    grow(log, 4)
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)  # as a killed writer leaves it: most of it in the WAL
    wal = copy / f"{DATABASE}-wal"
    (copy / f"{DATABASE}-shm").unlink()
    os.truncate(wal, wal.stat().st_size // 2)
    with pytest.raises(StorageError, match="has lost entries"):
        reopen(copy)


def test_what_a_killed_log_left_in_the_wal_is_synced_into_the_database_before_it_is_signed_for(
    log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(log, 4)
    copy, alone, write_durably = directory.with_name("copy"), directory.with_name("alone"), manta_swarm.aggregator.log.log.write_durably
    shutil.copytree(directory, copy)  # as a killed writer leaves it: most of it in the WAL, which may never have been synced
    found: list[int] = []  # entries without the WAL, whenever a head is about to be written

    def look(path: Path, data: bytes) -> None:
        shutil.copy(copy / DATABASE, alone)
        with closing(sqlite3.connect(f"{alone.as_uri()}?immutable=1", uri=True)) as connection:
            found.extend(connection.execute("SELECT COUNT(*) FROM entries").fetchone())
        write_durably(path, data)

    monkeypatch.setattr(manta_swarm.aggregator.log.log, "write_durably", look)
    with reopen(copy):
        assert found == [4 * ENTRIES]


def test_a_log_with_other_entries_than_it_signed_for_is_not_signed_for(log: Log, directory: Path) -> None:
    grow(log, 1)
    log.close()
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    with reopen(directory) as again:
        grow(again, 1)
    with reopen(copy) as other:
        other.commit(next_round(other.ledger, mean=b"another mean"))
        grow(other, 2)
    copy_database(copy, directory)
    with pytest.raises(StorageError, match=f"first {2 * ENTRIES} entries are not those it has signed"):
        reopen(directory)


def test_a_log_killed_before_it_signed_signs_when_it_opens(log: Log, directory: Path) -> None:
    grow(log, 1)
    head_before = (directory / TREE_HEAD).read_bytes()
    grow(log, 1)
    latest = log.tree_head
    log.close()
    (directory / TREE_HEAD).write_bytes(head_before)  # as between the transaction and the signature
    with reopen(directory) as again:
        assert again.tree_head == latest
    assert (directory / TREE_HEAD).read_text() == latest


@pytest.mark.parametrize("room_bytes", [1, 5_000, 20_000, 60_000])
def test_a_full_disk_stops_the_log_and_memory_is_not_ahead(log: Log, directory: Path, room_bytes: int) -> None:
    grow(log, 2)
    acknowledged, head = log.ledger.size, log.tree_head
    limit = (directory / f"{DATABASE}-wal").stat().st_size + room_bytes
    with file_size_limit(limit), pytest.raises(StorageError, match="check the disk"):  # noqa: PT012 - how many commits fit is not the point
        while True:
            batch = next_round(log.ledger)
            log.commit(batch)
            acknowledged, head = acknowledged + len(batch), log.tree_head
    assert (log.ledger.size, log.tree_head, opened_head(log).size) == (acknowledged, head, acknowledged)
    for operation in (lambda: log.commit(batch), lambda: log.receipt(0), lambda: log.entries(0, 1)):
        with pytest.raises(StorageError, match=r"has stopped .* start the aggregator again"):
            operation()  # there is room again: still nothing is tried in place
    log.close()
    with reopen(directory) as again:
        assert again.ledger.size >= acknowledged
        grow(again, 1)


def test_a_head_that_cannot_be_kept_is_not_published(log: Log, directory: Path) -> None:
    grow(log, 1)
    size, head = log.ledger.size, log.tree_head
    (directory / f"{TREE_HEAD}.part").mkdir()
    with pytest.raises(StorageError, match=os.strerror(errno.EISDIR)):
        grow(log, 1)
    assert (log.ledger.size, log.tree_head) == (size, head)
    assert (directory / TREE_HEAD).read_text() == head
    log.close()
    (directory / f"{TREE_HEAD}.part").rmdir()
    with reopen(directory) as again:
        assert again.ledger.round == 2


def test_an_interrupted_commit_stops_the_log(log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(log, 1)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manta_swarm.aggregator.log.log, "write_durably", interrupt)
    with pytest.raises(KeyboardInterrupt):
        grow(log, 1)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="KeyboardInterrupt"):
        grow(log, 1)
    assert log.ledger.round == 1
    log.close()
    with reopen(directory) as again:
        assert again.ledger.round == 2


def test_a_transaction_is_synced_before_it_is_acknowledged(directory: Path, log: Log) -> None:
    log.close()
    connection = open_database(directory)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()


def test_the_wal_does_not_grow_without_end(log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.aggregator.log.log, "_WAL_CHECKPOINT_ENTRIES", 8)
    wal = directory / f"{DATABASE}-wal"
    grow(log, 4)
    size_bytes = wal.stat().st_size
    grow(log, 24)
    assert wal.stat().st_size < 3 * size_bytes  # as many entries as are written before it is emptied, not seven times as many
    assert (directory / DATABASE).stat().st_size > 64 * 1024
