"""The Merkle log of a run: one writer, one SQLite file, and a tree head that never takes back what it said.

The order of writes for each batch of entries:

1. every entry is validated, each after the ones before it, on a second copy of the ledger;
2. entries, tree nodes, size and root go to the disk in one transaction: durable;
3. the tree head is signed and replaces the file of the last signed one: durable;
4. only then is it published, with the ledger that everybody reads.

Where a run has several operators nothing is committed before enough of them signed the head after it (``aggregator.features.operators``).
That note is what is published: it is on the disk before the entries are, and becomes the file of the last signed one after them.

So what is published is on the disk, and a database that was rolled back is found out by the signed head beside it: the log then refuses to
open. After any error of the disk the log stops: nothing is tried again in the same process, for after a failed sync the operating
system may report as written what is lost. That its whole directory was replaced by an older one the log hears from others, who hold a
head that it signed and has not (``hold_to``); then it stops for good, and does not open again before it has what is missing.

Whether a round's digests are true is not decided here. Open the log after whatever forks: SQLite's connections do not survive it.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import RLock
from types import TracebackType

from manta_swarm.aggregator.log.guard import check_evidence, in_words
from manta_swarm.aggregator.log.storage import (
    DATABASE,
    LOCK,
    NEXT_HEAD,
    TREE_HEAD,
    append_rows,
    create_database,
    open_database,
    read_manifest,
    read_tree_head,
    sqlite_errors,
    write_manifest,
)
from manta_swarm.aggregator.log.verify import RESTORE, Replay, TrainingSpecOf, check_tree_head, held_by, replay
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.errors import LedgerError, OtherHistory, RemoteFault, StorageError, UserError
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Step
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import EMPTY_ROOT, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.records import Included, Receipt
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.disk import DirectoryLock, make_directory, write_durably

_WAL_CHECKPOINT_ENTRIES = 1000  # appended between two checkpoints: the WAL stays at a few MB


class Log:
    """An open log. Its methods may be called from any thread; each blocks for as long as the disk takes."""

    def __init__(self, directory: Path, operator: Identity, connection: sqlite3.Connection, lock: DirectoryLock, log: Replay) -> None:
        """Use ``open`` or ``create`` instead."""
        self._directory = directory
        self._operator = operator
        self._origin = origin(log.ledger.run)
        self._connection = connection
        self._directory_lock = lock
        self._tree = log.tree
        self._ledger = log.ledger
        # What is published is never written to: the two change places at each commit, and the one that was replaced catches up at the next.
        self._candidate = log.ledger.copy()
        self._behind: list[Step] = []  # what the candidate lacks, checked when the other took it
        self._ahead: list[Step] = []  # what it has taken since, and the other lacks
        self._since_wal_checkpoint = 0
        self._stopped: str | None = None  # why no operation is possible any more
        self._other: OtherHistory | None = None  # it lacks, or contradicts, what its key has signed for
        self._mutex = RLock()
        self._operators = Operators.of(log.ledger.manifest, log.ledger.run)
        self._head, self._tree_head = self._sign(self._note_before())

    @classmethod
    def create(
        cls, directory: Path, signed: SignedManifest, operator: Identity, *, training_spec_of: TrainingSpecOf = ManifestTrainingSpec
    ) -> "Log":
        """Start the log of a run in ``directory``, which is made where it does not exist.

        Raises:
            UserError: another log is there, or an aggregator, or the manifest does not name this operator.
            EncodingError, SignatureError: as ``SignedManifest.open``.
            StorageError: the disk failed.
        """
        if operator.public_key not in signed.open().operators:
            raise UserError("the manifest does not name this operator's key: use the key it was made with")
        make_directory(directory)
        lock = DirectoryLock(directory, "aggregator", name=LOCK)
        try:
            if (directory / DATABASE).exists():
                raise UserError(f"{directory} already holds the log of a run: open it, or choose another directory")
            if (directory / TREE_HEAD).exists() and read_tree_head(directory).split("\n")[1:2] != ["0"]:
                raise StorageError(f"{directory} held a log, whose {DATABASE} is missing; {RESTORE}")
            name = origin(signed.run)
            write_manifest(directory, signed)
            write_durably(directory / TREE_HEAD, sign_tree_head(TreeHead(name, 0, EMPTY_ROOT), name, operator).encode())
            create_database(directory, signed.run, operator.public_key)
        finally:
            lock.release()
        return cls.open(directory, operator, training_spec_of=training_spec_of)

    @classmethod
    def open(
        cls,
        directory: Path,
        operator: Identity,
        *,
        run: bytes | None = None,
        training_spec_of: TrainingSpecOf = ManifestTrainingSpec,
        on_round: Callable[[Ledger], None] | None = None,
    ) -> "Log":
        """Open the log in ``directory``, everything in it checked from scratch, and sign what it holds.

        But for one thing: the signatures of claims and contributions under the head that this operator has signed were checked before it
        was, and are not again, if the entries hash to that head (``aggregator.log.verify`` checks them all, always).

        Args:
            directory: of the log.
            operator: whose log it is.
            run: the run that is expected there; by default any.
            training_spec_of: what a manifest's training asks of a round.
            on_round: is given the ledger after each of its rounds.

        Raises:
            UserError: there is no log, or one of another run or operator, or another aggregator uses it.
            StorageError: the log is damaged, or behind a tree head that it once signed.
            OtherHistory: it is behind, or beside, one that others hold, as it heard before.
        """
        signed = read_manifest(directory)
        if run is not None and signed.run != run:
            raise UserError(f"{directory} holds another run, {signed.run.hex()}: choose another directory")
        with ExitStack() as undo:
            lock = DirectoryLock(directory, "aggregator", name=LOCK)
            undo.callback(lock.release)
            connection = open_database(directory)
            undo.callback(connection.close)
            with sqlite_errors(directory / DATABASE):
                # An entry was checked before it was stored, and what was stored before the head was signed.
                note = read_tree_head(directory)
                replayed = replay(connection, signed, training_spec_of, on_round, held_by(note, signed, operator.public_key))
                if replayed.operator != operator.public_key:
                    raise UserError(f"the log in {directory} is of another operator: use the key it was created with")
                check_tree_head(note, signed, replayed)
                check_evidence(directory, replayed.tree)
                # What a failed sync left in the operating system's cache only must reach the disk before it is signed for.
                _wal_checkpoint(connection)
            log = cls(directory, operator, connection, lock, replayed)
            undo.pop_all()
        return log

    @property
    def ledger(self) -> Ledger:
        """The fold over the published entries; never ahead of the disk. To be read only."""
        return self._ledger

    @property
    def head(self) -> TreeHead:
        """The published tree head: size and root."""
        return self._head

    @property
    def tree_head(self) -> str:
        """The signed note of the published tree head."""
        return self._tree_head

    def root_with(self, entries: Sequence[bytes]) -> bytes:
        """Return the root that the tree would have with these entries too."""
        with self._mutex:
            return self._tree.root_with([leaf_hash(entry) for entry in entries])

    def count(self, note: str) -> None:
        """Publish a note of the head as it is, with enough operators' signatures, where there was none: of the empty log."""
        with self._mutex:
            self._check_running()
            if self._operators.open(note) == self._head:
                self._head, self._tree_head = self._sign(note)

    def commit(self, entries: Sequence[bytes], note: str | None = None) -> None:
        """Append ``entries``, all or none; published and on the disk when this returns.

        Args:
            entries: whole rounds, admissions, and the settlement with the verdicts before it.
            note: in a run of several operators, the note of the head after them, signed by enough of these.

        Raises:
            EncodingError, SignatureError, LedgerError: one of them is not a valid next entry, or ``note`` is not about them; nothing has
                changed.
            OtherHistory: see ``hold_to``; nothing has changed.
            StorageError: the disk failed; the log has stopped, and which of them are in it is known when it is opened again.
        """
        with self._mutex:
            self._check_running()
            if not entries:
                return
            self._check_note(entries, note)
            self._validate(entries)
            try:
                if note is not None:
                    write_durably(self._directory / NEXT_HEAD, note.encode())
                self._store(entries)
                self._head, self._tree_head = self._sign(note)
                self._ledger, self._candidate, self._behind = self._candidate, self._ledger, self._ahead
                self._since_wal_checkpoint += len(entries)
                if self._since_wal_checkpoint >= _WAL_CHECKPOINT_ENTRIES:
                    with sqlite_errors(self._directory / DATABASE):
                        _wal_checkpoint(self._connection)
                    self._since_wal_checkpoint = 0
            except BaseException as error:  # an interrupt too: disk and memory no longer move together
                self._stopped = str(error) or type(error).__name__
                raise

    def hold_to(self, head: TreeHead, evidence: Histories) -> None:
        """Check that this log has what is under ``head``, which its key has signed; ``evidence`` shows what it is if it has not.

        Raises:
            OtherHistory: it has not, so it is not the newest, or not the only one; it has stopped: nothing is signed any more.
        """
        with self._mutex:
            if head.size > self._head.size and not self._operators.is_alone:
                return  # the others went on; this one will learn of it
            if head.size > self._head.size or head.root != self._tree.root(head.size):
                self._other = self._other or OtherHistory(in_words(evidence.check(), self._directory))
                raise self._other

    def shown_to(self, size: int) -> tuple[str, tuple[bytes, ...]]:
        """Return the signed tree head, and the proof that the tree of ``size`` entries is a prefix of its own; none where it is smaller."""
        with self._mutex:
            is_prefix = size <= self._head.size
            return self._tree_head, tuple(self._tree.consistency_proof(size, self._head.size)) if is_prefix else ()

    def head_of(self, size: int) -> TreeHead:
        """Return the head that this log had with ``size`` entries.

        Raises:
            ValueError: it has not so many.
        """
        with self._mutex:
            if not 0 <= size <= self._head.size:
                raise ValueError(f"a log of {self._head.size} entries has no head of {size}")
            return TreeHead(self._origin, size, self._tree.root(size))

    def note_of(self, size: int) -> str:
        """Return the signed note of the head that this log had with so many entries, as it was published.

        Raises:
            ValueError: it has not so many.
            OtherHistory, StorageError: the log has stopped.
        """
        with self._mutex:
            self._check_running()
            if size == self._head.size:
                return self._tree_head
            return sign_tree_head(self.head_of(size), self._origin, self._operator)

    def consistency(self, old: int, new: int) -> tuple[bytes, ...]:
        """Return the proof that the tree of ``old`` entries is a prefix of that of ``new``.

        Raises:
            ValueError: it has not so many entries, or ``old`` is more than ``new``.
        """
        with self._mutex:
            if not 0 <= old <= new <= self._head.size:
                raise ValueError(f"a log of {self._head.size} entries has no proof from {old} to {new}")
            return tuple(self._tree.consistency_proof(old, new))

    def receipt(self, index: int) -> Receipt:
        """Return the proof that entry ``index`` is under the published tree head.

        Raises:
            ValueError: there is no such entry.
            StorageError: the disk failed.
        """
        with self._mutex:
            entry = self.entry(index)
            return Receipt(entry, index, tuple(self._tree.inclusion_proof(index, self._head.size)), self._tree_head)

    def included(self, index: int, size: int) -> Included:
        """Return entry ``index``, and the proof that it is under the head that this log had with ``size`` entries.

        Raises:
            ValueError: there was no such entry.
            StorageError: the disk failed.
        """
        with self._mutex:
            return Included(self.entry(index), index, tuple(self._tree.inclusion_proof(index, size)))

    def range_proof(self, first: int, end: int, size: int) -> tuple[bytes, ...]:
        """Return the proof that the entries from ``first`` to before ``end`` are under the head that this log had with ``size`` entries.

        Raises:
            ValueError: there were no such entries.
        """
        with self._mutex:
            return tuple(self._tree.range_proof(first, end, size))

    def entry(self, index: int) -> bytes:
        """Return the bytes of entry ``index``.

        Raises:
            ValueError: there is no such entry.
            StorageError: the disk failed.
        """
        with self._mutex:
            if not 0 <= index < self._head.size:
                raise ValueError(f"a log of {self._head.size} entries has no entry {index}")
            return self.entries(index, 1)[0]

    def entries(self, start: int, limit: int, max_bytes: int | None = None) -> list[bytes]:
        """Return at most ``limit`` entries from ``start`` on; fewer, or none, at the end.

        Args:
            start: index of the first one.
            limit: entries.
            max_bytes: of all of them, with the first one always among them; none is read that would not be returned but one. None: any.

        Raises:
            ValueError: a negative start or limit.
            StorageError: the disk failed.
        """
        if start < 0 or limit < 0:
            raise ValueError(f"no entries from {start}, at most {limit}")
        with self._mutex:
            self._check_running()
            end = min(start + limit, self._head.size)
            if start >= end:
                return []
            try:
                with sqlite_errors(self._directory / DATABASE):
                    query = "SELECT bytes FROM entries WHERE position >= ? AND position < ? ORDER BY position"
                    rows = self._connection.execute(query, (start, end))
                    found = [entry for (entry,) in rows] if max_bytes is None else _fitting(rows, max_bytes)
                    rows.close()
            except StorageError as error:
                self._stopped = str(error)
                raise
            return found

    def close(self) -> None:
        """Close the database and let another process have the directory. Further calls do nothing."""
        with self._mutex:
            if self._stopped == "closed":
                return
            failed, self._stopped = self._stopped, "closed"
            try:
                with sqlite_errors(self._directory / DATABASE):
                    self._connection.close()
            except StorageError:
                if failed is None:  # else it has been reported
                    raise
            finally:
                self._directory_lock.release()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_running(self) -> None:
        if self._other is not None:
            raise self._other
        if self._stopped is not None:
            raise StorageError(f"the log in {self._directory} has stopped ({self._stopped}): start the aggregator again")

    def _validate(self, entries: Sequence[bytes]) -> None:
        """Take ``entries``, whole rounds, into the candidate ledger."""
        try:
            behind, self._behind = self._behind, []
            for step in behind:
                self._candidate.follow(step)
            self._ahead = [step for step in map(self._candidate.append, entries) if step is not None]
            if not self._candidate.is_between_rounds:
                raise LedgerError("a batch of entries ends with a round, or with the settlement")
        except BaseException:
            self._candidate = self._ledger.copy()  # what was taken before it must go
            raise

    def _store(self, entries: Sequence[bytes]) -> None:
        first = self._tree.size
        nodes = [node for entry in entries for node in self._tree.append(leaf_hash(entry))]
        with sqlite_errors(self._directory / DATABASE):
            append_rows(self._connection, first, entries, nodes, self._tree)  # durable from this line

    def _check_note(self, entries: Sequence[bytes], note: str | None) -> None:
        if note is None:
            if self._operators.quorum > 1:
                raise LedgerError(f"entries that fewer than {self._operators.quorum} operators signed for")
            return
        head = self._operators.open(note)
        if (head.size, head.root) != (self._tree.size + len(entries), self.root_with(entries)):
            raise LedgerError("the operators signed for other entries than these")

    def _note_before(self) -> str | None:
        """Return the note of the head as it is that enough operators signed, of those on the disk; None: one operator is enough."""
        if self._operators.quorum == 1 or not self._tree.size:
            return None
        for name in (NEXT_HEAD, TREE_HEAD):  # of the former a crash came before the entries, or after them
            if (self._directory / name).exists():
                note = read_tree_head(self._directory, name)
                with contextlib.suppress(RemoteFault):
                    head = self._operators.open(note)
                    if (head.size, head.root) == (self._tree.size, self._tree.root()):
                        return note
        raise StorageError(f"{self._directory / TREE_HEAD} is not of the log as it is, signed by enough operators; {RESTORE}")

    def _sign(self, signed: str | None = None) -> tuple[TreeHead, str]:
        """Sign the tree as it is on the disk, or take what others signed of it, and remember that before anybody is told."""
        head = TreeHead(self._origin, self._tree.size, self._tree.root())
        note = sign_tree_head(head, self._origin, self._operator) if signed is None else signed
        write_durably(self._directory / TREE_HEAD, note.encode())
        return head, note


def _fitting(rows: Iterable[tuple[bytes]], max_bytes: int) -> list[bytes]:
    found, num_bytes = list[bytes](), 0
    for (entry,) in rows:
        num_bytes += len(entry)
        if found and num_bytes > max_bytes:
            break
        found.append(entry)
    return found


def _wal_checkpoint(connection: sqlite3.Connection) -> None:
    """Move the WAL into the database file, as far as no reader needs it, and sync; an error shows here."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
