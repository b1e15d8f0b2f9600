"""The verdicts that auditors hand in between rounds, taken by who writes.

What is acknowledged stands before the contributions of the next round, or of the one after if there are too many, or before the settlement,
unless the ledger would refuse it by then: it is not audited any more, or the auditor has judged it. Until then it is on the disk
(``aggregator.intake.waiting``); where there are several operators, on those of a quorum before anybody hears that it was taken.
"""

import asyncio
from collections.abc import Sequence

from manta_swarm.aggregator.commit.deciding import Decider
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.refusals import is_too_much, noted
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Busy
from manta_swarm.protocol.auditing import MAX_SIGNED_VERDICT_BYTES, VERDICT
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import LedgerError, StorageError, Unreachable
from manta_swarm.protocol.ledger import MAX_VERDICTS
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import Verdict

_PAGE = 64  # that others are asked to keep at once


class Verdicts:
    """Answers the call "audit.verdict", and keeps what was taken until the log has it."""

    def __init__(self, context: RunContext, faults: CallerFaults, changed: asyncio.Event, decider: Decider) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            context: of the run, with what waits on this operator's disk.
            faults: of those who call.
            changed: is set when a verdict was taken.
            decider: has other operators keep verdicts, where there are any.
        """
        self._context = context
        self._endpoint = context.endpoint
        self._waiting = context.waiting
        self._faults = faults
        self._changed = changed
        self._decider = decider
        self._safe = set[bytes]()  # of what waits, where it may have to be kept by others
        self._keeping: asyncio.Task[None] | None = None
        self._over: Unreachable | StorageError | None = None
        self._takes_no_more = False  # the settlement is being written

    async def start(self) -> None:
        """Answer from now on: a packed Signed[Verdict] by nothing, once it is on the disk."""
        await self._endpoint.serve(VERDICT, self._on_verdict)

    async def close(self) -> None:
        """Finish what others are asked."""
        while self._keeping is not None and not self._keeping.done():
            await asyncio.wait((self._keeping,))

    async def hand_in(self, signed: Signed[Verdict]) -> None:
        """Take a verdict; it is on the disk when this returns, and on those of a quorum. The same one again is welcome.

        Raises:
            EncodingError, SignatureError, LedgerError: it may not stand in this log.
            NotTaken: too many wait, or the disk failed; later there may be room.
            Busy: this operator's turn to write ended before others had it.
        """
        ledger = self._context.ledger
        verdict = ledger.verified.verdict(signed)
        if signed.digest not in self._waiting:
            audit = ledger.reputation.audits.get(verdict.contribution)
            if audit is not None and verdict in audit.verdicts:
                return  # its auditor did not hear that it was taken
            ledger.check_verdict(signed)
            self._check_room(verdict)
        await self._waiting.add([signed])
        while self._decider.has_others and signed.digest in self._waiting and signed.digest not in self._safe:
            if self._over is not None:
                raise Busy(str(self._over))
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.create_task(self._have_kept())
            await asyncio.shield(self._keeping)
        self._changed.set()

    def opened(self) -> list[Verdict]:
        """Return the verdicts that are on the disk and wait, in the log's order."""
        verified = self._context.ledger.verified
        return [verified.verdict(signed) for _, signed in sorted(self._waiting.stored.items())]

    async def for_round(self) -> list[Signed[Verdict]]:
        """Return the verdicts for before the next round's table, in the log's order; forget those that the ledger refuses by now."""
        await self._waiting.drop_refused(self._context)
        return [signed for _, signed in sorted(self._waiting.stored.items())][:MAX_VERDICTS]

    async def for_settlement(self) -> list[Signed[Verdict]]:
        """Return the verdicts for before the settlement, in the log's order, also those that wait at other operators; nothing is taken any
        more.

        Raises:
            NotTaken: the disk failed.
            Busy: this operator's turn to write ended.
        """
        self._takes_no_more = True
        await self._waiting.add(list(await self._decider.waiting_verdicts()))
        await self._waiting.add(self._waiting.all())
        return await self.for_round()

    async def committed(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        """Forget what the log has now."""
        self._waiting.drop(verdict.digest for verdict in verdicts)
        self._safe &= self._waiting.stored.keys()
        await self._waiting.tidy()

    async def _have_kept(self) -> None:
        """Have others keep what only this operator has for certain."""
        page = [verdict for digest, verdict in self._waiting.stored.items() if digest not in self._safe][:_PAGE]
        try:
            await self._decider.keep_verdicts(page)
        except (Unreachable, StorageError) as error:
            self._over = error
        else:
            self._safe |= {verdict.digest for verdict in page}

    async def _on_verdict(self, caller: PublicKey, request: bytes) -> bytes:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much of this key was refused lately: hand it in again later")
        with noted(self._faults, caller):
            await self.hand_in(unpack(Signed[Verdict], request, max_bytes=MAX_SIGNED_VERDICT_BYTES))
        return b""

    def _check_room(self, verdict: Verdict) -> None:
        ledger, waiting = self._context.ledger, self._waiting.all()
        if self._takes_no_more:
            raise NotTaken("the run is being settled")
        if len(waiting) >= (MAX_VERDICTS if ledger.finished else 2 * MAX_VERDICTS):
            raise NotTaken("too many verdicts wait for a round: hand it in again after the next one")
        opened = map(ledger.verified.verdict, waiting)
        if any((each.auditor, each.contribution) == (verdict.auditor, verdict.contribution) for each in opened):
            raise LedgerError("another verdict of this auditor on this contribution waits for a round")
