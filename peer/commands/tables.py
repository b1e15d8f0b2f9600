"""Latency tables of members' devices: a peer hands out its own if its person wants that, and anybody can collect those of a run.

A table says how long each layer takes on one device (``automl.latency.table``): what a search for that device needs. An offer is signed
with the peer's key, so it is clear whose word a table is; whether its figures are true is not checked.
"""

import asyncio
import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from manta_swarm.automl.latency.table import MAX_BYTES, LatencyTable
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, BlobStore, sizes_of
from manta_swarm.network.fetching import fetch
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import short_name
from manta_swarm.network.rpc import Endpoint
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.entering import fetch_checked_manifest
from manta_swarm.peer.contact.run_locator import find_addresses
from manta_swarm.peer.contact.visiting import visiting_node
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, Unreachable, UserError
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.signed import Signed, Signing
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.tasks import together

MAX_OFFER_BYTES = 256

_METHOD = "latency"
_MAX_ASKED = 256  # members; of a larger run random ones
_ASKED_AT_ONCE = 8
_PIECE_BYTES = 1024 * 1024
_MAX_SIGNED_BYTES = MAX_OFFER_BYTES + 128

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class TableOffer:
    """A peer's word that it hands out a latency table of its device, by the root of the table's pieces."""

    signing: ClassVar[Signing] = Signing("latency", MAX_OFFER_BYTES, by="key")

    run: bytes
    key: bytes
    table: bytes  # the Merkle root over the leaf hashes of the table's pieces (protocol.merkle), of 1 MiB each, the last of what is left
    size: int  # of the table, in bytes; it says how many pieces there are

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.table, "table")
        if self.size < 0:
            raise ValueError(f"a table of {self.size} bytes")


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A latency table, and the peer that offers it."""

    key: PublicKey
    table: LatencyTable

    @property
    def file_name(self) -> str:
        """A name for its file: the device and the peer, of plain characters only."""
        device = re.sub(r"[^a-z0-9]+", "-", self.table.conditions.name.lower()).strip("-")[:40] or "device"
        return f"{device}-{short_name(self.key)}.json"


def load_table(path: Path, supernet: str) -> bytes:
    """Return the bytes of a table for the run's supernet.

    Raises:
        UserError: there is no such file, it holds no table, or one of another supernet.
    """
    table = LatencyTable.load(path)
    if table.supernet != supernet:
        raise UserError(f"{path} is of {table.supernet}, the run trains {supernet}: measure one with manta-search profile, or leave it out")
    return table.to_bytes()


async def publish_table(endpoint: Endpoint, identity: Identity, run: bytes, blob_store: BlobStore, table: bytes) -> None:
    """Hand ``table`` to whoever asks, as this identity's word; its bytes are fetched by their root from the ``blob_store``."""
    root = blob_store.pin(Blob.cut(table, _PIECE_BYTES))
    offer = pack(Signed.sign(TableOffer(run, identity.public_key, root, len(table)), identity))

    async def answer(_caller: PublicKey, _request: bytes) -> bytes:
        return offer

    await endpoint.serve(_METHOD, answer)


async def find_tables(endpoint: Endpoint, run: bytes, supernet: str, members: Sequence[PublicKey]) -> list[FoundTable]:
    """Return the tables that ``members`` hand out, in their order; who has none, does not answer or breaks the rules is left out."""

    async def ask(member: PublicKey) -> FoundTable | None:
        try:
            return FoundTable(member, await _table_of(endpoint, run, supernet, member))
        except MantaError as error:
            logger.info("no table peer=%s reason=%s", short_name(member), error)
            return None

    found = await together(*map(ask, members), at_once=_ASKED_AT_ONCE)
    return [one for one in found if one is not None]


async def _table_of(endpoint: Endpoint, run: bytes, supernet: str, member: PublicKey) -> LatencyTable:
    answer = await endpoint.call(member, _METHOD, b"", timeout_s=timeouts.OFFER_S)
    offer = unpack(Signed[TableOffer], answer, max_bytes=_MAX_SIGNED_BYTES).open()
    if (offer.run, offer.key) != (run, member):
        raise EncodingError("an offer for another run, or in another's name")
    if offer.size > MAX_BYTES:
        raise EncodingError(f"a table of {offer.size} bytes")
    blob = await fetch(endpoint, offer.table, sizes_of(offer.size, _PIECE_BYTES), [member], deadline_s=timeouts.OFFER_S)
    table = LatencyTable.from_bytes(blob.join())
    if table.supernet != supernet:
        raise EncodingError(f"a table of {table.supernet}")
    return table


async def collect(config: PeerConfig, directory: Path) -> list[tuple[Path, FoundTable]]:
    """Write the tables that a run's members hand out into ``directory``, each as a file; return them.

    Visits the run under a key of its own, which is gone afterwards.

    Raises:
        UserError: no run is found, or the directory cannot be written to.
        Unreachable: nobody hands out a table.
    """
    addresses, expected_run = find_addresses(config, None)
    node = await visiting_node(config, addresses, expected_run)
    try:
        signed = await fetch_checked_manifest(node, addresses, expected_run)
        neighbours = Neighbours(node, signed.run)
        await neighbours.look()
        members = neighbours.members()
        asked = members if len(members) <= _MAX_ASKED else random.sample(members, _MAX_ASKED)
        found = await find_tables(node, signed.run, signed.open().supernet, asked)
    finally:
        await node.close()
    if not found:
        raise Unreachable(f"none of {len(asked)} members hands out a latency table; they would join with --latency-table FILE")
    return await asyncio.to_thread(_write, found, directory)


def _write(found: Sequence[FoundTable], directory: Path) -> list[tuple[Path, FoundTable]]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {directory}: {error.strerror}; choose another with --out") from error
    written = [(directory / one.file_name, one) for one in found]
    for path, one in written:
        one.table.save(path)
    return written
