"""The contributions that one operator of several keeps, and what a batch says, computed again from them before it is accepted."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.features.operators.lending import borrow, contribution_from
from manta_swarm.aggregator.features.operators.store import Store
from manta_swarm.aggregator.intake import bodies
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.states.state_keeper import Next, StateKeeper
from manta_swarm.aggregator.worker import WorkerThread
from manta_swarm.codec.coding import Body, body_groups, parse
from manta_swarm.network.blobs import Blob
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.ballots import EntryBatch, KeptUnderBallot
from manta_swarm.protocol.errors import EncodingError, LedgerError, MantaError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.records import MAX_HEADER_BYTES
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.table import weights_root

logger = logging.getLogger("manta.operators")


class Contributions:
    """Keeps the contributions of one operator. ``held``, by digest, is replaced as a whole, by the thread that writes."""

    def __init__(
        self,
        endpoint: Endpoint,
        log: Log,
        store: Store,
        kept_bodies: bodies.Bodies,
        disk: WorkerThread,
        body_bytes: int,
    ) -> None:
        """Take up what is on the disk.

        Args:
            endpoint: this node's.
            log: the run's.
            store: says what is kept for which round, under which ballot.
            kept_bodies: contributions on the disk.
            disk: the one thread that writes.
            body_bytes: of each.

        Raises:
            StorageError: it cannot be read.
        """
        self._endpoint = endpoint
        self._log = log
        self._store = store
        self._bodies = kept_bodies
        self._disk = disk
        self._body_bytes = body_bytes
        self.max_lent_bytes = body_bytes + 2 * MAX_HEADER_BYTES
        self.held = self._read()

    def _read(self) -> dict[bytes, tuple[KeptUnderBallot, bodies.StoredContribution]]:
        """Return the contributions for rounds that the log does not have, as they are on the disk; no file there has a torn end then."""
        kept = {one.contribution: one for one in self._store.kept}
        held = {}
        for round_ in [each for each in self._bodies.rounds() if each > self._log.ledger.round]:
            for stored in self._bodies.read(round_, mend=True):
                digest = stored.header.contribution.digest
                if digest in kept and kept[digest].round == round_:
                    held[bytes(digest)] = kept[digest], stored
        return held

    def lent(self, digest: bytes) -> bytes | None:
        """Return the contribution with this digest, as it is lent; None: it is not here."""
        held = self.held.get(digest)
        return None if held is None else held[1].pack()

    async def borrowed(self, key: PublicKey, digest: bytes) -> bodies.StoredContribution:
        """Return the contribution with this digest, which the operator ``key`` lends; whether its body is what it says is not checked.

        Raises:
            Unreachable, Refused: it does not give it.
            EncodingError: it gives something else.
        """
        return contribution_from(await borrow(self._endpoint, key, digest, self.max_lent_bytes), digest, self._body_bytes)

    async def of_table(self, listed: Sequence[Listed], round_: int, source: PublicKey) -> list[bodies.StoredContribution]:
        """Return the contributions of a table, those that lack got from the leader; all of them are on the disk then."""
        found, lacking = list[bodies.StoredContribution](), list[tuple[int, bodies.StoredContribution]]()
        for digest in [one.contribution for one in listed]:
            held = self.held.get(digest)
            if held is None:
                found.append(await self.borrowed(source, digest))
            else:
                found.append(held[1])
            if held is None or held[0].round != round_:  # its file is that of another round
                lacking.append((round_, found[-1]))
        if lacking:
            await self._disk.do(self._bodies.append, lacking)
        return found

    async def keep(self, contributions: Sequence[tuple[KeptUnderBallot, bodies.StoredContribution]]) -> None:
        """Store contributions; they are on the disk, and so is for which ballot, when this returns.

        Raises:
            Outdated: a later ballot was promised.
            StorageError: the disk failed.
        """
        await self._disk.do(self._keep, contributions)

    def _keep(self, contributions: Sequence[tuple[KeptUnderBallot, bodies.StoredContribution]]) -> None:
        for kept, _ in contributions:
            self._store.remember(self._store.memory.listening_to(kept.ballot))
        new = [(kept.round, stored) for kept, stored in contributions if not self._has(kept)]
        if new:
            self._bodies.append(new)
        self._store.keep(kept for kept, _ in contributions)
        self.held = {**self.held, **{kept.contribution: (kept, stored) for kept, stored in contributions}}

    def forget(self, round_: int) -> None:
        """Let go what was kept for rounds up to this one, which the log has."""
        self.held = {digest: one for digest, one in self.held.items() if one[0].round > round_}
        self._store.forget(round_)

    def _has(self, kept: KeptUnderBallot) -> bool:
        held = self.held.get(kept.contribution)
        return held is not None and held[0].round == kept.round

    async def found(self, kept: KeptUnderBallot, sources: Sequence[PublicKey]) -> bodies.StoredContribution | None:
        """Return a contribution that is here, or that one of ``sources`` gives; None: nobody does."""
        held = self.held.get(kept.contribution)
        if held is not None:
            return held[1]
        for key in sources:
            try:
                return await self.borrowed(key, kept.contribution)
            except MantaError as error:
                logger.info("a contribution was not given reason=%s", error)
        return None


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A batch with a round that was found good, what that leads to, and the bodies of its table."""

    batch: EntryBatch
    after: Next
    bodies: tuple[Blob, ...]


class BatchReplays:
    """Computes batches again for one operator; the last batch with a round is remembered. The arithmetic is done in a thread of its own."""

    def __init__(self, log: Log, state_keeper: StateKeeper) -> None:
        """Compute with the state keeper's state, which has to be that of the log."""
        self._log = log
        self._state_keeper = state_keeper
        self._codec = log.ledger.manifest.exchange.codec
        self.compute = WorkerThread("replays")  # only computes, or reads
        self._last: ReplayedBatch | None = None

    async def check(self, batch: EntryBatch, contributions: Contributions, leader: PublicKey) -> None:
        """Compute again what a batch of the operator ``leader`` says; ``contributions`` has those of its table.

        Raises:
            RemoteFault: it says something else, or may not follow the log.
        """
        if self._last is not None and self._last.batch == batch:
            return
        base = self._log.ledger
        ledger = await self.compute.do(self._followed, base, batch)
        if ledger.round == base.round:
            return
        listed = ledger.table_at(ledger.round)
        assert listed is not None
        found = await contributions.of_table(listed, ledger.round, leader)
        blobs, parsed = await self.compute.do(self._parsed, listed, found)
        after = await self.compute.do(self._state_keeper.after_table, base, listed, parsed)
        entry = ledger.newest
        assert entry is not None
        said = (entry.mean, entry.weights, entry.state, entry.thresholds, entry.min_exponent)
        if (
            after.mean.root,
            weights_root(after.weighed),
            after.blob.root,
            after.table_mean.thresholds,
            after.table_mean.min_exponent,
        ) != said:
            raise EncodingError(f"round {entry.round} does not come to what its leader says")
        self.know(batch, after, blobs)

    def know(self, batch: EntryBatch, after: Next, found: Sequence[Blob]) -> None:
        """Remember what a batch leads to, whose table has these bodies: it was computed here."""
        self._last = ReplayedBatch(batch, after, tuple(found))

    def leads_to(self, root: bytes) -> bool:
        """Return whether what is remembered is of the batch with this root."""
        return self._last is not None and self._last.batch.root == root

    def take(self) -> ReplayedBatch | None:
        """Return what is remembered, and forget it; None: nothing is."""
        last, self._last = self._last, None
        return last

    def close(self) -> None:
        """Finish what is being computed."""
        self.compute.close()

    def _followed(self, base: Ledger, batch: EntryBatch) -> Ledger:
        if self._log.root_with(batch.entries) != batch.root:
            raise EncodingError("the root is not that of the log with these entries")
        ledger = folded(base, batch.entries)
        if not ledger.is_between_rounds or ledger.round > base.round + 1:
            raise LedgerError("a batch is at most one round, and ends with it")
        return ledger

    def _parsed(self, listed: Sequence[Listed], found: Sequence[bodies.StoredContribution]) -> tuple[list[Blob], list[Body]]:
        blobs, parsed = [], []
        for one, kept in zip(listed, found, strict=True):
            blob = Blob.of(body_groups(self._codec, kept.body, self._state_keeper.num_weights))
            if blob.root != one.body:
                raise EncodingError("a body does not have the root that its header names")
            blobs.append(blob)
            parsed.append(parse(self._codec, kept.body, self._state_keeper.num_weights))
        return blobs, parsed


def folded(base: Ledger, entries: Sequence[bytes]) -> Ledger:
    """Return a ledger with these entries too.

    Raises:
        RemoteFault: they may not follow it.
    """
    ledger = base.copy()
    for entry in entries:
        ledger.append(entry)
    return ledger
