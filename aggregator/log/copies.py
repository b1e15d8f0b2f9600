"""Copies of a log as files (``aggregator.log.tiles``), in a folder or behind a web server: read, and verified from the files alone."""

import ipaddress
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol

from manta_swarm.aggregator.log.contents import CHECKPOINT, check_exported
from manta_swarm.aggregator.log.storage import MANIFEST
from manta_swarm.aggregator.log.tiles import head_of, read_file
from manta_swarm.aggregator.log.verify import TrainingSpecOf
from manta_swarm.aggregator.log.witnessed import WITNESSED
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.cosignatures import Cosignature, cosignatures_of
from manta_swarm.protocol.errors import NoSuchFile, OtherVersion, RemoteFault, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import MAX_NOTE_BYTES, TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.records import MAX_ENTRY_BYTES
from manta_swarm.protocol.reputation import Reputation
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.tiles import MAX_TILE_BYTES, WIDTH, Tile, open_bundle, tile_hashes, tiles_of

MAX_BUNDLE_BYTES = WIDTH * (2 + MAX_ENTRY_BYTES)
_SILENCE_S = 30.0  # without a byte
_FILE_S = 300.0  # for a whole file: the largest bundle over a line of 0.5 Mbit/s
_PIECE_BYTES = 65_536
_PAUSES_S = (1.0, 3.0, 10.0)  # before a file is asked for again
_BUSY = (408, 429, 500, 502, 503, 504)


class Copy(Protocol):
    """A copy of a log, as files by their names."""

    @property
    def place(self) -> str:
        """Where the copy is, as people write it; a file's name follows it after a slash."""
        ...

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a file, cut off just after ``max_bytes``.

        Raises:
            NoSuchFile: it is not there.
            UserError: it cannot be had.
        """
        ...


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A copy in a folder, as an export makes it."""

    folder: Path

    @property
    def place(self) -> str:
        """See ``Copy.place``."""
        return str(self.folder)

    def read(self, name: str, max_bytes: int) -> bytes:
        """See ``Copy.read``."""
        return read_file(self.folder / name, max_bytes)


@dataclass(frozen=True, slots=True)
class WebCopy:
    """An export behind a web server, or a monitor's /tlog/."""

    url: str
    is_patient: bool = False  # asks again, up to three times, where the server is busy or the line fails

    @property
    def place(self) -> str:
        """See ``Copy.place``."""
        return self.url.rstrip("/")

    @property
    def is_open_to_others(self) -> bool:
        """Whether its bytes come over a network without TLS."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.hostname or ""
        try:
            is_here = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_here = host == "localhost"
        return parts.scheme == "http" and not is_here

    def read(self, name: str, max_bytes: int) -> bytes:
        """See ``Copy.read``."""
        for pause_s in _PAUSES_S if self.is_patient else ():
            try:
                return self._read(name, max_bytes)
            except _Failed:
                time.sleep(pause_s)
        return self._read(name, max_bytes)

    def _read(self, name: str, max_bytes: int) -> bytes:
        url = f"{self.place}/{name}"
        try:
            with _OPENER.open(url, timeout=_SILENCE_S) as answer:
                return _bounded(answer, max_bytes)
        except urllib.error.HTTPError as error:
            with error:
                location = error.headers.get("Location")
            if error.code == 404:
                raise NoSuchFile(f"{url} is not there (HTTP 404): check the address, which ends with /tlog/ at a monitor") from error
            if location is not None:
                raise UserError(f"{url} points to {location[:200]!a}, which is not followed: give that address if you mean it") from error
            raise (_Failed if error.code in _BUSY else UserError)(_cannot(url, f"HTTP {error.code}")) from error
        except (OSError, ValueError, HTTPException) as error:  # urllib's own are OSErrors
            raise _Failed(_cannot(url, _in_words(getattr(error, "reason", error)))) from error


class _Failed(UserError):
    """The server or the line failed, and may not the next time."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow nothing: a person says which server is asked."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def signed_manifest_of(copy: Copy) -> SignedManifest:
    """Return the manifest of the run that a copy is of, its signature checked.

    Raises:
        UserError: it does not hold, or is of another version.
        StorageError: it cannot be read.
    """
    data = copy.read(MANIFEST, MAX_SIGNED_MANIFEST_BYTES)
    try:
        signed = SignedManifest.read(data)
        signed.open()
    except OtherVersion as error:
        raise UserError(f"{copy.place} has the log of a run of another version: {error}") from error
    except RemoteFault as error:
        raise UserError(f"{copy.place}/{MANIFEST} does not hold: {error}") from error
    return signed


def note_in(copy: Copy, name: str) -> str:
    """Return the text of a note in a copy; what it says is not checked.

    Raises:
        UserError: it is no text, or cannot be had.
        StorageError: it cannot be read.
    """
    try:
        return copy.read(name, MAX_NOTE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{copy.place}/{name} is no text") from error


def copy_at(source: str) -> Copy:
    """Return the copy at an address or in a folder; nothing is asked yet.

    Raises:
        UserError: it is neither, or the folder holds none.
    """
    if source.startswith(("http://", "https://")):
        return web_copy(source)
    if not Path(source).is_dir():
        raise UserError(f"{source} is no folder, and no address that begins with http:// or https://")
    check_exported(Path(source))
    return FolderCopy(Path(source))


def web_copy(url: str) -> WebCopy:
    """Return the copy at an address; nothing is asked yet.

    Raises:
        UserError: it is none.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        is_url = False
    if not is_url or " " in url or parts.query or parts.fragment or parts.username is not None:
        raise UserError(f"{url!a} is no address of a log: write one like https://HOST/tlog/")
    return WebCopy(url)


def _bounded(answer: HTTPResponse, max_bytes: int) -> bytes:
    until_s = time.monotonic() + _FILE_S
    data = bytearray()
    while len(data) <= max_bytes and (piece := answer.read1(min(_PIECE_BYTES, max_bytes + 1 - len(data)))):
        data += piece
        if time.monotonic() > until_s:
            raise TimeoutError("too slow")
    return bytes(data)


def _in_words(reason: object) -> str:
    """Return why a server does not answer; what it said itself is quoted."""
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return ascii(str(reason))[1:-1] or type(reason).__name__


def _cannot(url: str, why: str) -> str:
    return f"{url} cannot be had ({why}): check the address, or try another copy of the log"


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """What a copy of a log shows; each check of it held."""

    run: bytes
    operators: tuple[PublicKey, ...]  # who signed the head
    head: TreeHead
    rounds: int
    num_rounds: int  # of the run
    is_settled: bool  # see ``aggregator.log.verify.Verification``
    reputation: Reputation
    is_private: bool  # see ``aggregator.log.verify.Verification``
    witnesses: tuple[tuple[int, Cosignature], ...] = ()  # cosignatures, each with the size of the head that it is of

    @property
    def credits(self) -> dict[bytes, int]:
        """Payout account -> what was paid to it; who has nothing is not in it."""
        return self.reputation.credits()


class LogCheck:
    """Checks one log as files: each entry after those before it, each tile, the signed tree head and what witnesses signed.

    Needs nothing else, and believes nobody: that it is the newest only a witness, or who kept a later tree head, can tell.
    """

    def __init__(self, copy: Copy, *, training_spec_of: TrainingSpecOf = ManifestTrainingSpec) -> None:
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

    def shown(self) -> VerifiedLog:
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
        return VerifiedLog(
            run=self._signed.run,
            operators=self._operators.signers(self._note).in_order,
            head=self.head,
            rounds=ledger.round,
            num_rounds=ledger.manifest.num_rounds,
            is_settled=ledger.settled,
            reputation=ledger.reputation,
            is_private=ledger.manifest.is_private,
            witnesses=witnesses,
        )


def verify(folder: Path, *, training_spec_of: TrainingSpecOf = ManifestTrainingSpec) -> VerifiedLog:
    """Return what an export in ``folder`` shows: see ``LogCheck``.

    Raises:
        UserError: it is no export, or something in it does not hold; the message names the first file at fault.
        StorageError: it cannot be read.
    """
    check_exported(folder)
    check = LogCheck(FolderCopy(folder), training_spec_of=training_spec_of)
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
