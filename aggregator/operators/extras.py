"""The extras that one operator of several keeps: acknowledged ones on a quorum's disks until the log has them, whoever writes.

No ballot is needed: an extra is for no round and excludes nothing. Each operator that has one hands it on to whoever writes, again and
again, until its own log has it or takes it no more. What a quorum has gets to every later writer: without one of them it can do nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from aggregator.log.log import Log
from aggregator.operators.messages import EXTRAS, MAX_EXTRAS_AT_ONCE, MAX_FORWARDED_BYTES, AskExtras
from aggregator.rounds.waiting import Waiting
from protocol.audits import SignedExtra
from protocol.ballots import NOBODY, Ballot
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, RemoteFault
from protocol.ledger import MAX_EXTRAS
from protocol.records import entry_of, open_entry
from protocol.signing import PublicKey
from swarm import waits
from swarm.rpc import Busy, Endpoint
from swarm.tasks import within

_AGAIN_S = 2.0
_MAX_WAITING = 4 * MAX_EXTRAS  # that fellows keep: twice what one writer takes

logger = logging.getLogger("manta.operators")


class KeptExtras:
    """One operator's."""

    def __init__(self, endpoint: Endpoint, log: Log, waiting: Waiting) -> None:
        """Keep in ``waiting`` what may follow the log."""
        self._endpoint = endpoint
        self._log = log
        self._waiting = waiting
        self._told: tuple[Ballot, frozenset[bytes]] = NOBODY, frozenset()  # which writer has what from here, or gave it
        self._round = -1  # what the log refuses after it was forgotten

    def request(self, extras: Sequence[SignedExtra]) -> bytes:
        """Return the request to another operator to keep these, which may follow the log here."""
        return pack(AskExtras(self._log.head.size, tuple(map(entry_of, extras))))

    async def keep(self, request: bytes, writer: Ballot | None) -> None:
        """Keep what another operator asks to; it is on the disk when this returns.

        Args:
            request: its request.
            writer: whose it is, if it writes.

        Raises:
            Busy: this log is behind, or too many wait.
            RemoteFault: a malformed request, or the disk failed.
        """
        ask = unpack(AskExtras, request, max_bytes=MAX_FORWARDED_BYTES)
        extras = [_extra_in(entry) for entry in ask.entries]
        if ask.size > self._log.head.size:
            raise Busy("this operator's log is behind")
        good = await asyncio.to_thread(self._good, [extra for extra in extras if extra.digest not in self._waiting])
        if len(self._waiting.all()) + len(good) > _MAX_WAITING:
            raise Busy("too many findings wait for a round")
        await self._waiting.add(good)
        await self._waiting.add([extra for extra in extras if extra.digest in self._waiting])
        if writer is not None:
            self._note(writer, extras)

    def _good(self, extras: Sequence[SignedExtra]) -> list[SignedExtra]:
        """Return those that may follow the log. What its auditor can't have said, or what is decided by now, a writer drops too."""
        good = []
        for extra in extras:
            try:
                self._log.ledger.check_extra(extra)
            except RemoteFault as error:
                logger.info("extra not kept reason=%s", error)
            else:
                good.append(extra)
        return good

    async def hand_on(self, writer: Callable[[], Ballot | None], changed: asyncio.Event) -> None:
        """Hand on what waits, until this is cancelled.

        Args:
            writer: returns whose turn it is, of the others; None: this operator's, or nobody's that was heard.
            changed: is set when that is another one.
        """
        while True:
            changed.clear()
            if self._log.ledger.round > self._round:
                self._round = self._log.ledger.round
                await self._waiting.drop_refused(lambda: self._log.ledger)
                await self._waiting.tidy()
            ballot = writer()
            if ballot is not None:
                await self._hand_on_to(ballot)
            await within(changed, _AGAIN_S)

    async def _hand_on_to(self, writer: Ballot) -> None:
        has = self._told[1] if self._told[0] == writer else frozenset()
        lacking = [extra for digest, extra in self._waiting.stored.items() if digest not in has]
        for start in range(0, len(lacking), MAX_EXTRAS_AT_ONCE):
            page = lacking[start : start + MAX_EXTRAS_AT_ONCE]
            try:
                await self._endpoint.call(PublicKey(writer.writer), EXTRAS, self.request(page), timeout_s=waits.CALL_S)
            except MantaError as error:
                logger.info("extras not handed on reason=%s", error)
                return
            self._note(writer, page)

    def _note(self, writer: Ballot, extras: Sequence[SignedExtra]) -> None:
        before, has = self._told
        has = (has if before == writer else frozenset()) | {extra.digest for extra in extras}
        self._told = writer, has & self._waiting.stored.keys()  # of what is in the log nobody asks any more


def _extra_in(entry: bytes) -> SignedExtra:
    signed = open_entry(entry)
    if not isinstance(signed, SignedExtra):
        raise EncodingError("an entry that is no extra")
    return signed
