"""The one writing path of the log: when a round closes, its table becomes a mean, a state and entries; they are written, then told.

All that comes from strangers was checked before (``aggregator.intake.intake``). Between the close and the commit only this runs: the
arithmetic in one thread, the transaction in another. What can be computed again, the snapshot among it, is saved after the commit, off
this path.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from manta_swarm.aggregator.commit.deciding import Decider
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.intake import CheckedContribution, Intake
from manta_swarm.aggregator.intake.verdicts import Verdicts
from manta_swarm.aggregator.states.state_keeper import Next
from manta_swarm.aggregator.worker import WorkerThread
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.listed import Listed, open_ms_after, paid_once
from manta_swarm.protocol.records import Round, entry_of
from manta_swarm.protocol.table import weights_root
from manta_swarm.protocol.verdicts import Settlement
from manta_swarm.runtime.tasks import wait_within

_MAX_SAVING = 2  # states that wait for their snapshot: where the disk is slower than the rounds, the rounds wait for it

logger = logging.getLogger("manta.commits")


class Commits:
    """Closes rounds as ``Closing`` says, and commits them."""

    def __init__(
        self, context: RunContext, closing: Closing, intake: Intake, verdicts: Verdicts, changed: asyncio.Event, decider: Decider
    ) -> None:
        """Prepare.

        Args:
            context: of the run.
            closing: the rounds.
            intake: has what was handed in.
            verdicts: have what auditors handed in.
            changed: is set when a header, a body or a verdict came: a round may close then, or the run be settled.
            decider: puts entries into the log.
        """
        self._context = context
        self._decider = decider
        self._log = context.log
        self._closing = closing
        self._intake = intake
        self._verdicts = verdicts
        self._state_keeper = context.state_keeper
        self._blob_store = context.blob_store
        self._timeline = context.timeline
        self._settling = context.settling
        self._changed = changed
        self._writing = asyncio.Lock()  # entries are made for the log as it is, and written before others are
        self._compute = WorkerThread("rounds", context.broken)
        self._saver = WorkerThread("snapshots", context.broken)
        self._saving: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Open the round after the log's newest one; after a start of the program, the same that was open before."""
        ledger = self._log.ledger
        if ledger.finished:
            return
        self._closing.open(ledger.round + 1, ledger.open_ms, ledger.last_keys, None if ledger.round == 0 else self._now())
        self._timeline.opened(ledger.round + 1, is_waiting_for_first=ledger.round == 0)

    async def rounds(self) -> AsyncIterator[None]:
        """Close and commit rounds until the run is finished, then, where contributions are audited, settle it; yield after each of them.

        Raises:
            StorageError: the disk failed; what was acknowledged is safe.
        """
        while not self._log.ledger.finished:
            self._changed.clear()
            closed = self._closing.tick(self._now())
            if closed is not None:
                after = await self._commit([self._intake.handed(contribution) for contribution in closed], closed)
                yield
                await self._begin_saving(after)
                continue
            next_ms = self._closing.next_ms(self._now())
            if next_ms is None:
                await self._changed.wait()
            else:
                await wait_within(self._changed, max(next_ms, 1) / 1000)
        while self._settling.is_due:
            self._changed.clear()
            left_s = self._settling.left_s(self._verdicts.opened())
            if left_s:
                await wait_within(self._changed, left_s)
            else:
                await self._settle()
                yield

    def _now(self) -> int:
        return round(self._context.clock.now_ms())

    async def _settle(self) -> None:
        """Put the verdicts that wait into the log, and the settlement after them: all that is not paid yet is paid with it."""
        verdicts = await self._verdicts.for_settlement()
        async with self._writing:
            settlement = Settlement(self._log.ledger.run, self._log.ledger.last_commit)
            await self._write([*map(entry_of, verdicts), entry_of(settlement)])
        await self._verdicts.committed(verdicts)

    async def append(self, entry: bytes) -> None:
        """Put one entry that stands before a table into the log, by itself; it is on the disk when this returns.

        Raises:
            LedgerError: it may not follow the log.
            StorageError: the disk failed.
        """
        async with self._writing:
            await self._write([entry])

    async def _write(self, entries: Sequence[bytes], after: Next | None = None, bodies: Sequence[Blob] = ()) -> None:
        """Have entries decided; a storage failure stops the program at once."""
        try:
            await self._decider.write(entries, after, bodies)
        except StorageError as error:
            self._context.broken.stop(error)
            raise

    async def close(self) -> None:
        """Finish what is being saved."""
        if self._saving:
            await asyncio.wait(self._saving)
        self._compute.close()
        self._saver.close()

    async def _commit(self, handed: list[CheckedContribution], contributions: tuple[bytes, ...]) -> Next:
        self._timeline.closed()
        ledger = self._log.ledger
        round_ = ledger.round + 1
        listed = paid_once([ledger.listed(one.header, round_) for one in handed])
        computing = self._compute.do(self._state_keeper.after_table, ledger, listed, [one.body for one in handed])
        after, _ = await asyncio.gather(computing, self._intake.synced(contributions))
        verdicts = await self._verdicts.for_round()
        async with self._writing:  # where the contributions are to stand is a part of the round's entry
            entry = self._entry(listed, after, len(verdicts))
            entries = [*map(entry_of, verdicts), *(one.entry for one in handed), entry_of(entry)]
            await self._write(entries, after, [one.blob for one in handed])
        self._timeline.done()
        self._state_keeper.adopt(after.state)
        self._put_on_blob_store(handed, after)
        self._context.weights.remember(round_, after.weighed)
        ledger = self._log.ledger
        if not ledger.finished:
            self._closing.open(ledger.round + 1, ledger.open_ms, ledger.last_keys, self._now())
            self._timeline.opened(ledger.round + 1)
        self._intake.committed(round_)
        await self._verdicts.committed(verdicts)
        if after.table_mean.num_clipped:
            logger.info("clipped round=%d contributions=%d", round_, after.table_mean.num_clipped)
        return after

    async def _begin_saving(self, after: Next) -> None:
        """Save what can be computed again; where the disk is slower than the rounds, wait for it."""
        self._saving.add(saving := asyncio.create_task(self._save(after)))
        saving.add_done_callback(self._saved)
        while len(self._saving) > _MAX_SAVING:
            await asyncio.wait(self._saving, return_when=asyncio.FIRST_COMPLETED)

    def _entry(self, listed: list[Listed], after: Next, num_verdicts: int) -> Round:
        ledger = self._log.ledger
        return Round(
            run=ledger.run,
            round=ledger.round + 1,
            base=ledger.last_commit,
            first=ledger.size + num_verdicts,
            contributions=len(listed),
            weights=weights_root(after.weighed),
            mean=after.mean.root,
            state=after.blob.root,
            thresholds=after.table_mean.thresholds,
            min_exponent=after.table_mean.min_exponent,
            open_ms=open_ms_after(ledger.manifest.exchange, ledger.open_ms, listed),
        )

    def _put_on_blob_store(self, handed: list[CheckedContribution], after: Next) -> None:
        for one in handed:
            self._blob_store.put(one.blob, "body")
        self._blob_store.put(after.mean, "mean")
        self._blob_store.put(after.blob, "state")
        if after.state.round == self._state_keeper.plan.teacher_round:
            self._blob_store.pin(after.blob)

    async def _save(self, after: Next) -> None:
        head, note = self._log.head, self._log.tree_head
        await self._saver.do(self._state_keeper.save, after.state, head, note)
        await self._saver.do(self._context.bodies.prune, after.state.round)

    def _saved(self, saving: "asyncio.Task[None]") -> None:
        self._saving.discard(saving)
        self._context.broken.stop(None if saving.cancelled() else saving.exception())
