"""The aggregator: bootstrap of the DHT, the log, its intake and the state keeper, from a run file and a directory.

DIR/identity.key      the operator's Ed25519 key, mode 0600
DIR/log.sqlite3...    the log (see ``aggregator.log.log``), and beside it ``manifest.cbor``, ``tree-head.txt`` and ``tree-head-next.txt``
DIR/witnessed         tree heads that witnesses have cosigned (see ``aggregator.log.witnessed``)
DIR/newer-head.proof  what others hold of the log and it lacks (see ``aggregator.log.guard``)
DIR/bodies/           contributions of the open round and of the newest ones (see ``aggregator.intake.bodies``)
DIR/verdicts.waiting  verdicts that the next round will have (see ``aggregator.intake.waiting``)
DIR/snapshots/        model and optimiser state of the newest rounds
DIR/brought/          in an audited run: what peers brought for audits (see ``aggregator.features.audits.brought``)
DIR/measures          where data are private: how good peers find the model on their own (see ``aggregator.intake.measures``)
DIR/auditor/          in an audited run: the folder of this operator's auditor, a peer with a key of its own
DIR/gateway/          with ``--gateway``: the folder of the gateway, a peer with a key of its own
DIR/monitor/          what is written down for the monitor; nothing depends on it
DIR/operators/        where there are several: what this one has signed and promised (see ``aggregator.features.operators.store``)
DIR/run.toml          the run file, as it was at the last start
DIR/place.json        where DIR lies, so that a copy of it is known as one (see ``aggregator.log.guard``)
DIR/lock              locked while an aggregator (or a peer) runs on DIR
DIR/log.lock          locked while the log is open
DIR/control           a socket over which commands tell the program something (see ``runtime.control``)
DIR/listen            the address it listened on last: a restart comes back where peers look for it
DIR/status.json       where the run stands, for other programs
"""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from manta_swarm.aggregator.commit.feed import TableWeights
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.operators.joining import join
from manta_swarm.aggregator.features.plugged_in import features_of
from manta_swarm.aggregator.intake.admissions import held_to_admission
from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.aggregator.intake.waiting import Settling, Waiting
from manta_swarm.aggregator.introduction import LastAddress
from manta_swarm.aggregator.log.contents import MEASURES, RUN_FILE
from manta_swarm.aggregator.log.guard import RollbackGuard, refuse_handed_over
from manta_swarm.aggregator.log.storage import DATABASE, log_key
from manta_swarm.aggregator.monitor.observers import Observers, Watched
from manta_swarm.aggregator.session import Session
from manta_swarm.aggregator.settings.config import RunConfig, load_run_file, template
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.aggregator.states.opening import OpenedRun, filled_blob_store, lend_shards, open_run
from manta_swarm.aggregator.worker import Broken
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.training.update import self_test
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.errors import Unreachable, UserError
from manta_swarm.protocol.signing import Identity, key_named
from manta_swarm.runtime.console import Console
from manta_swarm.runtime.control import ControlSocket
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory, only_process, replace_file
from manta_swarm.runtime.signals import told_to_stop


class Aggregator:
    """The program of an operator: one run, from its start to its end."""

    def __init__(self, asked: Start, console: Console) -> None:
        """Prepare what is ``asked``, which is checked."""
        self._asked = asked
        self._console = console
        self._address = LastAddress(asked.directory)
        self.session: Session | None = None  # while it serves

    async def run(self) -> None:
        """Serve the run until SIGINT or SIGTERM.

        Raises:
            UserError: the run file, the directory or an address cannot be used.
            StorageError: the log cannot be written any more; what was acknowledged is safe.
            OtherHistory: the log is not what its key has signed for.
        """
        self_test()
        asked, directory = self._asked, self._asked.directory
        make_directory(directory)
        with only_process(directory), contextlib.ExitStack() as undo:
            refuse_handed_over(directory)  # up to here another process may have done so
            if asked.gateway is not None:
                listening, listen_address = asked.gateway.listen()  # nobody makes a run whose gateway cannot listen
                listening.close()
                asked = replace(asked, gateway=listen_address)
            has_log = (directory / DATABASE).exists()
            identity = log_key(directory) if has_log else load_identity(directory / IDENTITY)
            dataset = load_dataset(asked.config.data.dataset, asked.data_root)
            observers = Observers(directory)
            undo.callback(observers.close)
            if asked.config.operators.keys and not has_log:
                await self._begin_with_others(identity, dataset)
            opened = await asyncio.to_thread(open_run, asked.config, directory, identity, dataset, asked.first_state)
            with opened.log:
                _keep_run_file(asked.config, directory)
                blob_store = filled_blob_store(opened.log, opened.state_keeper)
                if opened.log.ledger.manifest.shards:
                    count = lend_shards(blob_store, dataset)
                    self._console.say(f"{count} shards of {dataset.name} are handed out to whoever joins; its licence has to allow that")
                node = await self._start_node(identity, num_operators=len(opened.log.ledger.manifest.operators))
                async with told_to_stop() as told:
                    try:
                        self._address.remember(tuple(await node.addresses()))
                        admitted_node = await held_to_admission(node, opened.log)
                        context = self._context(opened, identity, blob_store, node, admitted_node, observers)
                        session = self.session = Session(context, asked, node, features_of(context, asked), observers)
                        async with ControlSocket(directory, session.stopping):
                            await session.serve(told)
                    finally:
                        await node.close()

    def _context(
        self, opened: OpenedRun, identity: Identity, blob_store: BlobStore, node: Node, admitted_node: OwnNode, observers: Observers
    ) -> RunContext:
        """Return what the parts of the program share; ``admitted_node`` is the node, held to whom the run admits."""
        asked, directory, log, broken = self._asked, self._asked.directory, opened.log, Broken()
        settling = Settling(log, asked.config.trust.settle_s)
        settling.look()
        return RunContext(
            endpoint=Watched(admitted_node, observers.tally),
            node=admitted_node,
            callers=node.rates,
            identity=identity,
            directory=directory,
            opened=opened,
            blob_store=blob_store,
            weights=TableWeights(log, opened.bodies, opened.state_keeper.num_weights),
            waiting=Waiting(directory, broken),
            settling=settling,
            timeline=observers.timeline,
            measures=Measures(directory / MEASURES),
            guard=RollbackGuard(directory, log, self._console, is_newest=asked.is_newest),
            limits=asked.config.limits,
            broken=broken,
            console=self._console,
        )

    async def _begin_with_others(self, identity: Identity, dataset: Dataset) -> None:
        """Get the run from another operator; the first one begins it, unless it is told where others are."""
        asked = self._asked
        settings, addresses = asked.config.operators, asked.initial_peers
        if addresses or key_named(settings.keys[0]) != identity.public_key:
            await join(asked.config, asked.directory, identity, asked.directory / IDENTITY, dataset, addresses)
            self._console.say("got the run, its log and its newest state from another operator")

    async def _start_node(self, identity: Identity, *, num_operators: int) -> Node:
        asked, path = self._asked, self._asked.directory / IDENTITY
        listening, limits = [self._address.choose(asked.listen)], asked.config.limits.calls()
        try:
            return await Node.start(identity, path, listen=listening, initial_peers=asked.initial_peers, limits=limits)
        except Unreachable as error:
            if num_operators > 1:  # the other operators call this one where it was before
                return await Node.start(identity, path, listen=listening, limits=limits)
            raise UserError(f"{error}: give the address of a peer that runs, or leave --initial-peers out") from error


def _keep_run_file(config: RunConfig, directory: Path) -> None:
    """Keep the settings beside the run: a backup has them too."""
    path = directory / RUN_FILE
    with contextlib.suppress(UserError):  # there is none, or one of before
        if load_run_file(path) == config:
            return
    replace_file(path, template(config).encode())
