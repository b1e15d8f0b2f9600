"""A log as files (``aggregator.log.tiles``), verified from them alone: an export, or what a server shows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.contents import CHECKPOINT, check_exported
from manta_swarm.aggregator.log.copies import MAX_BUNDLE_BYTES, Copy, FolderCopy, note_in, signed_manifest_of
from manta_swarm.aggregator.log.tiles import head_of
from manta_swarm.aggregator.log.verify import TrainingSpecOf
from manta_swarm.aggregator.log.witnessed import WITNESSED
from manta_swarm.automl.training.asked import AskedTrainingSpec
from manta_swarm.protocol.cosignatures import Cosignature, cosignatures_of
from manta_swarm.protocol.errors import NoSuchFile, RemoteFault, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.reputation import Reputation
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.tiles import MAX_TILE_BYTES, Tile, open_bundle, tile_hashes, tiles_of


@dataclass(frozen=True, slots=True)
class Shown:
    """What static files show, every check held."""

    run: bytes
    operators: tuple[PublicKey, ...]  # who signed the head
    head: TreeHead
    rounds: int
    num_rounds: int  # of the run
    is_settled: bool  # see ``aggregator.log.verify.Verification``
    reputation: Reputation
    is_unaudited: bool  # see ``aggregator.log.verify.Verification``
    witnesses: tuple[tuple[int, Cosignature], ...] = ()  # cosignatures, each with the size of the head that it is of

    @property
    def credits(self) -> dict[bytes, int]:
        """Payout account -> what was paid to it; who has nothing is not in it."""
        return self.reputation.credits()


class Check:
    """The check of one log as files: each entry after those before it, each tile, the signed tree head and what witnesses signed.

    Needs nothing else, and believes nobody: that it is the newest only a witness, or who kept a later tree head, can tell.
    """

    def __init__(self, copy: Copy, *, training_spec_of: TrainingSpecOf = AskedTrainingSpec) -> None:
        """Read which run it is of, and its tree head.

        Raises:
            UserError: it is no such copy, or one of those does not hold.
            StorageError: it cannot be read.
        """
        self._copy = copy
        self._signed = signed_manifest_of(copy)
        manifest = self._signed.open()
        try:
            training_spec = training_spec_of(manifest)
        except ValueError as error:
            raise UserError(f"{copy.place}: {error}; install the version that the operator names") from error
        self._ledger, self._tree = Ledger(self._signed, training_spec), Tree()
        self._operators = Operators.of(manifest, self._signed.run)
        self._note = note_in(copy, CHECKPOINT)
        self.head = head_of(self._note, self._operators, copy.place)

    def entries(self) -> Iterator[int]:
        """Check the entries, and yield after each bundle how many of them hold.

        Raises:
            UserError: something does not hold; the message names the first file at fault.
            StorageError: it cannot be read.
        """
        for tile in tiles_of(self.head.size):
            if tile.level is not None:
                break
            for place, entry in enumerate(_entries(self._copy, tile), tile.first):
                try:
                    self._ledger.append(entry)
                except RemoteFault as error:
                    raise UserError(f"{self._copy.place}/{tile.path}: entry {place} does not hold: {error}") from error
                self._tree.append(leaf_hash(entry))
            yield self._tree.size

    def shown(self) -> Shown:
        """Return what the log shows, once all of its entries hold.

        Raises:
            UserError, StorageError: as ``entries``.
        """
        copy, ledger, tree = self._copy, self._ledger, self._tree
        witnesses = _witnesses(copy, tree, self._operators)
        if tree.root() != self.head.root or not ledger.is_between_rounds:
            raise UserError(f"{copy.place}/{CHECKPOINT}: the entries are not those that it was signed for")
        for tile in tiles_of(self.head.size):
            if tile.level is not None and copy.read(tile.path, MAX_TILE_BYTES) != tile_hashes(tree, tile):
                raise UserError(f"{copy.place}/{tile.path} is not what lies below it comes to")
        return Shown(
            run=self._signed.run,
            operators=self._operators.signers(self._note).in_order,
            head=self.head,
            rounds=ledger.round,
            num_rounds=ledger.manifest.num_rounds,
            is_settled=ledger.settled,
            reputation=ledger.reputation,
            is_unaudited=ledger.manifest.is_private,
            witnesses=witnesses,
        )


def verify(folder: Path, *, training_spec_of: TrainingSpecOf = AskedTrainingSpec) -> Shown:
    """Return what an export in ``folder`` shows: see ``Check``.

    Raises:
        UserError: it is no export, or something in it does not hold; the message names the first file at fault.
        StorageError: it cannot be read.
    """
    check_exported(folder)
    check = Check(FolderCopy(folder), training_spec_of=training_spec_of)
    for _ in check.entries():
        pass
    return check.shown()


def _witnesses(copy: Copy, tree: Tree, operators: Operators) -> tuple[tuple[int, Cosignature], ...]:
    """Return the cosignatures in a copy, each with the size of the head that it is of.

    Raises:
        UserError: one does not hold, or is of a head of another tree.
    """
    found: dict[tuple[int, bytes], Cosignature] = {}
    for name in (WITNESSED, CHECKPOINT):
        try:
            note = note_in(copy, name)
        except NoSuchFile:
            if name == WITNESSED:  # no witness has signed yet
                continue
            raise
        try:
            cosigned = operators.signers(note).head
            cosignatures = cosignatures_of(note)
        except RemoteFault as error:
            raise UserError(f"{copy.place}/{name} does not hold: {error}") from error
        if cosigned.size > tree.size or tree.root(cosigned.size) != cosigned.root:
            raise UserError(f"{copy.place}/{name}: the entries are not those that it was signed for")
        found.update({(cosigned.size, each.key): each for each in cosignatures if each.key not in operators})
    return tuple((size, each) for (size, _), each in sorted(found.items()))


def _entries(copy: Copy, tile: Tile) -> list[bytes]:
    data = copy.read(tile.path, MAX_BUNDLE_BYTES)
    try:
        return open_bundle(data, tile.width)
    except RemoteFault as error:
        raise UserError(f"{copy.place}/{tile.path}: {error}") from error
