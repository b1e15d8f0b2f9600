"""An operator at work in a run: its services for peers and for other operators, and what becomes of each event.

The session alone knows all parts of the program. They share a ``RunContext``, return what happened, and the session passes it on. Features
(``aggregator.features``) it knows by their events only.
"""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

from manta_swarm.aggregator.commit.feed import FeedService
from manta_swarm.aggregator.commit.writing import Event, LoneCommitter
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.control import Stopping
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.introduction import introduction, join_lines
from manta_swarm.aggregator.log.tree_heads import TreeHeadPublisher, TreeHeadService
from manta_swarm.aggregator.monitor.observers import Observers
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.aggregator.states.state_keeper import DueEvaluations
from manta_swarm.aggregator.status import AggregatorStatus, unix_ms
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.log_client import serve_manifest
from manta_swarm.network.node import Node
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.reach import DialBackService
from manta_swarm.network.shutdown_notices import say_shutdown_notice
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.runtime.local_runs import LocalRun, listed


class Session:
    """Serves one run for one operator while the program runs: it owns the run's parts, and passes on what they return."""

    def __init__(self, context: RunContext, asked: Start, node: Node, features: Sequence[Feature], observers: Observers) -> None:
        """Prepare; ``serve`` answers from then on.

        Args:
            context: of the run.
            asked: what the person wants.
            node: this operator's.
            features: that it has in this run.
            observers: show what passes.
        """
        signed = context.opened.signed
        self.context = context
        self._asked = asked
        self._node = node
        self.features = features
        self._observers = observers
        self._log = context.log
        self._say = context.console.say
        self._said = _said_once(context)
        self._idle = context.limits.closing(context.manifest), CallerFaults(context.clock)  # what is seen where another operator writes
        self.stopping = Stopping(signed.run, self)
        self._committer = next((one.committer for one in features if one.committer is not None), None) or LoneCommitter(context)
        self._due_evaluations = DueEvaluations(context.log, context.state_keeper, asked.config.aggregator.evaluate_every)
        self._tree_heads = TreeHeadService(context.endpoint, context.log, signed, context.directory, context.guard)
        self._tree_head_publisher = TreeHeadPublisher(context.node, context.log)
        self._feed = FeedService(context.endpoint, context.log, self._committer, context.weights, context.clock)

    async def serve(self, told: "asyncio.Future[None]") -> None:
        """Serve the run until ``told`` is done, or there is word to stop.

        Raises:
            UserError: what the person asked for cannot be had.
            StorageError: the log cannot be written any more; what was acknowledged is safe.
            OtherHistory: the log is not what its key has signed for.
        """
        addresses = tuple(await self._node.addresses())
        look = self._observers
        await self._open()
        self._said = self._said.model_copy(update={"addresses": addresses, "join": join_lines(self.context.ledger, addresses)})
        look.show(self)
        for line in introduction(self.status, self.context.ledger, self.context.num_weights, self._asked.config.bodies):
            self._say(line)
        with listed(LocalRun(self._said.run, self._said.name, addresses)):
            sidecars = [asyncio.create_task(_then_wait(one.run(addresses))) for one in self.features if one.is_sidecar]
            works = (
                self._tree_heads.watch(),
                self._evaluate(),
                self._node.watch_daemon(),
                self._committer.keep(),
                self._hear(),
                look.look_on(self),
                self._tree_head_publisher.keep(),
                *(_then_wait(one.run(addresses)) for one in self.features if not one.is_sidecar),
            )
            others = [asyncio.create_task(work) for work in works]
            try:
                self._due_evaluations.look()
                await self._until_stopped(told, [*sidecars, *others])
            finally:
                await _end(sidecars)  # what these have is handed in, while the log still takes it
                await _end(others)
                await self._committer.close()
                await self.context.waiting.close()
                look.show(self)
            is_over = self.stopping.shutdown_notice is not None and self.stopping.shutdown_notice.is_over
            what_next = "the run is over" if is_over else "start again with the same run file and --dir to go on"
            self._say(f"stopped at round {self.context.ledger.round}; {what_next}")

    async def _open(self) -> None:
        """Answer peers from now on; what they hand in is taken once the guard is lifted, by the operator whose turn it is to write."""
        endpoint, signed = self.context.endpoint, self.context.opened.signed
        await self._committer.start()
        await self.context.blob_store.serve(endpoint)
        await serve_manifest(endpoint, signed)
        await serve_pings(endpoint)
        await self._tree_heads.start()
        await self._feed.start()
        for feature in self.features:
            await feature.serve()
        await DialBackService(self.context.node).start()

    # What happens.

    async def _hear(self) -> None:
        """Pass on what happens to the log, until this is cancelled."""
        while True:
            if await self._committer.next_event() is Event.COMMITTED:
                self._committed()
            else:
                self._feed.committed()
                self._observers.show(self)

    def _committed(self) -> None:
        """The log has a new round, or is settled."""
        ledger = self.context.ledger
        self._feed.committed()
        self._tree_head_publisher.committed()
        for feature in self.features:
            feature.on_committed(is_leader=self._committer.writing is not None)
        self.context.settling.look()
        if ledger.manifest.is_audited and ledger.settled:
            self._say(f"settled round={ledger.round} entries={ledger.size}: all is paid")
            self._observers.show(self)
            self._say_if_finished()
            return
        assert ledger.newest is not None
        self._say(
            f"round committed round={ledger.round} peers={len(ledger.last_keys)} contributions={ledger.newest.contributions} "
            f"samples={self._samples()} entries={ledger.size} state={ledger.state.hex()[:12]}"
        )
        self._observers.show(self)
        self._due_evaluations.look()

    async def _evaluate(self) -> None:
        """Tell of each evaluation, until this is cancelled."""
        while True:
            said = await self._due_evaluations.next()
            self._observers.show(self)
            self._say(said)
            own = self.context.measures.summed_up()
            if self._due_evaluations.quality is not None and own is not None:
                self._say(own.words())
            self._say_if_finished()

    def _say_if_finished(self) -> None:
        if self._due_evaluations.is_over and not self.context.ledger.settled:
            self._say("the last round is evaluated; verdicts are waited for, and then all is paid")
        elif self._due_evaluations.is_over:
            self._say("run finished; the aggregator goes on serving its state until it is stopped")

    async def revoke(self, what: str, target: bytes) -> None:
        """Take back a key or an invitation.

        Raises:
            LedgerError: there is nothing to take back, or another operator writes.
            Unreachable: this one's turn to write ended meanwhile.
            StorageError: the disk failed.
        """
        if self._committer.writing is None:
            leader = self._committer.leader
            raise LedgerError("no operator writes now: try again" if leader is None else f"operator {leader} writes now: type it there")
        await self._committer.writing.admissions.revoke(what, target)

    # Its end.

    async def _until_stopped(self, told: "asyncio.Future[None]", background: "list[asyncio.Task[None]]") -> None:
        broken = self.context.broken.told
        ends: set[asyncio.Future[None] | asyncio.Future[BaseException]] = {told, broken, *background}
        done, _ = await asyncio.wait({*ends, self.stopping.told}, return_when=asyncio.FIRST_COMPLETED)
        shutdown_notice = self.stopping.shutdown_notice
        if shutdown_notice is not None and shutdown_notice.is_over and done == {self.stopping.told}:
            done = await self._keep_promises(ends)
        if broken in done:
            raise broken.result()
        for task in background:
            if task in done:
                task.result()
        if shutdown_notice is not None:
            count = await say_shutdown_notice(self._node, shutdown_notice)
            nodes = "1 node was" if count == 1 else f"{count} nodes were"
            self._say(
                f"{nodes} told that the log {'ends' if shutdown_notice.is_over else 'stops'}: {shutdown_notice.reason or 'no reason'}"
            )
        own = self.context.measures.summed_up()
        if own is not None:
            self._say(own.words())

    async def _keep_promises(self, ends: "set[asyncio.Future[None] | asyncio.Future[BaseException]]") -> "set[asyncio.Future[Any]]":
        """Before the end for good: take nothing more, commit what was promised; return what ended the program before that."""
        writing = self._committer.writing
        if writing is None:
            return set()  # another operator has promised it
        writing.intake.take_no_more()
        self._say("taking nothing more; what was promised a place in a round is committed first")
        keeping = asyncio.create_task(writing.intake.nothing_waits())
        try:
            done, _ = await asyncio.wait({*ends, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            keeping.cancel()
        return done - {keeping}

    # Where it stands (``aggregator.monitor.observers.ObservedAggregator``).

    @property
    def status(self) -> AggregatorStatus:
        """What it says of itself at this moment."""
        ledger, head = self.context.ledger, self._log.head
        of_now: dict[str, object] = {
            "round": ledger.round,
            "state": ledger.state.hex(),
            "ledger_size": head.size,
            "ledger_root": head.root.hex(),
            "quality": self._due_evaluations.quality,
            "quality_round": self._due_evaluations.round,
            "own_quality": self.context.measures.summed_up(),
            "finished": self._due_evaluations.is_over,
            "settled": ledger.settled,
            "open_ms": ledger.open_ms,
            "counted": self._samples(),
        }
        for feature in self.features:
            of_now |= feature.status()
        return self._said.model_copy(update=of_now)

    @property
    def closing(self) -> Closing | None:
        """The open round, as far as it is closed here; None: the run is finished."""
        if self.context.ledger.finished:
            return None
        return self._idle[0] if self._committer.writing is None else self._committer.writing.closing

    @property
    def faults(self) -> CallerFaults:
        """What was refused here."""
        return self._idle[1] if self._committer.writing is None else self._committer.writing.intake.faults

    @property
    def traffic(self) -> Traffic:
        """What its node sends and receives."""
        return self._node.traffic

    def _samples(self) -> int:
        """Return how many samples the claims of the newest round say."""
        return sum(one.counted for one in self.context.ledger.table_at(self.context.ledger.round) or ())


def _said_once(context: RunContext) -> AggregatorStatus:
    """Return a status with what does not change while the program runs."""
    manifest = context.manifest
    return AggregatorStatus(
        run=context.ledger.run.hex(),
        name=manifest.name,
        num_rounds=manifest.num_rounds,
        task=manifest.task,
        dataset=manifest.dataset,
        data=manifest.data,
        supernet=manifest.supernet,
        pid=os.getpid(),
        started_at=unix_ms(),
    )


async def _then_wait(work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``, and then wait for ever: that it is done ends no session."""
    await work
    await asyncio.Event().wait()


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
