"""The only door to the network: hivemind's libp2p daemon and DHT, under one Ed25519 key, in this process's event loop.

hivemind's usual front, ``hivemind.DHT``, forks a process. Here its parts (``P2P``, ``DHTNode``) run in the program's own loop: there
is nothing to fork before threads, no signal handler is touched, and the daemon ends with the program (see ``runtime.tether``).
"""

import asyncio
import contextlib
import logging
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.timed_storage import ValueWithExpiration

from manta_swarm.network import timeouts
from manta_swarm.network.addresses import check_peer_address, not_a_peer
from manta_swarm.network.connections import DaemonsConnections, answer_of, connect_some, remote_hosts
from manta_swarm.network.daemon import HangUps, make_socket_dir, start_daemon
from manta_swarm.network.dht_protocol import OwnRecords, open_dht, records_at
from manta_swarm.network.dialling import METHOD as WHERE
from manta_swarm.network.dialling import Dialling
from manta_swarm.network.rates import CallLimits, CallRates
from manta_swarm.network.rpc import ANSWER, BUSY, MAX_MESSAGE_BYTES, REFUSAL, TLS, UNIX, Busy, Handler, RecordRule, Refused, refusal
from manta_swarm.network.streams import MIN_REQUEST_BYTES, Streams
from manta_swarm.network.traffic import Traffic
from manta_swarm.network.unary import UnaryCalls
from manta_swarm.network.validator import MAX_VALUE_BYTES, OwnedRecords
from manta_swarm.protocol.errors import EncodingError, MantaError, OwnFault, SignatureError, Unreachable
from manta_swarm.protocol.signing import Identity, PublicKey, peer_id, peer_name, public_key_of
from manta_swarm.runtime.tasks import together

_MAX_REASON_BYTES = 1000

logger = logging.getLogger("manta.node")


def parse_address(maddr: str) -> tuple[PublicKey, str]:
    """Return the key and the address of a node's full multiaddress (``/ip4/1.2.3.4/tcp/31000/p2p/12D3Koo...``).

    Raises:
        UserError: not a multiaddress of an Ed25519 node.
    """
    key = check_peer_address(maddr)
    try:
        Multiaddr(maddr)
    except (ValueError, LookupError) as error:
        raise not_a_peer(maddr) from error
    return key, maddr


def short_name(key: bytes) -> str:
    """Return the last eight characters of a key's peer id, as people compare them."""
    return peer_name(key)[-8:]


async def _joined(
    p2p: P2P, records: OwnedRecords, rates: CallRates, keys: Sequence[PublicKey], maddrs: Sequence[str], *, serves_others: bool
) -> DHTNode:
    """Return this node's part of the DHT, which is joined by the nodes at ``maddrs``; the records of ``keys`` come before others'."""
    dht = await open_dht(p2p, records, rates, keys)
    if serves_others:
        await dht.protocol.serve()
    await together(*(dht.protocol.call_ping(PeerID(peer_id(parse_address(maddr)[0]))) for maddr in maddrs))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeouts.ENTER_DHT_S):
            await dht.find_nearest_nodes([dht.node_id])
    return dht


def _reason(response: bytes) -> str:
    """Return why another node says no; it may reach a terminal."""
    reason = response[1 : 1 + _MAX_REASON_BYTES].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in reason)


class Node:
    """One node: daemon, DHT and RPC under one key. Implements ``network.rpc.Endpoint``. All methods run in one event loop."""

    def __init__(self, identity: Identity, p2p: P2P, dht: DHTNode, records: OwnedRecords, unary: UnaryCalls, socket_dir: str) -> None:
        """Use ``Node.start``."""
        self._identity = identity
        self._p2p = p2p
        self._dht = dht
        self._records = records
        self._own_records = OwnRecords(dht)
        self._unary = unary
        self._dialling = unary.dialling
        self.traffic = unary.traffic  # what this node sends and receives
        self.link_ways: tuple[str, ...] = (UNIX, TLS)
        self.rates = unary.rates  # of those who call
        self._streams = Streams(p2p, BUSY, self.traffic, self.rates, self._dialling)
        self._socket_dir = socket_dir
        self._failures: dict[str, str] = {}  # by method: what failed here last
        self.entered_by: tuple[str, ...] = ()  # the addresses of those who answered at the start

    @classmethod
    async def start(
        cls,
        identity: Identity,
        identity_path: Path,
        *,
        listen: Sequence[str],
        initial_peers: Sequence[str] = (),
        serves_dht: bool = True,
        limits: CallLimits | None = None,
    ) -> "Node":
        """Start the daemon and join the DHT of ``initial_peers`` (start one where there are none).

        Args:
            identity_path: the file that holds ``identity`` in libp2p's form; the daemon reads it.
            listen: multiaddresses to listen on; port 0 is a free one. Without any, this node only dials out: others call it over
                the connections that it opened, and it keeps nothing for them.
            initial_peers: addresses of nodes to join by; those that answer are joined by.
            serves_dht: keep records for others, if it listens; who is not reached by them should not (``serve_dht`` changes it).
            limits: of those who call; by default the usual ones.

        Raises:
            UserError: a bad address, a port in use, or none of the initial peers answers.
        """
        use_hivemind_log_handler("nowhere")
        keys = [parse_address(maddr)[0] for maddr in initial_peers]
        socket_dir = make_socket_dir()
        HangUps.watch()
        try:
            p2p = await start_daemon(socket_dir, identity_path, listen)
            try:
                rates = CallRates(limits or CallLimits(), DaemonsConnections(p2p))
                dialling = Dialling(p2p, identity.public_key)
                for key, maddr in zip(keys, initial_peers, strict=True):
                    dialling.trust(key, [maddr])
                unary = UnaryCalls(p2p, BUSY, Traffic(), rates, dialling)
                await unary.serve(f"manta.{WHERE}", dialling.answer)
                there = await connect_some(p2p, list(zip(keys, initial_peers, strict=True)))
                records = OwnedRecords(identity)
                dht = await _joined(p2p, records, rates, keys, [maddr for _, maddr in there], serves_others=bool(listen) and serves_dht)
            except BaseException:
                await p2p.shutdown()
                raise
        except BaseException:
            shutil.rmtree(socket_dir, ignore_errors=True)
            raise
        dialling.follow(dht)
        node = cls(identity, p2p, dht, records, unary, socket_dir)
        node.entered_by = tuple(maddr for _, maddr in there)
        return node

    @property
    def key(self) -> PublicKey:
        """This node's own key."""
        return self._identity.public_key

    @property
    def p2p(self) -> P2P:
        """hivemind's handle of the daemon, for tests of what strangers do with theirs."""
        return self._p2p

    @property
    def dht(self) -> DHTNode:
        """hivemind's DHT node, for tests of what strangers do with theirs."""
        return self._dht

    async def addresses(self) -> list[str]:
        """Return the multiaddresses under which others reach this node; none where it only dials out."""
        try:
            return [str(maddr) for maddr in await self._p2p.get_visible_maddrs(latest=True)]
        except ValueError as error:
            if not str(error).startswith("No multiaddrs found"):  # hivemind's way to say that there are none
                raise
            return []

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""

        async def answer(caller: PeerID, request: bytes) -> bytes:
            try:
                if len(request) > MAX_MESSAGE_BYTES:
                    raise EncodingError(f"a message of {len(request)} bytes is too large")
                return ANSWER + await handler(public_key_of(caller.to_bytes()), request)
            except Busy:
                return BUSY
            except MantaError as error:
                self._note(method, error)
                return REFUSAL + refusal(error).encode()[:_MAX_REASON_BYTES]

        await self._unary.serve(f"manta.{method}", answer)
        await self._streams.serve(f"manta.{method}.stream", answer)

    def _note(self, method: str, error: MantaError) -> None:
        """Log what callers are not told, each failure once."""
        if refusal(error) != str(error) and self._failures.get(method) != str(error):
            self._failures[method] = str(error)
            logger.error("call not answered method=%s reason=%s", method, error)

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """See ``Endpoint.call``."""
        if len(request) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a request has at most {MAX_MESSAGE_BYTES} bytes")
        if len(request) < MIN_REQUEST_BYTES and not large_answer:
            calling = self._unary.call(PeerID(peer_id(key)), f"manta.{method}", request)
        else:
            calling = self._streams.call(PeerID(peer_id(key)), f"manta.{method}.stream", request)
        response: bytes = await answer_of(calling, f"{short_name(key)} ({method})", timeout_s)
        if response[:1] == BUSY:
            raise Unreachable(f"{short_name(key)} ({method}): {_reason(response) or 'busy with the calls of others'}")
        if response[:1] == REFUSAL:
            raise Refused(_reason(response))
        return response[1:]

    async def meet_again(self, key: PublicKey, maddrs: Sequence[str] = ()) -> None:
        """Connect to a trusted node that was away, and enter each other's routing tables: a restarted node's is empty.

        See ``OwnNode.meet_again``.
        """
        self._dialling.trust(key, maddrs)
        await self._dialling.open(peer_id(key))
        if await self._dht.protocol.call_ping(PeerID(peer_id(key))) is None:
            raise Unreachable(f"{short_name(key)} is away")

    async def clock_ahead_s(self, key: PublicKey) -> tuple[float, float]:
        """Return how far the clock of a node that serves the DHT is ahead of this computer's, and how long it took to ask, in seconds.

        Raises:
            Unreachable: it does not answer.
        """
        stub = self._dht.protocol.get_stub(PeerID(peer_id(key)))
        asked_s, begun_s = time.time(), time.monotonic()
        answer = await answer_of(stub.rpc_ping(dht_pb2.PingRequest(validate=False)), f"{short_name(key)} (clock)", timeouts.CALL_S)
        took_s = time.monotonic() - begun_s
        return answer.dht_time - (asked_s + took_s / 2), took_s

    async def introduce(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        """See ``OwnNode.introduce``."""
        await self._dialling.introduce(key, maddrs)

    async def addresses_of(self, key: PublicKey) -> list[str]:
        """See ``OwnNode.addresses_of``."""
        return await self._dialling.addresses_of(key)

    async def remote_hosts(self, key: PublicKey) -> list[str]:
        """See ``OwnNode.remote_hosts``."""
        return await remote_hosts(self._p2p, key)

    async def connected(self) -> dict[PublicKey, list[str]]:
        """See ``OwnNode.connected``."""
        return await DaemonsConnections(self._p2p).connected()

    async def serve_dht(self, is_served: bool) -> None:
        """See ``OwnNode.serve_dht``."""
        protocol = self._dht.protocol
        if protocol.client_mode != is_served:
            return
        if not is_served:
            await protocol.stop_serving()
            return
        await protocol.serve()
        for peer in list(protocol.routing_table.peer_id_to_uid):
            await protocol.call_ping(peer)  # which enters this node in theirs; who is away is struck from ours

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """See ``Endpoint.publish``; the initial peers have the record too, however many strangers stand nearer to its name."""
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(f"a DHT record has at most {MAX_VALUE_BYTES} bytes")
        expires_s = get_dht_time() + ttl_s
        with contextlib.suppress(TimeoutError):  # some may have it, and it is published again before it expires
            async with asyncio.timeout(timeouts.DHT_S):
                await self._own_records.store(name, value, expires_s, self._dialling.trusted)

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """See ``Endpoint.lookup``; what is malformed is left out. One of the initial peers is asked beside the nearest nodes."""
        found: dict[bytes, ValueWithExpiration] = {}

        def take(records: Mapping[bytes, ValueWithExpiration]) -> None:
            found.update(
                (owner, record)
                for owner, record in records.items()
                if owner not in found or found[owner].expiration_time < record.expiration_time
            )

        async def search() -> None:
            nearest = await self._dht.get(name, latest=True)
            take({} if nearest is None else nearest.value)

        async def ask() -> None:
            if self._dialling.trusted:
                take(await records_at(self._dht, random.choice(self._dialling.trusted), name))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeouts.DHT_S):
                await together(search(), ask())
        records: dict[PublicKey, bytes] = {}
        for subkey, item in found.items():
            with contextlib.suppress(SignatureError):
                records[public_key_of(subkey)] = item.value
        return records

    def hold_records_to(self, rule: RecordRule) -> None:
        """See ``OwnNode.hold_records_to``."""
        self._records.hold_to(rule)

    async def watch_daemon(self) -> None:
        """Wait for the end of the daemon, which nothing can go on without; meant to be run beside the rest, and cancelled.

        Raises:
            OwnFault: it ended.
        """
        await self._p2p._child.wait()
        raise OwnFault("hivemind's p2p daemon has ended unexpectedly; start this program again, it goes on where it was")

    async def close(self) -> None:
        """End the DHT node and the daemon; remove the sockets."""
        if not self._unary.daemon_ended:
            with contextlib.suppress(TimeoutError, P2PDaemonError, OSError):
                async with asyncio.timeout(timeouts.GOODBYE_S):
                    await self._dht.shutdown()
        await self._p2p.shutdown()
        await self._dialling.close()
        await self._streams.close()
        await self.rates.close()
        shutil.rmtree(self._socket_dir, ignore_errors=True)
