"""Accuses an honest log with what it signed itself: two of its tree heads, put together in every way that has the form of a proof."""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from manta_swarm.network.log_client import LogClient, ProvenCommit, fetch_manifest
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Receipt
from manta_swarm.protocol.signing import Identity
from tests.faults.strangers import Target

CALL_S, PAUSE_S = 10.0, 0.5


def false_proofs(signed: SignedManifest, older: Receipt, newer: Receipt) -> list[Histories]:
    """Return what has the form of a proof and is made of two commits of one log."""
    return [
        Histories.shown_after(signed, newer, older.tree_head),
        Histories.shown_after(signed, older, newer.tree_head),
        Histories.shown_after(signed, older, newer.tree_head, (bytes(32),) * 3),
        Histories.of_rounds(signed, older, newer),
        Histories.of_rounds(signed, newer, newer),
        Histories(signed, (older.tree_head, newer.tree_head)),
        Histories(signed, (newer.tree_head, newer.tree_head)),
    ]


async def two_commits(log: LogClient) -> tuple[Receipt, Receipt]:
    """Wait for two commits of a log; return their receipts, the older one first."""
    older: ProvenCommit | None = None
    while True:
        newest = (await log.next_update(log.operator, 0, left_ms=None)).proven_commit
        if older is not None and newest is not None and newest.proven.tree_head.size > older.proven.tree_head.size:
            return older.receipt, newest.receipt
        older = older or newest
        await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def stranger(address: str) -> AsyncIterator[tuple[Node, SignedManifest, LogClient]]:
    """Start a node with a new key that knows the log at an address; close it at the end."""
    identity = Identity(secrets.token_bytes(32))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "identity.key"
        path.write_bytes(identity.to_libp2p())
        node = await Node.start(identity, path, listen=["/ip4/127.0.0.1/tcp/0"], initial_peers=[address])
        try:
            signed = await fetch_manifest(node, parse_address(address)[0])
            yield node, signed, LogClient(node, signed.open(), signed.run)
        finally:
            await node.close()


async def attack(target: Target) -> None:
    """Tell each peer of the run each false proof, again and again; it attacks once a peer has refused all that are told to peers."""
    async with stranger(target.address) as (node, signed, log):
        proofs = [pack(proof) for proof in false_proofs(signed, *await two_commits(log))]
        neighbours = Neighbours(node, target.run)
        is_under_way = False
        while True:
            await neighbours.look()
            for key in neighbours.members():
                refused = 0
                for proof in proofs:
                    try:
                        await node.call(key, "histories", proof, timeout_s=CALL_S)
                        print(f"believed by {key.hex()}", flush=True)
                    except Refused:
                        refused += 1
                    except MantaError as error:
                        print(f"not told: {error}", flush=True)
                if refused == len(proofs) and not is_under_way:
                    is_under_way = True
                    print("attacks", flush=True)
            await asyncio.sleep(PAUSE_S)
