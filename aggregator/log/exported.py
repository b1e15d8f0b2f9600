"""An exported log (``aggregator.log.tiles``), verified from its files alone."""

from dataclasses import dataclass
from pathlib import Path

from aggregator.log.copying import CHECKPOINT, check_exported
from aggregator.log.storage import MANIFEST
from aggregator.log.tiles import head_of, note_of, read_file
from aggregator.log.verify import CourseOf
from aggregator.log.witnessed import WITNESSED
from automl.training.course import RunCourse
from protocol.cosignatures import Cosignature, cosignatures_of
from protocol.errors import OtherVersion, RemoteFault, UserError
from protocol.ledger import Ledger
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from protocol.merkle import Tree, leaf_hash
from protocol.notes import TreeHead
from protocol.operators import Operators
from protocol.records import MAX_ENTRY_BYTES
from protocol.reputation import Reputation
from protocol.signing import PublicKey
from protocol.tiles import MAX_TILE_BYTES, WIDTH, Tile, open_bundle, tile_hashes, tiles_of

_MAX_BUNDLE_BYTES = WIDTH * (2 + MAX_ENTRY_BYTES)


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


def verify(folder: Path, *, course_of: CourseOf = RunCourse) -> Shown:
    """Return what an export in ``folder`` shows: each entry checked after those before it, each tile, and the signed tree head.

    Needs nothing else, and believes nobody: that it is the newest only a witness, or who kept a later tree head, can tell.

    Raises:
        UserError: it is no export, or something in it does not hold; the message names the first file at fault.
        StorageError: it cannot be read.
    """
    signed = _manifest(folder)
    manifest = signed.open()
    try:
        course = course_of(manifest)
    except ValueError as error:
        raise UserError(f"{folder}: {error}; install the version that the operator names") from error
    ledger, tree = Ledger(signed, course), Tree()
    operators = Operators.of(manifest, signed.run)
    note = note_of(folder)
    head = head_of(note, operators, folder)
    for tile in tiles_of(head.size):
        if tile.level is not None:
            break
        for place, entry in enumerate(_entries(folder, tile), tile.first):
            try:
                ledger.append(entry)
            except RemoteFault as error:
                raise UserError(f"{folder / tile.path}: entry {place} does not hold: {error}") from error
            tree.append(leaf_hash(entry))
    witnesses = _witnesses(folder, tree, operators)
    if tree.root() != head.root or not ledger.is_between_rounds:
        raise UserError(f"{folder / CHECKPOINT}: the entries are not those that it was signed for")
    for tile in tiles_of(head.size):
        if tile.level is not None and read_file(folder / tile.path, MAX_TILE_BYTES) != tile_hashes(tree, tile):
            raise UserError(f"{folder / tile.path} is not what lies below it comes to")
    return Shown(
        run=signed.run,
        operators=operators.signers(note).in_order,
        head=head,
        rounds=ledger.round,
        num_rounds=manifest.num_rounds,
        is_settled=ledger.settled,
        reputation=ledger.reputation,
        is_unaudited=manifest.is_private,
        witnesses=witnesses,
    )


def _witnesses(folder: Path, tree: Tree, operators: Operators) -> tuple[tuple[int, Cosignature], ...]:
    """Return the cosignatures in an export, each with the size of the head that it is of.

    Raises:
        UserError: one does not hold, or is of a head of another tree.
    """
    found: dict[tuple[int, bytes], Cosignature] = {}
    for name in (WITNESSED, CHECKPOINT):
        if name == WITNESSED and not (folder / name).exists():
            continue
        note = note_of(folder, name)
        try:
            cosigned = operators.signers(note).head
            cosignatures = cosignatures_of(note)
        except RemoteFault as error:
            raise UserError(f"{folder / name} does not hold: {error}") from error
        if cosigned.size > tree.size or tree.root(cosigned.size) != cosigned.root:
            raise UserError(f"{folder / name}: the entries are not those that it was signed for")
        found.update({(cosigned.size, each.key): each for each in cosignatures if each.key not in operators})
    return tuple((size, each) for (size, _), each in sorted(found.items()))


def _entries(folder: Path, tile: Tile) -> list[bytes]:
    path = folder / tile.path
    try:
        return open_bundle(read_file(path, _MAX_BUNDLE_BYTES), tile.width)
    except RemoteFault as error:
        raise UserError(f"{path}: {error}") from error


def _manifest(folder: Path) -> SignedManifest:
    check_exported(folder)
    path = folder / MANIFEST
    try:
        signed = SignedManifest.read(read_file(path, MAX_SIGNED_MANIFEST_BYTES))
        signed.open()
    except OtherVersion as error:
        raise UserError(f"{folder} has the log of a run of another version: {error}") from error
    except RemoteFault as error:
        raise UserError(f"{path} does not hold: {error}") from error
    return signed
