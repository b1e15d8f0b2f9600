"""A log as another process wrote it: entries and tree nodes, read when they are asked for, in transactions that are over at once.

Nothing is checked here but the form: whoever wants to know whether the log holds uses ``aggregator.log.verify``, or a browser with the
proofs.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manta_swarm.aggregator.log.storage import read_manifest, read_tree_head, reading
from manta_swarm.aggregator.log.witnessed import Witnessed, read_witnessed
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import HASH_BYTES, Subtrees
from manta_swarm.protocol.notes import origin


class _StoredNodes(Subtrees):
    """The tree of the first ``size`` entries, its nodes in the database."""

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self._connection = connection
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def node(self, level: int, index: int) -> bytes:
        row = self._connection.execute("SELECT hash FROM nodes WHERE level = ? AND position = ?", (level, index)).fetchone()
        if row is None or type(row[0]) is not bytes or len(row[0]) != HASH_BYTES:
            raise StorageError(f"the node at level {level}, position {index} is not stored: verify the log")
        hash_: bytes = row[0]
        return hash_


class StoredLog:
    """The log in a directory. Its methods block for as long as the disk takes; any thread may call them."""

    def __init__(self, directory: Path) -> None:
        """Use the log in ``directory``, which is there."""
        self._directory = directory

    def manifest(self) -> SignedManifest:
        """Return the run's manifest, its signature checked.

        Raises:
            UserError: there is no log.
            StorageError: the manifest is missing or damaged.
        """
        return read_manifest(self._directory)

    def operator(self) -> bytes:
        """Return the operator whose log it is.

        Raises:
            StorageError: it cannot be read.
        """
        with self._reading() as connection:
            rows = connection.execute("SELECT operator FROM log").fetchall()
        if len(rows) != 1 or type(rows[0][0]) is not bytes:
            raise StorageError("the log does not say whose it is")
        operator: bytes = rows[0][0]
        return operator

    def tree_head(self) -> str:
        """Return the newest signed note.

        Raises:
            StorageError: it is missing or damaged.
        """
        return read_tree_head(self._directory)

    def witnessed(self) -> list[Witnessed]:
        """Return the newest head that each witness has cosigned, as far as these are of this log's tree.

        Raises:
            StorageError: the disk fails, or a node is missing.
        """
        operator = self.operator()
        found = read_witnessed(self._directory, origin(self.manifest().run), operator)
        size = self._size()
        return [each for each in found if each.head.size <= size and self.root(each.head.size) == each.head.root]

    def _size(self) -> int:
        with self._reading() as connection:
            (size,) = connection.execute("SELECT size FROM log").fetchone()
        return int(size)

    def entries(self, start: int, end: int) -> list[bytes]:
        """Return the entries from ``start`` to before ``end``.

        Raises:
            StorageError: one of them is missing, or the disk fails.
        """
        with self._reading() as connection:
            query = "SELECT position, bytes FROM entries WHERE position >= ? AND position < ? ORDER BY position"
            rows = connection.execute(query, (start, end)).fetchall()
        if [position for position, _ in rows] != list(range(start, end)) or any(type(entry) is not bytes for _, entry in rows):
            raise StorageError(f"the log does not hold its entries {start} to {end - 1}")
        return [entry for _, entry in rows]

    def root(self, size: int) -> bytes:
        """Return the root of the first ``size`` entries, by the stored nodes.

        Raises:
            StorageError: a node is missing, or the disk fails.
        """
        with self._reading() as connection:
            return _StoredNodes(connection, size).root()

    def hashes(self, level: int, first: int, count: int) -> bytes:
        """Return ``count`` nodes of a level of the tree one after the other, from the node ``first`` on; they are there.

        Raises:
            StorageError: a node is missing, or the disk fails.
        """
        with self._reading() as connection:
            query = "SELECT position, hash FROM nodes WHERE level = ? AND position >= ? AND position < ? ORDER BY position"
            rows = connection.execute(query, (level, first, first + count)).fetchall()
        found = [hash_ for _, hash_ in rows if type(hash_) is bytes and len(hash_) == HASH_BYTES]
        if [position for position, _ in rows] != list(range(first, first + count)) or len(found) != count:
            raise StorageError(f"the log does not hold the nodes {first} to {first + count - 1} of level {level}: verify the log")
        return b"".join(found)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """Return the proof of entry ``index`` in the tree of the first ``size`` ones; 0 <= index < size, and they are there.

        Raises:
            StorageError: a node is missing, or the disk fails.
        """
        with self._reading() as connection:
            return _StoredNodes(connection, size).inclusion_proof(index)

    def consistency_proof(self, old: int, new: int) -> list[bytes]:
        """Return the proof that the tree of the first ``old`` entries is a prefix of that of ``new``; 0 <= old <= new, and they are there.

        Raises:
            StorageError: a node is missing, or the disk fails.
        """
        with self._reading() as connection:
            return _StoredNodes(connection, new).consistency_proof(old)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with reading(self._directory, at_rest=False) as connection:
            yield connection
