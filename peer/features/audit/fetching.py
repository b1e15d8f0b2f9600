"""Gets from operators, late also from members, the vectors that an audit needs; tells operators which step needs members' own vectors.

Operators are asked in turn; where the time to bring a vector is over, the members are asked too. An auditor may say that a vector was
*withheld* only where a quorum of operators answered that they have not got it: who reaches nobody knows nothing.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence

from manta_swarm.network import timeouts
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.vectors import VectorPart, VectorsFolder
from manta_swarm.protocol.auditing import NEED, PAGE_BYTES, VECTOR, AskVector, Assignment, Need
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Weather
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.round_folder import NoRoom

logger = logging.getLogger("manta.audits")


class NotNow(Weather):
    """A contribution cannot be judged now, by nobody's fault."""


class Fetching:
    """Gets, for one auditor, the vectors of the contributions that it audits."""

    def __init__(self, endpoint: Endpoint, line: OperatorLine, fetched: VectorsFolder, vector_bytes: int) -> None:
        """Get vectors of so many bytes into the folder ``fetched``, which has room for those of a contribution."""
        self._endpoint = endpoint
        self._line = line
        self._fetched = fetched
        self._vector_bytes = vector_bytes
        self._told: dict[tuple[bytes, int], set[bytes]] = {}  # by contribution and step: operators that know that it is needed

    def keep_only(self, contributions: set[bytes]) -> None:
        """Remove what is here of all contributions but these. Blocks.

        Raises:
            StorageError: the disk refuses.
        """
        for other in self._fetched.rounds.keys() - contributions:
            self._fetched.keep_only(other, ())
        self._told = {needed: told for needed, told in self._told.items() if needed[0] in contributions}

    async def fetch(self, assignment: Assignment, claims: Sequence[Claim], vectors: Sequence[bytes]) -> tuple[bytes, ...]:
        """Get these vectors of a contribution, but for what is here; return those that so many operators have not got as the log needs.

        Raises:
            NotNow: some lack, and too few answered; or there is no room for them here.
            StorageError: the disk refuses.
        """
        digest = bytes(assignment.header.contribution.digest)
        lacking, denied = [vector for vector in vectors if not self._fetched.has(digest, vector)], Counter[bytes]()
        for operator in self._line.in_turn:
            denied.update(await self._fetch_from(operator, assignment, digest, lacking))
        if assignment.is_late and lacking:
            with contextlib.suppress(TimeoutError):  # they had all the time to bring it
                await self._ask_members(assignment, claims, lacking)
        if any(denied[vector] < self._line.operators.quorum for vector in lacking):
            raise NotNow("too few operators answer who has it")
        return tuple(lacking)

    async def check(self, assignment: Assignment, vectors: Sequence[bytes]) -> None:
        """Check that each of these vectors that is here can be read; one that cannot goes.

        Raises:
            NotNow: one cannot.
        """
        digest = bytes(assignment.header.contribution.digest)
        for vector in vectors:
            if self._fetched.has(digest, vector) and await asyncio.to_thread(self._fetched.read, digest, vector) is None:
                await asyncio.to_thread(self._fetched.keep_only, digest, ())
                raise NotNow("what was fetched of it cannot be read any more")

    async def need(self, contribution: bytes, step: int) -> None:
        """Tell those operators that own vectors of a step are needed that this auditor has not told yet."""
        told = self._told.setdefault((contribution, step), set())
        for operator in self._line.in_turn:
            if operator not in told:
                try:
                    await self._endpoint.call(operator, NEED, pack(Need(contribution, step)), timeout_s=timeouts.CALL_S)
                    told.add(operator)
                except (Weather, RemoteFault) as error:
                    logger.info("an operator was not told what is needed reason=%s", error)

    async def _ask_members(self, assignment: Assignment, claims: Sequence[Claim], lacking: list[bytes]) -> None:
        """Get of those who handed it in what they did not bring: it may have been the way to the operators that was at fault."""
        async with asyncio.timeout(timeouts.LAST_ASKED_S):
            for claim in claims:
                await self._fetch_from(PublicKey(claim.key), assignment, claim.base, lacking)

    async def _fetch_from(self, source: PublicKey, assignment: Assignment, digest: bytes, lacking: list[bytes]) -> list[bytes]:
        """Get vectors of a node, which has them by ``digest``; those that came lack no more. Return those that it has not got."""
        denied = list[bytes]()
        for vector in list(lacking):
            try:
                if await self._fetch_one(source, assignment, digest, vector):
                    lacking.remove(vector)
                else:
                    denied.append(vector)
            except NoRoom as error:
                raise NotNow("there is no room here for what was brought of it") from error
            except Weather as error:
                logger.info("a vector is not to be had there reason=%s", error)
                break
            except RemoteFault as error:
                logger.info("a vector is not to be had there reason=%s", error)
        return denied

    async def _fetch_one(self, source: PublicKey, assignment: Assignment, kept_by: bytes, vector: bytes) -> bool:
        """Get a vector; return whether the node has it."""
        digest = bytes(assignment.header.contribution.digest)
        first = await self._page(source, AskVector(kept_by, vector, 0))
        if not first:
            return False
        part = await asyncio.to_thread(self._begin, assignment.round, digest, vector)
        try:
            await asyncio.to_thread(part.write, first)
            for at in range(PAGE_BYTES, self._vector_bytes, PAGE_BYTES):
                await asyncio.to_thread(part.write, await self._page(source, AskVector(kept_by, vector, at)))
            if part.digest != vector:
                raise EncodingError("another vector than was asked for")
            await asyncio.to_thread(part.finish)
        finally:
            part.close()
        return True

    def _begin(self, round_: int, digest: bytes, vector: bytes) -> VectorPart:
        try:
            return self._fetched.begin(round_, digest, vector, self._vector_bytes)
        except NoRoom:  # what others wait for is fetched again
            for other in self._fetched.rounds.keys() - {digest}:
                self._fetched.keep_only(other, ())
            return self._fetched.begin(round_, digest, vector, self._vector_bytes)

    async def _page(self, source: PublicKey, ask: AskVector) -> bytes:
        page = await self._endpoint.call(source, VECTOR, pack(ask), timeout_s=timeouts.PIECE_S, large_answer=True)
        if len(page) != min(PAGE_BYTES, self._vector_bytes - ask.first) and (page or ask.first):
            raise EncodingError("a page of a vector of another length")
        return page
