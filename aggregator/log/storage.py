"""The files of a log's directory: which they are, and how each is made durable.

    manifest.cbor   the packed SignedManifest: which run this is
    log.sqlite3     entries, tree nodes and the size and root they add up to (SQLite in WAL mode, with its -wal and -shm files)
    tree-head.txt   the last tree head that was signed, written before anybody sees it
    tree-head-next.txt   where several operators sign: the head after the entries that are written next, as enough of them signed it
    log.lock        locked as long as a process may write here

What the entries mean is not known here (see ``protocol.ledger``), nor whether they are true (see ``aggregator.log.verify``).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import OtherVersion, RemoteFault, StorageError, UserError
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import EMPTY_ROOT, Tree
from manta_swarm.protocol.notes import MAX_NOTE_BYTES
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.disk import IDENTITY, disk_errors, load_identity, sync_directory, write_durably

MANIFEST = "manifest.cbor"
DATABASE = "log.sqlite3"
TREE_HEAD = "tree-head.txt"
NEXT_HEAD = "tree-head-next.txt"
LOCK = "log.lock"

FORMAT = 2  # the database's user_version
BUSY_TIMEOUT_S = 10.0  # another program's short lock on the database; ours is the only writer
_MAX_ROW_BYTES = 1 << 20  # no row is nearly as long: a damaged or hostile file must not make us reserve gigabytes

_SCHEMA = (
    "CREATE TABLE log (only INTEGER PRIMARY KEY CHECK (only = 0), run BLOB NOT NULL, operator BLOB NOT NULL,"
    " size INTEGER NOT NULL, root BLOB NOT NULL)",
    "CREATE TABLE entries (position INTEGER PRIMARY KEY, bytes BLOB NOT NULL)",
    "CREATE TABLE nodes (level INTEGER NOT NULL, position INTEGER NOT NULL, hash BLOB NOT NULL,"
    " PRIMARY KEY (level, position)) WITHOUT ROWID",
    f"PRAGMA user_version = {FORMAT}",
)


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn any error of SQLite into a StorageError that names ``path``."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter is how its complaint about a damaged name ends
        raise StorageError(f"{path}: {error}; check the disk, then start again") from error


def write_manifest(directory: Path, signed: SignedManifest) -> None:
    """Keep the run's manifest in ``directory``."""
    write_durably(directory / MANIFEST, pack(signed))


def read_manifest(directory: Path) -> SignedManifest:
    """Return the manifest kept in ``directory``, its signature checked.

    Raises:
        UserError: there is no log, or one of another version.
        StorageError: the manifest is missing or damaged.
    """
    if not (directory / DATABASE).exists():
        raise UserError(f"{directory} holds no log: check the path, or start a run there first")
    data = _read_file(directory / MANIFEST, MAX_SIGNED_MANIFEST_BYTES)
    try:
        signed = SignedManifest.read(data)
        signed.open()
    except OtherVersion as error:
        raise UserError(f"{directory} holds a run of another version: {error}") from error
    except RemoteFault as error:
        raise StorageError(f"{directory / MANIFEST} is damaged: {error}; restore it from a backup") from error
    return signed


def log_key(directory: Path) -> Identity:
    """Return the key of the log in ``directory``; none is made in its place, which would be another operator's.

    Raises:
        UserError: it is missing, or see ``runtime.disk.load_identity``.
    """
    path = directory / IDENTITY
    if not path.exists():
        raise UserError(f"{path} is missing, the key of the log in {directory}; restore it from a backup")
    return load_identity(path)


def read_tree_head(directory: Path, name: str = TREE_HEAD) -> str:
    """Return the last note signed by the log in ``directory``, or the next one, not checked.

    Raises:
        StorageError: it is missing or damaged.
    """
    path = directory / name
    try:
        return _read_file(path, MAX_NOTE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is damaged: not text; restore it from a backup") from error


def _read_file(path: Path, max_bytes: int) -> bytes:
    """Return the file's bytes, cut off just after ``max_bytes``."""
    with disk_errors(path), path.open("rb") as file:
        return file.read(max_bytes + 1)


def create_database(directory: Path, run: bytes, operator: bytes) -> None:
    """Make the empty database of a new log in ``directory``. The log exists once its name does.

    Raises:
        StorageError: the disk failed.
    """
    path = directory / DATABASE
    new = path.with_name(f"{path.name}.new")
    with disk_errors(path):
        for leftover in (new, *(new.with_name(f"{new.name}-{suffix}") for suffix in ("journal", "wal", "shm"))):
            leftover.unlink(missing_ok=True)
    with sqlite_errors(path):
        connection = sqlite3.connect(new, isolation_level=None)
        try:
            # EXTRA also syncs the directory once a rollback journal is gone; without it a power cut can bring the journal back,
            # which then undoes the change to WAL mode and what was written since.
            connection.execute("PRAGMA synchronous = EXTRA")
            if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
                raise StorageError(f"{path}: this file system cannot share memory, which SQLite's WAL mode needs; use a local disk")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO log VALUES (0, ?, ?, 0, ?)", (run, operator, EMPTY_ROOT))
            connection.execute("COMMIT")
        finally:
            connection.close()  # moves the WAL into the file, syncs it and removes the WAL
    with disk_errors(path):
        new.rename(path)
    sync_directory(directory)


def open_database(directory: Path) -> sqlite3.Connection:
    """Return the writer's connection to the database in ``directory``; hold its ``runtime.disk.DirectoryLock``.

    Transactions are the caller's; so are checkpoints, whose errors SQLite would not report if it made them by itself.

    Raises:
        StorageError: the database cannot be opened as promised.
    """
    path = directory / DATABASE
    with sqlite_errors(path):
        connection = _connect(path, "mode=rw")
        try:
            connection.execute("PRAGMA synchronous = FULL")  # with WAL: a commit is on the disk when it returns
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                raise StorageError(f"{path} is not in WAL mode: something else changed it; restore it from a backup")
            _check_format(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def append_rows(
    connection: sqlite3.Connection, first: int, entries: Sequence[bytes], nodes: Sequence[tuple[int, int, bytes]], tree: Tree
) -> None:
    """Write entries, from index ``first`` on, their nodes, and what the whole ``tree`` comes to, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO entries VALUES (?, ?)", enumerate(entries, first))
    connection.executemany("INSERT INTO nodes VALUES (?, ?, ?)", nodes)
    connection.execute("UPDATE log SET size = ?, root = ?", (tree.size, tree.root()))
    connection.execute("COMMIT")  # durable from this line


@contextmanager
def reading(directory: Path, *, at_rest: bool) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection inside one transaction: one moment of the log, even while it is written.

    Args:
        directory: of the log, or a copy of it.
        at_rest: nobody has the database open (see ``is_at_rest``): nothing at all is written, not even SQLite's shared memory.

    Raises:
        StorageError: the database cannot be opened or read.
    """
    path = directory / DATABASE
    with sqlite_errors(path):
        connection = _connect(path, "immutable=1" if at_rest else "mode=ro")
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            _check_format(connection, path)
            yield connection
        finally:
            connection.close()


def is_at_rest(directory: Path) -> bool:
    """Return whether the database in ``directory`` was closed and not opened since: then it has no WAL."""
    return not (directory / f"{DATABASE}-wal").exists()


def _connect(path: Path, parameters: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{parameters}", uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found == 0:  # of a file that this program never wrote, or that was emptied
        raise StorageError(f"{path} is empty or no log: something else changed it; restore it from a backup")
    if found != FORMAT:
        raise StorageError(f"{path} has format {found}, this program knows {FORMAT}: use the version of the program that made it")
