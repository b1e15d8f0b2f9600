"""Hands out what audits begin with, of rounds that newcomers need no more: states, and bodies of contributions, from the disk.

What is handed out of the newest rounds lies in memory (``network.blobs``). What an auditor asks for may be as old as a contribution that is
not paid yet.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from manta_swarm.aggregator.features.audits.brought import Brought
from manta_swarm.aggregator.follow.snapshots import Snapshots
from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.log import Log
from manta_swarm.automl.training.update import state_piece_sizes, state_pieces
from manta_swarm.codec.coding import body_groups, group_sizes
from manta_swarm.network.blobs import Blob, Lent
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.exchange import MAX_AGE


@dataclass(frozen=True, slots=True)
class _Kept:
    """One that is on the disk; implements ``network.blobs.Lent``."""

    root: bytes
    num_pieces: int
    read: "Callable[[_Kept], Blob | None]"
    load: Callable[[], Blob | None]

    def hashes(self) -> tuple[bytes, ...] | None:
        """Return the hashes of all pieces; None: it is not what it should be."""
        blob = self.read(self)
        return None if blob is None else blob.hashes

    def piece(self, place: int) -> bytes | None:
        """Return a piece; None: it is not what it should be."""
        blob = self.read(self)
        return None if blob is None or place >= len(blob.pieces) else bytes(blob.pieces[place])


class Lending:
    """One operator's; implements ``network.blobs.Lender``."""

    def __init__(self, log: Log, snapshots: Snapshots, bodies: Bodies, brought: Brought, num_weights: int) -> None:
        """Read what ``snapshots`` and ``bodies`` keep, bodies of contributions that ``brought`` opened lately; of N weights."""
        self._log = log
        self._snapshots = snapshots
        self._bodies = bodies
        self._brought = brought
        self._num_weights = num_weights
        self._reading = threading.Lock()  # guards the next one
        self._last: tuple[bytes, Blob] | None = None  # what was read last: its pieces are asked for one by one

    def find(self, root: bytes) -> Lent | None:
        """Return what may be on the disk under a root; None: nothing of this run is asked for."""
        ledger = self._log.ledger
        manifest = ledger.manifest
        for audited in self._brought.opened_lately:
            if audited.contribution.body == root:
                count = len(group_sizes(manifest.exchange.codec, self._num_weights))
                round_, digest = audited.audit.round, audited.audit.work.contribution
                return _Kept(root, count, self._read, partial(self._body, round_, digest))
        oldest = min((audit.round for audit in ledger.reputation.audits.values()), default=ledger.round)
        for base in range(ledger.round, max(0, oldest - 1 - MAX_AGE) - 1, -1):
            if ledger.state_at(base) == root:
                sizes = state_piece_sizes(self._num_weights, manifest.optimizer, manifest.exchange.local_steps)
                return _Kept(root, len(sizes), self._read, partial(self._state, base, root))
        return None

    def _read(self, kept: _Kept) -> Blob | None:
        with self._reading:
            if self._last is None or self._last[0] != kept.root:
                try:
                    blob = kept.load()
                except StorageError:  # it is gone: the auditor is told that it is not here
                    blob = None
                if blob is None or blob.root != kept.root:
                    return None
                self._last = kept.root, blob
            return self._last[1]

    def _body(self, round_: int, contribution: bytes) -> Blob | None:
        codec = self._log.ledger.manifest.exchange.codec
        for kept in self._bodies.read(round_):
            if kept.header.contribution.digest == contribution:
                return Blob.of(body_groups(codec, kept.body, self._num_weights))
        return None

    def _state(self, round_: int, root: bytes) -> Blob | None:
        return Blob.of(state_pieces(self._snapshots.load(round_, root)))
