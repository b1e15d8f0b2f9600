"""The entries that a folder of a run lacks, got back from a copy of its log that others have: an export, or the files below /tlog/.

Nothing is signed: what is got back was signed, by this log's key, and every entry is checked as if it came from a stranger. All of it is
written at once, or nothing. Rounds that no copy has stay missing, and a log that is known to have signed for them stays stopped.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aggregator.log.copies import MAX_BUNDLE_BYTES, Copy
from aggregator.log.copying import CHECKPOINT
from aggregator.log.guard import check_evidence, mark_restored, refuse_handed_over
from aggregator.log.storage import (
    DATABASE,
    LOCK,
    MANIFEST,
    TREE_HEAD,
    append_rows,
    open_database,
    read_manifest,
    read_tree_head,
    sqlite_errors,
)
from aggregator.log.verify import CourseOf, Replay, check_tree_head, replay
from automl.training.course import RunCourse
from protocol.encoding import pack
from protocol.errors import RemoteFault, UserError
from protocol.ledger import Ledger
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from protocol.merkle import leaf_hash
from protocol.notes import MAX_NOTE_BYTES, TreeHead
from protocol.operators import Operators
from protocol.tiles import WIDTH, Tile, open_bundle
from runtime.disk import DirectoryLock, write_durably


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a folder."""

    head: TreeHead  # that the log has now
    new_entries: int
    ledger: Ledger


def recover(directory: Path, copy: Copy, *, course_of: CourseOf = RunCourse) -> Recovered:
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
            log = replay(connection, signed, course_of)
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
        note = operators.counted(copy.read(CHECKPOINT, MAX_NOTE_BYTES).decode())
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
