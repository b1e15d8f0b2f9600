"""A tree head that counts and that this log does not have: kept on the disk, for such a log may never sign again.

DIR/newer-head.proof   what whoever holds that head showed (a packed ``protocol.histories.Histories``); it goes once the log has it
"""

from pathlib import Path

from protocol.encoding import pack, unpack
from protocol.errors import OtherHistory, RemoteFault, StorageError
from protocol.histories import Departure, Histories, Shown
from protocol.merkle import Tree
from runtime.disk import disk_errors, sync_directory, write_durably

EVIDENCE = "newer-head.proof"
MAX_EVIDENCE_BYTES = 1 << 20


def keep_evidence(directory: Path, evidence: Histories) -> None:
    """Keep what shows that the log in ``directory`` is not what its key has signed for; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    write_durably(directory / EVIDENCE, pack(evidence))


def check_evidence(directory: Path, tree: Tree) -> None:
    """Check the entries of a log, its ``tree``, against what is kept; evidence that holds no more is removed.

    Raises:
        OtherHistory: the log still lacks what its key has signed for.
        StorageError: the evidence cannot be read.
    """
    path = directory / EVIDENCE
    if not path.exists():
        return
    with disk_errors(path), path.open("rb") as file:
        data = file.read(MAX_EVIDENCE_BYTES + 1)
    try:
        shown = unpack(Histories, data, max_bytes=MAX_EVIDENCE_BYTES).check()
    except RemoteFault as error:
        raise StorageError(f"{path} is damaged: {error}; restore it, or the whole directory, from a backup") from error
    head = shown.held
    if head.size > tree.size or head.root != tree.root(head.size):
        raise OtherHistory(in_words(shown, directory))
    with disk_errors(path):
        path.unlink()
    sync_directory(directory)


def in_words(shown: Shown, directory: Path) -> str:
    """Return one line for the operator: what is wrong with the log in ``directory``, and what to do."""
    if shown.departure is Departure.WENT_BACK:
        missing = shown.held.size - shown.shown.size
        what = (
            f"the log in {directory} has {shown.shown.size} entries, and its key has signed for {shown.entries_held}: "
            f"{missing} entries are missing, it is an older copy"
        )
    else:
        what = f"the log in {directory} is not the only one that its key has signed: another, of {shown.entries_held}, has others"
    return (
        f"{what}; nothing more is signed. Put back the folder that has them all, or what it lacks out of an export of the log "
        "(manta-aggregator recover); if nobody has it, this run is over: begin a new one from its newest state "
        f"(docs/operators.md, Restore). The proof is in {directory / EVIDENCE}"
    )
