"""Takes admissions back when the operator says so: each by an entry of the log, on the disk before the operator is told.

As an admission it is a transaction of its own, between two rounds' (``protocol.ledger``). From then on the log takes nothing new of the
key; peers, who have no copy of the log, ask for what was taken back again and again (``peer.contact.revoked``).
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from manta_swarm.aggregator.context import RunContext
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.revocation import MAX_PAGE, AskRevoked, Revocation, Revoked
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey

METHOD = "revoked"
_MAX_REQUEST_BYTES = 32

logger = logging.getLogger("manta.admissions")


class RevocationDesk:
    """Answers "revoked", and the operator."""

    def __init__(
        self,
        context: RunContext,
        append: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> None:
        """Prepare; ``start`` answers from then on. The arguments are those of ``aggregator.intake.admissions.AdmissionDesk``."""
        self._context = context
        self._endpoint = context.endpoint
        self._identity = context.identity
        self._append = append

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve(METHOD, self._on_revoked)

    async def _on_revoked(self, _caller: PublicKey, request: bytes) -> bytes:
        known = unpack(AskRevoked, request, max_bytes=_MAX_REQUEST_BYTES).known
        return pack(Revoked(self._context.ledger.admitted.revocations[known : known + MAX_PAGE]))

    async def revoke(self, what: str, target: bytes) -> None:
        """Take back what is meant; it is in the log when this returns.

        Raises:
            LedgerError: there is nothing to take back.
            StorageError: the disk failed.
        """
        ledger = self._context.ledger
        if ledger.finished:
            raise LedgerError("the run is finished")
        signed = signed_revocation(ledger, self._identity, what, target)
        await self._append(entry_of(signed))
        logger.info("admission taken back what=%s entries=%d", what, self._context.ledger.size)


def signed_revocation(ledger: Ledger, operator: Identity, what: str, target: bytes) -> Signed[Revocation]:
    """Return what takes back a key, or an invitation by the key that names it, signed.

    Raises:
        LedgerError: there is nothing to take back.
    """
    signed = Signed.sign(Revocation(ledger.run, operator.public_key, what, target), operator)
    ledger.admitted.check_revocation(signed)
    return signed
