"""Gets what an audit needs: a claim's records, the contribution that lists it, its body, and vectors, from whoever has them.

What the log says is held to the commits that this peer knows itself; all else has a digest that the claim, or its contribution, names.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.audits.messages import Ask
from protocol.audits import WHOLE
from protocol.duties import Duty, check_duty
from protocol.errors import EncodingError, RemoteFault, Weather
from protocol.evidence import Records, records_of
from protocol.exchange import codec_named
from protocol.manifest import Manifest
from protocol.receipts import ProvenRound
from protocol.records import Claim, Contribution, SignedClaim, commit_digest
from protocol.signing import PublicKey, peer_name
from protocol.wanted import Asked, is_by_body, wanted_of_one
from swarm.log_client import Counted
from swarm.operator_line import OperatorLine
from swarm.records import fetch_records
from swarm.rpc import Endpoint
from swarm.vectors import VectorsFolder, fetch_vector

_VALUE_BYTES = 4

logger = logging.getLogger("manta.audits")


@dataclass(frozen=True, slots=True)
class Known:
    """What this peer knows of the run by itself, and gets as everybody does."""

    round: Callable[[], int]  # the newest commit
    commit: Callable[[int], ProvenRound | None]  # one of the newest, by its round
    weights: Callable[[bytes], Awaitable[tuple[Tensor, Tensor | None]]]  # of a committed state, and of its teacher
    counted: Callable[[int, bytes], Awaitable[Counted | None]]  # of a round: the contribution with a key's claim, as the log proves it
    body: Callable[[bytes], Awaitable[bytes]]  # of a committed table, by its root


def most_bytes(manifest: Manifest, num_weights: int) -> int:
    """Return how many bytes vectors of others take at most: those of one whole claim, and the weights before a lot's step."""
    return _VALUE_BYTES * num_weights * (2 * manifest.exchange.local_steps + 1)


@dataclass(frozen=True, slots=True)
class Base:
    """What a claim was worked on."""

    state: bytes  # digest
    floor: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the process that computes, and on which weights."""

    ask: Ask
    records: Records
    state: bytes  # digest of the base's
    before: bytes  # digest of the weights before a later step, where a lot was trained on these; else nothing


class Needs:
    """What one peer's audits need."""

    def __init__(
        self,
        endpoint: Endpoint,
        line: OperatorLine,
        manifest: Manifest,
        run: bytes,
        known: Known,
        fetched: VectorsFolder,
        num_weights: int,
    ) -> None:
        """Ask over ``endpoint``, and the log over ``line``; keep vectors of others in ``fetched`` as long as they are needed."""
        self._endpoint = endpoint
        self._line = line
        self._manifest = manifest
        self._run = run
        self._known = known
        self._fetched = fetched
        self._num_weights = num_weights
        self._is_sparse = codec_named(manifest.exchange.codec).is_sparse

    def base_of(self, duty: Duty, claim: Claim) -> Base:
        """Return what a claim's lots were trained on, by what this peer knows itself.

        Raises:
            RemoteFault: it is no question that the beacon asks.
        """
        after = self._known.commit(duty.round + 1)
        base, found = self._run, Base(self._manifest.initial_state, self._manifest.exchange.first_floor)
        if claim.round > 1:
            before = self._known.commit(claim.round - 1)
            if before is None:
                raise EncodingError("a question about a base that is not known here")
            base, found = before.commit, Base(before.round.state, before.round.floor)
        if after is None:
            raise EncodingError("a question whose beacon is not known here")
        check_duty(duty, claim, self._manifest.trust, run=self._run, base=base, beacon=after.commit)
        return found

    async def question(self, duty: Duty, claim: Claim, base: Base) -> Question:
        """Return what has to be computed on a claim's ``base``, once all is here that it takes but the weights.

        Raises:
            Unreachable: something is not to be had now.
            RemoteFault: what is handed out is something else.
            StorageError: the disk refuses.
        """
        records = await self._records(duty.claim, claim)
        if duty.check != WHOLE:
            (before,) = wanted_of_one(Asked(duty.check, duty.lot, 0, False), claim, 1, records, is_sparse=self._is_sparse) or (b"",)
            ask = Ask(duty.claim, duty.check, duty.lot, records.lots, records.steps, 0, b"", base.floor)
            return Question(ask, records, base.state, before)
        contribution = await self._contribution(duty, claim)
        count = len(contribution.claims)
        body = await self._known.body(contribution.body) if is_by_body(claim, count, is_sparse=self._is_sparse) else b""
        await self.drop_all_but((duty.claim.digest,))  # the disk has room for one claim's
        for digest in wanted_of_one(Asked(WHOLE, 0, 0, False), claim, count, records, is_sparse=self._is_sparse):
            await self._get(duty.claim, claim, digest)
        ask = Ask(duty.claim, WHOLE, 0, records.lots, records.steps, int(count == 1), body, base.floor)
        return Question(ask, records, base.state, b"")

    async def weights_before(self, signed: SignedClaim, claim: Claim, digest: bytes) -> Tensor:
        """Return the weights (N,) before a later step of a claim, by their digest.

        Raises:
            Unreachable, RemoteFault: nobody hands them out.
            StorageError: the disk refuses.
        """
        try:
            await self._get(signed, claim, digest)
            values = await asyncio.to_thread(self._fetched.read, signed.digest, digest)
        finally:
            await asyncio.to_thread(self._fetched.keep_only, signed.digest, ())
        if values is None:
            raise EncodingError("a vector that is gone from this disk")
        return torch.from_numpy(values)

    async def drop_all_but(self, claims: Collection[bytes]) -> None:
        """Remove what was got of other claims than these, by their digests.

        Raises:
            StorageError: the disk refuses.
        """
        for claim in self._fetched.claims:
            if claim not in claims:
                await asyncio.to_thread(self._fetched.keep_only, claim, ())

    async def _records(self, signed: SignedClaim, claim: Claim) -> Records:
        """Return a claim's records, got from the log or from whoever made it."""
        try:
            return records_of(await fetch_records(self._endpoint, self._line.operator, signed), claim)
        except (Weather, RemoteFault) as error:
            logger.info("no records at the log reason=%s", error)
        return records_of(await fetch_records(self._endpoint, PublicKey(claim.key), signed), claim)

    async def _contribution(self, duty: Duty, claim: Claim) -> Contribution:
        """Return the contribution that lists a claim, which the table has that this peer knows the commit of."""
        listed, found = self._known.commit(duty.round), await self._known.counted(duty.round, claim.key)
        if listed is None or found is None or found.proof is None:
            raise EncodingError("a question about a table that is not known here, or has not got the claim")
        if commit_digest(found.proof.receipt.entry) != listed.commit:
            raise EncodingError("a table of another history than the one that is known here")
        if duty.claim.digest not in found.contribution.claims:
            raise EncodingError("a question about a claim that its table has not got")
        return found.contribution

    async def _get(self, signed: SignedClaim, claim: Claim, digest: bytes) -> None:
        """Get a vector of a claim of whoever made it, of its founder, or of the log."""
        if self._fetched.has(signed.digest, digest):
            return  # of an earlier try
        *others, last = dict.fromkeys((PublicKey(claim.key), PublicKey(claim.founder), self._line.operator))
        for key in others:
            try:
                return await self._get_of(key, signed, digest)
            except (Weather, RemoteFault) as error:
                logger.info("no vector from peer=%s reason=%s", peer_name(key)[-8:], error)
        await self._get_of(last, signed, digest)

    async def _get_of(self, key: PublicKey, signed: SignedClaim, digest: bytes) -> None:
        await fetch_vector(self._endpoint, key, signed, digest, self._num_weights, self._fetched)
