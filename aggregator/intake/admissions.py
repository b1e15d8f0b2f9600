"""Lets invited keys into a run, takes them back when the operator says so, and tells the operator's node whom to serve.

Both are entries of the log, on the disk before anybody is told. They do not wait for a round: a round needs a contribution, and a
contribution a key that is in. So each is a transaction of its own, between two rounds' (``protocol.ledger``). Only who has an invitation
makes the log longer, and by no more keys than the invitation is for. Peers have no copy of the log: they ask again and again for what was
taken back (``peer.contact.entering``).
"""

import asyncio
import logging
from collections.abc import Container

from manta_swarm.aggregator.commit.commits import Commits
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.refusals import is_too_much, noted
from manta_swarm.aggregator.intake.waiting import HasLedger
from manta_swarm.network.admission_filter import AdmissionFilter, AdmittedKeys, NotAdmitted, stranger_told
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.admission import (
    INVITATION,
    MAX_ADMISSION_BYTES,
    MAX_PAGE,
    Admission,
    AdmissionProof,
    AskRevoked,
    Revocation,
    Revoked,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, LedgerError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey

ADMISSION, REVOKED = "admission", "revoked"
_MAX_REQUEST_BYTES = MAX_ADMISSION_BYTES + 128
_MAX_ASK_BYTES = 32

logger = logging.getLogger("manta.admissions")


class Admissions:
    """Answers the calls "admission" and "revoked" while this operator writes, and takes back what the operator wants back."""

    def __init__(self, context: RunContext, commits: Commits) -> None:
        """Prepare; ``start`` answers from then on, to what the run's rule of admission needs."""
        self._context = context
        self._identity = context.identity
        self._commits = commits
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._writing: asyncio.Task[None] | None = None
        self.faults = CallerFaults(context.clock)

    async def start(self) -> None:
        """Answer from now on."""
        rule = self._context.manifest.admission
        if rule.how == INVITATION:
            await self._context.endpoint.serve(ADMISSION, self._on_admission)
        if not rule.is_open:
            await self._context.endpoint.serve(REVOKED, self._on_revoked)

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
        return pack(Signed.sign(AdmissionProof(ledger.run, self._identity.public_key, key, ledger.admitted.access_of(key)), self._identity))

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
            self._writing = asyncio.create_task(self._commits.append(entry_of(signed)))
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())  # who hung up does not hear of it
            await asyncio.shield(self._writing)  # a caller who hangs up does not end it
            logger.info("key admitted entries=%d keys=%d", self._context.ledger.size, len(self._context.ledger.admitted.accesses))
        return key

    async def _on_revoked(self, _caller: PublicKey, request: bytes) -> bytes:
        known = unpack(AskRevoked, request, max_bytes=_MAX_ASK_BYTES).known
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
        await self._commits.append(entry_of(signed))
        logger.info("admission taken back what=%s entries=%d", what, self._context.ledger.size)


def signed_revocation(ledger: Ledger, operator: Identity, what: str, target: bytes) -> Signed[Revocation]:
    """Return what takes back a key, or an invitation by the key that names it, signed.

    Raises:
        LedgerError: there is nothing to take back.
    """
    signed = Signed.sign(Revocation(ledger.run, operator.public_key, what, target), operator)
    ledger.admitted.check_revocation(signed)
    return signed


class _Logged:
    """Whom the log lets in and puts out. Implements ``network.admission_filter.Roll``."""

    def __init__(self, log: HasLedger) -> None:
        self._log = log

    @property
    def out(self) -> Container[bytes]:
        return self._log.ledger.admitted.out

    def trains(self, key: bytes) -> bool:
        return self._log.ledger.admitted.trains(key)


async def held_to_admission(node: OwnNode, log: HasLedger) -> OwnNode:
    """Return an operator's node as it answers those whom the run admits; where that is everybody the node as it is.

    Only guests, who train nothing, show it their admission proof.
    """
    manifest, run = log.ledger.manifest, log.ledger.run
    if manifest.admission.is_open:
        return node
    admission_filter = AdmissionFilter(node, AdmittedKeys(manifest, run, _Logged(log)), None, stranger_told(manifest))
    await admission_filter.open()
    return admission_filter
