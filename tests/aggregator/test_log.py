import errno
import os
import random
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aggregator.log
from aggregator.log import Log
from aggregator.storage import DATABASE, MANIFEST, TREE_HEAD, open_database
from aggregator.verify import verify_directory
from protocol.errors import EncodingError, LedgerError, SignatureError, StorageError, UserError
from protocol.merkle import consistency_proof, leaf_hash, verify_consistency, verify_inclusion
from protocol.receipts import open_round_receipt
from protocol.records import claim_entry, commit_digest
from protocol.signing import sha256
from tests.aggregator.small_run import (
    OPERATOR,
    OTHER_OPERATOR,
    PEERS,
    STRANGER,
    child,
    claim,
    grow,
    next_round,
    opened_head,
    rfc_root,
    signed_manifest,
)

SIGNED = signed_manifest()
DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


@pytest.fixture
def log(directory: Path) -> Iterator[Log]:
    with Log.create(directory, SIGNED, OPERATOR) as log:
        yield log


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond the limit: a full disk, as far as SQLite can tell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def copy_database(source: Path, target: Path) -> None:
    """Put the database files of ``source`` in the place of those of ``target``."""
    for name in DATABASE_FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def test_a_new_log_is_empty_and_has_a_signed_tree_head(log: Log) -> None:
    head = opened_head(log)
    assert (head.size, head.root) == (0, sha256(b""))
    assert log.ledger.size == 0
    assert log.latest_round() is None
    assert log.entries(0, 10) == []


def test_the_root_is_the_one_that_the_rfc_defines_over_the_entries(log: Log) -> None:
    written: list[bytes] = []
    for _ in range(5):
        batch = next_round(log.ledger)
        log.commit(batch)
        written += batch
        assert (opened_head(log).size, opened_head(log).root) == (len(written), rfc_root(written))
    assert log.entries(0, 1000) == written
    assert log.entries(3, 4) == written[3:7]
    assert [log.entry(index) for index in range(len(written))] == written
    assert log.ledger.round == 5


def test_every_receipt_holds_under_the_published_tree_head(log: Log) -> None:
    for size in range(1, 14):
        log.commit(next_round(log.ledger)[:1])
        head = opened_head(log)
        assert head.size == size
        for index in range(size):
            receipt = log.receipt(index)
            assert receipt.tree_head == log.tree_head
            assert receipt.entry == log.entry(index)
            verify_inclusion(leaf_hash(receipt.entry), receipt.index, head.size, receipt.proof, head.root)


def test_each_tree_head_continues_every_earlier_one(log: Log) -> None:
    heads = [opened_head(log)]
    for _ in range(4):
        grow(log, 1)
        heads.append(opened_head(log))
    leaves = [leaf_hash(entry) for entry in log.entries(0, 100)]
    for new in heads:
        for old in heads[: heads.index(new) + 1]:
            proof = consistency_proof(leaves[: new.size], old.size)
            verify_consistency(old.size, new.size, proof, old.root, new.root)


def test_the_latest_round_has_a_receipt_that_a_peer_accepts(log: Log) -> None:
    grow(log, 2)
    log.commit([claim_entry(claim(log.ledger, PEERS[0]))])  # a later entry that is no round
    receipt = log.latest_round()
    assert receipt is not None
    proven = open_round_receipt(receipt, SIGNED.run, OPERATOR.public_key)
    assert proven.round.statement.round == 2
    assert proven.commit == commit_digest(receipt.entry) == log.ledger.last_commit


def test_a_batch_with_one_invalid_entry_changes_nothing(log: Log, directory: Path) -> None:
    grow(log, 1)
    before = (log.ledger.size, log.tree_head, log.entries(0, 100))
    first, second, third, round_ = next_round(log.ledger)
    forged = first[:-1] + bytes([first[-1] ^ 1])
    for batch, refusal in (
        ([first, second, forged], SignatureError),
        ([first, first], LedgerError),
        ([first, second, round_], LedgerError),
        ([forged], SignatureError),
        ([first, b"\x00"], EncodingError),
    ):
        with pytest.raises(refusal):
            log.commit(batch)
        assert (log.ledger.size, log.tree_head, log.entries(0, 100)) == before
    log.commit([first, second, third, round_])
    assert log.ledger.round == 2
    log.close()
    with Log.open(directory, OPERATOR) as again:
        assert again.ledger.round == 2


def test_committing_nothing_changes_nothing(log: Log) -> None:
    before = log.tree_head
    log.commit([])
    assert log.tree_head == before


def test_a_reopened_log_is_the_same_and_goes_on(log: Log, directory: Path) -> None:
    grow(log, 3)
    before = (log.tree_head, log.ledger.size, log.ledger.credits(), log.entries(0, 100), log.latest_round())
    log.close()
    with Log.open(directory, OPERATOR, run=SIGNED.run) as again:
        assert (again.tree_head, again.ledger.size, again.ledger.credits(), again.entries(0, 100), again.latest_round()) == before
        grow(again, 2)
        assert again.ledger.round == 5


def test_what_does_not_exist_is_a_value_error(log: Log) -> None:
    grow(log, 1)
    for index in (-1, 4, 2**70):
        with pytest.raises(ValueError, match="has no entry"):
            log.entry(index)
        with pytest.raises(ValueError, match="has no entry"):
            log.receipt(index)
    for start, limit in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="no entries from"):
            log.entries(start, limit)
    assert log.entries(2**70, 2**70) == []


@pytest.mark.parametrize("seed", range(3))
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(log: Log, directory: Path, seed: int) -> None:
    log.close()
    chance = random.Random(seed)
    acknowledged: dict[int, str] = {}  # index -> digest of the entry, as the writers said
    heads: dict[int, str] = {}  # size -> root
    for _ in range(4):
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
        with Log.open(directory, OPERATOR) as again:
            stored = again.entries(0, 100_000)
            assert len(stored) == again.ledger.size == opened_head(again).size >= max(heads)
            assert acknowledged == {index: sha256(stored[index]).hex() for index in acknowledged}
            assert all(rfc_root(stored[:size]).hex() == root for size, root in heads.items())
        assert verify_directory(directory).size == len(stored)
    assert acknowledged  # not all of them need be: one may be stored when its writer dies before it says so


def test_a_database_restored_from_an_old_copy_is_not_signed_for(log: Log, directory: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    grow(log, 2)
    log.close()
    copy_database(directory, old)
    with Log.open(directory, OPERATOR) as again:
        grow(again, 1)
        signed_head = again.tree_head
    copy_database(old, directory)
    with pytest.raises(StorageError, match=r"has lost entries: it holds 8 and has signed a tree head of 12; restore"):
        Log.open(directory, OPERATOR)
    assert (directory / TREE_HEAD).read_text() == signed_head


def test_a_database_cut_off_in_the_wal_is_not_signed_for(log: Log, directory: Path) -> None:
    grow(log, 4)
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)  # as a killed writer leaves it: most of it in the WAL
    wal = copy / f"{DATABASE}-wal"
    (copy / f"{DATABASE}-shm").unlink()
    os.truncate(wal, wal.stat().st_size // 2)
    with pytest.raises(StorageError, match="has lost entries"):
        Log.open(copy, OPERATOR)


def test_a_log_with_other_entries_than_it_signed_for_is_not_signed_for(log: Log, directory: Path) -> None:
    grow(log, 1)
    log.close()
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    with Log.open(directory, OPERATOR) as again:
        grow(again, 1)
    with Log.open(copy, OPERATOR) as other:
        other.commit(next_round(other.ledger, mean=b"another mean"))
        grow(other, 2)
    copy_database(copy, directory)
    with pytest.raises(StorageError, match="first 8 entries are not those it has signed"):
        Log.open(directory, OPERATOR)


def test_a_log_without_its_last_signed_head_does_not_open(log: Log, directory: Path) -> None:
    grow(log, 1)
    log.close()
    (directory / TREE_HEAD).unlink()
    with pytest.raises(StorageError, match=TREE_HEAD):
        Log.open(directory, OPERATOR)


def test_a_log_killed_before_it_signed_signs_when_it_opens(log: Log, directory: Path) -> None:
    grow(log, 1)
    head_before = (directory / TREE_HEAD).read_bytes()
    grow(log, 1)
    latest = log.tree_head
    log.close()
    (directory / TREE_HEAD).write_bytes(head_before)  # as between the transaction and the signature
    with Log.open(directory, OPERATOR) as again:
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
    for operation in (lambda: log.commit(batch), lambda: log.receipt(0), lambda: log.entries(0, 1), log.latest_round):
        with pytest.raises(StorageError, match=r"has stopped .* start the aggregator again"):
            operation()  # there is room again: still nothing is tried in place
    log.close()
    with Log.open(directory, OPERATOR) as again:
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
    with Log.open(directory, OPERATOR) as again:
        assert again.ledger.round == 2


def test_an_interrupted_commit_stops_the_log(log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(log, 1)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(aggregator.log, "write_durably", interrupt)
    with pytest.raises(KeyboardInterrupt):
        grow(log, 1)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="KeyboardInterrupt"):
        grow(log, 1)
    assert log.ledger.round == 1
    log.close()
    with Log.open(directory, OPERATOR) as again:
        assert again.ledger.round == 2


def test_a_second_process_is_refused_while_the_first_one_lives(log: Log, directory: Path) -> None:
    log.close()
    with child("hold", directory) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"another aggregator uses {directory}"):
            Log.open(directory, OPERATOR)
        with pytest.raises(UserError, match="another aggregator uses"):
            Log.create(directory, SIGNED, OPERATOR)
    with Log.open(directory, OPERATOR) as again:
        with pytest.raises(UserError, match="another aggregator uses"):
            Log.open(directory, OPERATOR)  # in the same process
        grow(again, 1)


def test_a_forked_process_that_outlives_a_killed_aggregator_does_not_keep_its_log(log: Log, directory: Path) -> None:
    log.close()
    with child("hold-and-fork", directory) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        holder.kill()
        holder.wait(timeout=30)
        with Log.open(directory, OPERATOR) as again:  # the forked one lives until our end of its standard input closes
            grow(again, 1)


def test_a_user_hears_what_is_wrong_with_a_directory(log: Log, directory: Path, tmp_path: Path) -> None:
    log.close()
    with pytest.raises(UserError, match="already holds the log of a run"):
        Log.create(directory, SIGNED, OPERATOR)
    with pytest.raises(UserError, match="holds another run"):
        Log.open(directory, OPERATOR, run=signed_manifest("another").run)
    with pytest.raises(UserError, match="of another operator"):
        Log.open(directory, OTHER_OPERATOR)
    with pytest.raises(UserError, match="holds no log"):
        Log.open(tmp_path / "nothing", OPERATOR)
    with pytest.raises(UserError, match="does not name this operator"):
        Log.create(tmp_path / "new", SIGNED, STRANGER)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the directory"):
        Log.create(tmp_path / "file" / "below", SIGNED, OPERATOR)
    Log.open(directory, OPERATOR).close()  # no refusal has kept the lock


def test_a_manifest_of_another_run_beside_the_database_is_refused(log: Log, directory: Path, tmp_path: Path) -> None:
    log.close()
    Log.create(tmp_path / "other", signed_manifest("another"), OPERATOR).close()
    shutil.copy(tmp_path / "other" / MANIFEST, directory / MANIFEST)
    with pytest.raises(StorageError, match="of another run than the manifest"):
        Log.open(directory, OPERATOR)


def test_a_log_whose_database_is_gone_is_not_started_anew(log: Log, directory: Path) -> None:
    grow(log, 1)
    log.close()
    (directory / DATABASE).unlink()
    with pytest.raises(StorageError, match=f"whose {DATABASE} is missing"):
        Log.create(directory, SIGNED, OPERATOR)


def test_a_creation_that_was_killed_can_be_repeated(log: Log, directory: Path) -> None:
    log.close()
    (directory / DATABASE).rename(directory / f"{DATABASE}.new")  # one step before the end, for another run
    with pytest.raises(UserError, match="holds no log"):
        Log.open(directory, OPERATOR)
    with Log.create(directory, signed_manifest("another"), OPERATOR) as again:
        grow(again, 1)
    assert not (directory / f"{DATABASE}.new").exists()


def test_each_operator_keeps_a_log_of_its_own(tmp_path: Path) -> None:
    with Log.create(tmp_path / "second", SIGNED, OTHER_OPERATOR) as log:
        grow(log, 1)
        receipt = log.latest_round()
    assert receipt is not None
    assert open_round_receipt(receipt, SIGNED.run, OTHER_OPERATOR.public_key).round.statement.round == 1


def test_a_transaction_is_synced_before_it_is_acknowledged(directory: Path, log: Log) -> None:
    log.close()
    connection = open_database(directory)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()


def test_the_wal_does_not_grow_without_end(log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregator.log, "_CHECKPOINT_ENTRIES", 20)
    wal = directory / f"{DATABASE}-wal"
    grow(log, 10)
    size_bytes = wal.stat().st_size
    grow(log, 60)
    assert wal.stat().st_size < 2 * size_bytes
    assert (directory / DATABASE).stat().st_size > 64 * 1024


def test_closing_twice_is_harmless_and_a_closed_log_does_nothing(log: Log) -> None:
    log.close()
    log.close()
    with pytest.raises(StorageError, match=r"has stopped \(closed\)"):
        grow(log, 1)
