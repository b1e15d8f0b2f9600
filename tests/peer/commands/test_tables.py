"""Latency tables between members, over an in-memory network: whose word they are, and what is left out."""

from pathlib import Path

import pytest

import manta_swarm.peer.commands.tables
from manta_swarm.automl.latency.table import MAX_BYTES
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.peer.commands.tables import FoundTable, TableOffer, find_tables, load_table, publish_table
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import SignatureError, UserError
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.latency_table import table_of

pytestmark = pytest.mark.virtual_time

RUN = sha256(b"run")
ASKING, HONEST, LIAR = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3))


def offer_of(identity: Identity, data: bytes, run: bytes = RUN, size: int | None = None) -> TableOffer:
    return TableOffer(run, identity.public_key, Blob.of([data]).root, len(data) if size is None else size)


async def member(network: MemoryNetwork, identity: Identity, table: bytes | None) -> MemoryEndpoint:
    endpoint, blob_store = network.endpoint(identity.public_key), BlobStore(max_bytes=0)
    await blob_store.serve(endpoint)
    if table is not None:
        await publish_table(endpoint, identity, RUN, blob_store, table)
    return endpoint


async def found(network: MemoryNetwork, *members: Identity) -> list[FoundTable]:
    """Return the tables found among ``members``."""
    return await find_tables(network.endpoint(ASKING.public_key), RUN, TINY.name, [PublicKey(each.public_key) for each in members])


@pytest.mark.parametrize("piece_bytes", [10**6, 1000])
async def test_a_table_that_a_member_hands_out_arrives_as_its_word_in_one_piece_or_several(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manta_swarm.peer.commands.tables, "_PIECE_BYTES", piece_bytes)
    network = MemoryNetwork()
    await member(network, HONEST, table_of().to_bytes())
    await member(network, LIAR, None)
    (one,) = await found(network, LIAR, ASKING, HONEST)  # who has no table, or is not there, is left out
    assert (one.key, one.table) == (HONEST.public_key, table_of())
    assert one.file_name.startswith("a-processor-r-v2-")


@pytest.mark.parametrize(
    "lie",
    ["another's name", "another run", "unsigned", "garbage", "no table", "another supernet's", "not there", "other size", "too large"],
)
async def test_who_breaks_the_rules_is_left_out(lie: str) -> None:
    data = {"no table": b"{}", "another supernet's": table_of(supernet="classifier-tiny-3x100").to_bytes()}.get(lie, table_of().to_bytes())
    honest = Signed.sign(offer_of(LIAR, data), LIAR)
    answer = {
        "another's name": pack(Signed.sign(offer_of(HONEST, data), HONEST)),
        "another run": pack(Signed.sign(offer_of(LIAR, data, run=sha256(b"another")), LIAR)),
        "unsigned": pack(Signed(TableOffer, honest.payload, bytes(64))),
        "garbage": b"garbage",
        "not there": pack(Signed.sign(offer_of(LIAR, b"nothing"), LIAR)),
        "other size": pack(Signed.sign(offer_of(LIAR, data, size=len(data) - 1), LIAR)),
        "too large": pack(Signed.sign(offer_of(LIAR, data, size=MAX_BYTES + 1), LIAR)),
    }.get(lie, pack(honest))

    network = MemoryNetwork()
    endpoint, blob_store = network.endpoint(LIAR.public_key), BlobStore(max_bytes=0)
    blob_store.pin(Blob.of([data]))
    await blob_store.serve(endpoint)

    async def tell(_caller: PublicKey, _request: bytes) -> bytes:
        return answer

    await endpoint.serve("latency", tell)
    await member(network, HONEST, table_of().to_bytes())
    assert [one.key for one in await found(network, LIAR, HONEST)] == [HONEST.public_key]


def test_a_device_s_name_cannot_lead_out_of_the_folder() -> None:
    for name in ("../../etc/passwd", "/", "é" * 200):
        path = Path("out") / FoundTable(HONEST.public_key, table_of(name)).file_name
        assert path.parent == Path("out")
        assert len(path.name) < 64


def test_an_offer_holds_under_its_own_key_only() -> None:
    offer = offer_of(HONEST, b"table")
    assert Signed.sign(offer, HONEST).open() == offer
    with pytest.raises(SignatureError):
        Signed.sign(offer, LIAR).open()


def test_a_file_that_is_no_table_of_the_run_s_supernet_is_a_users_mistake(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with pytest.raises(UserError, match="cannot read"):
        load_table(path, TINY.name)
    path.write_text("{}")
    with pytest.raises(UserError, match="no latency table"):
        load_table(path, TINY.name)
    table_of().save(path)
    assert load_table(path, TINY.name) == table_of().to_bytes()
    with pytest.raises(UserError, match=r"is of classifier-tiny, the run trains stereo-tiny: measure one"):
        load_table(path, "stereo-tiny")
