"""States that a run's folder lacks, got from its peers, by the digests that its log names: whoever has them may give them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from manta_swarm.aggregator.follow.snapshots import Snapshots
from manta_swarm.aggregator.log.contents import SNAPSHOTS
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State, state_from_pieces, state_piece_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.fetching import fetch
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.errors import RemoteFault, Unreachable, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.disk import IDENTITY, load_identity

_SOURCES = 16


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
    """Do it by ``endpoint``, from these nodes; see ``fetch_states``."""
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
