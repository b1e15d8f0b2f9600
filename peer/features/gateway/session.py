"""A gateway as a part of a peer's session: its door is open as long as the peer takes part.

HTTP's libraries are imported by those peers alone that are gateways.
"""

import contextlib
from collections.abc import AsyncIterator

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.sharded_images import ShardedImages
from manta_swarm.automl.training.course import RunCourse
from manta_swarm.network.gate import Gate
from manta_swarm.network.rpc import OwnNode
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.gateway.desk import GatewayDesk
from manta_swarm.peer.features.gateway.entrance import Entrance
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.train.work import now_ms
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.light import why_no_leases
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.signing import Identity


def check_run(config: PeerConfig, manifest: Manifest) -> None:
    """Refuse a gateway in a run that cannot have one.

    Raises:
        UserError: the run has nothing for light contributors.
    """
    if config.gateway and (reason := why_no_leases(manifest)):
        raise UserError(reason)


def desk_of(
    config: PeerConfig, node: OwnNode, identity: Identity, signed: SignedManifest, dataset: Dataset, num_weights: int
) -> GatewayDesk | None:
    """Return the desk of a peer that is to be a gateway; None: it is not. ``node`` is its node, held to whom the run admits.

    Raises:
        UserError: it cannot hand out samples of this data set.
    """
    if not config.gateway:
        return None
    if isinstance(dataset, ShardedImages):
        raise refuse_sharded_images(dataset.name)
    manifest = signed.open()
    desk = GatewayDesk(identity, signed, RunCourse(manifest), dataset, now_ms, num_weights, is_lease_only=config.lease_only)
    if isinstance(node, Gate):
        desk.entrance = Entrance(node, node.known, manifest, signed.run, now_ms)
    return desk


def refuse_sharded_images(name: str) -> UserError:
    """Return what a person is told who wants a gateway for images in shards."""
    return UserError(f"samples of {name} are of many sizes and cannot be handed out: leave --gateway out")


@contextlib.asynccontextmanager
async def gateway_open(config: PeerConfig, desk: GatewayDesk | None, board: StatusBoard, traffic: Traffic) -> AsyncIterator[None]:
    """Answer light contributors meanwhile, within ``traffic``, if there is a desk; those who ask when the run is finished are told so.

    Raises:
        UserError: see ``Door.listen``.
    """
    if desk is None:
        yield
        return
    from manta_swarm.peer.features.gateway.http import say_goodbye, serving

    door = config.door
    assert door is not None
    async with serving(desk, door, traffic) as address:
        board.update(leases_at=address)
        board.write()
        board.say(f"light contributors join with: manta-peer join --light --gateway {address}#{board.status.peer} --run {board.status.run}")
        yield
        if board.status.finished and desk.leased:
            await say_goodbye()
