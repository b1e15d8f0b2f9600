"""The entries under the heads that a witness cosigns, kept as the files of an export (``aggregator.log.tiles``).

A run whose folder lost its newest entries goes on from them (``manta-aggregator recover``): so a witness that keeps entries cosigns a head
only once it has all that is under it. What they mean is not looked at here; who recovers checks each of them.

Files are written before the checkpoint that covers them. Partial tiles stay for the checkpoint before the newest too, for whoever is
reading by it, and go then.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from manta_swarm.aggregator.log.contents import CHECKPOINT
from manta_swarm.aggregator.log.copies import MAX_BUNDLE_BYTES
from manta_swarm.aggregator.log.storage import MANIFEST
from manta_swarm.aggregator.log.tiles import KEY, forget_parts, head_of, note_of, read_file, verifier_keys
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, ProofError, RemoteFault, StorageError, UserError
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.tiles import WIDTH, Tile, open_bundle, pack_bundle, tile_hashes, tiles_of
from manta_swarm.runtime.disk import disk_errors, make_directory, write_durably

FOLDER = "log"

Fetch = Callable[[int, int], Awaitable[list[bytes]]]  # of a bundle's index the first so many entries, as ``network.log_proofs.ask_entries``


class KeptEntries:
    """Keeps one log's entries in a folder, and their tree in memory: 64 bytes for each entry."""

    def __init__(self, folder: Path, signed: SignedManifest) -> None:
        """Go on from what the folder has, all of it hashed again; it is made where it is not there.

        Raises:
            UserError: it has another log, or something else.
            StorageError: what it has does not hold.
        """
        self._folder = folder
        self._operators = Operators.of_signed(signed)
        make_directory(folder)
        forget_parts(folder)
        if not (folder / MANIFEST).exists():
            write_durably(folder / KEY, verifier_keys(self._operators).encode())
            write_durably(folder / MANIFEST, pack(signed))
        if read_file(folder / MANIFEST, MAX_SIGNED_MANIFEST_BYTES) != pack(signed):
            raise UserError(f"{folder} has the log of another run: choose another --dir")
        self._tree = Tree()
        self._covered = 0  # entries under the newest checkpoint
        self._partial: list[set[Path]] = [set(), set()]  # partial tiles of the newest checkpoints, the newest last
        self._load()

    @property
    def size(self) -> int:
        """Entries under the newest head that all entries are here of."""
        return self._covered

    async def extend(self, head: TreeHead, note: str, fetch: Fetch) -> None:
        """Get the entries that lack under ``head``, of which ``note`` is the signed note; durable when this returns.

        What is got stays where this is cut off, and need not come again.

        Raises:
            Unreachable, Refused: they cannot be had now.
            RemoteFault: what comes is not what is under the head.
            StorageError: the disk refuses.
        """
        if head.size <= self._covered:
            return
        while self._tree.size < head.size:
            index = self._tree.size // WIDTH
            tile = Tile(None, index, min(WIDTH, head.size - index * WIDTH))
            entries = await fetch(index, tile.width)
            await asyncio.to_thread(self._take, tile, entries)
        await asyncio.to_thread(self._cover, head, note)

    def _take(self, tile: Tile, entries: list[bytes]) -> None:
        known = self._tree.size - tile.first
        hashes = list(map(leaf_hash, entries))
        if len(entries) != tile.width or any(hashes[place] != self._tree.node(0, tile.first + place) for place in range(known)):
            raise EncodingError("the log shows other entries than it did before")
        self._write(tile, pack_bundle(entries))
        for hash_ in hashes[known:]:
            self._tree.append(hash_)

    def _cover(self, head: TreeHead, note: str) -> None:
        if self._tree.root(head.size) != head.root:
            self._tree = Tree()
            self._load()
            raise ProofError(f"the entries that the log shows are not those under its head of {head.size}")
        for tile in tiles_of(head.size, self._covered):
            if tile.level is not None:  # bundles are there
                self._write(tile, tile_hashes(self._tree, tile))
        write_durably(self._folder / CHECKPOINT, note.encode())
        self._covered = head.size
        self._forget_partial()

    def _write(self, tile: Tile, data: bytes) -> None:
        path = self._folder / tile.path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)

    def _bundle(self, tile: Tile) -> list[bytes]:
        path = self._folder / tile.path
        try:
            return open_bundle(read_file(path, MAX_BUNDLE_BYTES), tile.width)
        except (RemoteFault, UserError) as error:
            raise self._damaged(str(error)) from error

    def _load(self) -> None:
        if not (self._folder / CHECKPOINT).exists():
            return
        try:
            head = head_of(note_of(self._folder), self._operators, self._folder)
        except UserError as error:
            raise self._damaged(str(error)) from error
        for tile in tiles_of(head.size):
            if tile.level is None:
                for entry in self._bundle(tile):
                    self._tree.append(leaf_hash(entry))
        if self._tree.root() != head.root:
            raise self._damaged("its entries are not those under its checkpoint")
        self._covered = head.size
        self._partial = [self._partial_of(head.size)] * 2
        for path in set(self._folder.rglob("*.p/*")) - self._partial[-1]:  # of a start that was cut off
            _remove(path)

    def _damaged(self, why: str) -> StorageError:
        return StorageError(f"{self._folder} is damaged ({why}): remove that folder alone, and what lacks is got from the log again")

    def _forget_partial(self) -> None:
        """Remove the partial tiles that neither the newest checkpoint nor the one before has."""
        self._partial = [*self._partial[-2:], self._partial_of(self._covered)]
        for path in self._partial[0] - self._partial[-2] - self._partial[-1]:
            _remove(path)

    def _partial_of(self, size: int) -> set[Path]:
        return {self._folder / tile.path for tile in tiles_of(size) if not tile.is_full}


def _remove(path: Path) -> None:
    with disk_errors(path):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others are in it
        path.parent.rmdir()
