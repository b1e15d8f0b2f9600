"""Direct links between the peers of a cohort: a Unix socket on one host, else TLS 1.3 over TCP. Who is not linked is called by libp2p.

Each program makes a key and a certificate when it starts. The greeting that libp2p has authenticated (``network.near_cohort_peers``) tells
a cohort peer the certificate, byte for byte, and where to connect; each end accepts nothing but that. The smaller key dials, and the other
one if no link stands after a while. A link that breaks is made again with the next greeting.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from manta_swarm.network import timeouts
from manta_swarm.network.addresses import is_dialable
from manta_swarm.network.dialling import ListenPlaces, Place, places_of
from manta_swarm.network.lan import host_digest
from manta_swarm.network.link import MAX_CHUNK_BYTES, TAG_BYTES, Link, Receiver
from manta_swarm.network.link_certificate import LinkCertificate
from manta_swarm.network.rpc import LARGE_BYTES, LIBP2P, TLS, UNIX, Handler, OwnNode
from manta_swarm.protocol.affinity import HOST_BYTES
from manta_swarm.protocol.errors import EncodingError, MantaError, Unreachable
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together

CHUNK = "near.chunk"  # method: a chunk that goes by libp2p
MAX_GREETING_BYTES = 2048
MAX_LINKS = 4 * MAX_COHORT
_MAX_CERTIFICATE_BYTES = 1024
_NAME_BYTES, _SECRET_BYTES, _KEY_BYTES = 16, 32, 32
_MAX_ARRIVING = 32  # connections that have not said whose they are
_CHUNK_HEAD = struct.Struct(f">{TAG_BYTES}sHQ")
_IN_FLIGHT = 4  # chunks to one peer by libp2p
_LIBP2P_CHUNK_BYTES = 4 * MAX_CHUNK_BYTES  # opening a stream is what costs there
_OVER = 64  # tags that are remembered, so that what still comes under them is dropped

logger = logging.getLogger("manta.near")


@dataclass(frozen=True, slots=True)
class Greeting:
    """How one cohort peer links itself to another."""

    certificate: bytes  # DER
    places: tuple[Place, ...]  # where it listens: IP addresses and TCP ports
    host: bytes = b""  # of its host in this run; empty: it has no Unix socket
    socket: bytes = b""  # the name of that
    secret: bytes = b""  # that the peer who is greeted shows there

    def __post_init__(self) -> None:
        ListenPlaces(self.places)  # few, and each one is a place
        if not 0 < len(self.certificate) <= _MAX_CERTIFICATE_BYTES:
            raise ValueError("a greeting without a certificate")
        if (len(self.host), len(self.socket), len(self.secret)) not in ((0, 0, 0), (HOST_BYTES, _NAME_BYTES, _SECRET_BYTES)):
            raise ValueError("half a Unix socket")


@dataclass
class _CohortPeer:
    """What is known of a peer that may be linked."""

    greeting: Greeting
    link: Link | None = None
    linked: asyncio.Event = field(default_factory=asyncio.Event)
    tried_s: float = -1e9
    dialling: asyncio.Task[None] | None = None


class Links:
    """One peer's links to those of its cohort. All methods run in one event loop."""

    def __init__(self, endpoint: OwnNode, run: bytes, *, ways: Collection[str] | None = None) -> None:
        """Know nobody.

        Args:
            endpoint: this peer's node, for whoever is not linked.
            run: the run's id.
            ways: how links are made; None: as the node says; none: all goes by libp2p.
        """
        self._endpoint = endpoint
        self._ways = frozenset(endpoint.link_ways if ways is None else ways)
        self._traffic = endpoint.traffic
        self._host = host_digest(run) if UNIX in self._ways and sys.platform == "linux" else b""
        self._name, self._secret = secrets.token_bytes(_NAME_BYTES), secrets.token_bytes(_SECRET_BYTES)
        self._certificate = LinkCertificate()
        self._handlers: dict[str, Handler] = {}
        self._peers: dict[PublicKey, _CohortPeer] = {}
        self._receivers: dict[bytes, Receiver] = {}
        self._over: dict[bytes, None] = {}
        self._changed = asyncio.Event()  # a receiver is known
        self._learnt = asyncio.Event()  # a greeting came
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving: set[socket.socket] = set()  # who has not said who it is
        self._places: tuple[Place, ...] = ()
        self._is_closed = False
        self.faults: Counter[str] = Counter()  # "links" cut off for what came over them, "connections" that were sent away

    @property
    def key(self) -> PublicKey:
        """This peer's own key."""
        return self._endpoint.key

    # Life.

    async def start(self) -> None:
        """Listen for links, where the node listens for others."""
        await self._endpoint.serve(CHUNK, self._on_chunk)
        hosts = [host for host, _ in places_of(await self._endpoint.addresses())] if TLS in self._ways else []
        for family, anywhere, version in ((socket.AF_INET, "0.0.0.0", 4), (socket.AF_INET6, "::", 6)):
            found = [host for host in hosts if ipaddress.ip_address(host).version == version]
            if found:
                is_local = all(ipaddress.ip_address(host).is_loopback for host in found)
                self._listen_at(family, found[0] if is_local else anywhere, found)
        if self._host:
            self._listen_here()

    def _listen_at(self, family: int, address: str, hosts: Iterable[str]) -> None:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address, 0))
        except OSError as error:
            listening.close()
            logger.info("no direct links address=%s reason=%s", address, error.strerror)
            return
        port = listening.getsockname()[1]
        self._places = (*self._places, *((host, port) for host in dict.fromkeys(hosts)))[:8]
        self._accept(listening)

    def _listen_here(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(_socket_name(self._name))
        except OSError as error:
            listening.close()
            self._host = b""
            logger.info("no links on this host reason=%s", error.strerror)
            return
        self._accept(listening)

    async def close(self) -> None:
        """Close all links; who waits for an answer is told at once."""
        self._is_closed = True
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in (*self._listening, *self._arriving):
            connection.close()
        links = [peer.link for peer in self._peers.values() if peer.link is not None]
        for link in links:
            link.close()
        for link in links:
            await link.wait_closed()

    def _run(self, work: "asyncio.Task[None]") -> "asyncio.Task[None]":
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)
        return work

    # Who is linked.

    def greeting(self, peer: PublicKey) -> Greeting:
        """Return what ``peer`` needs for a link to this one; nobody else may see it."""
        there = (self._host, self._name, self._secret_of(peer)) if self._host else (b"", b"", b"")
        return Greeting(self._certificate.der, self._places, *there)

    def learn(self, key: PublicKey, greeting: Greeting) -> None:
        """Link this peer to one of its cohort, as its greeting says; where it is linked already, it stays so."""
        if not self._ways or self._is_closed:
            return
        peer = self._peers.get(key)
        if peer is None and len(self._peers) >= MAX_LINKS:
            return
        if peer is None or peer.greeting.certificate != greeting.certificate:  # it is new, or has been started again
            self._drop(key)
            peer = self._peers[key] = _CohortPeer(greeting)
            self._learnt.set()
            self._learnt = asyncio.Event()
        peer.greeting = greeting
        if peer.link is None and peer.dialling is None and time.monotonic() >= peer.tried_s + timeouts.LINK_AGAIN_S:
            peer.tried_s = time.monotonic()
            peer.dialling = self._run(asyncio.create_task(self._link(key, peer)))

    def keep_only(self, keys: Collection[PublicKey]) -> None:
        """Close the links to all others."""
        for key in [key for key in self._peers if key not in keys]:
            self._drop(key)

    def way(self, key: PublicKey) -> str:
        """Return how a peer is reached: ``unix``, ``tls`` or ``libp2p``."""
        link = self._link_to(key)
        return LIBP2P if link is None else UNIX if link.is_local else TLS

    def linked(self) -> tuple[PublicKey, ...]:
        """Return those to whom there is a link, in the order of their keys."""
        return tuple(sorted(key for key in self._peers if self._link_to(key) is not None))

    def _drop(self, key: PublicKey) -> None:
        peer = self._peers.pop(key, None)
        if peer is not None and peer.dialling is not None:
            peer.dialling.cancel()
        if peer is not None and peer.link is not None:
            peer.link.close()

    def _link_to(self, key: PublicKey) -> Link | None:
        peer = self._peers.get(key)
        return None if peer is None or peer.link is None or peer.link.is_closed else peer.link

    # Dialling.

    async def _link(self, key: PublicKey, peer: _CohortPeer) -> None:
        """Dial a peer, after it had time to do so if its key is the smaller one."""
        try:
            if key < self.key:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2 * timeouts.LINK_S):
                        await peer.linked.wait()
            if peer.link is None:
                async with asyncio.timeout(2 * timeouts.LINK_S):
                    await self._dial(key, peer.greeting)
        except (TimeoutError, OSError, MantaError) as error:
            logger.info("no link peer=%s reason=%s", key.hex()[:8], error or "too slow")
        finally:
            peer.dialling = None

    async def _dial(self, key: PublicKey, greeting: Greeting) -> None:
        """Make a link: on this host if the other end is here, else by whichever of its addresses answers first.

        Raises:
            OSError: none of them is reached.
        """
        if self._host and greeting.host == self._host:
            try:
                await self._dial_at(key, greeting, None)
                return
            except OSError:
                pass  # the same host, and yet another network namespace
        seen = await self._endpoint.remote_hosts(key) if TLS in self._ways else []
        places = [place for place in greeting.places if is_dialable(place[0], seen)]
        attempts = {asyncio.create_task(self._dial_at(key, greeting, place)) for place in places}
        failure = OSError("it says no address that may be dialled")
        try:
            while attempts:
                done, attempts = await asyncio.wait(attempts, timeout=timeouts.LINK_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise OSError("none of its addresses answers")
                for attempt in done:
                    error = attempt.exception()
                    if error is None:
                        return
                    failure = error if isinstance(error, OSError) else OSError(str(error))
            raise failure
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    async def _dial_at(self, key: PublicKey, greeting: Greeting, place: Place | None) -> None:
        """Connect to one address, or on this host; raises OSError."""
        loop, tls = asyncio.get_running_loop(), None
        family = socket.AF_UNIX if place is None else socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        dialling = socket.socket(family, socket.SOCK_STREAM)
        dialling.setblocking(False)
        try:
            await loop.sock_connect(dialling, _socket_name(greeting.socket) if place is None else place)
            if place is None:
                if not _is_own_user(dialling):
                    raise OSError("the socket is another user's")
                await loop.sock_sendall(dialling, self.key + greeting.secret)
            else:
                dialling.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_sendall(dialling, self.key)
                tls = self._certificate.context(greeting.certificate, is_server=False)
            link = self._new_link(key, greeting, is_local=place is None, dialled_by=self.key)
            if tls is None:
                await loop.create_connection(lambda: link, sock=dialling)
            else:
                await loop.create_connection(
                    lambda: link, sock=dialling, ssl=tls, server_hostname="", ssl_handshake_timeout=timeouts.LINK_S
                )
        except BaseException:
            dialling.close()
            raise
        self._stands(key, link)

    def _new_link(self, key: PublicKey, greeting: Greeting, *, is_local: bool, dialled_by: PublicKey) -> Link:
        certificate, traffic = (b"", None) if is_local else (greeting.certificate, self._traffic)
        return Link(key, self, is_local=is_local, dialled_by=dialled_by, certificate=certificate, traffic=traffic)

    def _stands(self, key: PublicKey, link: Link) -> None:
        """A link is made. Of two that both ends made at once, the one that the smaller key dialled is kept."""
        peer = self._peers.get(key)
        if peer is None or link.is_closed or self._is_closed:
            link.close()
            return
        earlier = peer.link
        if earlier is not None and not earlier.is_closed:
            if earlier.dialled_by < link.dialled_by:
                link.close()
                return
            earlier.close()
        peer.link = link
        peer.linked.set()
        logger.info("linked peer=%s way=%s", key.hex()[:8], UNIX if link.is_local else TLS)

    # Being dialled.

    def _accept(self, listening: socket.socket) -> None:
        listening.listen(_MAX_ARRIVING)
        listening.setblocking(False)
        self._listening.append(listening)
        asyncio.get_running_loop().add_reader(listening, self._on_arrival, listening)

    def _on_arrival(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            arrived, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # there are no more descriptors, perhaps
            logger.info("a connection was not taken reason=%s", error)
            loop.remove_reader(listening)
            loop.call_later(timeouts.LINK_S, self._listen_again, listening)
            return
        if len(self._arriving) >= _MAX_ARRIVING:
            arrived.close()
            return
        arrived.setblocking(False)
        if listening.family != socket.AF_UNIX:
            arrived.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the last bytes of a vector wait for 40 ms
        self._arriving.add(arrived)
        self._run(asyncio.create_task(self._take(arrived, is_local=listening.family == socket.AF_UNIX)))

    def _listen_again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(listening, self._on_arrival, listening)

    async def _take(self, arrived: socket.socket, *, is_local: bool) -> None:
        """Hear whose connection it is, and make it a link if that is a peer of the cohort, and shows it."""
        try:
            async with asyncio.timeout(timeouts.LINK_S):
                key = PublicKey(await _read(arrived, _KEY_BYTES))
                if is_local:
                    is_known = hmac.compare_digest(await _read(arrived, _SECRET_BYTES), self._secret_of(key))
                    if not is_known or not _is_own_user(arrived):
                        raise EncodingError("a connection of somebody else on this host")
                while (peer := self._peers.get(key)) is None:  # it may have heard of this peer before this one heard of it
                    await self._learnt.wait()
                link = self._new_link(key, peer.greeting, is_local=is_local, dialled_by=key)
                tls = None if is_local else self._certificate.context(peer.greeting.certificate, is_server=True)
                await asyncio.get_running_loop().connect_accepted_socket(lambda: link, arrived, ssl=tls)
            self._stands(key, link)
        except (OSError, TimeoutError, EncodingError) as error:
            self.faults["connections"] += 1
            logger.debug("no link reason=%s", error)
            arrived.close()
        except asyncio.CancelledError:
            arrived.close()
            raise
        finally:
            self._arriving.discard(arrived)

    def _secret_of(self, peer: PublicKey) -> bytes:
        return hmac.digest(self._secret, peer, "sha256")

    # Calls.

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``: calls by link and by libp2p alike."""
        self._handlers[method] = handler
        await self._endpoint.serve(method, handler)

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float, largest: int = 0) -> bytes:
        """See ``Endpoint.call``; the answer has ``largest`` bytes at most."""
        link = self._link_to(key)
        if link is not None:
            return await link.call(method, request, timeout_s=timeout_s)
        return await self._endpoint.call(key, method, request, timeout_s=timeout_s, large_answer=largest >= LARGE_BYTES)

    async def answer(self, peer: PublicKey, method: str, request: bytes) -> bytes:
        """See ``network.link.Side``."""
        handler = self._handlers.get(method)
        if handler is None:
            raise EncodingError("no such method")
        return await handler(peer, request)

    def lost(self, link: Link, reason: str) -> None:
        """See ``network.link.Side``."""
        if reason:
            self.faults["links"] += 1
            logger.info("a link is closed peer=%s reason=%s", link.peer.hex()[:8], reason)
        peer = self._peers.get(link.peer)
        if peer is not None and peer.link is link:
            peer.link = None
            peer.linked.clear()
            peer.tried_s = -1e9

    # Vectors.

    def receiver(self, tag: bytes) -> Receiver | None:
        """See ``network.link.Side``."""
        return _DROPPED if tag in self._over else self._receivers.get(tag)

    def receive(self, tag: bytes, receiver: Receiver) -> None:
        """Give the chunks under this tag (16 bytes) to ``receiver`` from now on."""
        self._receivers[tag] = receiver
        for peer in self._peers.values():
            if peer.link is not None:
                peer.link.claim()
        self._changed.set()
        self._changed = asyncio.Event()

    def receive_no_more(self, tag: bytes) -> None:
        """Drop whatever comes under this tag from now on."""
        self._receivers.pop(tag, None)
        self._over[tag] = None
        while len(self._over) > _OVER:
            del self._over[next(iter(self._over))]

    async def send(self, key: PublicKey, tag: bytes, turn: int, first: int, data: memoryview, *, timeout_s: float) -> None:
        """Send values, as bytes, from the value ``first`` of a vector on, to a peer that takes this tag.

        Raises:
            Unreachable: not all of it arrived, or not in time.
            Refused: the peer does not take it.
        """
        link = self._link_to(key)
        if link is None:
            await self._send_by_libp2p(key, tag, turn, first, data, timeout_s)
            return
        try:
            async with asyncio.timeout(timeout_s):
                await link.send(tag, turn, first, data)
        except TimeoutError as error:
            link.close()  # in the middle of a chunk, perhaps
            raise Unreachable(f"{key.hex()[:8]} did not take a vector within {timeout_s:g} s") from error

    async def _send_by_libp2p(self, key: PublicKey, tag: bytes, turn: int, first: int, data: memoryview, timeout_s: float) -> None:
        starts = iter(range(0, len(data), _LIBP2P_CHUNK_BYTES))

        async def worker() -> None:
            for start in starts:
                request = _CHUNK_HEAD.pack(tag, turn, first + start // 4) + data[start : start + _LIBP2P_CHUNK_BYTES]
                await self._endpoint.call(key, CHUNK, request, timeout_s=timeout_s)

        await together(*(worker() for _ in range(_IN_FLIGHT)))

    async def _on_chunk(self, caller: PublicKey, request: bytes) -> bytes:
        """Take a chunk that comes by libp2p."""
        if not _CHUNK_HEAD.size < len(request) <= _CHUNK_HEAD.size + _LIBP2P_CHUNK_BYTES or (len(request) - _CHUNK_HEAD.size) % 4:
            raise EncodingError(f"a chunk of {len(request)} bytes")
        tag, turn, first = _CHUNK_HEAD.unpack_from(request)
        try:
            async with asyncio.timeout(timeouts.LINK_CHUNK_S):
                while (receiver := self.receiver(tag)) is None:
                    await self._changed.wait()
        except TimeoutError:
            raise EncodingError("a chunk that nobody waits for") from None
        data = memoryview(request)[_CHUNK_HEAD.size :]
        buffer = receiver.buffer(caller, turn, first, len(data))
        if buffer is not None:
            buffer[:] = data
            receiver.received(caller, turn, first, len(data))
        return b""


class _Dropped:
    """Takes the chunks of what is over."""

    def buffer(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> memoryview | None:
        del sender, turn, first, num_bytes
        return None

    def received(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> None:
        del sender, turn, first, num_bytes


_DROPPED = _Dropped()


def _socket_name(name: bytes) -> str:
    return f"\0manta-link-{name.hex()}"


def _is_own_user(connected: socket.socket) -> bool:
    """Return whether the other end of a Unix socket is a process of this user (Linux)."""
    if sys.platform != "linux":
        return False
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


async def _read(connected: socket.socket, num_bytes: int) -> bytes:
    """Read exactly so many bytes of what the other end says first.

    Raises:
        EncodingError: it says less.
    """
    data = b""
    while len(data) < num_bytes:
        more = await asyncio.get_running_loop().sock_recv(connected, num_bytes - len(data))
        if not more:
            raise EncodingError("a connection that says nothing")
        data += more
    return data
