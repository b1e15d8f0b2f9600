"""A gateway as a part of a peer's session: what is wrong with its settings, said early, and its door open as long as the peer takes part.

HTTP's libraries are imported by those peers alone that are gateways.
"""

import contextlib
from collections.abc import AsyncIterator

from automl.course import RunCourse
from automl.data.dataset import Dataset
from peer.config import PeerConfig
from peer.gateway_desk import GatewayDesk
from peer.status import StatusBoard
from peer.work import now_ms
from protocol.errors import UserError
from protocol.records import Manifest, SignedManifest
from protocol.signing import Identity
from swarm.loading import ending_at_ctrl_c


def check_gateway(config: PeerConfig, manifest: Manifest | None = None) -> None:
    """Say what is wrong with the settings of a gateway, before the network or anything else takes time; then, what is in this run.

    Raises:
        UserError: see ``peer.gateway``; its libraries are missing; or the run's data are private.
    """
    if not config.gateway:
        return
    if config.view is not None:
        raise UserError("leases need samples with both views, and with --view one is here: leave --gateway or --view out")
    with ending_at_ctrl_c():
        from peer.gateway import Door
    if len(config.gateway) > 1:
        raise UserError("--gateway: a peer listens at one HOST:PORT; several are for light contributors (--light)")
    Door.at(config.gateway[0], config.gateway_cert, config.gateway_key)
    if manifest is not None and manifest.is_private:
        raise UserError("in this run data stay with their owners, and leases would hand them out: leave --gateway out")


def desk_of(config: PeerConfig, identity: Identity, signed: SignedManifest, dataset: Dataset, num_weights: int) -> GatewayDesk | None:
    """Return the desk of a peer that is to be a gateway; None: it is not."""
    if not config.gateway:
        return None
    return GatewayDesk(identity, signed, RunCourse(signed.open()), dataset, now_ms, num_weights)


@contextlib.asynccontextmanager
async def gateway_open(config: PeerConfig, desk: GatewayDesk | None, board: StatusBoard) -> AsyncIterator[None]:
    """Answer light contributors meanwhile, if there is a desk; those who ask when the run is finished are told so.

    Raises:
        UserError: see ``peer.gateway``.
    """
    if desk is None:
        yield
        return
    from peer.gateway import Door, say_goodbye, serving

    async with serving(desk, Door.at(config.gateway[0], config.gateway_cert, config.gateway_key)) as address:
        board.say(f"light contributors join with: manta-peer join --light --gateway {address}#{board.status.peer} --run {board.status.run}")
        yield
        if board.status.finished and desk.leased:
            await say_goodbye()
