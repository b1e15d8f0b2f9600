"""Sees to it that all heads of the log that this peer and others saw are of one history.

The log is asked for the proof that leads from one to the other: from the last head that was found to agree to the newest, to the one in
the DHT, and to those that neighbours hold. So two groups that are shown two histories find out as soon as one of each compares. Two
commits that no one log can have both of are a proof: it is kept, told to neighbours, each of whom checks it, and this peer ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import MAX_RECEIPT_BYTES, AskRound, ProvenCommit
from manta_swarm.network.log_proofs import look_up_newest, proof_between
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.sync.consistency_checker import ConsistencyChecker
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import MantaError, OtherHistory, ProofError, RemoteFault, StorageError, Unreachable
from manta_swarm.protocol.histories import Departure, Histories, departure
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together, wait_within

_ASKED = 4  # neighbours that are asked for a commit, where the log's proof does not hold, and told of a proof against it
_MAX_REFUSALS = 3  # looks at which a log may refuse a proof between heads that it has
_MAX_REQUEST_BYTES = 64
MAX_HISTORIES_BYTES = 2**18 + 3 * MAX_RECEIPT_BYTES  # a manifest, two receipts' parts and a proof of consistency

logger = logging.getLogger("manta.peer")


class SplitViewMonitor:
    """Compares what this peer and others see of the run's log."""

    def __init__(self, context: RunContext, progress: Progress, neighbours: Neighbours, consistency_checker: ConsistencyChecker) -> None:
        """Know what was found to agree at the last time.

        Args:
            context: of the run.
            progress: has the newest commits.
            neighbours: the others of the run.
            consistency_checker: holds the log to what it signed, and keeps what shows that it does not.
        """
        self._node = context.node
        self._run = context.run
        self._log = context.log
        self._neighbours = neighbours
        self._consistency_checker = consistency_checker
        self._store = context.store
        self._commits = progress.commits
        self._soon = asyncio.Event()
        self._fault: OtherHistory | None = None  # others proved it
        self._refused = 0  # looks in a row at which the log refused a proof
        self.agreed = self._kept()  # the newest head up to which all that were seen are of one history

    def _kept(self) -> ProvenCommit | None:
        data = self._store.agreed(self._run).read()
        try:
            return None if data is None else self._log.open(data)
        except RemoteFault as error:
            logger.warning("the head that was kept is damaged reason=%s", error)
            return None

    async def start(self) -> None:
        """Show others the commits that are known here, and take their proofs against the log."""
        await self._node.serve("commit-at", self._on_asked)
        await self._node.serve("histories", self._on_proof)

    def look_soon(self) -> None:
        """Somebody else than the log told of a commit far ahead of what is known."""
        self._soon.set()

    async def telling(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work that may find out that the log has two histories; others are told what proves it before this peer ends over it."""
        try:
            await work()
        except OtherHistory:
            await self._tell()
            raise

    async def watch(self) -> None:
        """Compare heads, again and again.

        Raises:
            OtherHistory: the log has two histories, or does not prove that it has one; what shows it is kept.
        """
        while True:
            await wait_within(self._soon, max(timeouts.HEADS_S, self._neighbours.period_s))
            self._soon.clear()
            if self._fault is not None:
                raise self._fault
            await self.look()

    async def look(self) -> None:
        """Compare the newest head that is known here with the one that agreed last, then those that others hold.

        Raises:
            OtherHistory: see ``watch``.
        """
        newest, is_refused = self._consistency_checker.newest, False
        for find in (self._own, self._in_dht, self._of_a_neighbour):
            try:
                for other in await find(newest):
                    await self._compare(other)
            except OtherHistory:
                raise
            except Refused as error:
                is_refused = True
                logger.info("a head is not proven to be of one history reason=%s", error)
            except MantaError as error:
                logger.info("no head to compare reason=%s", error)
        self._refused = self._refused + 1 if is_refused else 0

    async def _own(self, newest: ProvenCommit | None) -> list[ProvenCommit]:
        return [] if newest is None else [newest]

    async def _in_dht(self, _newest: ProvenCommit | None) -> list[ProvenCommit]:
        return await look_up_newest(self._node, self._run, self._log)

    async def _of_a_neighbour(self, _newest: ProvenCommit | None) -> list[ProvenCommit]:
        found = [(await self._log.next_update(key, 0, left_ms=None)).proven_commit for key in self._neighbours.some(1)]
        return [each for each in found if each is not None]

    async def _compare(self, other: ProvenCommit) -> None:
        """See whether a head is of the history of the one that agreed last; the newer one of the two is that from then on."""
        self._consistency_checker.check_contradiction(other)
        agreed = self.agreed
        if agreed is None:
            self._agree(other)
            return
        self._consistency_checker.check_pair(agreed, other)
        older, newer = sorted((agreed, other), key=lambda each: each.proven.tree_head.size)
        before, after = older.proven.tree_head, newer.proven.tree_head
        try:
            proof = () if before.size == after.size else await proof_between(self._log, before, after)
        except Refused as error:
            await self._refuses(older, newer, error)
            return
        if departure(before, after, proof) is not None:
            await self._ask_for_proof(other)
            self._consistency_checker.accuse(
                Histories.shown_after(self._consistency_checker.manifest, older.receipt, newer.receipt.tree_head, proof)
            )
        if newer is other:
            self._agree(other)

    async def _refuses(self, older: ProvenCommit, newer: ProvenCommit, error: Refused) -> None:
        """The log says that it has no such heads, both of which its key has signed: show it the newer one, which stops an older copy.

        Raises:
            OtherHistory: it has that one, and does not say how the older leads to it; or somebody holds what proves that it does not.
        """
        await self._ask_for_proof(newer)
        self._consistency_checker.remember(newer)
        if not await self._consistency_checker.compare():
            return  # it went back: that was said, and it is waited for
        if self._refused + 1 >= _MAX_REFUSALS:
            self._consistency_checker.accuse(
                Histories.shown_after(self._consistency_checker.manifest, older.receipt, newer.receipt.tree_head)
            )
        raise error

    async def _ask_for_proof(self, other: ProvenCommit) -> None:
        """Ask neighbours for the commits of rounds that this peer knows too: where they hold another, that is a proof.

        Raises:
            OtherHistory: somebody did; the proof is kept.
        """
        rounds = {other.proven.round.round, *([] if self.agreed is None else [self.agreed.proven.round.round])}

        async def ask(key: PublicKey, round_: int) -> None:
            with contextlib.suppress(Unreachable, RemoteFault):
                data = await self._node.call(key, "commit-at", pack(AskRound(round_)), timeout_s=timeouts.PUSH_S)
                self._check_against(self._log.open(data), other)

        await together(*(ask(key, round_) for key in self._neighbours.some(_ASKED) for round_ in rounds))

    def _check_against(self, found: ProvenCommit, other: ProvenCommit) -> None:
        self._consistency_checker.check_contradiction(found)
        for known in (other, self.agreed):
            if known is not None:
                self._consistency_checker.check_pair(known, found)

    def _agree(self, newest: ProvenCommit) -> None:
        self.agreed = newest
        try:
            self._store.agreed(self._run).write(pack(newest.receipt))
        except StorageError as error:
            logger.error("head not kept reason=%s", error)

    async def _tell(self) -> None:
        """Tell neighbours what proves that the log has two histories, if that is proven."""
        proof = self._consistency_checker.proof
        if proof is None:
            return

        async def push(key: PublicKey) -> None:
            with contextlib.suppress(MantaError):
                await self._node.call(key, "histories", pack(proof), timeout_s=timeouts.PUSH_S)

        await together(*(push(key) for key in self._neighbours.mixed(_ASKED)))

    async def _on_asked(self, _caller: PublicKey, request: bytes) -> bytes:
        found = self._commits.proven_commit(unpack(AskRound, request, max_bytes=_MAX_REQUEST_BYTES).round)
        if found is None:
            raise Unreachable("that commit is not known here")
        return pack(found.receipt)

    async def _on_proof(self, _caller: PublicKey, request: bytes) -> bytes:
        evidence = unpack(Histories, request, max_bytes=MAX_HISTORIES_BYTES)
        if evidence.manifest.run != self._run:
            raise ProofError("about another run")
        shown = evidence.check()
        if shown.departure is not Departure.FORKED:
            raise ProofError("that a log went back, or proved nothing, only who saw it knows")
        if not shown.counts:
            raise ProofError("a head that does not count is a lie of who signed it, and no history that anybody follows")
        if self._fault is None:
            try:
                self._consistency_checker.accuse(evidence)
            except OtherHistory as fault:
                self._fault = fault
                self._soon.set()
        return b""
