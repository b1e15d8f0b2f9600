"""A look at a run without taking part in it, under a key of its own that is gone afterwards; or as a guest that the run has let in."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.update import State, state_from_pieces, state_piece_sizes
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.network import timeouts
from manta_swarm.network.fetching import fetch
from manta_swarm.network.log_client import LogClient
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import OwnNode
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.entering import enter, fetch_checked_manifest, start_node
from manta_swarm.peer.contact.run_locator import find_addresses
from manta_swarm.peer.store import PeerStore, read_last_run
from manta_swarm.protocol.footprint import Sizes
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.disk import load_identity, only_process

_SOURCES = 8  # peers that are asked for the state beside the log


@dataclass(frozen=True, slots=True)
class Visit:
    """A run that was found, and the node to look at it with."""

    node: Node
    own_node: OwnNode  # the same, held to whom the run admits, if it let this visitor in
    addresses: tuple[str, ...]  # that were tried
    signed: SignedManifest
    log: LogClient

    @property
    def manifest(self) -> Manifest:
        """The run's manifest, its signature checked."""
        return self.signed.open()

    @property
    def operator(self) -> PublicKey:
        """The operator that is talked to."""
        return self.log.operator

    async def newest(self) -> Round | None:
        """Return the newest committed round, proven; None: there is none yet.

        Raises:
            Unreachable: the log does not answer.
            RemoteFault: what it answers proves nothing.
        """
        told = await self.log.next_update(self.operator, 0, left_ms=None)
        return None if told.proven_commit is None else told.proven_commit.proven.round

    async def state(self, round_: Round | None) -> State:
        """Return the state after a round, or the run's first one, its digest checked.

        Raises:
            Unreachable: nobody gives it.
            EncodingError: it is none of the run's supernet.
        """
        manifest = self.manifest
        count = num_weights(manifest)
        neighbours = Neighbours(self.own_node, self.signed.run)
        await neighbours.look()
        sources = [*self.log.line.in_turn, *neighbours.members()[:_SOURCES]]
        sizes = state_piece_sizes(count, manifest.optimizer, manifest.exchange.local_steps)
        digest = manifest.initial_state if round_ is None else round_.state
        blob = await fetch(self.own_node, digest, sizes, sources, deadline_s=timeouts.FETCH_S)
        return state_from_pieces(blob.pieces, count)


def num_weights(manifest: Manifest) -> int:
    """Return N, the weights of the run's supernet.

    Raises:
        UserError: this version does not know the supernet.
    """
    return build(space_named(manifest.supernet), "meta").num_weights


def sizes_of(manifest: Manifest) -> Sizes:
    """Return what the run's supernet and formats fix.

    Raises:
        UserError: this version does not know the supernet.
    """
    count = num_weights(manifest)
    state = sum(state_piece_sizes(count, manifest.optimizer, manifest.exchange.local_steps))
    return Sizes(count, body_num_bytes(manifest.exchange.codec, count), state)


@asynccontextmanager
async def visiting(config: PeerConfig, guest: Path | None = None) -> AsyncIterator[Visit]:
    """Yield the run that the settings name, or that was joined last.

    Args:
        config: the settings, with an invitation perhaps.
        guest: where a peer's key and admission proof are, or will be: who comes to a run that not everybody may take part in, to ask what
            it answers to nobody else, is let in by them, or by the invitation. Else nobody is.

    Raises:
        NotThere: nobody answers.
        UserError: no run is known, what is served is not to be believed, the run does not let the guest in, or a peer is at work there.
    """
    addresses, expected_run = find_addresses(config, read_last_run(config.dir))
    node = await visiting_node(config, addresses, expected_run)
    try:
        signed = await fetch_checked_manifest(node, addresses, expected_run)
        if guest is None or signed.open().admission.is_open:
            yield Visit(node, node, addresses, signed, LogClient(node, signed.open(), signed.run))
            return
    finally:
        await node.close()
    async with _guest_of(config, guest, addresses, signed) as visit:
        yield visit


@asynccontextmanager
async def _guest_of(config: PeerConfig, folder: Path, addresses: tuple[str, ...], signed: SignedManifest) -> AsyncIterator[Visit]:
    store = PeerStore(folder)
    with only_process(folder):
        identity = load_identity(store.identity_path)
        node = await start_node(config, identity, store.identity_path, addresses, signed.run.hex())
        try:
            own_node = await enter(node, identity, store, config, signed, trains=False)
            yield Visit(node, own_node, addresses, signed, LogClient(own_node, signed.open(), signed.run))
        finally:
            await node.close()


async def visiting_node(config: PeerConfig, addresses: tuple[str, ...], expected_run: str | None) -> Node:
    """Return a node with a new key, which is on no disk any more; see ``start_node``.

    Raises:
        NotThere, UserError: as there.
    """
    with tempfile.TemporaryDirectory(prefix="manta-") as temporary:  # the daemon reads it once, as it starts
        path = Path(temporary) / "identity.key"
        return await start_node(config, load_identity(path), path, addresses, expected_run)
