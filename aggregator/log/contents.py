"""What a run's folder has, what of it is copied in which order, and whether a copy can be made, before torch and hivemind are loaded.

Nothing is made here; ``aggregator.log.moving`` makes copies, and ``aggregator.log.guard`` keeps them from signing too early.
"""

from pathlib import Path

from manta_swarm.aggregator.log.guard import EVIDENCE, PLACE, is_marked_restored
from manta_swarm.aggregator.log.storage import DATABASE, LOCK, MANIFEST, NEXT_HEAD, TREE_HEAD, read_manifest
from manta_swarm.aggregator.log.witnessed import WITNESSED
from manta_swarm.protocol.errors import EncodingError, UserError
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.disk import IDENTITY, check_directory

SNAPSHOTS = "snapshots"  # a folder: states, and what proves that the log has them
BODIES = "bodies"  # a folder: contributions by round
WAITING = "verdicts.waiting"
MEASURES = "measures"  # what peers say of the model on their own images
LISTEN = "listen"  # the address used last
RUN_FILE = "run.toml"  # as it was at the last start
STATUS = "status.json"
AUDITOR = "auditor"  # a folder: the operator's auditor, a peer whose key the manifest names

# What a copy has, in the order in which it is copied: what is copied first is older. So the tree head is not ahead of the entries, the
# snapshots are not ahead of the rounds, and the contributions from which the rounds after a snapshot are computed come last.
COPIED = (MANIFEST, TREE_HEAD, MEASURES, LISTEN, RUN_FILE, WAITING, SNAPSHOTS, DATABASE, BODIES)
AUDITOR_KEY = f"{AUDITOR}/{IDENTITY}"  # copied with the operator's own key, only where the operator says so
# What no copy has: of several operators what this one promised, which an older copy would take back; what comes again by itself; what is
# about this place or this moment only.
NOT_COPIED = (
    IDENTITY,
    "operators",
    NEXT_HEAD,
    EVIDENCE,
    WITNESSED,
    "brought",
    AUDITOR,
    "gateway",
    "monitor",
    STATUS,
    PLACE,
    "control",
    "lock",
    LOCK,
    f"{DATABASE}-wal",
    f"{DATABASE}-shm",
)

CHECKPOINT = "checkpoint"  # of an exported log: the last of its files that is written
_MAX_KEY_BYTES = 4096


def check_backup(directory: Path, to: Path, *, with_key: bool) -> None:
    """Refuse a backup that cannot be made, as far as it shows before anything is copied.

    Raises:
        UserError: there is no run, no key, or ``to`` cannot be made.
        StorageError: the run is damaged.
    """
    read_manifest(directory)
    if with_key and not (directory / IDENTITY).exists():
        raise UserError(f"{directory / IDENTITY} is missing: there is no key to put into the backup")
    check_new(to, beside=directory)


def check_restore(backup: Path, directory: Path, *, key: Path | None) -> tuple[Path, Identity]:
    """Refuse what no folder can be made of; return where the operator's key is, and the key.

    Raises:
        UserError: that is no backup, the key is missing, or ``directory`` cannot be made.
        StorageError: the backup is damaged.
    """
    read_manifest(backup)
    found = key or backup / IDENTITY
    if not found.exists():
        raise UserError(
            f"there is no key {found}: " + ("check the path" if key else "the backup was made without it; name the file with --key FILE")
        )
    operator = _key_in(found)
    check_new(directory, beside=backup)
    return found, operator


def check_snapshot(directory: Path, out: Path) -> Path:
    """Refuse the name of a file that no state can be copied to; return where its proof is to be.

    Raises:
        UserError: there is no run, or one of both files is there already, or cannot be.
        StorageError: the run is damaged.
    """
    read_manifest(directory)
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: a snapshot's name ends with .safetensors")
    proof_out = out.with_suffix(".json")
    for path in (out, proof_out):
        if path.exists():
            raise UserError(f"{path} exists already; it is left as it is: choose another name")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.absolute().parent}")
    return proof_out


def check_exported(folder: Path) -> None:
    """Refuse a folder that is no exported log.

    Raises:
        UserError: so it is.
    """
    if not (folder / MANIFEST).is_file() or not (folder / CHECKPOINT).is_file():
        raise UserError(f"{folder} is no exported log: check the path; manta-aggregator ledger export makes one")


def check_new(folder: Path, *, beside: Path) -> None:
    """Refuse the name of a folder that cannot be made new.

    Raises:
        UserError: there is something of that name, or in the place where it is made, or no folder can be made there.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already, and not empty; it is left as it is: choose another folder")
    if folder.absolute().resolve().is_relative_to(beside.absolute().resolve()):
        raise UserError(f"{folder} lies inside of {beside}: choose a folder elsewhere, best on another disk")
    part = part_of(folder)
    # The mark is the first that is written to a copy: a folder that has none is somebody's own.
    if part.is_symlink() or (part.exists() and not _is_cut_off(part)):
        raise UserError(f"{part} is in the way, and is no copy that was cut off; it is left as it is: choose another folder")
    check_directory(part)


def part_of(folder: Path) -> Path:
    """Return where a folder is made before it gets its name."""
    return folder.absolute().with_name(f"{folder.name}.part")


def _is_cut_off(part: Path) -> bool:
    names = {path.name for path in part.iterdir()} if part.is_dir() else {""}
    return is_marked_restored(part) or names <= {f"{PLACE}.part"}


def _key_in(path: Path) -> Identity:
    try:
        with path.open("rb") as file:
            return Identity.from_libp2p(file.read(_MAX_KEY_BYTES))
    except OSError as error:
        raise UserError(f"cannot read the key {path}: {error.strerror}") from error
    except EncodingError as error:
        raise UserError(f"{path} is no operator's key: {error}") from error
