"""A peer's directory: the identity, the run it joined last, its sealed work, and a status file for other programs to read.

identity.key          the Ed25519 key, mode 0600
peer.toml             the person's settings (see ``peer.config``); only read
lock                  locked while a peer (or an aggregator) runs on the directory
last.json             the run joined last, where it was found, and some of its peers
runs/<run>/sealed     the newest contribution, header and body: after a crash it is handed in all the same
runs/<run>/newest     the newest commit that was heard of, as the log proves it: what the log has to have whenever it is met again
runs/<run>/agreed     the newest one of which it is known that all heads seen before, here and by others, are of its history
runs/<run>/pass       the log's word that this peer was let in, where not everybody is
runs/<run>/credit     what this peer has earned, as the log says and as it computed itself
runs/<run>/slips/     a pay slip for each round that counted this peer (see ``peer.rounds.slips``)
runs/<run>/residuals  which residual holds, and what contributions on their way leave
runs/<run>/residual-* these residuals, float32, each named by its digest
runs/<run>/vectors/   what its local steps averaged, what it learnt, and the residuals that it used, as audits may ask for them
runs/<run>/open/      the contributions of which they may (see ``peer.auditing.bringing``)
runs/<run>/fetched/   vectors of others, while their contributions are computed again
status.json           where the peer stands
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, RemoteFault, StorageError
from protocol.records import Header
from protocol.signing import sha256
from runtime.disk import IDENTITY, make_directory, replace_file, write_durably

RUNS, NEWEST, CREDIT, SLIPS = "runs", "newest", "credit", "slips"


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run joined last."""

    run: str  # its id in hex
    addresses: tuple[str, ...]  # that led to it
    peers: tuple[str, ...] = ()  # addresses of some of its peers


@dataclass(frozen=True, slots=True)
class Kept:
    """A contribution as it was sealed."""

    header: Header
    body: bytes


@dataclass(frozen=True, slots=True)
class _File:
    header: Header
    body: bytes
    digest: bytes  # SHA-256 of the packed header and the body


@dataclass(frozen=True, slots=True)
class KeptResiduals:
    """Which residuals a peer has, by digest; an empty one: zeros."""

    held: bytes
    round: int  # whose table made it the one that holds
    left: tuple[tuple[bytes, bytes], ...]  # contributions on their way, each with what it leaves once it is listed


@dataclass(frozen=True, slots=True)
class _Residuals:
    kept: KeptResiduals
    digest: bytes


class RunFile:
    """A small file of each run, replaced whole: a power cut may bring what it had before back. What it says is not looked at here."""

    def __init__(self, directory: Path, name: str) -> None:
        """Of the peer in ``directory``."""
        self._directory = directory
        self._name = name

    def save(self, run: bytes, data: bytes) -> None:
        """Keep ``data`` in place of what was kept.

        Raises:
            StorageError: the disk refuses.
        """
        path = _run_path(self._directory, run) / self._name
        make_directory(path.parent)
        replace_file(path, data)

    def load(self, run: bytes) -> bytes | None:
        """Return what was kept; None: nothing.

        Raises:
            StorageError: it cannot be read.
        """
        return _read(_run_path(self._directory, run) / self._name)


class PeerStore:
    """The files of one peer; what is in each says the head of this module."""

    def __init__(self, directory: Path) -> None:
        """Use ``directory``, which is made if it is not there."""
        make_directory(directory)
        self.directory = directory
        self.identity_path = directory / IDENTITY
        self.newest, self.agreed = RunFile(directory, NEWEST), RunFile(directory, "agreed")
        self.own_pass, self.credit = RunFile(directory, "pass"), RunFile(directory, CREDIT)

    def last_run(self) -> LastRun | None:
        """Return the run joined last; see ``read_last_run``."""
        return read_last_run(self.directory)

    def remember_run(self, run: bytes, initial_peers: Sequence[str]) -> None:
        """Keep what ``last_run`` returns; peers of the same run that were remembered stay."""
        last = self.last_run()
        peers = last.peers if last is not None and last.run == run.hex() else ()
        self._write_last(LastRun(run.hex(), tuple(initial_peers), peers))

    def remember_peers(self, peers: Sequence[str]) -> None:
        """Keep addresses of peers of the run that is joined."""
        last = self.last_run()
        if last is not None and set(last.peers) != set(peers):
            self._write_last(replace(last, peers=tuple(peers)))

    def _write_last(self, last: LastRun) -> None:
        entry = {"run": last.run, "initial_peers": last.addresses, "peers": last.peers}
        write_durably(self.directory / "last.json", json.dumps(entry).encode())

    def save_sealed(self, run: bytes, header: Header, body: bytes) -> None:
        """Keep a contribution in place of the one before; durable when this returns.

        Raises:
            StorageError: the disk refuses; the one before is still there.
        """
        path = self._sealed_path(run)
        make_directory(path.parent)
        write_durably(path, pack(_File(header, body, sha256(pack(header) + body))))

    def load_sealed(self, run: bytes) -> Kept | None:
        """Return the newest contribution that this peer sealed in ``run``.

        Raises:
            StorageError: the file is damaged; it is left as it is.
        """
        path = self._sealed_path(run)
        data = _read(path)
        if data is None:
            return None
        try:
            found = unpack(_File, data, max_bytes=len(data))
            if sha256(pack(found.header) + found.body) != found.digest:
                raise EncodingError("its digest is another one")
        except RemoteFault as error:
            raise StorageError(
                f"{path} is damaged ({error}); check the disk, then delete the file: the lots of one round are lost with it"
            ) from error
        return Kept(found.header, found.body)

    def save_residual(self, run: bytes, digest: bytes, values: NDArray[np.float32]) -> None:
        """Keep a residual under its digest; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        path = self._residual_path(run, digest)
        make_directory(path.parent)
        write_durably(path, np.ascontiguousarray(values, "<f4").tobytes())

    def load_residual(self, run: bytes, digest: bytes) -> NDArray[np.float32] | None:
        """Return a residual (N,); None where it is not here. Whether it has the digest is not looked at."""
        data = _read(self._residual_path(run, digest))
        return None if data is None or len(data) % 4 else np.frombuffer(data, "<f4").astype(np.float32)

    def save_residuals(self, run: bytes, kept: KeptResiduals) -> None:
        """Keep which residuals there are; durable when this returns. Files of others go.

        Raises:
            StorageError: the disk refuses.
        """
        path = self._run_path(run) / "residuals"
        make_directory(path.parent)
        write_durably(path, pack(_Residuals(kept, sha256(pack(kept)))))
        named = {self._residual_path(run, digest) for digest in (kept.held, *(left for _, left in kept.left))}
        for other in set(path.parent.glob("residual-*")) - named:
            other.unlink(missing_ok=True)

    def load_residuals(self, run: bytes) -> KeptResiduals:
        """Return which residuals there are; none if no file says so.

        Raises:
            StorageError: the file is damaged; it is left as it is.
        """
        path = self._run_path(run) / "residuals"
        data = _read(path)
        if data is None:
            return KeptResiduals(b"", 0, ())
        try:
            found = unpack(_Residuals, data, max_bytes=max(len(data), 1))
            if sha256(pack(found.kept)) != found.digest:
                raise EncodingError("its digest is another one")
        except RemoteFault as error:
            raise StorageError(
                f"{path} is damaged ({error}); check the disk, then delete the file: what coding left out so far is lost with it"
            ) from error
        return found.kept

    def vectors_path(self, run: bytes) -> Path:
        """Return the folder for the vectors of this peer's claims."""
        return self._run_path(run) / "vectors"

    def run_path(self, run: bytes) -> Path:
        """Return the folder of all that is kept of a run."""
        return self._run_path(run)

    def fetched_path(self, run: bytes) -> Path:
        """Return the folder for vectors of others."""
        return self._run_path(run) / "fetched"

    def slips_path(self, run: bytes) -> Path:
        """Return the folder for this peer's pay slips."""
        return self._run_path(run) / SLIPS

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status file."""
        replace_file(self.directory / "status.json", json.dumps(status, indent=1).encode())

    def _run_path(self, run: bytes) -> Path:
        return _run_path(self.directory, run)

    def _sealed_path(self, run: bytes) -> Path:
        return self._run_path(run) / "sealed"

    def _residual_path(self, run: bytes, digest: bytes) -> Path:
        return self._run_path(run) / f"residual-{digest.hex()[:32]}"


def _run_path(directory: Path, run: bytes) -> Path:
    return directory / RUNS / run.hex()[:16]


def read_last_run(directory: Path) -> LastRun | None:
    """Return the run joined last; None: none was, or somebody edited the file, and the person is asked for an address."""
    try:
        entry = json.loads((directory / "last.json").read_text())
        last = LastRun(entry["run"], _texts(entry["initial_peers"]), _texts(entry.get("peers", [])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return last if type(last.run) is str and last.addresses else None


def _read(path: Path) -> bytes | None:
    """Return a file's bytes; None if it is not there.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; check the disk and the permissions, then start again") from error


def _texts(values: list[str]) -> tuple[str, ...]:
    """Return a list of texts as a tuple.

    Raises:
        TypeError: it is something else.
    """
    if type(values) is not list or any(type(each) is not str for each in values):
        raise TypeError("not a list of texts")
    return tuple(values)
