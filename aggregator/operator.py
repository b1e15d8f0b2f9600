"""An operator's node: bootstrap of the DHT, the log, its intake and the follower, from a run file and a directory.

DIR/identity.key      the operator's Ed25519 key, mode 0600
DIR/log.sqlite...     the log (see ``aggregator.log.log``) and the signed manifest
DIR/bodies/           contributions of the open round and of the newest ones (see ``aggregator.intake.bodies``)
DIR/verdicts.waiting  verdicts that the next round will have (see ``aggregator.intake.waiting``)
DIR/snapshots/        model and optimiser state of the newest rounds
DIR/brought/          in an audited run: what peers brought for audits (see ``aggregator.features.audits.brought``)
DIR/auditor/          in an audited run: the folder of this operator's auditor, a peer with a key of its own
DIR/monitor/          what is written down for the monitor; nothing depends on it
DIR/operators/        where there are several: what this one has signed and promised (see ``aggregator.features.operators.store``)
DIR/lock              locked while an aggregator (or a peer) runs on DIR
DIR/listen            the address it listened on last: a restart comes back where peers look for it
DIR/status.json       where the run stands, for other programs
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.admitting import held_to_admission
from manta_swarm.aggregator.commit.commits import Others, Write
from manta_swarm.aggregator.commit.news import NewsDesk
from manta_swarm.aggregator.commit.settling import Settling
from manta_swarm.aggregator.commit.weights import Weights
from manta_swarm.aggregator.commit.writing import Writing
from manta_swarm.aggregator.control import Stopping
from manta_swarm.aggregator.features.audits.audits import Audits
from manta_swarm.aggregator.features.operators.contact import Contact
from manta_swarm.aggregator.features.operators.etcd import Etcd
from manta_swarm.aggregator.features.operators.joining import join
from manta_swarm.aggregator.features.operators.lease import Lease
from manta_swarm.aggregator.features.operators.seat import Seat
from manta_swarm.aggregator.features.operators.turns import Turns
from manta_swarm.aggregator.features.sidecars.auditor import audit_beside, is_named
from manta_swarm.aggregator.features.sidecars.gateway import Gateway
from manta_swarm.aggregator.features.sidecars.gateway_key import invitation_for
from manta_swarm.aggregator.features.sidecars.sidecar import Met
from manta_swarm.aggregator.follow.evaluating import Evaluating
from manta_swarm.aggregator.follow.fronts import Fronts
from manta_swarm.aggregator.follow.opening import OpenRun, filled_shelf, open_run
from manta_swarm.aggregator.follow.shards import lend_shards
from manta_swarm.aggregator.intake.bodies import Kept
from manta_swarm.aggregator.intake.intake import Store
from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.aggregator.intake.verdicts import KeepVerdicts
from manta_swarm.aggregator.intake.waiting import Waiting
from manta_swarm.aggregator.introduction import introduction, join_lines
from manta_swarm.aggregator.listening import LastAddress
from manta_swarm.aggregator.log.announcing import Announcing
from manta_swarm.aggregator.log.contents import MEASURES, RUN_FILE, SNAPSHOTS
from manta_swarm.aggregator.log.cosigning import CosigningDesk
from manta_swarm.aggregator.log.guard import RollbackGuard, refuse_handed_over
from manta_swarm.aggregator.log.heads import HeadsDesk
from manta_swarm.aggregator.log.storage import DATABASE, log_key
from manta_swarm.aggregator.monitor.door import open_door
from manta_swarm.aggregator.monitor.onlookers import Onlookers
from manta_swarm.aggregator.monitor.watched import Watched
from manta_swarm.aggregator.settings.config import load_run_file, template
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.aggregator.status import AggregatorStatus, unix_ms
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.training.update import self_test
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.budget import Faults
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.farewells import say_farewell
from manta_swarm.network.log_client import serve_manifest
from manta_swarm.network.node import Node
from manta_swarm.network.reach import DialBackDesk
from manta_swarm.network.rpc import Endpoint, OwnNode
from manta_swarm.protocol.admission import INVITATION
from manta_swarm.protocol.errors import LedgerError, Unreachable, UserError
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import Identity, PublicKey, key_named
from manta_swarm.runtime.commands import told_to_stop
from manta_swarm.runtime.control import ControlSocket
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory, only_process, replace_file
from manta_swarm.runtime.local_runs import LocalRun, listed


class Operator:
    """One aggregator at work."""

    def __init__(self, asked: Start, say: Callable[[str], None]) -> None:
        """Prepare what is ``asked``, which is checked; ``say`` prints a line for the person."""
        self._asked = asked
        self._config = asked.config
        self._directory = asked.directory
        self._say = say
        self._address = LastAddress(asked.directory)
        self._gateway: Gateway | None = None
        self._writing: Writing | None = None  # while it is this operator that writes
        self._turns: Turns | None = None  # where there are others

    async def run(self) -> None:
        """Serve the run until SIGINT or SIGTERM.

        Raises:
            UserError: the run file, the directory or an address cannot be used.
            StorageError: the log cannot be written any more; what was acknowledged is safe.
            OtherHistory: the log is not what its key has signed for.
        """
        self_test()
        asked = self._asked
        make_directory(self._directory)
        with only_process(self._directory), contextlib.ExitStack() as undo:
            refuse_handed_over(self._directory)  # up to here another process may have done so
            if asked.gateway is not None:
                self._gateway = Gateway(
                    asked.gateway,
                    self._directory,
                    data_root=asked.data_root,
                    threads=asked.threads,
                    say=self._say,
                    shown=self._show_gateway,
                )
            has_log = (self._directory / DATABASE).exists()
            identity_path = self._directory / IDENTITY
            identity = log_key(self._directory) if has_log else load_identity(identity_path)
            dataset = load_dataset(self._config.data.dataset, asked.data_root)
            door = open_door(asked.page, self._config.monitor)
            self._onlookers = Onlookers(self._directory, self._config.monitor, door, asked.data_root)
            undo.callback(self._onlookers.close)
            if self._config.operators.keys and not has_log:
                await self._begin_with_others(identity, identity_path, dataset)
            opened = await asyncio.to_thread(open_run, self._config, self._directory, identity, dataset, asked.first_state)
            with opened.log:
                self._take_up(opened)
                shelf = filled_shelf(self._log, self._follower)
                if self._log.ledger.manifest.shards:
                    count = lend_shards(shelf, dataset)
                    self._say(f"{count} shards of {dataset.name} are handed out to whoever joins; its licence has to allow that")
                node = await self._start_node(identity, identity_path)
                try:
                    async with ControlSocket(self._directory, self._stopping.answer):
                        await self._serve(node, identity, shelf)
                finally:
                    await node.close()

    async def _begin_with_others(self, identity: Identity, path: Path, dataset: Dataset) -> None:
        """Get the run from another operator; the first one begins it, unless it is told where others are."""
        settings, addresses = self._config.operators, self._asked.initial_peers
        if addresses or key_named(settings.keys[0]) != identity.public_key:
            await join(self._config, self._directory, identity, path, dataset, addresses)
            self._say("got the run, its log and its newest state from another operator")

    def _take_up(self, opened: OpenRun) -> None:
        self._run, self._log, self._follower = opened, opened.log, opened.follower
        self._keep_run_file()
        run, manifest = opened.signed.run, opened.signed.open()
        self.status = AggregatorStatus(
            run=run.hex(),
            name=manifest.name,
            num_rounds=manifest.num_rounds,
            task=manifest.task,
            dataset=manifest.dataset,
            data=manifest.data,
            supernet=manifest.supernet,
            pid=os.getpid(),
            started_at=unix_ms(),
        )
        self._stopping = Stopping(run, self._revoke)
        self._evaluating = Evaluating(self._log, self._follower, self._config.follower.evaluate_every)
        self._guard = RollbackGuard(self._directory, self._log, self._say, is_newest=self._asked.is_newest)
        self._settling = Settling(lambda: self._log.ledger, self._config.trust.settle_s)
        self._settling.look()
        self._audits: Audits | None = None
        if manifest.is_audited:
            max_bytes = round(self._config.follower.audit_disk_gb * 1e9)
            self._audits = Audits(
                self._log, self._follower.snapshots, opened.bodies, self._directory, self._follower.num_weights, max_bytes
            )

    async def _serve(self, node: Node, identity: Identity, shelf: Shelf) -> None:
        told = told_to_stop()
        self._broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        addresses = tuple(await node.addresses())
        self._address.remember(addresses)
        look = self._onlookers
        await self._open_desks(node, identity, shelf)
        page = None if look.door is None else look.door.url
        self._write_status(addresses=addresses, join=join_lines(self._log.ledger, addresses), monitor=page)
        for line in introduction(self.status, self._log.ledger, self._follower.num_weights, self._config.bodies):
            self._say(line)
        with listed(LocalRun(self.status.run, self.status.name, addresses)):
            leasing = asyncio.create_task(self._lease(addresses))
            auditing = asyncio.create_task(self._audit(addresses))
            works = (
                self._heads.watch(),
                self._evaluate(),
                node.watch_daemon(),
                self._write() if self._turns is None else self._turns.keep(),
                look.look_on(),
                self._fronts.keep(),
                self._announcing.keep(),
                *(() if self._audits is None else (self._audits.keep(),)),
            )
            background = [leasing, auditing, *(asyncio.create_task(work) for work in works)]
            try:
                self._evaluating.look()
                await self._until_stopped(node, told, background)
            finally:
                for task in (leasing, auditing):
                    task.cancel()
                await asyncio.wait((leasing, auditing))  # the gateway hands in what it has, while the log still takes it
                for task in background:
                    task.cancel()
                await asyncio.wait(background)
                if self._turns is not None:
                    await self._turns.close()
                elif self._writing is not None:
                    await self._writing.close()
                await self._waiting.close()
                self._write_status()
            is_over = self._stopping.farewell is not None and self._stopping.farewell.is_over
            what_next = "the run is over" if is_over else "start again with the same run file and --dir to go on"
            self._say(f"stopped at round {self._log.ledger.round}; {what_next}")

    async def _open_desks(self, node: Node, identity: Identity, shelf: Shelf) -> None:
        """Answer peers from now on; what they hand in is taken once the guard is lifted, by the operator whose turn it is to write."""
        log, look = self._log, self._onlookers
        self._waiting = Waiting(self._directory, self._stop)
        self._weights = Weights(log, self._run.bodies, self._follower.num_weights)
        gate = await held_to_admission(node, lambda: log.ledger)
        watched = Watched(gate, look.tally)
        self._make = partial(self._new_writing, identity, shelf, node.rates.address_of)
        self._measures = Measures(self._directory / MEASURES)
        self._fronts = Fronts(gate, self._run.signed, self._directory / SNAPSHOTS, every=self._config.follower.front_every)
        self._heads = HeadsDesk(watched, log, self._run.signed, self._directory, self._guard.heard)
        self._announcing = Announcing(gate, log)
        self._cosigning = CosigningDesk(watched, log, self._directory, [key_named(name) for name in self._config.follower.witnesses])
        idle = self._config.limits.closing(log.ledger.manifest)
        look.watch(idle, node.traffic, Faults(time.monotonic), lambda: log.ledger.finished)
        self._news = NewsDesk(watched, log, self._left_ms, self._weights.of)
        if not Operators.of(log.ledger.manifest, log.ledger.run).is_alone:
            self._turns = self._among_others(gate, watched, identity, shelf)
            await self._turns.start()
        else:
            self._writing = self._make(watched)
            await self._writing.open()
        await shelf.serve(watched)
        await serve_manifest(watched, self._run.signed)
        await serve_pings(watched)
        await self._heads.start()
        await self._cosigning.start()
        await self._news.start()
        if self._audits is not None:
            await self._audits.serve(watched, shelf)
        await DialBackDesk(gate).start()

    def _left_ms(self, now: int) -> int:
        if self._turns is not None:
            return self._turns.left_ms(now)
        return 0 if self._writing is None else self._writing.closing.left_ms(now)

    def _among_others(self, gate: OwnNode, endpoint: Endpoint, identity: Identity, shelf: Shelf) -> Turns:
        """Return this operator's place among the others of the run."""
        self._guard.check_newest()
        run, settings = self._run, self._config.operators
        seat = Seat(
            endpoint,
            identity,
            self._directory,
            run.log,
            run.follower,
            run.bodies,
            shelf,
            self._waiting,
            self._settling,
            on_commit=self._committed,
            stop=self._stop,
        )
        lease = Lease(Etcd(settings.etcd), run.signed.run, identity.public_key)
        contact = Contact(gate, Operators.of(run.log.ledger.manifest, run.signed.run), self._directory)
        return Turns(endpoint, seat, lease, contact, self._make, self._write_kept, self._turned, self._say)

    def _new_writing(
        self,
        identity: Identity,
        shelf: Shelf,
        address_of: Callable[[PublicKey], str],
        endpoint: Endpoint,
        write: Write | None = None,
        store: Store | None = None,
        keep_verdicts: KeepVerdicts | None = None,
        others: Others | None = None,
    ) -> Writing:
        writing = Writing(
            endpoint,
            identity,
            self._run,
            self._config.limits.closing(self._log.ledger.manifest),
            address_of,
            shelf,
            self._weights,
            self._onlookers.timeline,
            self._committed,
            self._on_measure,
            self._waiting,
            self._settling,
            write=write,
            store=store,
            keep_verdicts=keep_verdicts,
            others=others,
        )
        writing.intake.broken.add_done_callback(lambda broken: self._stop(broken.result()))
        self._onlookers.write(writing.closing, writing.intake.faults)
        return writing

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

    def _stop(self, error: BaseException) -> None:
        """End with an error after which this program cannot go on."""
        if not self._broken.done():
            self._broken.set_result(error)

    def _turned(self) -> None:
        """This operator began to write, or ended, or heard of another that does."""
        self._news.committed()
        self._write_status()

    async def _start_node(self, identity: Identity, identity_path: Path) -> Node:
        listening = [self._address.choose(self._asked.listen)]
        limits = self._config.limits.calls()
        try:
            return await Node.start(identity, identity_path, listen=listening, initial_peers=self._asked.initial_peers, limits=limits)
        except Unreachable as error:
            if len(self._log.ledger.manifest.operators) > 1:  # the other operators call this one where it was before
                return await Node.start(identity, identity_path, listen=listening, limits=limits)
            raise UserError(f"{error}: give the address of a peer that runs, or leave --initial-peers out") from error

    def _show_gateway(self, url: str) -> None:
        self._write_status(gateway=url)

    async def _lease(self, addresses: tuple[str, ...]) -> None:
        """Keep the gateway running, if there is to be one, to the run's end; then serve on."""
        if self._gateway is not None:
            invited = self._log.ledger.manifest.admission.how == INVITATION
            await self._gateway.run(Met(addresses, self.status.run, invitation_for(self._directory) if invited else None))
        await asyncio.Event().wait()

    async def _audit(self, addresses: tuple[str, ...]) -> None:
        """Keep this operator's auditor running, if the run names it, until the run is settled; then serve on."""
        if is_named(self._directory, self._log.ledger.manifest.audit_rules) and not self._log.ledger.settled:
            met, share = Met(addresses, self.status.run), self._config.follower.audit_share
            await audit_beside(self._directory, met, share, data_root=self._asked.data_root, say=self._say)
        elif self._audits is not None and not self._log.ledger.settled:
            self._say("the run names another auditor than the one in this folder: none is started here")
        await asyncio.Event().wait()

    async def _on_measure(self, caller: PublicKey, request: bytes) -> bytes:
        """Take a peer's word of how good the model is on its own images."""
        self._measures.take(caller, request, self._log.ledger)
        self._measures.save()
        self._write_status()
        return b""

    async def _write(self) -> None:
        """Once nobody knows a newer log, commit rounds to the run's end; then serve on. Nothing is taken, and so promised, before that."""
        await self._guard.lifted()
        assert self._writing is not None
        await self._writing.work(None)

    async def _write_kept(self, writing: Writing, kept: Sequence[tuple[int, Kept]]) -> None:
        """Do so while it is this operator's turn."""
        self._writing = writing
        self._news.committed()
        try:
            await writing.open()
            await writing.work(kept)
        finally:
            self._writing = None

    async def _until_stopped(self, node: Node, told: "asyncio.Future[None]", background: "list[asyncio.Task[None]]") -> None:
        ends: set[asyncio.Future[None] | asyncio.Future[BaseException]] = {told, self._broken, *background}
        done, _ = await asyncio.wait({*ends, self._stopping.told}, return_when=asyncio.FIRST_COMPLETED)
        farewell = self._stopping.farewell
        if farewell is not None and farewell.is_over and done == {self._stopping.told}:
            done = await self._keep_promises(ends)
        if self._broken in done:
            raise self._broken.result()
        for task in background:
            if task in done:
                task.result()
        if farewell is not None:
            count = await say_farewell(node, farewell)
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
        self._settling.look()
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
            "own_quality": self._measures.summed_up(),
            "finished": self._evaluating.is_over,
            "settled": ledger.settled,
            "open_ms": ledger.open_ms,
            "counted": self._samples(),
            "operators": None if self._turns is None else self._turns.standing(),
            "audits": None if self._audits is None else self._audits.status(),
        }
        self.status = self.status.model_copy(update={**of_now, **changes})
        self._onlookers.show(self.status)

    def _keep_run_file(self) -> None:
        """Keep the settings beside the run: a backup has them too."""
        path = self._directory / RUN_FILE
        with contextlib.suppress(UserError):  # there is none, or one of before
            if load_run_file(path) == self._config:
                return
        replace_file(path, template(self._config).encode())
