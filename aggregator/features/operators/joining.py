"""How an operator comes to a run that it did not begin, or with an empty folder: manifest, log and states from others, then it takes part.

An operator that did not begin the run gets the log as far as it counts, and the newest state. What that leaves in the folder is what any
start of an operator finds there; a crash before that leaves nothing that counts as a run. Whether its key was in the run before, on a disk
that is lost, cannot be known here: it is a newcomer.

Before it takes part, a newcomer asks each other operator where that stands, and lets the log go on; ``protocol.operators`` has the rule,
and why.
"""

import asyncio
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from manta_swarm.aggregator.features.operators.lending import ENTRIES, MAX_PAGE_ENTRIES, MAX_SMALL_BYTES, AskLogEntries, EntriesPage
from manta_swarm.aggregator.features.operators.store import Store
from manta_swarm.aggregator.log.contents import SNAPSHOTS
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.states.state_keeper import Snapshots
from manta_swarm.aggregator.worker import WorkerThread
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.automl.training.update import State, state_from_pieces, state_piece_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.fetching import fetch
from manta_swarm.network.log_client import fetch_manifest
from manta_swarm.network.log_proofs import MAX_SHOWN_HEAD_BYTES, HeldHead, ShownHead
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.rpc import Busy, Endpoint
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.operators import LogPosition, Newcomer, Operators
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.disk import IDENTITY, load_identity

_SOURCES = 16

_MET_S = 60.0  # that this one waits for another that is about to start

POSITION = "operators-position"  # of no content; the answer is a ``protocol.operators.LogPosition``

_LOOK_S = 1.0

logger = logging.getLogger("manta.operators")


def lacking(directory: Path, ledger: Ledger) -> list[int]:
    """Return the rounds whose states are not in a folder, and are needed to start from: the newest, and that of a teacher."""
    snapshots = _snapshots(directory, ledger)
    teacher = Plan.of(ledger.manifest).teacher_round
    needed = [ledger.round]
    if teacher is not None and not ledger.finished and 0 <= teacher < ledger.round:
        needed.append(teacher)
    there = snapshots.rounds()
    return [round_ for round_ in needed if round_ not in there]


async def fetch_states(directory: Path, ledger: Ledger, addresses: Sequence[str]) -> list[int]:
    """Get the states that ``lacking`` names from peers that are met at ``addresses``; return their rounds.

    Raises:
        UserError: nobody answers, or nobody has them.
        StorageError: the disk fails.
    """
    with tempfile.TemporaryDirectory(prefix="manta-") as temporary:
        path = Path(temporary) / IDENTITY
        try:
            node = await Node.start(load_identity(path), path, listen=[], initial_peers=addresses, serves_dht=False)
        except Unreachable as error:
            raise UserError(f"{error}: give the address of a peer of the run that can be called") from error
        try:
            neighbours = Neighbours(node, ledger.run)
            await neighbours.look()
            sources = dict.fromkeys([*(parse_address(each)[0] for each in node.entered_by), *neighbours.members()[:_SOURCES]])
            return await take_states(node, directory, ledger, list(sources))
        finally:
            await node.close()


async def take_states(endpoint: Endpoint, directory: Path, ledger: Ledger, sources: Sequence[PublicKey]) -> list[int]:
    """Fetch the states that a copy lacks, from these nodes; see ``fetch_states``."""
    snapshots, found = _snapshots(directory, ledger), lacking(directory, ledger)
    for round_ in found:
        try:
            state = await _state(endpoint, ledger, round_, sources)
        except (Unreachable, RemoteFault) as error:
            raise UserError(
                f"no peer gave the state of round {round_} ({error}); restore the snapshots from a backup, or try again"
            ) from error
        snapshots.save(state)
    return found


async def _state(endpoint: Endpoint, ledger: Ledger, round_: int, sources: Sequence[PublicKey]) -> State:
    manifest = ledger.manifest
    count = build(space_named(manifest.supernet), "meta").num_weights
    sizes = state_piece_sizes(count, manifest.optimizer, manifest.exchange.local_steps)
    blob = await fetch(endpoint, ledger.state_at(round_), sizes, sources, deadline_s=timeouts.FETCH_S, tries=2)
    return state_from_pieces(blob.pieces, count)


def _snapshots(directory: Path, ledger: Ledger) -> Snapshots:
    manifest = ledger.manifest
    return Snapshots(directory / SNAPSHOTS, manifest, Plan.of(manifest), ledger.run, keep=1, keep_rounds=1)


async def join(config: RunConfig, directory: Path, identity: Identity, path: Path, dataset: Dataset, addresses: Sequence[str]) -> None:
    """Make the run's folder from what the operators at ``addresses`` have.

    Args:
        config: the run file.
        directory: for the run; without a log.
        identity: this operator's, in the file at ``path``.
        path: the file.
        dataset: that of the run file.
        addresses: of operators of the run; one that answers is enough.

    Raises:
        UserError: nobody answers, or the run there is not that of the run file.
        StorageError: the disk failed.
    """
    node = await _met(identity, path, addresses)
    try:
        sources = [parse_address(each)[0] for each in node.entered_by]
        for source in sources:
            try:
                await join_from(node, config, directory, identity, dataset, source)
            except (Unreachable, RemoteFault) as error:
                if source == sources[-1]:
                    raise UserError(f"the run cannot be got there: {error}; try again, or give another operator's address") from error
            else:
                return
    finally:
        await node.close()


async def _met(identity: Identity, path: Path, addresses: Sequence[str]) -> Node:
    """Return a node that has met one of the operators, who may be about to start too."""
    deadline_s = asyncio.get_running_loop().time() + _MET_S
    while True:
        try:
            return await Node.start(identity, path, listen=[], initial_peers=addresses, serves_dht=False)
        except Unreachable as error:
            if asyncio.get_running_loop().time() >= deadline_s:
                raise UserError(f"{error}: give the address of an operator of the run that is at work") from error
            await asyncio.sleep(timeouts.RUN_AGAIN_S[0])


async def join_from(
    endpoint: Endpoint, config: RunConfig, directory: Path, identity: Identity, dataset: Dataset, source: PublicKey
) -> None:
    """Make a copy of the run from what the operator ``source`` has.

    Raises:
        Unreachable, RemoteFault: it does not give it, or something else.
        UserError: the run there is not that of the run file.
    """
    signed = await fetch_manifest(endpoint, source)
    manifest = signed.open()
    if config.manifest(identity, manifest.initial_state, dataset, manifest.shards) != manifest:
        raise UserError(
            f"the run there ({manifest.name}, {signed.run.hex()[:16]}) is not the one that the run file describes: all operators "
            "need the same run file, but for [aggregator], [limits], [monitor], settle_s and etcd"
        )
    note, entries = await _log_of(endpoint, signed, source)
    ledger = Ledger(signed, ManifestTrainingSpec(manifest))
    for entry in entries:
        ledger.append(entry)
    await take_states(endpoint, directory, ledger, [source])
    if entries:
        Store(directory).come(Newcomer())
    with Log.create(directory, signed, identity) as log:
        if entries:
            log.commit(entries, note)


async def _log_of(endpoint: Endpoint, signed: SignedManifest, source: PublicKey) -> tuple[str, list[bytes]]:
    answer = await endpoint.call(source, "tree-head", pack(HeldHead(())), timeout_s=timeouts.CALL_S)
    note = unpack(ShownHead, answer, max_bytes=MAX_SHOWN_HEAD_BYTES).tree_head
    size = Operators.of_signed(signed).signers(note).head.size
    entries = list[bytes]()
    while len(entries) < size:
        ask = pack(AskLogEntries(len(entries), min(size, len(entries) + MAX_PAGE_ENTRIES)))
        page = await endpoint.call(source, ENTRIES, ask, timeout_s=timeouts.BODY_S, large_answer=True)
        found = unpack(EntriesPage, page, max_bytes=len(page)).entries
        if not found:
            raise EncodingError("fewer entries than the head says")
        entries += found
    return note, entries


class Coming:
    """Brings an operator that came anew to take part; one that was there from the start does so at once."""

    def __init__(self, endpoint: Endpoint, log: Log, store: Store, others: Sequence[PublicKey], disk: WorkerThread) -> None:
        """Prepare.

        Args:
            endpoint: this node's.
            log: the run's.
            store: has what was heard.
            others: the run's other operators.
            disk: the one thread that writes.
        """
        self._endpoint = endpoint
        self._log = log
        self._store = store
        self._others = others
        self._disk = disk

    @property
    def takes_part(self) -> bool:
        """Whether this operator promises, accepts, signs, keeps and writes."""
        return self._store.newcomer is None

    def check(self) -> None:
        """See that this operator takes part.

        Raises:
            Busy: not yet.
        """
        if not self.takes_part:
            raise Busy("this operator has begun anew, and takes no part yet")

    def told(self) -> LogPosition:
        """Return where this operator stands.

        Raises:
            Busy: it is a newcomer itself.
        """
        self.check()
        memory, size = self._store.memory, self._log.head.size
        accepted = memory.accepted_at(size)
        return LogPosition(memory.promised, size if accepted is None else accepted.batch.size, self._log.ledger.round)

    def waits_for(self) -> tuple[list[PublicKey], int]:
        """Return which others were not heard yet, and the round that the log needs at least."""
        newcomer = self._store.newcomer
        assert newcomer is not None
        return [key for key in self._others if key not in newcomer.keys], newcomer.round

    async def take_part(self) -> None:
        """Return once this operator takes part.

        Raises:
            StorageError: the disk failed.
        """
        while (newcomer := self._store.newcomer) is not None:
            if newcomer.is_over(self._others, self._log.head.size, self._log.ledger.round):
                await self._disk.do(self._store.take_part)
                return
            for key in self.waits_for()[0]:
                await self._ask(key)
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, key: PublicKey) -> None:
        try:
            answer = await self._endpoint.call(key, POSITION, b"", timeout_s=timeouts.CALL_S)
            position = unpack(LogPosition, answer, max_bytes=MAX_SMALL_BYTES)
        except MantaError as error:
            logger.info("an operator does not say where it stands reason=%s", error)
            return
        newcomer = self._store.newcomer
        assert newcomer is not None
        await self._disk.do(self._store.come, newcomer.hearing(key, position))
