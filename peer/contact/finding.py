"""Finding a run at the addresses that lead to it (``peer.contact.run_locator``); and its manifest, checked."""

from collections.abc import Sequence
from pathlib import Path

from manta_swarm.network.log_client import fetch_manifest
from manta_swarm.network.node import Node, parse_address
from manta_swarm.peer.config import PeerConfig
from manta_swarm.protocol.errors import OtherVersion, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime import local_runs


class NotThere(UserError):
    """Nobody of the run answers now; somebody may later."""


def _what_to_try(config: PeerConfig, expected_run: str | None) -> str:
    """Return what a person can do when nobody answers; a run on this computer may be the one that is meant."""
    others = [local for local in local_runs.find() if local.run != expected_run]
    if config.initial_peers or not others:
        return "check the address, and that the aggregator runs and its port is open"
    return f"that is the run joined last; for {others[0].name}, which runs on this computer, add --run {others[0].run}"


async def start_node(
    config: PeerConfig, identity: Identity, identity_path: Path, addresses: tuple[str, ...], expected_run: str | None
) -> Node:
    """Return a node that has met one of ``addresses``; whether others can call it is to be found out.

    Raises:
        NotThere: none answers; the message says what to do.
        UserError: it cannot listen where it should; the message says what to do.
    """
    try:
        return await Node.start(identity, identity_path, listen=config.listen_addresses, initial_peers=addresses, serves_dht=False)
    except Unreachable as error:
        raise NotThere(f"{error}: {_what_to_try(config, expected_run)}") from error


async def fetch_checked_manifest(node: Node, given: Sequence[str], expected_run: str | None) -> SignedManifest:
    """Return the manifest that one of those serves by whom the node entered, its signature and the run's id checked.

    Raises:
        NotThere: none answers, or has the run.
        UserError: what is served at an address that was ``given`` is not to be believed, or not the run that was meant.
    """
    problems = []
    for address in node.entered_by:
        try:
            signed = await fetch_manifest(node, parse_address(address)[0])
            signed.open()
            if expected_run is None or signed.run.hex() == expected_run:
                return signed
            problem = f"{address} serves run {signed.run.hex()}, not {expected_run}"
            advice = "check --run, or give the address of that run's aggregator"
        except Unreachable as error:
            problems.append(str(error))
            continue
        except OtherVersion as error:
            problem, advice = f"the run at {address} is of another version", str(error)
        except RemoteFault as error:
            problem, advice = f"the manifest that {address} serves is refused ({error})", "ask the operator for the right address"
        if address in given:
            raise UserError(f"{problem}; {advice}")
        problems.append(problem)
    raise NotThere(f"no manifest could be fetched ({'; '.join(problems)}); ask the operator whether the run is up")
