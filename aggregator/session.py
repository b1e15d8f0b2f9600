"""An operator at work in a run: its services for peers and for other operators, and what becomes of each event.

The session alone knows all parts of the program. They share a ``RunContext``, return what happened, and the session passes it on.
"""

import asyncio
import os
from dataclasses import replace
from typing import Any

from manta_swarm.aggregator.commit.deciding import Decider, LoneDecider
from manta_swarm.aggregator.commit.news import NewsDesk
from manta_swarm.aggregator.commit.writing import Writing
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.control import Stopping
from manta_swarm.aggregator.features.audits.audits import Audits
from manta_swarm.aggregator.features.operators.contact import Contact
from manta_swarm.aggregator.features.operators.etcd import Etcd
from manta_swarm.aggregator.features.operators.lease import Lease
from manta_swarm.aggregator.features.operators.seat import Seat
from manta_swarm.aggregator.features.operators.turns import Event, Turns
from manta_swarm.aggregator.features.sidecars.auditor import audit_beside, is_named
from manta_swarm.aggregator.features.sidecars.gateway import Gateway
from manta_swarm.aggregator.features.sidecars.gateway_key import invitation_for
from manta_swarm.aggregator.features.sidecars.sidecar import Met
from manta_swarm.aggregator.follow.evaluating import Evaluating
from manta_swarm.aggregator.follow.fronts import Fronts
from manta_swarm.aggregator.introduction import introduction, join_lines
from manta_swarm.aggregator.log.announcing import Announcing
from manta_swarm.aggregator.log.contents import SNAPSHOTS
from manta_swarm.aggregator.log.cosigning import CosigningDesk
from manta_swarm.aggregator.log.guard import RollbackGuard
from manta_swarm.aggregator.log.heads import HeadsDesk
from manta_swarm.aggregator.monitor.onlookers import Onlookers
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.aggregator.status import AggregatorStatus, unix_ms
from manta_swarm.network.budget import Faults
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.farewells import say_farewell
from manta_swarm.network.log_client import serve_manifest
from manta_swarm.network.node import Node
from manta_swarm.network.reach import DialBackDesk
from manta_swarm.network.rpc import Endpoint, OwnNode
from manta_swarm.protocol.admission import INVITATION
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import key_named
from manta_swarm.runtime.local_runs import LocalRun, listed


class Session:
    """One operator's, while its program runs."""

    def __init__(self, context: RunContext, asked: Start, node: Node, gate: OwnNode, onlookers: Onlookers) -> None:
        """Prepare; ``serve`` answers from then on.

        Args:
            context: of the run.
            asked: what the person wants.
            node: this operator's.
            gate: the same, held to whom the run admits.
            onlookers: show what passes.

        Raises:
            UserError: the gateway that is asked for cannot be had.
            StorageError: the disk fails.
        """
        config, ledger, directory = asked.config, context.ledger, context.directory
        self.context = context
        self._asked = asked
        self._config = config
        self._node = node
        self._gate = gate
        self._log = context.log
        self._onlookers = onlookers
        self._say = context.say
        manifest, signed = context.manifest, context.opened.signed
        self.status = AggregatorStatus(
            run=signed.run.hex(),
            name=manifest.name,
            num_rounds=manifest.num_rounds,
            task=manifest.task,
            dataset=manifest.dataset,
            data=manifest.data,
            supernet=manifest.supernet,
            pid=os.getpid(),
            started_at=unix_ms(),
        )
        self.stopping = Stopping(signed.run, self._revoke)
        self._gateway: Gateway | None = None
        if asked.gateway is not None:
            self._gateway = Gateway(
                asked.gateway,
                directory,
                data_root=asked.data_root,
                threads=asked.threads,
                say=self._say,
                shown=self._show_gateway,
            )
        self._evaluating = Evaluating(context.log, context.follower, config.follower.evaluate_every)
        self._guard = RollbackGuard(directory, context.log, self._say, is_newest=asked.is_newest)
        self._audits: Audits | None = None
        if manifest.is_audited:
            max_bytes = round(config.follower.audit_disk_gb * 1e9)
            self._audits = Audits(context.log, context.follower.snapshots, context.bodies, directory, context.num_weights, max_bytes)
        endpoint = context.endpoint
        self._fronts = Fronts(gate, signed, directory / SNAPSHOTS, every=config.follower.front_every)
        self._heads = HeadsDesk(endpoint, context.log, signed, directory, self._guard.heard)
        self._announcing = Announcing(gate, context.log)
        self._cosigning = CosigningDesk(endpoint, context.log, directory, [key_named(name) for name in config.follower.witnesses])
        idle = config.limits.closing(manifest)
        onlookers.watch(idle, node.traffic, Faults(context.clock), lambda: context.ledger.finished)
        self._news = NewsDesk(endpoint, context.log, self._left_ms, context.weights.of)
        self._lone: Writing | None = None  # of an operator without others
        self._turns: Turns | None = None  # where there are others
        if Operators.of(manifest, ledger.run).is_alone:
            self._lone = self._new_writing(endpoint, LoneDecider(context.log, context.bodies))
        else:
            self._turns = self._among_others()

    @property
    def _writing(self) -> Writing | None:
        """The writer's services, while it is this operator that writes."""
        return self._lone if self._turns is None else self._turns.writing

    async def serve(self, told: "asyncio.Future[None]") -> None:
        """Serve the run until ``told`` is done, or there is word to stop.

        Raises:
            StorageError: the log cannot be written any more; what was acknowledged is safe.
            OtherHistory: the log is not what its key has signed for.
        """
        addresses = tuple(await self._node.addresses())
        look = self._onlookers
        await self._open()
        page = None if look.door is None else look.door.url
        self._write_status(addresses=addresses, join=join_lines(self._log.ledger, addresses), monitor=page)
        for line in introduction(self.status, self._log.ledger, self.context.num_weights, self._config.bodies):
            self._say(line)
        with listed(LocalRun(self.status.run, self.status.name, addresses)):
            leasing = asyncio.create_task(self._lease(addresses))
            auditing = asyncio.create_task(self._audit(addresses))
            works = (
                self._heads.watch(),
                self._evaluate(),
                self._node.watch_daemon(),
                *((self._write(self._lone),) if self._turns is None else (self._turns.keep(), self._hear(self._turns))),
                self._hear_measures(),
                look.look_on(),
                self._fronts.keep(),
                self._announcing.keep(),
                *(() if self._audits is None else (self._audits.keep(),)),
            )
            background = [leasing, auditing, *(asyncio.create_task(work) for work in works)]
            try:
                self._evaluating.look()
                await self._until_stopped(told, background)
            finally:
                for task in (leasing, auditing):
                    task.cancel()
                await asyncio.wait((leasing, auditing))  # the gateway hands in what it has, while the log still takes it
                for task in background:
                    task.cancel()
                await asyncio.wait(background)
                if self._turns is not None:
                    await self._turns.close()
                elif self._lone is not None:
                    await self._lone.close()
                await self.context.waiting.close()
                self._write_status()
            is_over = self.stopping.farewell is not None and self.stopping.farewell.is_over
            what_next = "the run is over" if is_over else "start again with the same run file and --dir to go on"
            self._say(f"stopped at round {self._log.ledger.round}; {what_next}")

    async def _open(self) -> None:
        """Answer peers from now on; what they hand in is taken once the guard is lifted, by the operator whose turn it is to write."""
        endpoint, signed = self.context.endpoint, self.context.opened.signed
        if self._turns is not None:
            await self._turns.start()
        elif self._lone is not None:
            await self._lone.open()
        await self.context.shelf.serve(endpoint)
        await serve_manifest(endpoint, signed)
        await serve_pings(endpoint)
        await self._heads.start()
        await self._cosigning.start()
        await self._news.start()
        if self._audits is not None:
            await self._audits.serve(endpoint, self.context.shelf)
        await DialBackDesk(self._gate).start()

    # Writing.

    def _left_ms(self, now: int) -> int:
        if self._turns is not None:
            return self._turns.left_ms(now)
        return 0 if self._lone is None else self._lone.closing.left_ms(now)

    def _among_others(self) -> Turns:
        """Return this operator's place among the others of the run."""
        self._guard.check_newest()
        context, run, settings = self.context, self.context.ledger.run, self._config.operators
        lease = Lease(Etcd(settings.etcd), run, context.identity.public_key)
        contact = Contact(self._gate, Operators.of(context.manifest, run), context.directory)
        return Turns(context, Seat(context), lease, contact, self._new_writing)

    def _new_writing(self, endpoint: Endpoint, decider: Decider) -> Writing:
        closing = self._config.limits.closing(self.context.manifest)
        writing = Writing(replace(self.context, endpoint=endpoint), closing, decider, self._node.rates.address_of)
        self._onlookers.write(writing.closing, writing.intake.faults)
        return writing

    async def _write(self, writing: Writing | None) -> None:
        """Once nobody knows a newer log, commit rounds to the run's end; then serve on. Nothing is taken, and so promised, before that."""
        assert writing is not None
        await self._guard.lifted()
        async for _ in writing.rounds(None):
            self._committed()

    async def _hear(self, turns: Turns) -> None:
        """Take note of what happens among several operators, until this is cancelled."""
        while True:
            if await turns.next_event() is Event.COMMITTED:
                self._committed()
            else:
                self._news.committed()
                self._write_status()

    async def _hear_measures(self) -> None:
        """Show what peers say of how good the model is, until this is cancelled."""
        changed = self.context.measures.changed
        while True:
            await changed.wait()
            changed.clear()
            self._write_status()

    async def _revoke(self, what: str, target: bytes) -> None:
        """Take back a key or an invitation.

        Raises:
            LedgerError: there is nothing to take back, or another operator writes.
            Unreachable: this one's turn to write ended meanwhile.
            StorageError: the disk failed.
        """
        if self._writing is None:
            assert self._turns is not None  # a lone operator always writes
            writer = self._turns.standing().writer
            raise LedgerError("no operator writes now: try again" if writer is None else f"operator {writer} writes now: type it there")
        await self._writing.revocations.revoke(what, target)

    # Beside it.

    def _show_gateway(self, url: str) -> None:
        self._write_status(gateway=url)

    async def _lease(self, addresses: tuple[str, ...]) -> None:
        """Keep the gateway running, if there is to be one, to the run's end; then serve on."""
        if self._gateway is not None:
            invited = self._log.ledger.manifest.admission.how == INVITATION
            await self._gateway.run(Met(addresses, self.status.run, invitation_for(self.context.directory) if invited else None))
        await asyncio.Event().wait()

    async def _audit(self, addresses: tuple[str, ...]) -> None:
        """Keep this operator's auditor running, if the run names it, until the run is settled; then serve on."""
        if is_named(self.context.directory, self._log.ledger.manifest.audit_rules) and not self._log.ledger.settled:
            met, share = Met(addresses, self.status.run), self._config.follower.audit_share
            await audit_beside(self.context.directory, met, share, data_root=self._asked.data_root, say=self._say)
        elif self._audits is not None and not self._log.ledger.settled:
            self._say("the run names another auditor than the one in this folder: none is started here")
        await asyncio.Event().wait()

    # Its end.

    async def _until_stopped(self, told: "asyncio.Future[None]", background: "list[asyncio.Task[None]]") -> None:
        broken = self.context.broken.told
        ends: set[asyncio.Future[None] | asyncio.Future[BaseException]] = {told, broken, *background}
        done, _ = await asyncio.wait({*ends, self.stopping.told}, return_when=asyncio.FIRST_COMPLETED)
        farewell = self.stopping.farewell
        if farewell is not None and farewell.is_over and done == {self.stopping.told}:
            done = await self._keep_promises(ends)
        if broken in done:
            raise broken.result()
        for task in background:
            if task in done:
                task.result()
        if farewell is not None:
            count = await say_farewell(self._node, farewell)
            nodes = "1 node was" if count == 1 else f"{count} nodes were"
            self._say(f"{nodes} told that the log {'ends' if farewell.is_over else 'stops'}: {farewell.reason or 'no reason'}")
        if self.status.own_quality is not None:
            self._say(self.status.own_quality.words())

    async def _keep_promises(self, ends: "set[asyncio.Future[None] | asyncio.Future[BaseException]]") -> "set[asyncio.Future[Any]]":
        """Before the end for good: take nothing more, and commit what has a ticket; return what ended the program before that."""
        if self._writing is None:
            return set()  # another operator has promised it
        self._writing.intake.take_no_more()
        self._say("taking nothing more; what was promised a place in a round is committed first")
        keeping = asyncio.create_task(self._writing.intake.nothing_waits())
        try:
            done, _ = await asyncio.wait({*ends, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            keeping.cancel()
        return done - {keeping}

    # What happens.

    def _committed(self) -> None:
        ledger = self._log.ledger
        newest = ledger.newest
        assert newest is not None
        self._news.committed()
        self._announcing.committed()
        if self._turns is not None:
            self._turns.tell()
        if self._audits is not None:
            self._audits.committed()
        self.context.settling.look()
        if ledger.manifest.is_audited and ledger.settled:
            self._say(f"settled round={ledger.round} entries={ledger.size}: all is paid")
            self._write_status()
            self._say_if_finished()
            return
        if self._writing is not None:
            self._fronts.committed(ledger.round, ledger.state)
        self._say(
            f"round committed round={ledger.round} peers={len(ledger.last_keys)} contributions={newest.contributions} "
            f"samples={self._samples()} entries={ledger.size} state={ledger.state.hex()[:12]}"
        )
        self._write_status()
        self._evaluating.look()

    def _samples(self) -> int:
        """Return how many samples the claims of the newest round say."""
        return sum(one.counted for one in self._log.ledger.table_at(self._log.ledger.round) or ())

    async def _evaluate(self) -> None:
        """Tell of each evaluation, until this is cancelled."""
        while True:
            said = await self._evaluating.next()
            self._write_status()
            self._say(said)
            if self._evaluating.quality is not None and self.status.own_quality is not None:
                self._say(self.status.own_quality.words())
            self._say_if_finished()

    def _say_if_finished(self) -> None:
        if self.status.finished and not self.status.settled:
            self._say("the last round is evaluated; verdicts are waited for, and then all is paid")
        elif self.status.finished:
            self._say("run finished; the aggregator goes on serving its state until it is stopped")

    def _write_status(self, **changes: object) -> None:
        """Write where the run stands, with these fields."""
        ledger, head = self._log.ledger, self._log.head
        of_now = {
            "round": ledger.round,
            "state": ledger.state.hex(),
            "ledger_size": head.size,
            "ledger_root": head.root.hex(),
            "quality": self._evaluating.quality,
            "quality_round": self._evaluating.round,
            "own_quality": self.context.measures.summed_up(),
            "finished": self._evaluating.is_over,
            "settled": ledger.settled,
            "open_ms": ledger.open_ms,
            "counted": self._samples(),
            "operators": None if self._turns is None else self._turns.standing(),
            "audits": None if self._audits is None else self._audits.status(),
        }
        self.status = self.status.model_copy(update={**of_now, **changes})
        self._onlookers.show(self.status)
