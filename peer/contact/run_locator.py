"""Where a run is: by the addresses that a person gives, by what is remembered, or on this computer. No network."""

from typing import TYPE_CHECKING

from manta_swarm.peer.store import LastRun
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime import local_runs

if TYPE_CHECKING:
    from manta_swarm.peer.config import PeerConfig


def find_addresses(config: "PeerConfig", last: LastRun | None) -> tuple[tuple[str, ...], str | None]:
    """Return addresses to join by, and the id of the run to expect there, if one is known.

    ``last`` is the run joined last, if there is one.

    Raises:
        UserError: none was given and none is known.
    """
    if config.initial_peers:
        return config.initial_peers, config.run
    if last is not None and config.run in (None, last.run):
        return last.addresses, last.run
    for local in local_runs.find():
        if config.run in (None, local.run):
            return local.addresses, local.run
    raise UserError(
        "no run was found: give the address that the operator printed with --initial-peers (or MANTA_INITIAL_PEERS), "
        "or start an aggregator on this computer with manta-aggregator start"
    )
