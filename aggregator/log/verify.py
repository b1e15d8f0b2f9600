"""Checks a log's directory from scratch: every entry, every stored node, the signed tree head; and what everybody has earned.

Needs no private key and writes nothing; works beside a running aggregator and on a copy. ``aggregator.log.log`` runs the same checks when
it opens, but for signatures that were checked before the log's own key signed a head over them. What no directory can show by itself:
that it is the newest (a witness, or whoever kept a later tree head, can).
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.storage import DATABASE, TREE_HEAD, is_at_rest, read_manifest, read_tree_head, reading
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.errors import RemoteFault, StorageError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.merkle import Frontier, Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.reputation import Reputation
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verified import Verified

TrainingSpecOf = Callable[[Manifest], TrainingSpec]
RESTORE = "restore the directory from a backup or another operator's mirror, or start a new run; do not delete single files"


@dataclass(frozen=True, slots=True)
class Verification:
    """A log that held every check, as of one moment."""

    run: bytes
    operator: bytes  # whose log it is
    size: int  # entries
    root: bytes  # of the tree over all of them
    rounds: int  # committed
    num_rounds: int  # of the run
    finished: bool  # the manifest's last round among them
    is_settled: bool  # all that the run pays is paid
    reputation: Reputation  # who is proven, what was found out, and what everybody has earned
    is_private: bool  # the data: nobody but a peer can ever compute its microbatches again
    tree_head: str  # the last signed note, which holds
    signed_size: int  # entries under it: fewer than ``size`` for the moment between writing entries and signing them

    @property
    def credits(self) -> dict[bytes, int]:
        """Payout account -> what was paid to it; who has nothing is not in it."""
        return self.reputation.credits()


@dataclass(frozen=True, slots=True)
class Replay:
    """A log's state, rebuilt from its entries alone."""

    operator: bytes
    ledger: Ledger
    tree: Tree


def verify_directory(
    directory: Path, *, training_spec_of: TrainingSpecOf = ManifestTrainingSpec, on_round: Callable[[Ledger], None] | None = None
) -> Verification:
    """Return what the log in ``directory`` adds up to, everything in it checked; ``on_round`` as in ``replay``.

    Raises:
        UserError: there is no log in it.
        StorageError: something in it does not hold; the message names the first entry, node or file at fault.
    """
    at_rest = is_at_rest(directory)
    try:
        return _verify(directory, training_spec_of, on_round, at_rest=at_rest)
    except StorageError:
        if at_rest and not is_at_rest(directory):  # an aggregator has started meanwhile, and the file changed while we read it
            return _verify(directory, training_spec_of, on_round, at_rest=False)
        raise


def _verify(directory: Path, training_spec_of: TrainingSpecOf, on_round: Callable[[Ledger], None] | None, *, at_rest: bool) -> Verification:
    signed = read_manifest(directory)
    note = read_tree_head(directory)  # before the entries: of a running log they are then as new as it, or newer
    with reading(directory, at_rest=at_rest) as connection:
        log = replay(connection, signed, training_spec_of, on_round)
    head = check_tree_head(note, signed, log)
    return Verification(
        run=signed.run,
        operator=log.operator,
        size=log.tree.size,
        root=log.tree.root(),
        rounds=log.ledger.round,
        num_rounds=log.ledger.manifest.num_rounds,
        finished=log.ledger.finished,
        is_settled=log.ledger.settled,
        reputation=log.ledger.reputation,
        is_private=log.ledger.manifest.is_private,
        tree_head=note,
        signed_size=head.size,
    )


def replay(
    connection: sqlite3.Connection,
    signed: SignedManifest,
    training_spec_of: TrainingSpecOf = ManifestTrainingSpec,
    on_round: Callable[[Ledger], None] | None = None,
    held: TreeHead | None = None,
) -> Replay:
    """Return the log behind ``connection``, each entry validated in turn and each stored node recomputed.

    Args:
        connection: to its database.
        signed: the run's manifest.
        training_spec_of: what a manifest's training asks of a round.
        on_round: is given the ledger after each of its rounds.
        held: a head that was signed by who had validated every entry under it. If the entries hash to it, the signatures of claims and
            contributions among them are not checked again; all else is. If not, or where it is None: every signature.

    Raises:
        StorageError: an entry, a node or the stored size and root do not hold.
    """
    rows = connection.execute("SELECT run, operator, size, root FROM log").fetchall()
    if len(rows) != 1:
        raise StorageError(f"{DATABASE} is damaged: it does not say whose log it is; {RESTORE}")
    run, operator, size, root = rows[0]
    if run != signed.run:
        raise StorageError(f"{DATABASE} is of another run than the manifest beside it; {RESTORE}")
    ledger, tree, nodes = Ledger(signed, training_spec_of(signed.open())), Tree(), _StoredLevels(connection)
    if operator not in ledger.manifest.operators:
        raise StorageError(f"{DATABASE} is of an operator that the manifest does not name; {RESTORE}")
    num_held = held.size if held is not None and _has(connection, held) else 0
    checked, ledger.verified = ledger.verified, Verified(signed_before=True)
    for index, (position, entry) in enumerate(connection.execute("SELECT position, bytes FROM entries ORDER BY position")):
        if position != index:
            raise StorageError(f"entry {index} is missing; {RESTORE}")
        if index == num_held:
            ledger.verified = checked
        committed = ledger.round
        _append(ledger, index, entry)
        if on_round is not None and ledger.round != committed:
            on_round(ledger)
        for node in tree.append(leaf_hash(entry)):
            nodes.check(index, *node)
    ledger.verified = checked
    if (size, root) != (tree.size, tree.root()):
        raise StorageError(f"the log holds {tree.size} entries, but not those of the size ({size}) and root stored with them; {RESTORE}")
    if connection.execute("SELECT COUNT(*) FROM nodes").fetchone() != (nodes.count,):
        raise StorageError(f"there are stored nodes that no tree of {tree.size} entries has; {RESTORE}")
    nodes.close()
    if not ledger.is_between_rounds:
        raise StorageError(f"the log ends in the middle of a round; {RESTORE}")
    return Replay(operator, ledger, tree)


def _append(ledger: Ledger, index: int, entry: object) -> None:
    if type(entry) is not bytes:
        raise StorageError(f"entry {index} does not hold: not bytes; {RESTORE}")
    try:
        ledger.append(entry)
    except RemoteFault as error:
        raise StorageError(f"entry {index} does not hold: {error}; {RESTORE}") from error


def _has(connection: sqlite3.Connection, head: TreeHead) -> bool:
    """Return whether the first entries are those under a tree head."""
    frontier = Frontier()
    for (entry,) in connection.execute("SELECT bytes FROM entries ORDER BY position LIMIT ?", (head.size,)):
        if type(entry) is not bytes:
            return False
        frontier.append(leaf_hash(entry))
    return frontier.size == head.size and frontier.root() == head.root


class _StoredLevels:
    """The stored nodes, compared with those that a tree should have: each level's from the left, and so read in one go."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._levels: list[sqlite3.Cursor] = []
        self.count = 0  # compared so far

    def check(self, index: int, level: int, position: int, expected: bytes) -> None:
        """Check the next node of a level, which entry ``index`` completed.

        Raises:
            StorageError: it is not stored, or is another.
        """
        if level == len(self._levels):
            query = "SELECT position, hash FROM nodes WHERE level = ? AND position >= 0 ORDER BY position"
            self._levels.append(self._connection.execute(query, (level,)))
        stored = next(self._levels[level], None)
        if stored != (position, expected):
            what = "is not what its entries hash to" if stored is not None and stored[0] == position else "is not stored"
            raise StorageError(f"entry {index}: the tree node at level {level}, position {position}, {what}; {RESTORE}")
        self.count += 1

    def close(self) -> None:
        """Read no further: what is half read keeps the database from moving its WAL."""
        for level in self._levels:
            level.close()


def check_tree_head(note: str, signed: SignedManifest, log: Replay) -> TreeHead:
    """Return the tree head in ``note``, the last one that this log's operator signed, if the log still holds what it promised then.

    Where a run has several operators, it may also be one that enough of them signed, and that it got from them.

    Raises:
        StorageError: the note does not hold, or the log is behind it or has other entries.
    """
    try:
        head = Operators.of_signed(signed).open_own(note, log.operator)
    except RemoteFault as error:
        raise StorageError(f"{TREE_HEAD} does not hold: {error}; {RESTORE}") from error
    if head.size > log.tree.size:
        raise StorageError(f"the log has lost entries: it holds {log.tree.size} and has signed a tree head of {head.size}; {RESTORE}")
    if head.root != log.tree.root(head.size):
        raise StorageError(f"the log's first {head.size} entries are not those it has signed a tree head of; {RESTORE}")
    return head


def held_by(note: str, signed: SignedManifest, operator: PublicKey) -> TreeHead | None:
    """Return the tree head in ``note`` if ``operator`` signed it; None: it did not, or it is no such note."""
    try:
        found = Operators.of_signed(signed).signers(note)
    except RemoteFault:
        return None
    return found.head if operator in found.keys else None
