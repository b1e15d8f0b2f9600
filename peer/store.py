"""A peer's directory: the identity, the run it joined last, its signed work, and a status file for other programs to read.

identity.key          the Ed25519 key, mode 0600
peer.toml             the person's settings (see ``peer.config``); only read
limits.toml           what ``manta-peer limits`` was told to keep (see ``peer.limits.limits``)
privacy               how much privacy was given away with contributions (see ``peer.features.private.noise``)
lock                  locked while a peer (or an aggregator) runs on the directory
control               a socket over which commands tell the program something (see ``peer.control``)
last.json             the run joined last, where it was found, and some of its peers
runs/<run>/signed     the newest contribution, header and body: after a crash it is handed in all the same
runs/<run>/newest     the newest commit that was heard of, as the log proves it: what the log has to have whenever it is met again
runs/<run>/agreed     the newest one of which it is known that all heads seen before, here and by others, are of its history
runs/<run>/admission-proof  the log's word that this peer was let in, where not everybody is
runs/<run>/credit     what this peer has earned, as the log says and as it computed itself
runs/<run>/payout_receipts/     a payout receipt for each round that counted this peer (see ``peer.credit.payout_receipts``)
runs/<run>/residuals  which residual holds, and what contributions on their way leave
runs/<run>/residual-* these residuals, float32, each named by its digest
runs/<run>/vectors/   what its local steps averaged, what it learnt, and the residuals that it used, as audits may ask for them
runs/<run>/open/      the contributions of which they may (see ``peer.features.audit.bringing``)
runs/<run>/fetched/   vectors of others, while their contributions are computed again
runs/<run>/distrusted  volunteers whose audits the operator's auditor does not believe any more (see ``peer.features.audit.auditor``)
proofs/               what proves that a run's log lied, or has two histories (see ``peer.sync``)
status.json           where the peer stands
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manta_swarm.network.peer_status import STATUS_FILE, PeerStatus
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.records import Header
from manta_swarm.runtime.atomic_file import AtomicFile
from manta_swarm.runtime.disk import IDENTITY, make_directory, replace_file

RUNS, PAYOUT_RECEIPTS, VECTORS, FETCHED = "runs", "payout_receipts", "vectors", "fetched"
_LAST = "last.json"
_MAX_BYTES, _MAX_VECTOR_BYTES = 1 << 20, 1 << 31  # more than any file has, and one that holds a vector


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run that this peer joined last."""

    run: str  # its id in hex
    addresses: tuple[str, ...]  # that led to it
    peers: tuple[str, ...] = ()  # addresses of some of its peers


@dataclass(frozen=True, slots=True)
class KeptContribution:
    """A contribution as it was signed."""

    header: Header
    body: bytes


@dataclass(frozen=True, slots=True)
class KeptResiduals:
    """Which residuals a peer has, by digest; an empty one: zeros."""

    held: bytes = b""
    round: int = 0  # whose table made it the one that holds
    left: tuple[tuple[bytes, bytes], ...] = ()  # contributions on their way, each with what it leaves once it is listed


class PeerStore:
    """The files of one peer; the module's docstring says what is in each."""

    def __init__(self, directory: Path) -> None:
        """Use ``directory``, which is made if it is not there."""
        make_directory(directory)
        self.directory = directory
        self.identity_path = directory / IDENTITY

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
        AtomicFile(self.directory / _LAST, _MAX_BYTES).write(json.dumps(entry).encode())

    def newest(self, run: bytes) -> AtomicFile:
        """Return the file of the newest commit of a run, a packed Receipt."""
        return newest_file(self.run_path(run))

    def agreed(self, run: bytes) -> AtomicFile:
        """Return the file of the newest commit of one history, a packed Receipt."""
        return AtomicFile(self.run_path(run) / "agreed", _MAX_BYTES, is_synced=False)

    def own_proof(self, run: bytes) -> AtomicFile:
        """Return the file of this peer's admission proof, a packed Signed[AdmissionProof]."""
        return AtomicFile(self.run_path(run) / "admission-proof", _MAX_BYTES)

    def credit(self, run: bytes) -> AtomicFile:
        """Return the file of a ``peer.credit.payout_receipts.KeptCredit``."""
        return credit_file(self.run_path(run))

    def signed(self, run: bytes) -> AtomicFile:
        """Return the file of the newest contribution that this peer signed, a ``KeptContribution``."""
        remedy = "check the disk, then delete the file: the microbatches of one round are lost with it"
        return AtomicFile(self.run_path(run) / "signed", _MAX_VECTOR_BYTES, remedy)

    def residuals(self, run: bytes) -> AtomicFile:
        """Return the file that says which residuals there are, a ``KeptResiduals``."""
        remedy = "check the disk, then delete the file: what coding left out so far is lost with it"
        return AtomicFile(self.run_path(run) / "residuals", _MAX_BYTES, remedy)

    def residual(self, run: bytes, digest: bytes) -> AtomicFile:
        """Return the file of a residual, float32, little-endian."""
        return AtomicFile(self.run_path(run) / f"residual-{digest.hex()[:32]}", _MAX_VECTOR_BYTES)

    def save_residuals(self, run: bytes, kept: KeptResiduals) -> None:
        """Keep which residuals there are; durable when this returns. Files of others go.

        Raises:
            StorageError: the disk refuses.
        """
        self.residuals(run).save(kept)
        named = {self.residual(run, digest).path for digest in (kept.held, *(left for _, left in kept.left))}
        for other in set(self.run_path(run).glob("residual-*")) - named:
            other.unlink(missing_ok=True)

    def run_path(self, run: bytes) -> Path:
        """Return the folder of all that is kept of a run."""
        return self.directory / RUNS / run.hex()[:16]

    def write_status(self, status: PeerStatus) -> None:
        """Replace the status file."""
        replace_file(self.directory / STATUS_FILE, status.to_json(indent=1).encode())


def newest_file(run_folder: Path) -> AtomicFile:
    """Return the file of the newest commit in the folder of a run."""
    return AtomicFile(run_folder / "newest", _MAX_BYTES, is_synced=False)


def credit_file(run_folder: Path) -> AtomicFile:
    """Return the file of the credit in the folder of a run."""
    remedy = "what the log said is not known here; the next manta-peer join asks again"
    return AtomicFile(run_folder / "credit", _MAX_BYTES, remedy, is_synced=False)


def read_last_run(directory: Path) -> LastRun | None:
    """Return the run joined last; None: none was, or somebody edited the file, and the person is asked for an address."""
    try:
        entry = json.loads(AtomicFile(directory / _LAST, _MAX_BYTES).read() or b"")
        last = LastRun(entry["run"], _texts(entry["initial_peers"]), _texts(entry.get("peers", [])))
    except (StorageError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return last if type(last.run) is str and last.addresses else None


def _texts(values: list[str]) -> tuple[str, ...]:
    """Return a list of texts as a tuple.

    Raises:
        TypeError: it is something else.
    """
    if type(values) is not list or any(type(each) is not str for each in values):
        raise TypeError("not a list of texts")
    return tuple(values)
