"""The extras that are handed in between rounds: findings, taken by who writes.

What is acknowledged stands before the claims of the next round, or of the one after if there are too many, unless the ledger would refuse
it by then: its auditor was found guilty, or its question was decided. Until then it is on the disk (``aggregator.rounds.waiting``); where
there are several operators, on those of a quorum before anybody hears that it was taken.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from aggregator.rounds.refusals import is_too_much, noted
from aggregator.rounds.waiting import Waiting
from protocol.audits import SignedExtra, signer_of
from protocol.closing import NotTaken
from protocol.errors import EncodingError, StorageError, Unreachable
from protocol.ledger import MAX_EXTRAS, Ledger
from protocol.records import MAX_SIGNED_BYTES, open_entry
from protocol.signing import PublicKey
from swarm.budget import Faults
from swarm.rpc import Busy, Endpoint

MAX_OF_ONE = MAX_EXTRAS // 8  # that wait, of one key that is no operator's
_PAGE = 64  # that others are asked to keep at once

KeepExtras = Callable[[Sequence[SignedExtra]], Awaitable[None]]


class Extras:
    """Answers "extra", and keeps what was taken until a round has it."""

    def __init__(
        self, endpoint: Endpoint, waiting: Waiting, ledger: Callable[[], Ledger], faults: Faults, keep: KeepExtras | None = None
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: where others call.
            waiting: what waits on this operator's disk.
            ledger: returns the log's ledger as it is published.
            faults: of those who call.
            keep: returns once other operators have them on their disks too, a quorum; None: there are none.
        """
        self._endpoint = endpoint
        self._waiting = waiting
        self._ledger = ledger
        self._faults = faults
        self._keep = keep
        self._safe = set[bytes]()  # of what waits, where it may have to be kept by others
        self._keeping: asyncio.Task[None] | None = None
        self._over: Unreachable | StorageError | None = None

    async def start(self) -> None:
        """Answer from now on: a packed Entry by nothing, once it is on the disk."""
        await self._endpoint.serve("extra", self._on_extra)

    async def close(self) -> None:
        """Finish what others are asked."""
        while self._keeping is not None and not self._keeping.done():
            await asyncio.wait((self._keeping,))

    async def hand_in(self, signed: SignedExtra) -> None:
        """Take an extra; it is on the disk when this returns, and on those of a quorum. The same one again is welcome.

        Raises:
            EncodingError, SignatureError, LedgerError: it may not stand in this log.
            NotTaken: too many wait, or the disk failed; later there may be room.
            Busy: this operator's turn to write ended before others had it.
        """
        if signed.digest not in self._waiting:
            if self._ledger().finished:
                raise NotTaken("the run is finished")
            self._ledger().check_extra(signed)
            self._check_room(signed)
        await self._waiting.add([signed])
        while self._keep is not None and signed.digest in self._waiting and signed.digest not in self._safe:
            if self._over is not None:
                raise Busy(str(self._over))
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.create_task(self._have_kept(self._keep))
            await asyncio.shield(self._keeping)

    async def for_round(self) -> list[SignedExtra]:
        """Return what stands before the next round's claims, in the log's order; what the ledger refuses by now is forgotten."""
        await self._waiting.drop_refused(self._ledger)
        return [signed for _, signed in sorted(self._waiting.stored.items())][:MAX_EXTRAS]

    async def committed(self, extras: Sequence[SignedExtra]) -> None:
        """Forget what the log has now."""
        self._waiting.drop(extra.digest for extra in extras)
        self._safe &= self._waiting.stored.keys()
        await self._waiting.tidy()

    async def _have_kept(self, keep: KeepExtras) -> None:
        """Have others keep what only this operator has for certain."""
        page = [extra for digest, extra in self._waiting.stored.items() if digest not in self._safe][:_PAGE]
        try:
            await keep(page)
        except (Unreachable, StorageError) as error:
            self._over = error
        else:
            self._safe |= {extra.digest for extra in page}

    async def _on_extra(self, caller: PublicKey, request: bytes) -> bytes:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much of this key was refused lately: hand it in again later")
        with noted(self._faults, caller):
            if len(request) > MAX_SIGNED_BYTES:
                raise EncodingError(f"an extra has at most {MAX_SIGNED_BYTES} bytes")
            signed = open_entry(request)
            if not isinstance(signed, SignedExtra):
                raise EncodingError("an entry that is handed in otherwise")
            await self.hand_in(signed)
        return b""

    def _check_room(self, signed: SignedExtra) -> None:
        ledger = self._ledger()
        waiting = self._waiting.all()
        if len(waiting) >= 2 * MAX_EXTRAS:
            raise NotTaken("too many findings wait for a round: hand it in again after the next one")
        extra = ledger.verified.extra(signed)
        opened = [ledger.verified.extra(each) for each in waiting]
        signer = signer_of(extra)
        of_key = Counter(map(signer_of, opened))
        if signer not in ledger.manifest.operators and of_key[signer] >= MAX_OF_ONE:
            raise NotTaken(f"{MAX_OF_ONE} findings of this key wait for a round: hand it in again after the next one")
