"""Spot checks: whoever takes a round's mean from the log computes a group of it again from the bodies, at random.

A check is as rare as it is dear: on average it costs a tenth of what the mean costs. Where a group is another one than the log's, there is
a proof of that (``network.wrong_group``), which is kept as a file; and the peer stops, for it cannot go on from a lie.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from manta_swarm.codec.coding import group_sizes
from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, ProvenPiece
from manta_swarm.network.fetching import fetch_piece
from manta_swarm.network.sources import Sources
from manta_swarm.network.wrong_group import MeanShape, RightGroup, WrongGroup, WrongMean
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import MantaError, RemoteFault, Weather
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.merkle import HASH_BYTES
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Receipt, Round, entry_of
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.table import Weighed, weighed_bytes
from manta_swarm.runtime.disk import write_durably
from manta_swarm.runtime.tasks import together

PROOFS = "proofs"  # below the peer's folder
SHARE = 10  # a check costs on average 1/10 of the mean's bytes
_PIECES_AT_ONCE = 8
_TRIES = 2
_WEIGHED_BYTES = 128  # of what a contribution weighs as it travels, about

logger = logging.getLogger("manta.peer")


class LogLied(MantaError):
    """The log committed what does not follow from the contributions that it lists; nobody can go on from there."""


class BodySources(Protocol):
    """Knows what committed contributions weigh, and who has their bodies (``peer.sync.spread.BlobDistribution``)."""

    async def weighed(self, entry: Round) -> Sequence[Weighed]:
        """Return what the contributions of a committed round weigh."""

    def sources(self, root: bytes) -> Iterable[PublicKey]:
        """Return who has a blob."""

    def distrust(self, key: PublicKey, reason: str) -> None:
        """Take note of who sent bytes that cannot be right."""


class SpotChecker:
    """Makes spot checks of one run's means."""

    def __init__(self, context: RunContext, spread: BodySources, *, rng: random.Random | None = None) -> None:
        """Prepare.

        Args:
            context: of the run.
            spread: knows what contributions weigh, and who has bodies.
            rng: decides what is checked.
        """
        self._node = context.node
        self._signed = context.signed
        self._manifest = context.manifest
        self._shape = MeanShape(context.num_weights, context.training_spec.coverage)
        self._blob_store = context.blob_store
        self._directory = context.store.directory / PROOFS
        self._distribution = spread
        self._rng = rng or random.Random()
        self._entries: dict[int, Round] = {}  # of the newest rounds that were heard of
        self._body_sizes = group_sizes(self._manifest.exchange.codec, context.num_weights)
        self.outcomes: Counter[str] = Counter()  # of checks: "right", "wrong", or why there was none

    def committed(self, entry: Round) -> None:
        """Remember a round: later bodies may be on its min exponent."""
        self._entries[entry.round] = entry
        self._entries = {round_: each for round_, each in self._entries.items() if round_ > entry.round - MAX_AGE - 2}

    def wants(self, entry: Round) -> bool:
        """Return whether the mean of this round is to be checked, which is drawn at random."""
        num_groups = len(self._body_sizes)
        hashes = HASH_BYTES * num_groups if num_groups > 1 else 0
        cost = entry.contributions * (max(self._body_sizes) + hashes + _WEIGHED_BYTES)
        return self._rng.random() * SHARE * cost < sum(vector_group_sizes(self._shape.num_values))

    async def check(self, receipt: Receipt, proven: ProvenRound, mean: Blob) -> None:
        """Compute one group of a committed round's mean again.

        A check that cannot be made, since somebody has not got what it needs, is counted and passed over.

        Raises:
            LogLied: the group is another one.
            StorageError: the proof of that cannot be kept.
        """
        entry = proven.round
        place = self._rng.randrange(len(mean.pieces))
        try:
            proof = await self._collected(receipt, entry, mean, place)
            if proof is None:
                return
            wrong = await asyncio.to_thread(proof.check, lambda _: self._shape)
        except RightGroup:
            self.outcomes["right"] += 1
            return
        except (RemoteFault, Weather) as error:
            self.outcomes["not possible"] += 1
            logger.info("mean not checked round=%d reason=%s", entry.round, error)
            return
        self.outcomes["wrong"] += 1
        path = self._directory / f"wrong-group-{entry.round}-{place}.proof"
        await asyncio.to_thread(write_durably, path, pack(proof))
        raise LogLied(self._story(wrong, path))

    async def _collected(self, receipt: Receipt, entry: Round, mean: Blob, place: int) -> WrongGroup | None:
        """Return what would prove a group of the mean wrong, if it is; None: a round before it is not known here."""
        weighed = await self._distribution.weighed(entry)
        oldest = min(one.round for one in weighed) - 1
        before = [self._entries.get(round_) for round_ in range(entry.round - 1, max(0, oldest - 1), -1)]
        known = [each for each in before if each is not None]
        if len(known) < len(before):
            self.outcomes["rounds not known"] += 1
            return None
        bodies = await together(*(self._piece(one.body, place) for one in weighed), at_once=_PIECES_AT_ONCE)
        return WrongGroup(
            manifest=self._signed,
            receipt=receipt,
            before=tuple(map(entry_of, known)),
            weights=weighed_bytes(weighed),
            place=place,
            bodies=tuple(bodies),
            mean=mean.proven(place),
        )

    async def _piece(self, root: bytes, place: int) -> ProvenPiece:
        sources = Sources(self._distribution.sources(root), spare=map(PublicKey, self._manifest.operators))
        return await fetch_piece(
            self._node,
            root,
            self._body_sizes,
            place,
            sources,
            deadline_s=timeouts.PIECE_S,
            tries=_TRIES,
            blob_store=self._blob_store,
            judge=self._distribution,
            rng=self._rng,
        )

    def _story(self, wrong: WrongMean, path: Path) -> str:
        names = ", ".join(key.hex() for key in wrong.operators)
        return (
            f"the log signed by {names} committed a wrong mean in round {wrong.round} (group {wrong.place}): "
            f"nobody can go on from it; the proof is in {path}, show it to the others of run {wrong.run.hex()}"
        )
