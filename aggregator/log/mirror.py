"""The log that a web server shows, fetched into a folder of this computer; each file is checked under the signed head before it is kept.

The folder has the form of an export (``aggregator.log.tiles``), but for one thing: its ``checkpoint`` is the newest head that was seen, and
is written before what it covers is fetched. So a call that was cut off goes on where it was, and a server that shows less than it did,
or something else, is found out. What entries mean is not looked at here (``aggregator.log.copies``).
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from manta_swarm.aggregator.log.contents import CHECKPOINT
from manta_swarm.aggregator.log.copies import MAX_BUNDLE_BYTES, Copy, FolderCopy, WebCopy, note_in, signed_manifest_of
from manta_swarm.aggregator.log.storage import DATABASE, MANIFEST
from manta_swarm.aggregator.log.tiles import KEY, forget_parts, head_of, read_file, verifier_keys
from manta_swarm.aggregator.log.witnessed import WITNESSED
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, NoSuchFile, OtherHistory, SignatureError, UserError
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import HASH_BYTES, Subtrees, leaf_hash, root
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import PublicKey, key_named, peer_name, sha256
from manta_swarm.protocol.tiles import HEIGHT, MAX_TILE_BYTES, WIDTH, Tile, bundled
from manta_swarm.runtime.disk import DirectoryLock, disk_errors, make_directory, write_durably

EVIDENCE = "two-histories.proof"
MIN_RUN_DIGITS = 16
_ADDRESSES = "addresses"  # which run an address had: for whoever gives none


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """What a person knows of the run that a log has to be of."""

    run: str = ""  # the first digits of its id
    operators: tuple[PublicKey, ...] = ()

    @classmethod
    def of(cls, run: str | None, keys: Sequence[str]) -> "ExpectedRun":
        """Return what they typed: a run's id or at least its first digits, and operators' keys, by name or in hexadecimal.

        Raises:
            UserError: it is none of these.
        """
        run = run or ""
        if run and not re.fullmatch(f"[0-9a-f]{{{MIN_RUN_DIGITS},64}}", run):
            raise UserError(
                f"--run {run[:80]!a}: give a run's id, 64 hexadecimal digits in lower case, or at least its first {MIN_RUN_DIGITS}"
            )
        found = []
        for key in keys:
            try:
                found.append(PublicKey(bytes.fromhex(key)) if re.fullmatch("[0-9a-f]{64}", key) else key_named(key))
            except SignatureError as error:
                raise UserError(f"--key {key[:80]!a}: {error}; give an operator's key, 12D3Koo...") from error
        return cls(run, tuple(found))

    def check(self, signed: SignedManifest, place: str) -> None:
        """Refuse another run than the one that is known.

        Raises:
            UserError: it is another one.
        """
        if not signed.run.hex().startswith(self.run):
            raise UserError(f"{place} has the log of another run than --run says: of {signed.run.hex()}")
        operators = signed.open().operators
        for key in self.operators:
            if key not in operators:
                names = " and ".join(map(peer_name, operators))
                raise UserError(f"{place} has a log that --key {peer_name(key)} does not sign: its operators are {names}")


class Mirror(Subtrees):
    """One log under one signed head, as a copy whose files are in a folder, or come from a server and are put there.

    Its tree is that of the head: a hash is believed once the hashes above it, up to the signed root, are those that it comes to.
    """

    def __init__(self, web: Copy, folder: Path, signed: SignedManifest, notes: dict[str, str]) -> None:
        """Mirror what ``web`` has in ``folder``; ``notes`` are its ``checkpoint`` and, where it has one, ``witnessed``.

        Raises:
            UserError: no head was signed for the tree whose edge the server shows, or the server fails.
        """
        self._web, self._folder = web, folder
        self._files = {MANIFEST: pack(signed), **{name: note.encode() for name, note in notes.items()}}
        self._operators = Operators.of_signed(signed)
        self.head = head_of(notes[CHECKPOINT], self._operators, web.place)
        self._hashes: dict[Tile, bytes] = {}  # what was checked
        self.edge = {tile: web.read(tile.path, MAX_TILE_BYTES) for tile in _edge(self.head.size)}
        for tile, data in self.edge.items():
            if len(data) != tile.width * HASH_BYTES:
                raise UserError(f"{web.place}/{tile.path} is cut off, or is no tile")
        self._hashes |= self.edge
        if self.root() != self.head.root:
            raise UserError(f"{web.place}: the newest hashes of the log are not those that its head was signed for")

    @property
    def place(self) -> str:
        """See ``Copy.place``."""
        return self._web.place

    @property
    def size(self) -> int:
        """The number of entries in the log."""
        return self.head.size

    def read(self, name: str, max_bytes: int) -> bytes:
        """See ``Copy.read``; a tile or a bundle is one that the head was signed for.

        Raises:
            UserError: the server does not have it, or shows something else.
            StorageError: the folder fails.
        """
        if not name.startswith("tile/"):
            if name not in self._files:
                raise NoSuchFile(f"{self.place}/{name} is not there")
            return self._files[name][: max_bytes + 1]
        tile = Tile.named(name)
        return self._tile(tile) if tile.level is not None else self._verified(tile, self._tile(replace(tile, level=0)))

    def node(self, level: int, index: int) -> bytes:
        """Return a complete node of the tree."""
        tile_level, above = divmod(level, HEIGHT)
        first = index << above
        of_tile = first // WIDTH
        width = min(WIDTH, (self.size >> HEIGHT * tile_level) - of_tile * WIDTH)
        start = first % WIDTH * HASH_BYTES
        return _root(self._tile(Tile(tile_level, of_tile, width))[start : start + (HASH_BYTES << above)])

    def write_head(self) -> None:
        """Keep the head, the newest that was seen from here on; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        for name in (MANIFEST, CHECKPOINT):  # the manifest first: without it the folder is nobody's
            write_durably(self._folder / name, self._files[name])

    def finish(self) -> None:
        """Write what else an export has, once all entries are here, and remove the partial tiles of before.

        Raises:
            StorageError: the disk refuses.
        """
        write_durably(self._folder / KEY, verifier_keys(self._operators).encode())
        if WITNESSED in self._files:
            write_durably(self._folder / WITNESSED, self._files[WITNESSED])
        for tile, data in self.edge.items():
            self._keep(tile, data)
        current = {self._folder / tile.path for tile in self.edge}
        current |= {self._folder / replace(tile, level=None).path for tile in self.edge if tile.level == 0}
        for path in set(self._folder.glob("tile/**/*.p/*")) - current:
            with disk_errors(path):
                path.unlink()
            with contextlib.suppress(OSError):  # others are in it
                path.parent.rmdir()

    def _tile(self, tile: Tile) -> bytes:
        if tile not in self._hashes:
            assert tile.level is not None
            self._hashes[tile] = self._verified(tile, self.node(HEIGHT * (tile.level + 1), tile.index))
        return self._hashes[tile]

    def _verified(self, tile: Tile, wanted: bytes) -> bytes:
        """Return a full tile or a bundle that comes to what lies above it: from the folder, else from the server, and then it is kept."""
        max_bytes = MAX_BUNDLE_BYTES if tile.level is None else MAX_TILE_BYTES
        with contextlib.suppress(NoSuchFile):
            kept = read_file(self._folder / tile.path, max_bytes)
            if _comes_to(tile, kept) == wanted:
                return kept
        data = self._web.read(tile.path, max_bytes)
        if _comes_to(tile, data) != wanted:
            raise UserError(f"{self.place}/{tile.path} is not what the log's head was signed for")
        self._keep(tile, data)
        return data

    def _keep(self, tile: Tile, data: bytes) -> None:
        path = self._folder / tile.path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)


@dataclass(frozen=True, slots=True)
class OpenMirror:
    """A mirror that goes on from what its folder had; the folder is this process's until the lock is released."""

    mirror: Mirror
    folder: Path
    before: TreeHead | None  # the newest head that an earlier call saw
    lock: DirectoryLock

    def finish(self) -> None:
        """Make the folder an export, once all entries are here, and leave it.

        Raises:
            StorageError: the disk refuses.
        """
        self.mirror.finish()
        self.lock.release()


def open_mirror(web: WebCopy, known: ExpectedRun, folder: Path | None) -> OpenMirror:
    """Return the mirror of the log that a server shows, in ``folder``, or in one of the user's cache that is the run's.

    Raises:
        UserError: the server fails, shows no log, one of another run, or one whose head does not hold; or the folder is something else.
        OtherHistory: the log goes not on from what an earlier call saw, or the address has another run's.
        StorageError: the folder fails.
    """
    if folder is not None:
        _check_folder(folder)
    signed = signed_manifest_of(web)
    known.check(signed, web.place)
    folder = folder or _cached(web, signed, known)
    make_directory(folder)
    lock = DirectoryLock(folder, "manta-aggregator ledger verify", name="mirror.lock")
    try:
        _check_folder(folder, signed)
        forget_parts(folder)
        web = replace(web, is_patient=True)
        notes = {}
        with contextlib.suppress(NoSuchFile):
            notes[WITNESSED] = note_in(web, WITNESSED)  # before the checkpoint, whose head then is no smaller
        notes[CHECKPOINT] = note_in(web, CHECKPOINT)
        mirror, before = Mirror(web, folder, signed, notes), None
        if (folder / CHECKPOINT).exists():
            old = note_in(FolderCopy(folder), CHECKPOINT)
            before = head_of(old, Operators.of_signed(signed), folder)
            _check_history(mirror, folder, signed, (old, notes[CHECKPOINT]), before)
        mirror.write_head()
    except BaseException:
        lock.release()
        raise
    return OpenMirror(mirror, folder, before, lock)


def _check_history(mirror: Mirror, folder: Path, signed: SignedManifest, notes: tuple[str, str], before: TreeHead) -> None:
    """Refuse a log that does not go on from the head that was seen before.

    Raises:
        OtherHistory: so it is.
    """
    head = mirror.head
    saw = f"this computer saw {before.size} entries before, and now {mirror.place} shows {head.size}"
    if head.size >= before.size:
        if mirror.root(before.size) == before.root:
            return
    else:
        with contextlib.suppress(UserError):  # not all of it was fetched
            seen = Mirror(FolderCopy(folder), folder, signed, {CHECKPOINT: notes[0]})
            if seen.root(head.size) == head.root:
                raise OtherHistory(f"the log went back: {saw}, the first of those; ask again later, or another server of the run")
    write_durably(folder / EVIDENCE, pack(Histories(signed, notes)))
    proof = "which proves it to anybody" if head.size == before.size else "which is no proof for others"
    if head.size < before.size:
        raise OtherHistory(f"the log went back, or was forked: {saw}; both signed heads are in {folder / EVIDENCE}, {proof}")
    raise OtherHistory(
        f"the log was forked: {saw}, which do not begin with those; both signed heads are in {folder / EVIDENCE}, {proof}; keep {folder}"
    )


def _check_folder(folder: Path, signed: SignedManifest | None = None) -> None:
    """Refuse a folder that is no mirror, or one of another run.

    Raises:
        UserError: so it is.
    """
    if (folder / DATABASE).exists():
        raise UserError(f"{folder} is a run's own folder: choose another one for what is fetched, or verify it without --from")
    if not (folder / MANIFEST).exists():
        if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {"mirror.lock", f"{MANIFEST}.part"}):
            raise UserError(f"{folder} is there already, and no log that was fetched: choose a new folder")
    elif signed is not None and read_file(folder / MANIFEST, MAX_SIGNED_MANIFEST_BYTES) != pack(signed):
        raise UserError(f"{folder} has the log of another run: choose another --dir")


def _cached(web: WebCopy, signed: SignedManifest, known: ExpectedRun) -> Path:
    """Return the folder of the user's cache for a run, if the address had no other run before, or this one is asked for.

    Raises:
        OtherHistory: it had another one.
    """
    cache = Path(platformdirs.user_cache_dir("manta")) / "logs"
    make_directory(cache / _ADDRESSES)
    note, run = cache / _ADDRESSES / sha256(web.place.encode()).hex()[:32], signed.run.hex()
    with disk_errors(note):
        before = note.read_text("ascii", "replace")[:64] if note.exists() else run
    if before != run and not known.run:
        raise OtherHistory(f"{web.place} had the log of run {before} before, and now has that of {run}; if you mean this one: --run {run}")
    write_durably(note, run.encode())
    return cache / run


def _edge(size: int) -> list[Tile]:
    """Return the partial tiles of a tree: at most one of a row, and all that its root is made of."""
    found = []
    for level in range(-(-size.bit_length() // HEIGHT)):
        index, width = divmod(size >> HEIGHT * level, WIDTH)
        if width:
            found.append(Tile(level, index, width))
    return found


def _comes_to(tile: Tile, data: bytes) -> bytes:
    """Return what lies above a full tile or a bundle in a tree: one hash, or one for each entry; of anything else nothing."""
    if tile.level is not None:
        return _root(data) if len(data) == MAX_TILE_BYTES else b""
    with contextlib.suppress(EncodingError):
        return b"".join(map(leaf_hash, bundled(data)))
    return b""


def _root(hashes: bytes) -> bytes:
    return root(hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES))
