"""How an operator that did not begin the run comes to it: the manifest, the log as far as it counts, and the newest state, from another.

What it leaves in the folder is what any start of an operator finds there; a crash before that leaves nothing that counts as a run. Whether
its key was in the run before, on a disk that is lost, cannot be known here: it is a newcomer (``protocol.operators``).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from manta_swarm.aggregator.features.operators.lending import ENTRIES, MAX_PAGE_ENTRIES, AskEntries, Page
from manta_swarm.aggregator.features.operators.store import Store
from manta_swarm.aggregator.follow.states_of_peers import take_states
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.training.asked import AskedTrainingSpec
from manta_swarm.network import timeouts
from manta_swarm.network.log_client import fetch_manifest
from manta_swarm.network.log_proofs import MAX_SHOWN_HEAD_BYTES, HeldHead, ShownHead
from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.operators import Newcomer, Operators
from manta_swarm.protocol.signing import Identity, PublicKey

_MET_S = 60.0  # that this one waits for another that is about to start


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
    """Do so from the operator ``source``.

    Raises:
        Unreachable, RemoteFault: it does not give it, or something else.
        UserError: the run there is not that of the run file.
    """
    signed = await fetch_manifest(endpoint, source)
    manifest = signed.open()
    if config.manifest(identity, manifest.initial_state, dataset, manifest.shards) != manifest:
        raise UserError(
            f"the run there ({manifest.name}, {signed.run.hex()[:16]}) is not the one that the run file describes: all operators "
            "need the same run file, but for [follower], [limits], [monitor] and etcd"
        )
    note, entries = await _log_of(endpoint, signed, source)
    ledger = Ledger(signed, AskedTrainingSpec(manifest))
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
        ask = pack(AskEntries(len(entries), min(size, len(entries) + MAX_PAGE_ENTRIES)))
        page = await endpoint.call(source, ENTRIES, ask, timeout_s=timeouts.BODY_S, large_answer=True)
        found = unpack(Page, page, max_bytes=len(page)).entries
        if not found:
            raise EncodingError("fewer entries than the head says")
        entries += found
    return note, entries
