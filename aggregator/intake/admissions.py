"""Lets keys into a run whose peers are invited: each by an entry of the log, which is on the disk before the peer is told.

The entry does not wait for a round: a round needs a contribution, and a contribution a key that is in. So it is a transaction of its own,
between two rounds' (``protocol.ledger``). Only who has an invitation makes the log longer, and by no more than that is for.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.refusals import is_too_much, noted
from manta_swarm.network.budget import Faults
from manta_swarm.network.gate import NotAdmitted
from manta_swarm.protocol.admission import MAX_ADMISSION_BYTES, Admission, Pass
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, LedgerError
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey

METHOD = "admission"
_MAX_REQUEST_BYTES = MAX_ADMISSION_BYTES + 128

logger = logging.getLogger("manta.admissions")


class AdmissionDesk:
    """Answers "admission"."""

    def __init__(
        self,
        context: RunContext,
        append: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            context: of the run.
            append: returns once an entry is in the log.
        """
        self._context = context
        self._endpoint = context.endpoint
        self._identity = context.identity
        self._append = append
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._writing: asyncio.Task[None] | None = None
        self.faults = Faults(context.clock)

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve(METHOD, self._on_admission)

    async def close(self) -> None:
        """Let nobody in any more, and finish what is being written."""
        self._is_closed = True
        if self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _on_admission(self, caller: PublicKey, request: bytes) -> bytes:
        key = caller
        if request or caller not in self._context.ledger.admitted:
            if not request:
                raise NotAdmitted("this key is not in")
            if is_too_much(self.faults, caller):
                raise NotAdmitted("too much that is no good came from this key: try again in a minute")
            with noted(self.faults, caller):
                key = await self._admit(caller, unpack(Signed[Admission], request, max_bytes=_MAX_REQUEST_BYTES))
        ledger = self._context.ledger
        return pack(Signed.sign(Pass(ledger.run, self._identity.public_key, key, ledger.admitted.role_of(key)), self._identity))

    async def _admit(self, caller: PublicKey, signed: Signed[Admission]) -> PublicKey:
        """Put an admission into the log, unless its key is in already; return that key.

        Who is in may bring one of another key: a gateway those of light contributors, which call no node.

        Raises:
            EncodingError, SignatureError, LedgerError: it lets nobody in, or another than a caller who is not in itself.
        """
        key = PublicKey(signed.open().key)
        if key != caller and caller not in self._context.ledger.admitted:
            raise EncodingError("an admission of another key than the one that brings it")
        async with self._turn:
            ledger = self._context.ledger
            if key in ledger.admitted:  # it asked twice, and waited for the first answer here
                return key
            ledger.admitted.check(signed, ledger.round + 1)
            if ledger.finished or self._is_closed:
                raise LedgerError("the run is finished, or its log is about to stop")
            self._writing = asyncio.create_task(self._append(entry_of(signed)))
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())  # who hung up does not hear of it
            await asyncio.shield(self._writing)  # a caller who hangs up does not end it
            logger.info("key admitted entries=%d keys=%d", self._context.ledger.size, len(self._context.ledger.admitted.roles))
        return key
