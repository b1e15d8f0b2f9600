"""What this peer has earned so far: as the log says, and as far as it computed it itself, from the claims of the rounds that counted it.

Credit is a pure function of the log. What a round paid follows from all of its claims, which are more bytes the more peers there are. So
the more bytes they are, the more rarely they are fetched, as means are checked (``peer.sync.spot_checker``): in a small run for each round,
in a large one for some, drawn at random. Of the other rounds the peer has the log's word alone, and shows it as that. What it found out is
kept on the disk, and so are the proofs: a payout receipt for each round that counted this peer (``peer.credit.payout_receipts``), which
``manta-peer credits`` checks without the log.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace

from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.log_client import CreditWord, ProvenContribution
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.credit.payout_receipts import KeptCredit, PayoutReceiptFolder
from manta_swarm.peer.status import is_guilty
from manta_swarm.peer.store import PAYOUT_RECEIPTS
from manta_swarm.peer.sync.spot_checker import SHARE
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import MantaError, StorageError
from manta_swarm.protocol.payout_receipts import PayoutReceipt
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.reputation import Fault
from manta_swarm.protocol.rewards import MAX_CLAIMS_BYTES, RoundContributions, claims_of, shares_by
from manta_swarm.protocol.signed import Signed
from manta_swarm.runtime.atomic_file import DamagedFile

_LEAST_BYTES = 600  # of a contribution, which has one claim at least, about

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class _Computed:
    """What a round paid this peer, by all of the round's claims."""

    contributions: RoundContributions
    earned: int
    samples: int  # of all of them


class Credit:
    """Keeps count of what this peer has earned in one run."""

    def __init__(self, context: RunContext, progress: Progress, *, rng: random.Random | None = None) -> None:
        """Know what was kept at the last time.

        Args:
            context: of the run.
            progress: has the newest commits.
            rng: draws which rounds are computed.
        """
        self._manifest = context.manifest
        self._training_spec = context.training_spec
        self._key = context.key
        self._log = context.log
        self._store = context.store
        self._run = context.run
        self._payout_receipts = PayoutReceiptFolder(context.store.run_path(context.run) / PAYOUT_RECEIPTS)
        self._payout_receipts.begin(context.signed)
        self._live_status = context.live_status
        self._mean_bytes = sum(vector_group_sizes(context.num_weights))  # what claims are dear beside
        self._commits = progress.commits
        self.guilty: Fault | None = None  # what audits found this peer guilty of, first
        self._is_guilty = asyncio.Event()
        self._rng = rng or random.Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._pending = self._payout_receipts.pending()  # by round
        self._kept = self._load()
        self._show()

    def ask(self) -> None:
        """Find out what was earned so far."""
        self._begin(self._ask((*self._pending, 0)))

    def counted(self, round_: int, claim: Signed[Claim], found: ProvenContribution | None) -> None:
        """Keep what proves that a round's table has a claim of this peer, and find out what it paid.

        Args:
            round_: the round.
            claim: this peer's.
            found: its contribution as the log proved it; None: the log shows that round no more.
        """
        self._begin(self._counted(round_, claim, found))

    async def found_guilty(self) -> None:
        """Return once the log says that audits found this peer guilty."""
        await self._is_guilty.wait()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait for what is being found out, but not for long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeouts.LAST_ROUND_S)

    async def close(self) -> None:
        """Find out nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _counted(self, round_: int, claim: Signed[Claim], found: ProvenContribution | None) -> None:
        if found is not None and found.proof is not None:
            payout_receipt = PayoutReceipt(found.proof, claim)
            self._pending[round_] = payout_receipt
            await self._keep(round_, payout_receipt)
        await self._ask(sorted({*self._pending, round_}))

    async def _ask(self, rounds: Sequence[int]) -> None:
        async with self._turn:
            for round_ in rounds:
                try:
                    word = await self._log.credit(round_)
                    is_open = round_ not in self._kept.newest or round_ in self._pending
                    found = await self._computed(round_) if round_ and is_open else None
                except MantaError as error:  # the figures are for people: nothing waits for them, and the next word has all of them
                    logger.info("credit not told round=%d reason=%s", round_, error)
                    return
                self._take(round_, word, found)
                if (payout_receipt := self._pending.pop(round_, None)) is not None:
                    claims, paid = ((), word.earned) if found is None else (_kept(found.contributions), (found.earned,))
                    await self._keep(round_, replace(payout_receipt, claims=claims, paid=paid))

    async def _keep(self, round_: int, payout_receipt: PayoutReceipt) -> None:
        try:
            await asyncio.to_thread(self._payout_receipts.keep, round_, payout_receipt)
        except StorageError as error:
            logger.error("payout receipt not kept round=%d reason=%s", round_, error)

    async def _computed(self, round_: int) -> _Computed | None:
        """Return what a round paid this peer by all its claims; None: they are too dear, or cannot be had.

        What a round of an audited run paid follows from more than its claims.
        """
        if self._manifest.is_audited:
            return None
        try:
            proven = self._proven(round_)
            if proven is None:
                return None
            contributions, most = proven.round.contributions, self._most_bytes()
            if contributions * _LEAST_BYTES > most:
                return None
            page = await self._log.contributions_page(proven)
            if contributions * sum(map(len, page.entries)) > most * len(page.entries):
                return None
            found = await self._log.contributions(proven, page)
            claims = await asyncio.to_thread(claims_of, self._training_spec, proven, found)
        except MantaError as error:
            logger.info("credit not computed round=%d reason=%s", round_, error)
            return None
        earned = shares_by(self._manifest, self._training_spec, claims).get(self._key, 0)
        return _Computed(found, earned, sum(claim.microbatches for claim in claims) * self._manifest.microbatch_samples)

    def _proven(self, round_: int) -> ProvenRound | None:
        """Return a round under the tree head that its payout receipt has, if there is one; None: the round is not known here any more."""
        payout_receipt, proven_commit = self._pending.get(round_), self._commits.proven_commit(round_)
        if payout_receipt is not None:
            return self._log.proven(payout_receipt.listing.receipt)
        return None if proven_commit is None else proven_commit.proven

    def _most_bytes(self) -> float:
        """Return, drawn at random, how many bytes of contributions are worth it this time; see the module."""
        return self._mean_bytes / (SHARE * (1 - self._rng.random()))

    def _take(self, round_: int, word: CreditWord, computed: _Computed | None) -> None:
        kept, found = self._kept.told(word), None
        if computed is not None:
            found = computed.earned
            kept = kept.computed(round_, found)
        self._kept = kept
        self._save()
        for each in word.faults:
            if is_guilty(each):
                self.guilty = self.guilty or each
                self._is_guilty.set()
        said = word.earned[0] if word.earned else None
        newest_word = kept.word[0]
        if found is not None and said is not None and found != said:
            self._complain(f"the log says that this peer earned {said} in round {round_}, and its claims come to {found}")
        elif kept.checked > newest_word.credit:
            said_of = f"the log says that this peer earned {newest_word.credit} up to round {newest_word.round}"
            self._complain(f"{said_of}, and the claims of {kept.num_checked} of them come to {kept.checked}")
        self._show(round_, said if found is None else found, None if computed is None else computed.samples)

    def _complain(self, fault: str) -> None:
        if not self._live_status.status.credit_fault:
            self._live_status.say(f"{fault}: whoever copies the log sees which is true")
        self._live_status.update(credit_fault=fault)

    def _show(self, round_: int = 0, last: int | None = None, samples: int | None = None) -> None:
        kept = self._kept
        if kept.word:
            self._live_status.credit(kept.word[0], self._manifest.audit_rules, kept.checked, kept.num_checked)
        if last is not None and round_:
            self._live_status.earned(round_, last, is_checked=samples is not None, samples=samples)

    def _load(self) -> KeptCredit:
        try:
            return self._store.credit(self._run).load(KeptCredit) or KeptCredit()
        except DamagedFile as error:  # the log says it again, and nothing else follows from it
            logger.warning("what was kept of the credit is passed over reason=%s", error)
            return KeptCredit()

    def _save(self) -> None:
        try:
            self._store.credit(self._run).save(self._kept)
        except StorageError as error:
            logger.error("credit not kept reason=%s", error)


def _kept(claims: RoundContributions) -> tuple[RoundContributions, ...]:
    """Return what a payout receipt keeps of a round's contributions: all or, where they are too many, none."""
    return (claims,) if len(pack(claims)) <= MAX_CLAIMS_BYTES else ()
