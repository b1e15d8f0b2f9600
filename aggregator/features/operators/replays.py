"""What a batch says, computed again before it is accepted: its entries on the log, and its round from the bodies of the table."""

from collections.abc import Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.features.operators.contributions import Contributions
from manta_swarm.aggregator.follow.follower import Follower, Next
from manta_swarm.aggregator.intake import bodies
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.worker import Worker
from manta_swarm.codec.coding import Body, body_groups, parse
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.ballots import Batch
from manta_swarm.protocol.errors import EncodingError, LedgerError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.table import weights_root


@dataclass(frozen=True, slots=True)
class Replayed:
    """A batch with a round that was found good, what that leads to, and the bodies of its table."""

    batch: Batch
    after: Next
    bodies: tuple[Blob, ...]


class Replays:
    """Computes batches again for one operator; the last batch with a round is remembered. The arithmetic is done in a thread of its own."""

    def __init__(self, log: Log, follower: Follower) -> None:
        """Compute with the follower's state, which has to be that of the log."""
        self._log = log
        self._follower = follower
        self._codec = log.ledger.manifest.exchange.codec
        self.compute = Worker("replays")  # only computes, or reads
        self._last: Replayed | None = None

    async def check(self, batch: Batch, contributions: Contributions, leader: PublicKey) -> None:
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
        after = await self.compute.do(self._follower.follow, base, listed, parsed)
        entry = ledger.newest
        assert entry is not None
        said = (entry.mean, entry.weights, entry.state, entry.thresholds, entry.min_exponent)
        if (after.mean.root, weights_root(after.weighed), after.blob.root, after.outcome.thresholds, after.outcome.min_exponent) != said:
            raise EncodingError(f"round {entry.round} does not come to what its leader says")
        self.know(batch, after, blobs)

    def know(self, batch: Batch, after: Next, found: Sequence[Blob]) -> None:
        """Remember what a batch leads to, whose table has these bodies: it was computed here."""
        self._last = Replayed(batch, after, tuple(found))

    def leads_to(self, root: bytes) -> bool:
        """Return whether what is remembered is of the batch with this root."""
        return self._last is not None and self._last.batch.root == root

    def take(self) -> Replayed | None:
        """Return what is remembered, and forget it; None: nothing is."""
        last, self._last = self._last, None
        return last

    def close(self) -> None:
        """Finish what is being computed."""
        self.compute.close()

    def _followed(self, base: Ledger, batch: Batch) -> Ledger:
        if self._log.root_with(batch.entries) != batch.root:
            raise EncodingError("the root is not that of the log with these entries")
        ledger = folded(base, batch.entries)
        if not ledger.is_between_rounds or ledger.round > base.round + 1:
            raise LedgerError("a batch is at most one round, and ends with it")
        return ledger

    def _parsed(self, listed: Sequence[Listed], found: Sequence[bodies.Kept]) -> tuple[list[Blob], list[Body]]:
        blobs, parsed = [], []
        for one, kept in zip(listed, found, strict=True):
            blob = Blob.of(body_groups(self._codec, kept.body, self._follower.num_weights))
            if blob.root != one.body:
                raise EncodingError("a body does not have the root that its header names")
            blobs.append(blob)
            parsed.append(parse(self._codec, kept.body, self._follower.num_weights))
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
