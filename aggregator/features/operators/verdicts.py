"""The verdicts that one operator of several keeps: acknowledged ones are on a quorum's disks until the log has them, whoever writes.

No ballot is needed: a verdict is for no round and excludes nothing. Each operator that has one hands it on to whoever writes, again and
again, until its own log has it or takes it no more. What a quorum has gets to every later leader: without one of them it can do nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.features.operators.forwarding import MAX_FORWARDED_BYTES
from manta_swarm.aggregator.features.operators.lending import EntriesPage
from manta_swarm.aggregator.intake.waiting import Waiting
from manta_swarm.aggregator.log.log import Log
from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Busy, Endpoint
from manta_swarm.protocol.ballots import NOBODY, Ballot
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault
from manta_swarm.protocol.ledger import MAX_VERDICTS
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.records import MAX_SIGNED_BYTES, entry_of, open_entry
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import Verdict

VERDICTS, WAITING = "operators-verdicts", "operators-waiting"
MAX_VERDICTS_AT_ONCE = 64

AGAIN_S = 2.0  # after which what still waits is handed on again
_MAX_WAITING = 4 * MAX_VERDICTS  # that followers keep: twice what one leader takes

logger = logging.getLogger("manta.operators")


@dataclass(frozen=True, slots=True)
class AskVerdicts:
    """Asks to keep verdicts until the log has them; the answer, empty, comes once they are on the disk, or the log takes them no more."""

    size: int  # of a log that they may follow: who has a shorter one can't say yet
    entries: tuple[bytes, ...]
    ballot: tuple[Ballot, ...]  # of the leader that is to acknowledge them; none: they are handed on

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_SIZE or not 0 < len(self.entries) <= MAX_VERDICTS_AT_ONCE or len(self.ballot) > 1:
            raise ValueError("no verdicts, too many, after no log, or of several ballots")
        if max(map(len, self.entries)) > MAX_SIGNED_BYTES:
            raise ValueError(f"a verdict has at most {MAX_SIGNED_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class AskWaiting:
    """A leader's question for the verdicts that wait, before it settles the run; who answers keeps none for an older ballot any more.

    The answer is a ``EntriesPage`` of entries, sorted by the digests of their records; one that is not full is the last.
    """

    ballot: Ballot
    after: bytes  # the digest that those of the page come after; empty: the first page

    def __post_init__(self) -> None:
        if len(self.after) not in (0, 32):
            raise ValueError("a digest has 32 bytes")


class KeptVerdicts:
    """The verdicts that one operator keeps until the log has them."""

    def __init__(self, endpoint: Endpoint, log: Log, waiting: Waiting) -> None:
        """Keep in ``waiting`` what may follow the log."""
        self._endpoint = endpoint
        self._log = log
        self._waiting = waiting
        self._told: tuple[Ballot, frozenset[bytes]] = NOBODY, frozenset()  # which leader has what from here, or gave it
        self._size = -1  # of the log: what it refuses with so many entries was forgotten

    def request(self, verdicts: Sequence[Signed[Verdict]], ballot: Ballot | None = None) -> bytes:
        """Return the request to another operator to keep these, which may follow the log; ``ballot``: of who acknowledges them."""
        return pack(AskVerdicts(self._log.head.size, tuple(map(entry_of, verdicts)), () if ballot is None else (ballot,)))

    def page(self, after: bytes) -> bytes:
        """Return what waits here as it travels: the first ones, by their digests, that come after a digest."""
        found = sorted((digest, verdict) for digest, verdict in self._waiting.stored.items() if digest > after)
        return pack(EntriesPage(tuple(entry_of(verdict) for _, verdict in found[:MAX_VERDICTS_AT_ONCE])))

    async def all_of(self, key: PublicKey, ballot: Ballot) -> list[Signed[Verdict]]:
        """Return what waits at another operator and may stand in the log, for the leader of a ballot.

        Raises:
            Unreachable, RemoteFault: it does not say.
        """
        found, after = list[Signed[Verdict]](), b""
        while True:
            request = pack(AskWaiting(ballot, after))
            answer = await self._endpoint.call(key, WAITING, request, timeout_s=timeouts.CALL_S, large_answer=True)
            page = [_verdict_in(entry) for entry in unpack(EntriesPage, answer, max_bytes=MAX_FORWARDED_BYTES).entries]
            found += page
            if len(page) < MAX_VERDICTS_AT_ONCE or len(found) > _MAX_WAITING:
                return await asyncio.to_thread(self._good, found)
            after = max(verdict.digest for verdict in page)

    async def keep(self, ask: AskVerdicts, leader: Ballot | None) -> None:
        """Keep what another operator asks to; it is on the disk when this returns.

        Args:
            ask: its request.
            leader: whose it is, if it writes.

        Raises:
            Busy: this log is behind, or too many wait.
            RemoteFault: a malformed request, or the disk failed.
        """
        verdicts = [_verdict_in(entry) for entry in ask.entries]
        if ask.size > self._log.head.size:
            raise Busy("this operator's log is behind")
        good = await asyncio.to_thread(self._good, [verdict for verdict in verdicts if verdict.digest not in self._waiting])
        if len(self._waiting.all()) + len(good) > _MAX_WAITING:
            raise Busy("too many verdicts wait for a round")
        await self._waiting.add(good)
        await self._waiting.add([verdict for verdict in verdicts if verdict.digest in self._waiting])
        if leader is not None:
            self._note(leader, verdicts)

    def _good(self, verdicts: Sequence[Signed[Verdict]]) -> list[Signed[Verdict]]:
        """Return those that may follow the log. What its auditor can't have said, or what is decided by now, a leader drops too."""
        good = []
        for verdict in verdicts:
            try:
                self._log.ledger.check_verdict(verdict)
            except RemoteFault as error:
                logger.info("verdict not kept reason=%s", error)
            else:
                good.append(verdict)
        return good

    async def hand_on(self, leader: Ballot | None) -> None:
        """Forget what may not stand in the log any more, and hand on what waits to the other operator that writes; None: none is heard."""
        if self._log.head.size > self._size:
            self._size = self._log.head.size
            await self._waiting.drop_refused(self._log)
            await self._waiting.tidy()
        if leader is not None:
            await self._hand_on_to(leader)

    async def _hand_on_to(self, leader: Ballot) -> None:
        has = self._told[1] if self._told[0] == leader else frozenset()
        lacking = [verdict for digest, verdict in self._waiting.stored.items() if digest not in has]
        for start in range(0, len(lacking), MAX_VERDICTS_AT_ONCE):
            page = lacking[start : start + MAX_VERDICTS_AT_ONCE]
            try:
                await self._endpoint.call(PublicKey(leader.leader), VERDICTS, self.request(page), timeout_s=timeouts.CALL_S)
            except MantaError as error:
                logger.info("verdicts not handed on reason=%s", error)
                return
            self._note(leader, page)

    def _note(self, leader: Ballot, verdicts: Sequence[Signed[Verdict]]) -> None:
        before, has = self._told
        has = (has if before == leader else frozenset()) | {verdict.digest for verdict in verdicts}
        self._told = leader, has & self._waiting.stored.keys()  # of what is in the log nobody asks any more


def _verdict_in(entry: bytes) -> Signed[Verdict]:
    signed = open_entry(entry)
    if not is_signed(signed, Verdict):
        raise EncodingError("an entry that is no verdict")
    return signed
