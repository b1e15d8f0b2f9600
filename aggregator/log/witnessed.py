"""Which tree heads of a log witnesses have cosigned: the newest of each, kept beside the log, and put into what is shown of it.

DIR/witnessed   a packed tuple of signed notes, each with the cosignature of one witness; lost, it comes back with the next cosignatures
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.protocol.cosignatures import MAX_COSIGNATURES, Cosignature, cosignatures_of, with_cosignatures
from manta_swarm.protocol.errors import EncodingError, RemoteFault
from manta_swarm.protocol.notes import TreeHead, open_tree_head, own_note, split_note
from manta_swarm.runtime.atomic_file import AtomicFile, DamagedFile

WITNESSED = "witnessed"
_MAX_NOTE_BYTES = 1024
_MAX_BYTES = MAX_COSIGNATURES * (_MAX_NOTE_BYTES + 8)


@dataclass(frozen=True, slots=True)
class _Notes:
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.notes) > MAX_COSIGNATURES or any(len(note) > _MAX_NOTE_BYTES for note in self.notes):
            raise ValueError("more cosignatures than a log hands out")


@dataclass(frozen=True, slots=True)
class Witnessed:
    """The newest tree head of a log that one witness has cosigned."""

    head: TreeHead
    note: str  # signed by the log, without cosignatures
    cosignature: Cosignature


def keep_witnessed(directory: Path, witnessed: Sequence[Witnessed]) -> None:
    """Keep what ``read_witnessed`` returns.

    Raises:
        StorageError: the disk refuses.
    """
    notes = tuple(with_cosignatures(each.note, [each.cosignature]) for each in witnessed)
    _file(directory).save(_Notes(notes))


def read_witnessed(directory: Path, name: str, operator: bytes) -> list[Witnessed]:
    """Return what was kept of the log called ``name``, every signature checked; what does not hold is left out.

    Whether the log has these heads is for the caller to see.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        return [_opened(note, name, operator) for note in (_file(directory).load(_Notes) or _Notes(())).notes]
    except (DamagedFile, RemoteFault):  # nobody depends on it, and it comes again
        return []


def _file(directory: Path) -> AtomicFile:
    return AtomicFile(directory / WITNESSED, _MAX_BYTES, is_synced=False)


def _opened(note: str, name: str, operator: bytes) -> Witnessed:
    own = own_note(note, name)
    head, cosignatures = open_tree_head(own, name, operator), cosignatures_of(note)
    if len(cosignatures) != 1 or head.origin != name:
        raise EncodingError("not the cosignature of a witness of this log")
    return Witnessed(head, own, cosignatures[0])


def checkpoint(note: str, witnessed: Sequence[Witnessed]) -> str:
    """Return the newest signed note with the cosignatures that there are of that head."""
    text, _ = split_note(note)
    return with_cosignatures(note, [each.cosignature for each in _in_order(witnessed) if split_note(each.note)[0] == text])


def newest_witnessed(witnessed: Sequence[Witnessed]) -> str | None:
    """Return the note of the newest head that has a cosignature, with all that it has; None: none has any."""
    if not witnessed:
        return None
    newest = max(witnessed, key=lambda each: each.head.size)
    return checkpoint(newest.note, witnessed)


def _in_order(witnessed: Sequence[Witnessed]) -> list[Witnessed]:
    return sorted(witnessed, key=lambda each: each.cosignature.key)
