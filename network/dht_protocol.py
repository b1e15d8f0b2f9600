"""What this node says and believes in the DHT: hivemind's protocol, held to what a caller has proven by its connection.

A node's id in the DHT is the hash of its key, so nobody chooses where it stands without making keys for it; and a record is brought by
its owner alone, over a connection of its own. hivemind sends each node that it meets the records that lie near it. Here nothing is sent
on: all records are published again long before they expire, and a search asks several of the nearest nodes.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any

import msgpack
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.auth import AuthRole, AuthRPCWrapper
from hivemind.utils.timed_storage import ValueWithExpiration

from manta_swarm.network.dht_storage import FIRST, MAX_BYTES_OF_A_NAME, MIN_RECORD_BYTES, BoundedStorage
from manta_swarm.network.rates import CallRates
from manta_swarm.network.validator import MAX_RECORD_BYTES, SIGNATURE_BYTES, OwnedRecords
from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.signing import PublicKey, public_key_of
from manta_swarm.runtime.tasks import together

MAX_ANSWER_BYTES = 2 * MAX_BYTES_OF_A_NAME  # of records, for all names of one search
_WAIT_S = 5.0  # for another node's answer
_MAX_BAD_RECORDS = 8  # of a dictionary whose others are still looked at: each costs a signature to check
_LOOK_AGAIN_S = 1.0  # at least, between two looks whether the oldest node of a full bucket is still there
_USES = 3  # of the nodes that a search found: a record lives for more publications than that
_REMEMBERED = 64  # names
_DICTIONARY = 0x50  # hivemind's MessagePack extension

_Found = dict[DHTID, tuple[ValueWithExpiration | None, dict[DHTID, PeerID]]]


def node_id_of(peer: PeerID) -> DHTID:
    """Return the id of a node in the DHT, which follows from its key."""
    return DHTID.generate(source=peer.to_bytes())


async def open_dht(p2p: P2P, records: OwnedRecords, rates: CallRates, first: Collection[PublicKey]) -> DHTNode:
    """Return this node's part of the DHT, which knows nobody yet, and answers nobody until its protocol serves.

    Args:
        p2p: the daemon.
        records: signs and validates.
        rates: knows the network addresses of callers.
        first: whose records are kept before those of others.
    """
    dht = await DHTNode.create(
        p2p=p2p,
        node_id=node_id_of(p2p.peer_id),
        record_validator=records,
        num_workers=4,
        cache_locally=False,  # a cached list of peers is an old one
        cache_nearest=0,
        cache_on_store=False,
        wait_timeout=_WAIT_S,
        client_mode=True,
    )
    whole = dht.protocol
    dht.protocol = await BoundedProtocol.create(
        p2p, whole.node_id, whole.bucket_size, whole.routing_table.depth_modulo, whole.num_replicas, _WAIT_S, None, None, True, records
    )
    dht.protocol.hold(rates, first)
    return dht


class OwnRecords:
    """Where in the DHT the records of this node stand. The nodes that took one take it again some times, until a search finds others."""

    def __init__(self, dht: DHTNode) -> None:
        """Know of none yet."""
        self._dht = dht
        self._places: OrderedDict[str, tuple[list[PeerID], int]] = OrderedDict()  # by name, with how often they may be used yet

    async def store(self, name: str, value: bytes, expires_s: float, first: Collection[PeerID]) -> None:
        """Put a record under a name: at the nodes that are nearest to it, and at ``first``."""
        protocol = self._dht.protocol
        peers, uses = self._places.pop(name, ([], 0))
        took = await protocol.store_at([*first, *peers], name, value, expires_s) if peers and uses else None
        if took is None:
            searching = self._search_and_store(name, value, expires_s, first)
            (peers, _), uses = await together(searching, protocol.store_at(first, name, value, expires_s)), _USES + 1
        elif not set(peers) <= set(took):
            peers, uses = await self._search_and_store(name, value, expires_s, first), _USES + 1
        self._places[name] = peers, uses - 1
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    async def _search_and_store(self, name: str, value: bytes, expires_s: float, without: Collection[PeerID]) -> list[PeerID]:
        name_id, protocol = DHTID.generate(source=name), self._dht.protocol
        found = await self._dht.find_nearest_nodes([name_id], exclude_self=True)
        left, took = [peer for peer in found[name_id].values() if peer not in without], list[PeerID]()
        while left and (lacking := protocol.num_replicas - len(took)) > 0:
            took += await protocol.store_at(left[:lacking], name, value, expires_s)
            left = left[lacking:]
        return took


async def records_at(dht: DHTNode, peer: PeerID, name: str) -> dict[bytes, ValueWithExpiration]:
    """Return the records under a name that one node has, by owner; none where it does not answer."""
    name_id = DHTID.generate(source=name)
    found, _ = (await dht.protocol.call_find(peer, [name_id]) or {name_id: (None, {})})[name_id]
    return {} if found is None else {owner: replace(record, value=_value_of(record.value)) for owner, record in found.value.items()}


def _value_of(signed: bytes) -> Any:
    return _StrictSerializer.loads(signed[:-SIGNATURE_BYTES])


class _StrictSerializer(MSGPackSerializer):  # type: ignore[misc]
    """Reads the value of a record, which is bytes, or all records of a name: what other nodes answer comes from strangers."""

    @classmethod
    def loads(cls, buf: bytes) -> bytes | DictionaryDHTValue:
        """Return what hivemind packed.

        Raises:
            ValueError: it is something else, or too large.
        """
        if len(buf) > MAX_BYTES_OF_A_NAME:
            raise ValueError("more than a name may have")
        packed = _unpacked(buf, max_ext_len=MAX_BYTES_OF_A_NAME)
        if type(packed) is bytes:
            return packed
        if type(packed) is not msgpack.ExtType or packed.code != _DICTIONARY:
            raise ValueError("neither bytes nor a dictionary")
        parts = _unpacked(packed.data, max_array_len=MAX_BYTES_OF_A_NAME // MIN_RECORD_BYTES)
        if type(parts) is not list or len(parts) != 3 or type(parts[2]) is not list:
            raise ValueError("no dictionary")
        found = DictionaryDHTValue()
        with found.freeze():
            for record in parts[2]:
                if type(record) is not list or [type(each) for each in record] != [bytes, bytes, float]:
                    raise ValueError("no record")
                found.store(*record)
        return found


def _unpacked(buf: bytes, *, max_ext_len: int = 0, max_array_len: int = 0) -> Any:
    return msgpack.unpackb(
        buf,
        raw=False,
        max_str_len=0,
        max_bin_len=MAX_RECORD_BYTES,
        max_array_len=max_array_len,
        max_map_len=0,
        max_ext_len=max_ext_len,
    )


class BoundedProtocol(DHTProtocol):  # type: ignore[misc]
    """Takes the place of hivemind's protocol of the DHT, within bounds and with checked callers."""

    serializer = _StrictSerializer
    storage: BoundedStorage

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        """Return what a method is called on the wire: as hivemind calls it."""
        name: str = DHTProtocol._get_handle_name(namespace, method_name)
        return name

    def hold(self, rates: CallRates, first: Collection[PublicKey]) -> None:
        """Keep records within bounds, those of ``first`` before others', who are counted by what ``rates`` knows of their addresses."""
        self.storage = BoundedStorage()
        self.cache = BoundedStorage(max_bytes=0)  # which only strangers would fill: a cached list of peers is an old one
        self._rates = rates
        self._first = frozenset(first)
        self._next_look_s = -math.inf
        self._looking: asyncio.Future[DHTID | None] = asyncio.get_running_loop().create_future()
        self._looking.set_result(None)

    async def serve(self) -> None:
        """Answer others, and let them know that this node does."""
        self.client_mode = False
        await self.add_p2p_handlers(self.p2p, AuthRPCWrapper(self, AuthRole.SERVICER, None))
        self.node_info = dht_pb2.NodeInfo(node_id=self.node_id.to_bytes())

    async def stop_serving(self) -> None:
        """Answer others no more; nobody is asked any more to enter this node in a routing table."""
        self.client_mode = True
        self.node_info = dht_pb2.NodeInfo()
        await self.remove_p2p_handlers(self.p2p)

    async def shutdown(self) -> None:
        """See ``DHTProtocol.shutdown``."""
        self._looking.cancel()
        await super().shutdown()

    async def store_at(self, peers: Collection[PeerID], name: str, value: bytes, expires_s: float) -> list[PeerID]:
        """Bring a record of this node's to these nodes, whoever is nearest; and keep it here, if this node serves. Return who took it."""
        name_id, subkey = DHTID.generate(source=name), self.p2p.peer_id.to_bytes()
        record = DHTRecord(name_id.to_bytes(), self.serializer.dumps(subkey), self.serializer.dumps(value), expires_s)
        signed = self.record_validator.sign_value(record)
        if not self.client_mode:
            self.storage.store(name_id, signed, expires_s, subkey)
        answers = await together(*(self.call_store(peer, [name_id], [signed], expires_s, [subkey]) for peer in peers))
        return [peer for peer, answer in zip(peers, answers, strict=True) if answer and all(answer)]

    # What others ask.

    async def rpc_ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        """Answer a ping; nobody is called back for it."""
        await self._meet(request.peer, context.remote_id)
        return dht_pb2.PingResponse(peer=self.node_info, dht_time=get_dht_time(), available=False)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Keep the records of the caller; those of others it has no business to bring."""
        await self._meet(request.peer, context.remote_id)
        columns = (request.keys, request.subkeys, request.values, request.expiration_time, request.in_cache)
        if len({len(column) for column in columns}) != 1:
            raise EncodingError("records in pieces")
        response = dht_pb2.StoreResponse(peer=self.node_info)
        owner = context.remote_id.to_bytes()
        own_subkey = self.serializer.dumps(owner)
        for name, subkey, value, expires_s, in_cache in zip(*columns, strict=True):
            is_own = subkey == own_subkey and not in_cache
            is_kept = is_own and self._validate_record(name, subkey, value, expires_s) and self._keep(name, owner, value, expires_s)
            response.store_ok.append(is_kept)
        return response

    def _keep(self, name: bytes, owner: bytes, value: bytes, expires_s: float) -> bool:
        key = public_key_of(owner)
        source = FIRST if key in self._first else self._rates.address_of(key) or key
        return self.storage.store_subkey(DHTID.from_bytes(name), owner, value, expires_s, source)

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Return the records under the names, as far as they fit into an answer, and the nodes near each."""
        await self._meet(request.peer, context.remote_id)
        response, left = dht_pb2.FindResponse(peer=self.node_info), MAX_ANSWER_BYTES
        caller = node_id_of(context.remote_id)
        for name in map(DHTID.from_bytes, request.keys):
            result, size = dht_pb2.FindResult(type=dht_pb2.NOT_FOUND), self.storage.size_of(name)
            found = self.storage.get(name) if size <= left else None
            if found is not None:
                left -= size
                packed = self.serializer.dumps(found.value)
                result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=packed, expiration_time=found.expiration_time)
            for node_id, peer in self.routing_table.get_nearest_neighbors(name, k=self.bucket_size, exclude=caller):
                result.nearest_node_ids.append(node_id.to_bytes())
                result.nearest_peer_ids.append(peer.to_bytes())
            response.results.append(result)
        return response

    # What others answer.

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]) -> _Found | None:
        """Return a node's answer to a search. One that says its records are the newest there can be ends the search; these here do not."""
        answer: _Found | None = await super().call_find(peer, keys)
        if answer is None:
            return None
        checked: _Found = {}
        for name, (item, nearest) in answer.items():
            if item is not None:
                is_ours = isinstance(item.value, DictionaryDHTValue)
                item = ValueWithExpiration(item.value, item.value.latest_expiration_time) if is_ours else None
            checked[name] = item, {node: at for node, at in islice(nearest.items(), self.bucket_size) if node == node_id_of(at)}
        return checked

    def _validate_dictionary(self, name: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Take the invalid records out of a dictionary; return whether anything is left. hivemind refuses all for one."""
        if not isinstance(dictionary, DictionaryDHTValue):
            return False
        records, num_bad = list(dictionary.data.items()), 0
        dictionary.clear()
        dictionary.latest_expiration_time = float("-inf")
        for owner, (value, expires_s) in records:
            if self._validate_record(name, self.serializer.dumps(owner), value, expires_s):
                dictionary.store(owner, value, expires_s)
            elif (num_bad := num_bad + 1) > _MAX_BAD_RECORDS:
                return False
        return bool(dictionary)

    # Who is known.

    async def _meet(self, caller: dht_pb2.NodeInfo, peer: PeerID) -> None:
        """Enter a caller in the routing table, if it says that it serves the DHT.

        Raises:
            SignatureError: it claims a node id that does not follow from its key.
        """
        if not caller.node_id:
            return
        if caller.node_id != node_id_of(peer).to_bytes():
            raise SignatureError("a node id that is not that of the caller's key")
        await self.update_routing_table(node_id_of(peer), peer)

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Note that a node called, or answered, or did not. Where a bucket is full the new node is not remembered.

        hivemind calls this also for what others say of their own ids.
        """
        table, own = self.routing_table, node_id_of(peer_id)
        if not responded:
            if own in table:
                del table[own]
        elif node_id is None or node_id == own:
            oldest = table.add_or_update_node(own, peer_id)
            bucket = table.buckets[table.get_bucket_index(own)]
            if own in bucket.replacement_nodes:
                del table[own]
            if oldest is not None:
                bucket.nodes_requested_for_ping.discard(oldest[0])
                self._look_at(oldest[1])

    def _look_at(self, peer: PeerID) -> None:
        """See whether a node is still there, now and then: strangers' calls are what leads here."""
        if time.monotonic() >= self._next_look_s and self._looking.done():
            self._next_look_s = time.monotonic() + _LOOK_AGAIN_S
            self._looking = asyncio.create_task(self.call_ping(peer))
