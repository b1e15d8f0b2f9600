"""The rollback guard: a log that may not be the newest signs nothing. All that a run's folder says of that, and who reads and writes it.

DIR/place.json         {"inode": N}: where the database lies on the disk, and a copy of the folder lies elsewhere; {"restored": true}: it is
                       a copy, and has not heard yet whether it is the newest; {"handed_over_to": NAME}: the run goes on elsewhere
DIR/newer-head.proof   what whoever holds a head showed that counts and that this log has not (a packed ``protocol.histories.Histories``);
                       it goes once the log has it

After each start the log hears those first who may know more. Whoever is in its last table holds its newest head, or a newer one, and comes
back to the log within seconds. A folder that is a copy stays guarded until one of these says that it knows nothing newer. Loads no torch.
"""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from manta_swarm.aggregator.log.storage import DATABASE
from manta_swarm.network import timeouts
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import OtherHistory, RemoteFault, StorageError, UserError
from manta_swarm.protocol.histories import Departure, Histories, Shown
from manta_swarm.protocol.merkle import Tree
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.atomic_file import AtomicFile
from manta_swarm.runtime.console import Console
from manta_swarm.runtime.disk import disk_errors
from manta_swarm.runtime.tasks import wait_within

if TYPE_CHECKING:
    from manta_swarm.aggregator.log.log import Log

PLACE = "place.json"
EVIDENCE = "newer-head.proof"
MAX_EVIDENCE_BYTES = 1 << 20
_MAX_PLACE_BYTES = 4096
_INODE, _RESTORED, _HANDED_OVER = "inode", "restored", "handed_over_to"


# What the folder says of itself.


def mark_restored(directory: Path) -> None:
    """Mark a folder as a copy; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    _write_place(directory, {_RESTORED: True})


def mark_handed_over(directory: Path, to: str) -> None:
    """Let nobody start the run of ``directory`` again; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    _write_place(directory, {_HANDED_OVER: to})


def is_marked_restored(directory: Path) -> bool:
    """Return whether a folder is marked as a copy."""
    return _RESTORED in (_place(directory) or {})


def refuse_handed_over(directory: Path) -> None:
    """Refuse a folder whose run was handed over.

    Raises:
        UserError: it was.
    """
    if _HANDED_OVER in (_place(directory) or {}):
        raise UserError(
            f"the run of {directory} was handed over: it goes on elsewhere, and here nobody may sign for it any more "
            f"(if it never began there, remove {directory / PLACE})"
        )


def _write_place(directory: Path, place: dict[str, object]) -> None:
    AtomicFile(directory / PLACE, _MAX_PLACE_BYTES).write(json.dumps(place).encode())


def _place(directory: Path) -> dict[str, object] | None:
    """Return what a folder says of its place; nothing where that is damaged; None: there is no such file."""
    try:
        data = AtomicFile(directory / PLACE, _MAX_PLACE_BYTES).read()
        found = None if data is None else json.loads(data)
    except (StorageError, ValueError):
        return {}
    return found if found is None or isinstance(found, dict) else {}


# What others have shown.


def keep_evidence(directory: Path, evidence: Histories) -> None:
    """Keep what shows that the log in ``directory`` is not what its key has signed for; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    _evidence(directory).write(pack(evidence))


def check_evidence(directory: Path, tree: Tree) -> None:
    """Check the entries of a log, its ``tree``, against what is kept; evidence that holds no more is removed.

    Raises:
        OtherHistory: the log still lacks what its key has signed for.
        StorageError: the evidence cannot be read.
    """
    file = _evidence(directory)
    if (data := file.read()) is None:
        return
    try:
        shown = unpack(Histories, data, max_bytes=MAX_EVIDENCE_BYTES).check()
    except RemoteFault as error:
        raise file.damaged(str(error)) from error
    head = shown.held
    if head.size > tree.size or head.root != tree.root(head.size):
        raise OtherHistory(in_words(shown, directory))
    file.remove()


def _evidence(directory: Path) -> AtomicFile:
    return AtomicFile(directory / EVIDENCE, MAX_EVIDENCE_BYTES, "restore it, or the whole directory, from a backup")


def in_words(shown: Shown, directory: Path) -> str:
    """Return one line for the operator: what is wrong with the log in ``directory``, and what to do."""
    if shown.departure is Departure.ROLLED_BACK:
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


# After a start.


class RollbackGuard:
    """Keeps a log from signing until it is known to be the newest; one object for each start of the program."""

    def __init__(self, directory: Path, log: "Log", console: Console, *, is_newest: bool = False) -> None:
        """Look at the folder of an open log; ``is_newest`` is the operator's word that nothing newer was ever signed."""
        self._directory = directory
        self._log = log
        self._console = console
        self._is_newest = is_newest
        self.why = self._why()  # this folder stays guarded; empty: it does not
        self._expected = log.ledger.last_keys
        self._heard: set[PublicKey] = set()
        self._has_word = False  # one of those expected holds just what this log has
        self._changed = asyncio.Event()

    def _why(self) -> str:
        place = _place(self._directory)
        if place is None:
            return ""  # it was not started yet
        if _RESTORED in place:
            return "was made from a backup"
        if not isinstance(inode := place.get(_INODE), int):
            return f"may be a copy, for its {PLACE} is damaged or cannot be read"
        return "" if inode == self._inode() else "is a copy"

    def _inode(self) -> int:
        path = self._directory / DATABASE
        with disk_errors(path):
            return path.stat().st_ino

    def check_newest(self) -> None:
        """Refuse a copy in a run of several operators, which may have forgotten what it promised the others.

        Raises:
            UserError: this folder is one.
            StorageError: that it is none cannot be noted on the disk.
        """
        if self.why and not self._is_newest:
            raise UserError(
                f"{self._directory} {self.why}: it may have forgotten what it promised the run's other operators; if it has all that "
                "was ever written there, start with --newest; if not, this operator's key may not be used in this run any more"
            )
        self._note()

    def heard(self, key: PublicKey, held: ProvenRound | None) -> None:
        """Take note that a peer said which round it knows as the newest; that the log has it was checked."""
        if key not in self._expected:
            return
        self._heard.add(key)
        self._has_word |= held is not None and held.commit == self._log.ledger.last_commit
        self._changed.set()

    async def lifted(self) -> None:
        """Return once rounds may be signed.

        Raises:
            StorageError: that cannot be noted on the disk.
        """
        ledger = self._log.ledger
        if ledger.settled:
            return
        if self.why and not self._is_newest:
            self._console.say(
                f"this folder {self.why}: nothing is signed before a peer of its last round ({ledger.round}) says that it knows "
                "no newer one; if nobody can say so, and you know that it has all: start with --newest"
            )
        deadline = asyncio.get_running_loop().time() + timeouts.HEARD_S
        while not self._expected <= self._heard and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            self._changed.clear()
            await wait_within(self._changed, left_s)
        while self.why and not self._is_newest and not self._has_word:
            self._changed.clear()
            await self._changed.wait()
        if self.why:
            self._console.say(
                f"this folder is the newest{', by your word' if self._is_newest else ''}: the run goes on after round {ledger.round}"
            )
        self._note()

    def _note(self) -> None:
        _write_place(self._directory, {_INODE: self._inode()})
