"""The DHT of real nodes: records are found by all, forged ones by nobody, and a liar's answers hide no honest record."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PHandlerError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration

import manta_swarm.network.dht_storage
from manta_swarm.network.dht_protocol import node_id_of
from manta_swarm.network.dht_storage import MIN_RECORD_BYTES
from manta_swarm.network.node import Node
from manta_swarm.network.validator import OwnedRecords
from manta_swarm.protocol.signing import Identity, peer_id, sha256
from tests.network.nodes import PEERS, run, start, with_nodes

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]


def test_records_are_found_by_all_under_their_owners_key(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node) -> None:
        assert await a.lookup("members") == {}
        for node in (a, b, c):
            await node.publish("members", b"of " + node.key[:4], ttl_s=30)
        await b.publish("members", b"newer", ttl_s=40)
        for node in (a, b, c):
            assert await node.lookup("members") == {a.key: b"of " + a.key[:4], b.key: b"newer", c.key: b"of " + c.key[:4]}
        with pytest.raises(ValueError, match="at most"):
            await a.publish("members", bytes(3000), ttl_s=30)

    with_nodes(tmp_path, 3, work)


def test_a_record_that_is_published_again_goes_where_it_stands_and_elsewhere_once_somebody_there_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(a: Node, b: Node, c: Node, d: Node) -> None:
        searches: list[object] = []
        find = d.dht.find_nearest_nodes

        async def counted(*queries: Any, **settings: Any) -> Any:
            searches.append(queries)
            return await find(*queries, **settings)

        monkeypatch.setattr(d.dht, "find_nearest_nodes", counted)
        for number in range(4):
            await d.publish("members", b"%d" % number, ttl_s=30 + number)
        assert len(searches) == 1
        for node in (a, b, c):
            kept = node.dht.protocol.storage.get(DHTID.generate(source="members"))
            assert kept.expiration_time > get_dht_time() + 25
            assert await node.lookup("members") == {d.key: b"3"}
        await d.publish("members", b"4", ttl_s=40)  # a search now and then finds who came nearer
        assert len(searches) == 2
        await c.serve_dht(False)
        await d.publish("members", b"5", ttl_s=50)
        assert len(searches) == 3
        for node in (a, b):
            assert await node.lookup("members") == {d.key: b"5"}

    with_nodes(tmp_path, 4, work)


class _Forger(OwnedRecords):
    """Signs anything and finds everything valid."""

    def validate(self, record: DHTRecord) -> bool:
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        self._own_subkey = record.subkey
        return super().sign_value(record)


def test_a_record_forged_in_anothers_name_is_refused_by_every_honest_node(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, liar: Node) -> None:
        await a.publish("members", b"of a", ttl_s=20)
        liar.dht.protocol.record_validator = _Forger(PEERS[2])
        until = get_dht_time() + 600
        await liar.dht.store("members", b"forged", until, subkey=peer_id(a.key))
        await liar.dht.store("members", b"plain", until)
        await liar.dht.store("members", b"nobody's", until, subkey=b"name")
        await liar.dht.store("others", b"forged", until, subkey=peer_id(a.key))
        await liar.publish("members", b"of the liar", ttl_s=20)
        for node in (a, b):
            found = await node.lookup("members")
            assert found[a.key] == b"of a"
            assert set(found) <= {a.key, liar.key}
            assert a.key not in await node.lookup("others")
        refused = [node.dht.protocol.record_validator.refused for node in (a, b)]
        assert sum(refused) >= 3

    with_nodes(tmp_path, 3, work)


NAME = DHTID.generate("members")


def sign(identity: Identity, name: bytes, packed: bytes, expires_s: float) -> bytes:
    """Return a record's value with the signature of whoever it is, whatever it is."""
    subkey = DHTProtocol.serializer.dumps(peer_id(identity.public_key))
    return OwnedRecords(identity).sign_value(DHTRecord(name, subkey, packed, expires_s))


async def send(liar: Node, to: Node, name: bytes, packed: bytes, *, in_cache: bool = False) -> list[bool]:
    """Store a record of the liar's at a node, made by hand; return whether the node took it."""
    expires_s = get_dht_time() + 600
    request = dht_pb2.StoreRequest(
        keys=[name],
        subkeys=[DHTProtocol.serializer.dumps(peer_id(liar.key))],
        values=[sign(PEERS[2], name, packed, expires_s)],
        expiration_time=[expires_s],
        in_cache=[in_cache],
        peer=liar.dht.protocol.node_info,
    )
    return list((await liar.dht.protocol.get_stub(PeerID(peer_id(to.key))).rpc_store(request, timeout=10)).store_ok)


PACKED = MSGPackSerializer.dumps(b"of the liar")


BADLY_MADE = {
    "a longer name that is found under the same": (b"\x00" + NAME.to_bytes(), PACKED),
    "no msgpack at all": (NAME.to_bytes(), b"\xc1"),
    "more than one value": (NAME.to_bytes(), PACKED + b"x"),
    "text": (NAME.to_bytes(), MSGPackSerializer.dumps("text")),
    "lists": (NAME.to_bytes(), MSGPackSerializer.dumps([[[]]])),
}


def test_a_record_that_its_owner_made_badly_is_not_kept_and_hides_nobody(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, liar: Node) -> None:
        await a.publish("members", b"of a", ttl_s=30)
        for what, (name, packed) in BADLY_MADE.items():
            assert await send(liar, a, name, packed) == await send(liar, b, name, packed) == [False], what
        newcomer = await start(tmp_path, 3, await b.addresses())
        try:
            assert await newcomer.lookup("members") == {a.key: b"of a"}
        finally:
            await newcomer.close()

    with_nodes(tmp_path, 3, work)


class _LyingStorage:
    """Answers every search with the same dictionary, which it says will be the newest for ever."""

    def __init__(self, dictionary: DictionaryDHTValue) -> None:
        self._answer = ValueWithExpiration(dictionary, math.inf)

    def get(self, _name: DHTID) -> ValueWithExpiration:
        return self._answer

    def size_of(self, _name: DHTID) -> int:
        return 0


def lies(good: ValueWithExpiration, owner: bytes) -> dict[str, DictionaryDHTValue]:
    """Return dictionaries with the record ``good`` of ``owner`` and things that do not belong there."""
    soon = get_dht_time() + 20
    oddities: dict[str, dict[Any, tuple[Any, Any]]] = {
        "a forged record": {peer_id(PEERS[4].public_key): (good.value, good.expiration_time)},
        "an owner that is a number": {7: (good.value, soon)},
        "a value that is a number": {peer_id(PEERS[4].public_key): (7, soon)},
        "nothing else": {},
        "many forged records": {peer_id(bytes([i] * 32)): (good.value, soon) for i in range(1, 100)},
    }
    made = {}
    for what, records in oddities.items():
        dictionary = DictionaryDHTValue(maxsize=1)
        with dictionary.freeze():
            for subkey, (value, expires_s) in {owner: (good.value, good.expiration_time), **records}.items():
                dictionary.store(subkey, value, expires_s)
        dictionary.frozen = True
        dictionary.latest_expiration_time = math.inf
        made[what] = dictionary
    odd = DictionaryDHTValue()
    odd.store(owner, good.value, good.expiration_time)
    odd.frozen, odd.maxsize, odd.latest_expiration_time = True, "many", "never"
    return {**made, "bounds that are no numbers": odd}


def test_no_answer_of_a_liar_ends_a_search_or_hides_what_others_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(a: Node, b: Node, liar: Node) -> None:
        for node in (a, b):
            await node.publish("members", b"of " + node.key[:4], ttl_s=60)
        storage = b.dht.protocol.storage
        good = storage.get(NAME).value.data[peer_id(b.key)]
        seeker = await start(tmp_path, 3, await a.addresses(), listen=())
        call_find, asked = seeker.dht.protocol.call_find, list[PeerID]()

        async def find_at_the_liar_first(peer: PeerID, names: Any) -> Any:
            if peer != liar.p2p.peer_id:
                await asyncio.sleep(0.2)
            else:
                asked.append(peer)
            return await call_find(peer, names)

        monkeypatch.setattr(seeker.dht.protocol, "call_find", find_at_the_liar_first)
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        try:
            for what, dictionary in lies(good, peer_id(b.key)).items():
                seeker.dht.blacklist.clear()  # whose answer makes no sense is not asked for a while
                await seeker.dht.protocol.call_ping(liar.p2p.peer_id)
                liar.dht.protocol.storage = _LyingStorage(dictionary)
                asked.clear()
                assert await seeker.lookup("members") == {a.key: b"of " + a.key[:4], b.key: b"of " + b.key[:4]}, what
                assert asked, what
        finally:
            await seeker.close()
        assert errors == []

    with_nodes(tmp_path, 3, work)


def test_a_record_is_taken_from_its_owner_alone_and_not_into_the_cache_that_only_strangers_would_use(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, liar: Node) -> None:
        others = DHTID.generate("others")
        packed, expires_s = MSGPackSerializer.dumps(b"of b"), get_dht_time() + 60
        good = sign(PEERS[1], others.to_bytes(), packed, expires_s)
        assert await liar.dht.protocol.call_store(a.p2p.peer_id, [others], [good], expires_s, [peer_id(b.key)]) == [False]
        dictionary = DictionaryDHTValue()
        dictionary.store(peer_id(b.key), good, expires_s)
        for node in (liar, b):
            assert await node.dht.protocol.call_store(a.p2p.peer_id, [others], [dictionary], expires_s) == [False]
        assert await a.lookup("others") == {}
        assert await b.dht.protocol.call_store(a.p2p.peer_id, [others], [good], expires_s, [peer_id(b.key)]) == [True]
        assert await a.lookup("others") == {b.key: b"of b"}
        assert await send(liar, a, NAME.to_bytes(), PACKED, in_cache=True) == [False]
        assert await send(liar, a, NAME.to_bytes(), PACKED) == [True]

    with_nodes(tmp_path, 3, work)


def test_callers_of_one_address_have_its_share_of_a_name_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.network.dht_storage, "MAX_BYTES_OF_A_NAME", 2 * MIN_RECORD_BYTES)

    async def work(operator: Node, a: Node, b: Node, honest: Node) -> None:
        monkeypatch.setattr(operator.rates, "address_of", lambda key: "192.0.2.2" if key == honest.key else "192.0.2.1")
        taken = []
        for number, node in ((1, a), (2, b), (3, honest), (2, b)):
            expires_s = get_dht_time() + 60
            value = sign(PEERS[number], NAME.to_bytes(), PACKED, expires_s)
            call = node.dht.protocol.call_store(operator.p2p.peer_id, [NAME], [value], expires_s, [peer_id(node.key)])
            taken.append(await call)
        assert taken == [[True], [True], [True], [False]]
        assert set(operator.dht.protocol.storage.get(NAME).value.data) == {peer_id(a.key), peer_id(honest.key)}

    with_nodes(tmp_path, 4, work)


def test_a_node_id_that_does_not_follow_from_the_key_is_refused_and_leaves_no_error_behind(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        stub = b.dht.protocol.get_stub(PeerID(peer_id(a.key)))
        for claimed in (b"x" * 30, bytes(20), DHTID.generate().to_bytes(), c.dht.node_id.to_bytes()):
            info = dht_pb2.NodeInfo(node_id=claimed)
            with pytest.raises(P2PHandlerError):
                await stub.rpc_ping(dht_pb2.PingRequest(peer=info, validate=True), timeout=5)
            with pytest.raises(P2PHandlerError):
                await stub.rpc_find(dht_pb2.FindRequest(keys=[bytes(20)], peer=info), timeout=5)
            with pytest.raises(P2PHandlerError):
                await stub.rpc_store(dht_pb2.StoreRequest(peer=info), timeout=5)
        assert set(a.dht.protocol.routing_table.uid_to_peer_id) == {b.dht.node_id, c.dht.node_id}
        await b.lookup("members")
        assert errors == []

    with_nodes(tmp_path, 3, work)


def test_nodes_that_others_only_tell_of_have_the_ids_that_follow_from_their_keys(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        stranger = PeerID(peer_id(PEERS[5].public_key))
        for node_id in (DHTID.generate("members"), node_id_of(stranger)):
            b.dht.protocol.routing_table.add_or_update_node(node_id, stranger)
        found = await a.dht.protocol.call_find(b.p2p.peer_id, [NAME])
        assert found is not None
        assert found[NAME][1] == {node_id_of(stranger): stranger}

    with_nodes(tmp_path, 2, work)


def test_a_full_bucket_remembers_no_more_nodes_and_keeps_those_that_answer(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        table = a.dht.protocol.routing_table
        for number in range(20_000):
            stranger = PeerID(peer_id(sha256(b"stranger %d" % number)))
            await a.dht.protocol.update_routing_table(node_id_of(stranger), stranger)
        in_buckets = sum(len(bucket.nodes_to_peer_id) for bucket in table.buckets)
        assert in_buckets == len(table.uid_to_peer_id) == len(table.peer_id_to_uid) < 2000
        assert not any(bucket.replacement_nodes or bucket.nodes_requested_for_ping for bucket in table.buckets)
        assert b.p2p.peer_id in table

    with_nodes(tmp_path, 2, work)


def test_a_look_asks_the_initial_peers_and_they_have_every_record_however_near_others_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> None:
        return None

    async def work(operator: Node, b: Node, c: Node) -> None:
        for node in (b, c):  # all that the search finds are strangers' nodes
            monkeypatch.setattr(node.dht, "store", nothing)
            monkeypatch.setattr(node.dht, "get", nothing)
        await operator.publish("head", b"of the operator", ttl_s=60)
        await b.publish("members", b"of b", ttl_s=60)
        assert await c.lookup("members") == {b.key: b"of b"}
        assert await c.lookup("head") == {operator.key: b"of the operator"}

    with_nodes(tmp_path, 3, work)


def test_a_search_that_never_ends_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def whole() -> None:
        node = await start(tmp_path, 0)
        try:
            monkeypatch.setattr("manta_swarm.network.timeouts.DHT_S", 0.1)
            monkeypatch.setattr(node.dht, "get", never)
            monkeypatch.setattr(node.dht, "store", never)
            assert await node.lookup("members") == {}
            await node.publish("members", b"mine", ttl_s=30)
        finally:
            await node.close()

    run(whole())
