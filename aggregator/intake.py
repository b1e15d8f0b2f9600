"""What the log takes from the network: proposals that lead where they say, and single claims as evidence. One at a time."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aggregator.follower import Follower
from aggregator.log import Log
from automl.claims import check_work
from automl.update import State, state_bytes
from protocol.encoding import pack, unpack
from protocol.errors import LedgerError, RemoteFault, StorageError, Unreachable
from protocol.records import MAX_ENTRY_BYTES, Claim, Proposal, Receipt, SignedClaim, claim_entry, round_entry
from protocol.signing import PublicKey
from swarm.log_client import MAX_PROPOSAL_BYTES
from swarm.mean import max_mean_bytes
from swarm.rpc import Endpoint
from swarm.transfer import Shelf, fetch

logger = logging.getLogger("manta.intake")
Result = TypeVar("Result")

_MEAN_TIMEOUT_S = 45.0


class Intake:
    """Answers "latest", "propose" and "claim"."""

    def __init__(self, endpoint: Endpoint, log: Log, follower: Follower, shelf: Shelf, on_commit: Callable[[], None]) -> None:
        """Prepare; ``on_commit`` is called after each committed round."""
        self._endpoint = endpoint
        self._log = log
        self._follower = follower
        self._shelf = shelf
        self._on_commit = on_commit
        self._one_at_a_time = asyncio.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._deciding: set[asyncio.Task[Receipt]] = set()
        self._opened_s = -math.inf  # when the round opened, by the monotonic clock
        self.refused: Counter[str] = Counter()
        self.broken: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve("latest", self._on_latest)
        await self._endpoint.serve("propose", self._on_propose)
        await self._endpoint.serve("claim", self._on_claim)

    def close(self) -> None:
        """Finish what is being written."""
        self._writer.shutdown(wait=True)

    async def _on_latest(self, _caller: PublicKey, _request: bytes) -> bytes:
        round_ = self._log.ledger.round
        return pack(self._receipt_of(round_)) if round_ else b""

    async def _on_propose(self, caller: PublicKey, request: bytes) -> bytes:
        proposal = unpack(Proposal, request, max_bytes=MAX_PROPOSAL_BYTES)
        # A task of its own: a caller who hangs up cancels this call, and must not stop a commit half-way.
        deciding = asyncio.create_task(self._decide(proposal, caller))
        self._deciding.add(deciding)
        deciding.add_done_callback(self._deciding.discard)
        return pack(await asyncio.shield(deciding))

    async def _decide(self, proposal: Proposal, caller: PublicKey) -> Receipt:
        """Return the receipt of the proposal's round: of this proposal, or of the one that came before it."""
        async with self._one_at_a_time:
            round_ = proposal.statement.round
            if proposal.statement.run == self._log.ledger.run and 1 <= round_ <= self._log.ledger.round:
                return self._receipt_of(round_)
            try:
                entries, state = await self._check(proposal, caller)
            except (RemoteFault, Unreachable) as error:
                self.refused[type(error).__name__] += 1
                logger.warning("proposal refused round=%d reason=%s", round_, error)
                raise
            await self._write(self._follower.save, state)
            await self._write(self._log.commit, entries)
            self._follower.adopt(state)
            data = state_bytes(state)
            self._shelf.put(data)
            if round_ == self._follower.plan.teacher_round:
                self._shelf.pin(data)
            self._opened_s = time.monotonic()
            self._on_commit()
            await self._write(self._follower.certify, self._log.head, self._log.tree_head)
            return self._receipt_of(round_)

    async def _check(self, proposal: Proposal, caller: PublicKey) -> tuple[list[bytes], State]:
        """Return the entries of a proposal and the state that it leads to.

        Raises:
            RemoteFault: it may not follow the log, or does not lead where it says.
            Unreachable: nobody gives the mean.
        """
        entries = self._log.ledger.proposal_entries(proposal)
        for claim in proposal.claims:
            self._check_work(claim.open())
        self._check_is_due(proposal)
        providers = [caller, *(PublicKey(vote.key) for vote in proposal.votes if vote.key != caller)]
        try:
            async with asyncio.timeout(_MEAN_TIMEOUT_S):  # of all providers together: others wait for their turn
                limit = max_mean_bytes(self._follower.num_weights)
                mean_data = await fetch(self._endpoint, proposal.statement.mean, providers, max_bytes=limit)
        except TimeoutError:
            raise Unreachable(f"the mean was not sent within {_MEAN_TIMEOUT_S:g} s") from None
        state = await self._write(self._follower.follow, proposal.statement, mean_data)
        self._shelf.put(mean_data)
        return entries, state

    def _check_work(self, claim: Claim) -> None:
        check_work(self._follower.plan, self._log.ledger.manifest.lot_samples, claim)

    def _check_is_due(self, proposal: Proposal) -> None:
        """Hold the table to what its members hold it to: the target batch, or the round's deadline.

        Raises:
            LedgerError: too few samples, too early. After a start of this program the deadline counts as passed.
        """
        manifest = self._log.ledger.manifest
        samples = sum(min(claim.open().samples, manifest.max_claim_samples) for claim in proposal.claims)
        if samples < manifest.target_batch and time.monotonic() - self._opened_s < manifest.round_deadline_ms / 1000:
            raise LedgerError(f"{samples} samples of {manifest.target_batch} before the round's deadline")

    async def _on_claim(self, _caller: PublicKey, request: bytes) -> bytes:
        """Log a single claim: evidence of a peer that claims twice, or a claim that no group took along."""
        claim = unpack(SignedClaim, request, max_bytes=MAX_ENTRY_BYTES + 256)
        opened = claim.open()
        self._check_work(opened)
        entry = claim_entry(claim)
        async with self._one_at_a_time:
            index = self._log.ledger.entry_index(entry)
            if index is None:
                if self._log.ledger.claim_at(opened.round, opened.key) is None:
                    raise LedgerError("a first claim comes with its round's proposal")
                await self._write(self._log.commit, [entry])
                index = self._log.ledger.entry_index(entry)
            assert index is not None
            return pack(self._log.receipt(index))

    def _receipt_of(self, round_: int) -> Receipt:
        committed = self._log.ledger.round_at(round_)
        assert committed is not None
        index = self._log.ledger.entry_index(round_entry(committed))
        assert index is not None
        return self._log.receipt(index)

    async def _write(self, work: Callable[..., Result], *args: object) -> Result:
        """Do blocking work in the log's own thread; a storage failure stops the program."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writer, lambda: work(*args))
        except StorageError as error:
            if not self.broken.done():
                self.broken.set_result(error)
            raise
