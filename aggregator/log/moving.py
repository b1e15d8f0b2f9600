"""Copies of a run's folder, taken while the run goes on, folders made of them, handed over, and completed again from what others have.

``aggregator.log.contents`` says what a copy has, and in which order it is copied. It is checked as a whole before it gets its name, and
marked from its first moment (``aggregator.log.guard``): whoever starts it signs nothing before a peer says that nothing newer was signed.

What is got back of a log's entries was signed, by this log's key, and each is checked as if it came from a stranger; all of it is written
at once, or nothing. Rounds that nobody has stay missing, and a log that is known to have signed for them stays stopped.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.contents import (
    AUDITOR_KEY,
    BODIES,
    CHECKPOINT,
    COPIED,
    SNAPSHOTS,
    check_backup,
    check_new,
    check_restore,
    check_snapshot,
    part_of,
)
from manta_swarm.aggregator.log.copies import MAX_BUNDLE_BYTES, Copy
from manta_swarm.aggregator.log.guard import check_evidence, mark_handed_over, mark_restored, refuse_handed_over
from manta_swarm.aggregator.log.storage import (
    DATABASE,
    LOCK,
    MANIFEST,
    TREE_HEAD,
    append_rows,
    is_at_rest,
    open_database,
    read_manifest,
    read_tree_head,
    reading,
    sqlite_errors,
)
from manta_swarm.aggregator.log.verify import Replay, TrainingSpecOf, Verification, check_tree_head, replay, verify_directory
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.automl.training.update import state_digest
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault, StorageError, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import leaf_hash
from manta_swarm.protocol.notes import MAX_NOTE_BYTES, TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.tiles import WIDTH, Tile, open_bundle
from manta_swarm.runtime.disk import (
    IDENTITY,
    DirectoryLock,
    disk_errors,
    make_directory,
    make_parent,
    only_process,
    sync_directory,
    write_durably,
)
from manta_swarm.runtime.round_folder import RoundFolder

_TRIES = 3  # the run goes on meanwhile: what a snapshot needs may be pruned while it is copied
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """What a checked copy of a folder holds."""

    name: str  # of the run
    log: Verification
    snapshot: int  # the round of the newest state in it
    num_bytes: int
    has_key: bool


def back_up(directory: Path, to: Path, *, with_key: bool) -> Copied:
    """Copy the run of ``directory`` to the new folder ``to``, whether it is at work or at rest; durable when this returns.

    Raises:
        UserError: there is no run, or ``to`` cannot be made.
        StorageError: the disk fails, or the run is damaged.
    """
    check_backup(directory, to, with_key=with_key)
    with _new_folder(to, beside=directory) as part:
        return _copied(directory, part, key=directory / IDENTITY if with_key else None)


def restore(backup: Path, directory: Path, *, key: Path | None = None) -> Copied:
    """Make the folder ``directory`` of a backup, with the key in it or the one in the file ``key``; durable when this returns.

    Raises:
        UserError: that is no backup, the key is missing or another one, or ``directory`` is in use.
        StorageError: the disk fails, or the backup is damaged.
    """
    found, operator = check_restore(backup, directory, key=key)
    with _new_folder(directory, beside=backup) as part:
        copied = _copied(backup, part, key=found)
        if copied.log.operator != operator.public_key:
            raise UserError(f"{found} is the key of another operator than the one of this run's log")
    return copied


def hand_over(directory: Path, to: Path) -> Copied:
    """Copy the run of ``directory``, which is at rest, to the new folder ``to``, with its key, and let nobody start it here again.

    Raises:
        UserError: there is no run, it is at work, or ``to`` cannot be made.
        StorageError: the disk fails, or the run is damaged.
    """
    with only_process(directory):
        copied = back_up(directory, to, with_key=True)
        mark_handed_over(directory, to.name)
    return copied


@contextlib.contextmanager
def _new_folder(folder: Path, *, beside: Path) -> Iterator[Path]:
    """Yield where to make a folder, which gets its name at the end; nothing of it is left if that fails.

    Raises:
        UserError: see ``check_new``, or it cannot be made.
    """
    check_new(folder, beside=beside)
    part = part_of(folder)
    with disk_errors(part):
        shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    make_directory(part)
    try:
        yield part
        with disk_errors(folder):
            if folder.exists():
                folder.rmdir()
            part.rename(folder)
        sync_directory(part.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _copied(directory: Path, part: Path, *, key: Path | None) -> Copied:
    """Copy what makes a run, and check the copy."""
    mark_restored(part)
    log, snapshot = _once_copied(directory, part, tries=_TRIES)
    if key is not None:
        _copy(key, part / IDENTITY, mode=0o600)
        if (directory / AUDITOR_KEY).exists():  # the manifest names it: without it this operator audits nothing
            make_parent(part / AUDITOR_KEY)
            _copy(directory / AUDITOR_KEY, part / AUDITOR_KEY, mode=0o600)
            sync_directory((part / AUDITOR_KEY).parent)
    sync_directory(part)
    num_bytes = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    return Copied(read_manifest(part).open().name, log, snapshot, num_bytes, key is not None)


def _once_copied(directory: Path, part: Path, *, tries: int) -> tuple[Verification, int]:
    """Copy log, states and contributions; return what the log adds up to, and the newest round whose state is there.

    Raises:
        StorageError: the run is damaged, or the disk fails.
    """
    try:
        for name in COPIED:
            if name == DATABASE:
                _copy_database(directory, part)
            elif (directory / name).is_dir():
                _copy_folder(directory / name, part / name)
            else:
                _copy(directory / name, part / name)
        log = verify_directory(part)
        snapshot = _newest_snapshot(part, log.rounds)
        if snapshot is None:
            raise StorageError(f"{directory} has no state from which round {log.rounds} can be computed; try again when less goes on there")
        return log, snapshot
    except StorageError:
        if tries == 1:
            raise
    for folder in (SNAPSHOTS, BODIES):
        shutil.rmtree(part / folder, ignore_errors=True)
    return _once_copied(directory, part, tries=tries - 1)


def _newest_snapshot(directory: Path, rounds: int) -> int | None:
    """Return the newest round whose state is in a copy, with the bodies of the rounds after it; None: there is none."""
    snapshots, bodies = (RoundFolder(directory / name, prefix="round-") for name in (SNAPSHOTS, BODIES))
    newest = max((each for each in snapshots.rounds(".safetensors") if each <= rounds), default=None)
    return newest if newest is not None and set(bodies.rounds()).issuperset(range(newest + 1, rounds + 1)) else None


def _copy_database(directory: Path, part: Path) -> None:
    """Copy the log as it is at one moment, whatever is written to it meanwhile."""
    at_rest = is_at_rest(directory)
    path = part / DATABASE
    with disk_errors(path):
        path.unlink(missing_ok=True)
    with reading(directory, at_rest=at_rest) as connection, sqlite_errors(path):
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = EXTRA")
            connection.backup(copy)
        finally:
            copy.close()
    _sync(path)


def _copy_folder(source: Path, target: Path) -> None:
    make_directory(target)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".part":
            _copy(path, target / path.name)
    sync_directory(target)


def _copy(source: Path, target: Path, *, mode: int = 0o644) -> None:
    """Copy a file, durably; one that is not there, or not any more, is passed over."""
    with disk_errors(target):
        try:
            reading_ = source.open("rb")
        except FileNotFoundError:
            return
        with reading_, open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as writing:
            shutil.copyfileobj(reading_, writing, _PIECE_BYTES)
            writing.flush()
            os.fsync(writing.fileno())


def _sync(path: Path) -> None:
    with disk_errors(path), path.open("rb") as file:
        os.fsync(file.fileno())


# A state alone.


def take_snapshot(directory: Path, out: Path) -> tuple[int, str]:
    """Copy the newest state of the run in ``directory`` to the new file ``out``, and its proof beside it; return its round and digest.

    Raises:
        UserError: there is no run or no state, or ``out`` is there already or cannot be written.
        StorageError: the disk fails, or the state is damaged.
    """
    proof_out = check_snapshot(directory, out)
    try:
        making = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent)
    except OSError as error:
        raise UserError(f"cannot write to {out.absolute().parent}: {error.strerror}") from error
    with making as temporary:
        part, proof_part = Path(temporary) / out.name, Path(temporary) / proof_out.name
        _copy_newest(directory / SNAPSHOTS, part, proof_part)
        try:
            state, metadata = load_snapshot(part)
        except UserError as error:  # nobody chose that file
            raise StorageError(f"the newest state of {directory} is damaged: {error}") from error
        digest = state_digest(state).hex()
        if metadata.get("state") != digest:
            raise StorageError(f"the newest state of {directory} is damaged: its digest is another one than it says")
        with disk_errors(out):
            proof_part.rename(proof_out)
            part.rename(out)
        sync_directory(out.absolute().parent)
    return state.round, digest


def _copy_newest(snapshots: Path, part: Path, proof_part: Path) -> None:
    """Copy the newest state that has a proof, and the proof.

    Raises:
        UserError: there is none.
        StorageError: the disk fails.
    """
    for _ in range(_TRIES):
        for proof in sorted(snapshots.glob("round-*.json"), reverse=True):
            try:
                data, state = proof.read_bytes(), proof.with_suffix(".safetensors").open("rb")
            except FileNotFoundError:
                continue  # it was pruned a moment ago
            except OSError as error:
                raise StorageError(f"{proof} and its state cannot be read: {error.strerror}; check the disk and the permissions") from error
            with state, disk_errors(part), part.open("wb") as copy:
                shutil.copyfileobj(state, copy)
                proof_part.write_bytes(data)
            return
    raise UserError(f"{snapshots} has no state that the log has")


# What a folder lacks.


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a folder's log came to after missing entries were put back."""

    head: TreeHead  # that the log has now
    new_entries: int
    ledger: Ledger


def recover(directory: Path, copy: Copy, *, training_spec_of: TrainingSpecOf = ManifestTrainingSpec) -> Recovered:
    """Get back what the log in ``directory`` lacks and ``copy`` has; durable when this returns.

    Raises:
        UserError: there is no log, an aggregator uses it, or it was handed over; or the copy is not of it, does not hold, or has another
            history.
        StorageError: the log in the folder is damaged in another way, or the disk fails; nothing has changed.
        OtherHistory: what was got is kept, and more is known to be missing.
    """
    signed = read_manifest(directory)
    with ExitStack() as undo:
        undo.callback(DirectoryLock(directory, "peer or aggregator").release)
        undo.callback(DirectoryLock(directory, "aggregator", name=LOCK).release)
        refuse_handed_over(directory)
        connection = open_database(directory)
        undo.callback(connection.close)
        with sqlite_errors(directory / DATABASE):
            log = replay(connection, signed, training_spec_of)
            check_tree_head(read_tree_head(directory), signed, log)
            note, head = _head_of(copy, signed)
            first = log.tree.size
            entries, nodes = list[bytes](), list[tuple[int, int, bytes]]()
            for entry in _missing(copy, first, head.size):
                _append(log, entry)
                entries.append(entry)
                nodes += log.tree.append(leaf_hash(entry))
            _check_history(log, head, first)
            if entries:
                mark_restored(directory)  # the guard asks a peer, whatever this folder was before
                append_rows(connection, first, entries, nodes, log.tree)
                write_durably(directory / TREE_HEAD, note.encode())
        check_evidence(directory, log.tree)
    return Recovered(TreeHead(head.origin, log.tree.size, log.tree.root()), len(entries), log.ledger)


def _head_of(copy: Copy, signed: SignedManifest) -> tuple[str, TreeHead]:
    """Return a copy's tree head, and the note of it with the operators' signatures that it counts by."""
    if copy.read(MANIFEST, MAX_SIGNED_MANIFEST_BYTES) != pack(signed):
        raise UserError("that is a copy of another run's log: its manifest is another one")
    operators = Operators.of_signed(signed)
    try:
        note = operators.quorum_note(copy.read(CHECKPOINT, MAX_NOTE_BYTES).decode())
        return note, operators.open(note)
    except (UnicodeDecodeError, RemoteFault) as error:
        raise UserError(f"the copy's {CHECKPOINT} does not hold: {error}") from error


def _missing(copy: Copy, first: int, size: int) -> Iterator[bytes]:
    """Yield the entries from ``first`` to before ``size``."""
    for index in range(first // WIDTH, -(-size // WIDTH)):
        tile = Tile(None, index, min(WIDTH, size - index * WIDTH))
        try:
            bundle = open_bundle(copy.read(tile.path, MAX_BUNDLE_BYTES), tile.width)
        except RemoteFault as error:
            raise UserError(f"the copy's {tile.path} does not hold: {error}") from error
        yield from bundle[max(0, first - tile.first) :]


def _append(log: Replay, entry: bytes) -> None:
    try:
        log.ledger.append(entry)
    except RemoteFault as error:
        raise UserError(f"the copy's entry {log.ledger.size} may not follow what is in the folder: {error}; nothing was changed") from error


def _check_history(log: Replay, head: TreeHead, first: int) -> None:
    """Refuse a copy that is not of the history that the folder has."""
    if head.size < first:
        if log.tree.root(head.size) == head.root:
            return  # an older copy: nothing to get
    elif log.tree.root() == head.root and log.ledger.is_between_rounds:
        return
    raise UserError(
        f"the copy's {head.size} entries are not of one history with the {first} in the folder: this log's key has signed for both; "
        "keep both, nothing was changed"
    )
