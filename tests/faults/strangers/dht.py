"""What attacks on the DHT have in common: strangers' nodes, which only dial out, and records of keys that nobody else has."""

import secrets
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer, get_dht_time

from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.validator import OwnedRecords
from manta_swarm.protocol.signing import Identity, peer_id
from tests.faults.strangers import Target

TTL_S = 3500.0
VALUE_BYTES = 4000
_AT_ONCE = 200  # records in one call, below a megabyte


def operator_of(target: Target) -> PeerID:
    """Return the peer id of the run's operator."""
    return PeerID(peer_id(parse_address(target.address)[0]))


@asynccontextmanager
async def strangers(target: Target, count: int = 1) -> AsyncIterator[list[tuple[Identity, Node]]]:
    """Start so many nodes with free keys, which are connected to the run's operator."""
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            found = []
            for number in range(count):
                identity, path = Identity(secrets.token_bytes(32)), Path(directory, f"{number}.key")
                path.write_bytes(identity.to_libp2p())  # noqa: ASYNC240 - nothing else runs here
                node = await Node.start(identity, path, listen=(), initial_peers=[target.address])
                stack.push_async_callback(node.close)
                found.append((identity, node))
            yield found


def new_keys(count: int) -> list[Identity]:
    """Return so many keys, which cost nothing."""
    return [Identity(secrets.token_bytes(32)) for _ in range(count)]


def junk(names: Iterable[DHTID], owners: Sequence[Identity], value_bytes: int = VALUE_BYTES) -> Iterator[tuple[bytes, DHTRecord]]:
    """Return a record of each owner under each name, with its owner."""
    packed = MSGPackSerializer.dumps(bytes(value_bytes))
    for name in names:
        for identity in owners:
            owner, expires_s = peer_id(identity.public_key), get_dht_time() + TTL_S
            record = DHTRecord(name.to_bytes(), MSGPackSerializer.dumps(owner), packed, expires_s)
            yield owner, DHTRecord(record.key, record.subkey, OwnedRecords(identity).sign_value(record), expires_s)


async def bring(node: Node, to: PeerID, records: Iterable[tuple[bytes, DHTRecord]], at_once: int = _AT_ONCE) -> int:
    """Have a node store records, whoever owns them, until it takes none of a call; return how many it took."""
    taken, left = 0, iter(records)
    protocol: DHTProtocol = node.dht.protocol
    while batch := list(islice(left, at_once)):
        owners, signed = zip(*batch, strict=True)
        keys = [DHTID.from_bytes(record.key) for record in signed]
        values, until_s = [record.value for record in signed], [record.expiration_time for record in signed]
        now = sum(await protocol.call_store(to, keys, values, until_s, owners) or ())
        taken += now
        if not now:
            break
    return taken
