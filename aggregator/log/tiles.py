"""A log as static files that any web server can serve and existing tools can read: exported, brought up to date.

    checkpoint      the signed tree head (C2SP tlog-checkpoint), with the cosignatures that witnesses gave it (C2SP tlog-cosignature);
                    written last, so that all that it covers is there
    witnessed       the newest tree head that a witness has cosigned, perhaps an older one than that; not there before there is one
    tile/...        hashes and entries (``protocol.tiles``)
    manifest.cbor   the packed SignedManifest
    key             the operators' keys as C2SP's tools take them, each a line

Files that once were there stay as they are, so whoever reads while they are brought up to date reads one history.
"""

from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.contents import CHECKPOINT
from manta_swarm.aggregator.log.storage import DATABASE, MANIFEST
from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.log.witnessed import WITNESSED, checkpoint, newest_witnessed
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import NoSuchFile, RemoteFault, StorageError, UserError
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import leaf_hash
from manta_swarm.protocol.notes import MAX_NOTE_BYTES, TreeHead, verifier_key
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.tiles import Tile, pack_bundle, tiles_of
from manta_swarm.runtime.disk import disk_errors, make_directory, write_durably

KEY = "key"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds now."""

    head: TreeHead
    new_entries: int
    keys: str  # of the operators, as C2SP's tools take them, each a line
    num_files: int  # written
    num_bytes: int


def export(directory: Path, to: Path) -> Exported:
    """Write the log of ``directory`` to the folder ``to``, or what is new since it was last written there; durable when this returns.

    The run may be at work. Entries are compared with the tree that the operator signed for; what they mean is not looked at.

    Raises:
        UserError: there is no log, or ``to`` is a folder of something else, of another log, or of a newer state of this one.
        StorageError: the disk fails, or the log is damaged.
    """
    log = StoredLog(directory)
    signed = log.manifest()
    operators = Operators.of_signed(signed)
    note = log.tree_head()  # before the tree: what it covers is on the disk
    try:
        head = head_of(note, operators, directory)
    except UserError as error:  # nobody chose that file
        raise StorageError(str(error)) from error
    since = _already(to, signed, operators)
    if log.root(head.size) != head.root:
        raise StorageError(f"the log in {directory} is not what its tree head says: manta-aggregator ledger verify tells more")
    if since is not None and (since.size > head.size or log.root(since.size) != since.root):
        raise UserError(f"{to} has entries that the log in {directory} has not: one of the two is older, or was forked; keep both")
    make_directory(to)
    forget_parts(to)
    if since is None:
        write_durably(to / MANIFEST, pack(signed))
        write_durably(to / KEY, verifier_keys(operators).encode())
    old = since.size if since else 0
    num_files = num_bytes = 0
    for tile in tiles_of(head.size, old):
        data = log_bytes(log, tile)
        path = to / tile.path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)
        num_files, num_bytes = num_files + 1, num_bytes + len(data)
    witnessed = log.witnessed()
    newest = newest_witnessed([each for each in witnessed if each.head.size <= head.size])
    if newest is not None:
        write_durably(to / WITNESSED, newest.encode())
    write_durably(to / CHECKPOINT, checkpoint(note, witnessed).encode())
    return Exported(head, head.size - old, verifier_keys(operators), num_files, num_bytes)


def forget_parts(folder: Path) -> None:
    """Remove what an export left half written that was killed.

    Raises:
        StorageError: the disk refuses.
    """
    with disk_errors(folder):
        for path in list(folder.rglob("*.part")):
            path.unlink()


def verifier_keys(operators: Operators) -> str:
    """Return the keys by which the log's notes are signed, as C2SP's tools take them, each a line with its end."""
    return "".join(f"{verifier_key(operators.name, key)}\n" for key in operators.keys)


def log_bytes(log: StoredLog, tile: Tile) -> bytes:
    """Return a tile or a bundle of ``log``, which has all of it.

    Raises:
        StorageError: the log is damaged, or the disk fails.
    """
    if tile.level is not None:
        return log.hashes(tile.row, tile.first, tile.width)
    entries = log.entries(tile.first, tile.first + tile.width)
    if b"".join(map(leaf_hash, entries)) != log.hashes(0, tile.first, tile.width):
        raise StorageError(
            f"the log does not hold its entries {tile.first} to {tile.first + tile.width - 1} as its tree says: verify the log"
        )
    return pack_bundle(entries)


def _already(to: Path, signed: SignedManifest, operators: Operators) -> TreeHead | None:
    """Return up to where ``to`` holds the log of that run already; None: it is new.

    Raises:
        UserError: it is something else.
        StorageError: it cannot be read.
    """
    with disk_errors(to):
        if not to.exists() or (to.is_dir() and all(path.name == f"{MANIFEST}.part" for path in to.iterdir())):
            return None  # the latter: the first export was cut off at its first file
    if not (to / MANIFEST).is_file() or (to / DATABASE).exists():  # a run's own folder, or a backup's, has its manifest as well
        raise UserError(f"{to} is there already, and no exported log: choose a new folder")
    if read_file(to / MANIFEST, MAX_SIGNED_MANIFEST_BYTES) != pack(signed):
        raise UserError(f"{to} has the log of another run: choose a new folder")
    if not (to / CHECKPOINT).exists():
        return None  # the first export was cut off
    return head_of(note_of(to), operators, to)


def head_of(note: str, operators: Operators, where: Path | str) -> TreeHead:
    """Return the tree head in a note, which enough operators signed.

    Raises:
        UserError: it is none, or too few did.
    """
    try:
        return operators.open(note)
    except RemoteFault as error:
        raise UserError(f"the tree head of {where} does not hold: {error}") from error


def note_of(folder: Path, name: str = CHECKPOINT) -> str:
    try:
        return read_file(folder / name, MAX_NOTE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{folder / name} is no text") from error


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return a file's bytes, cut off just after ``max_bytes``.

    Raises:
        NoSuchFile: it is missing.
        StorageError: it cannot be read.
    """
    if not path.is_file():
        raise NoSuchFile(f"{path} is missing")
    with disk_errors(path), path.open("rb") as file:
        return file.read(max_bytes + 1)
