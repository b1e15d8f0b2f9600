"""The only door to the network: hivemind's libp2p daemon and DHT, under one Ed25519 key, in this process's event loop.

hivemind's usual front, ``hivemind.DHT``, forks a process. Here its parts (``P2P``, ``DHTNode``) run in the program's own loop: there
is nothing to fork before threads, no signal handler is touched, and the daemon ends with the program (see ``swarm.keeper``).
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils import get_dht_time
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from protocol.errors import EncodingError, MantaError, OwnFault, SignatureError, Unreachable, UserError
from protocol.signing import Identity, PublicKey, peer_id, peer_name, public_key_of
from swarm.rpc import MAX_MESSAGE_BYTES, Handler, Refused
from swarm.streams import MIN_REQUEST_BYTES, Streams
from swarm.validator import MAX_RECORD_BYTES, OwnedRecords

_KEEPER = Path(__file__).with_name("keeper.py")
_MAX_SOCKET_DIR = 60  # a unix socket's path has at most 108 bytes, and hivemind adds a name of about 30
_STARTUP_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 15.0
_GOODBYE_TIMEOUT_S = 5.0
_ANSWER, _REFUSAL = b"\x00", b"\x01"

logger = logging.getLogger("manta.node")


class _Bytes:
    """The message of our calls: bytes as they are, where hivemind expects a protobuf."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def FromString(cls, data: bytes) -> "_Bytes":
        return cls(data)

    def SerializeToString(self) -> bytes:
        return self.data


class _PendingCalls(dict[UUID, "asyncio.Future[bytes | None]"]):
    """hivemind's unary calls that wait for an answer, without those that were cancelled a moment ago.

    hivemind would set their result; that raises, in the only task that reads from the daemon, and the node were deaf from then on.
    """

    def __contains__(self, call_id: object) -> bool:
        call = self.get(call_id) if isinstance(call_id, UUID) else None
        return call is not None and not call.done()


def _daemon_class(socket_dir: str) -> type[P2P]:
    """Return hivemind's P2P with its sockets in ``socket_dir`` and its daemon under our keeper."""

    class Daemon(P2P):  # type: ignore[misc]
        _UNIX_SOCKET_PREFIX = f"/unix{socket_dir}/"

        @staticmethod
        def _make_process_args(*args: object, **kwargs: object) -> list[str]:
            keeper = [sys.executable, "-I", "-S", str(_KEEPER), str(os.getpid()), socket_dir]
            command: list[str] = P2P._make_process_args(*args, **kwargs)
            return keeper + command

    return Daemon


def _make_socket_dir() -> str:
    directory = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="manta-", dir=directory if len(directory) < _MAX_SOCKET_DIR else "/tmp")


def parse_address(maddr: str) -> tuple[PublicKey, str]:
    """Return the key and the address of a node's full multiaddress (``/ip4/1.2.3.4/tcp/31000/p2p/12D3Koo...``).

    Raises:
        UserError: not a multiaddress of an Ed25519 node.
    """
    try:
        parsed = Multiaddr(maddr)
        if "tcp" not in parsed and "udp" not in parsed:
            raise ValueError("a name, and no way to it")
        return public_key_of(PeerID.from_base58(parsed["p2p"]).to_bytes()), maddr
    except (ValueError, KeyError, SignatureError, LookupError) as error:
        raise UserError(f"{maddr!r} is no peer address; it looks like /ip4/203.0.113.7/tcp/31000/p2p/12D3Koo...") from error


def short_name(key: bytes) -> str:
    """Return the last eight characters of a key's peer id, as people compare them."""
    return peer_name(key)[-8:]


class Node:
    """One node: daemon, DHT and RPC under one key. Implements ``swarm.rpc.Endpoint``. All methods run in one event loop."""

    def __init__(self, identity: Identity, p2p: P2P, dht: DHTNode, socket_dir: str) -> None:
        """Use ``Node.start``."""
        self._identity = identity
        self._p2p = p2p
        self._dht = dht
        self._socket_dir = socket_dir
        self._streams = Streams(p2p)
        self._addresses: dict[PublicKey, list[str]] = {}  # of the initial peers

    @classmethod
    async def start(cls, identity: Identity, identity_path: Path, *, listen: Sequence[str], initial_peers: Sequence[str] = ()) -> "Node":
        """Start the daemon and join the DHT of ``initial_peers`` (start one where there are none).

        Args:
            identity_path: the file that holds ``identity`` in libp2p's form; the daemon reads it.
            listen: multiaddresses to listen on; port 0 is a free one.

        Raises:
            UserError: a bad address, a port in use, or none of the initial peers answers.
        """
        use_hivemind_log_handler("nowhere")
        keys = [parse_address(maddr)[0] for maddr in initial_peers]
        socket_dir = _make_socket_dir()
        try:
            p2p = await _start_daemon(socket_dir, identity_path, listen)
            try:
                await _connect(p2p, list(zip(keys, initial_peers, strict=True)))
                dht = await DHTNode.create(
                    p2p=p2p,
                    initial_peers=list(initial_peers),
                    record_validator=OwnedRecords(identity),
                    num_workers=4,
                    cache_locally=False,  # a cached list of peers is an old one
                    cache_nearest=0,
                    cache_on_store=False,
                    wait_timeout=5,
                    strict=False,
                    ensure_bootstrap_success=False,
                )
            except BaseException:
                await p2p.shutdown()
                raise
        except BaseException:
            shutil.rmtree(socket_dir, ignore_errors=True)
            raise
        node = cls(identity, p2p, dht, socket_dir)
        for key, maddr in zip(keys, initial_peers, strict=True):
            node._addresses.setdefault(key, []).append(maddr)
        return node

    @property
    def key(self) -> PublicKey:
        """This node's own key."""
        return self._identity.public_key

    @property
    def p2p(self) -> P2P:
        """hivemind's handle of the daemon, for ``swarm.matchmaking``."""
        return self._p2p

    @property
    def dht(self) -> DHTNode:
        """hivemind's DHT node, for ``swarm.matchmaking``."""
        return self._dht

    async def addresses(self) -> list[str]:
        """Return the multiaddresses under which others reach this node."""
        return [str(maddr) for maddr in await self._p2p.get_visible_maddrs(latest=True)]

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""

        async def answer(caller: PeerID, request: bytes) -> bytes:
            try:
                if len(request) > MAX_MESSAGE_BYTES:
                    raise EncodingError(f"a message of {len(request)} bytes is too large")
                return _ANSWER + await handler(public_key_of(caller.to_bytes()), request)
            except MantaError as error:
                return _REFUSAL + str(error).encode()[:1000]

        async def answer_unary(request: _Bytes, context: P2PContext) -> _Bytes:
            return _Bytes(await answer(context.remote_id, request.data))

        await self._p2p.add_protobuf_handler(f"manta.{method}", answer_unary, _Bytes)
        await self._streams.serve(f"manta.{method}.stream", answer)

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """See ``Endpoint.call``."""
        if len(request) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a request has at most {MAX_MESSAGE_BYTES} bytes")
        if len(request) < MIN_REQUEST_BYTES:
            calling = self._call_unary(PeerID(peer_id(key)), f"manta.{method}", request)
        else:
            calling = self._streams.call(PeerID(peer_id(key)), f"manta.{method}.stream", request)
        response: bytes = await _answer_of(calling, f"{short_name(key)} ({method})", timeout_s)
        if response[:1] == _REFUSAL:
            reason = response[1:].decode(errors="replace")
            raise Refused("".join(letter if letter.isprintable() else "?" for letter in reason))  # it may reach a terminal
        return response[1:]

    async def _call_unary(self, peer: PeerID, name: str, request: bytes) -> bytes:
        answer: _Bytes = await self._p2p.call_protobuf_handler(peer, name, _Bytes(request), _Bytes)
        return answer.data

    async def meet_again(self, key: PublicKey) -> None:
        """Connect to an initial peer that was away, and enter each other's routing tables: a restarted node's is empty.

        Raises:
            Unreachable: it is still away.
        """
        await _connect(self._p2p, [(key, maddr) for maddr in self._addresses.get(key, [])])
        if await self._dht.protocol.call_ping(PeerID(peer_id(key))) is None:
            raise Unreachable(f"{short_name(key)} is away")

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """See ``Endpoint.publish``."""
        if len(value) > MAX_RECORD_BYTES // 2:
            raise ValueError(f"a DHT record has at most {MAX_RECORD_BYTES // 2} bytes")
        await self._dht.store(name, value, get_dht_time() + ttl_s, subkey=peer_id(self.key))

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """See ``Endpoint.lookup``."""
        found = await self._dht.get(name, latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        records: dict[PublicKey, bytes] = {}
        for subkey, item in found.value.items():
            if type(item.value) is bytes:
                records[public_key_of(subkey)] = item.value
        return records

    async def watch_daemon(self) -> None:
        """Wait for the end of the daemon, which nothing can go on without; meant to be run beside the rest, and cancelled.

        Raises:
            OwnFault: it ended.
        """
        await self._p2p._child.wait()
        raise OwnFault("hivemind's p2p daemon has ended unexpectedly; start this program again, it goes on where it was")

    async def close(self) -> None:
        """End the DHT node and the daemon; remove the sockets."""
        with contextlib.suppress(TimeoutError, P2PDaemonError, OSError):  # a daemon that has ended answers nothing
            async with asyncio.timeout(_GOODBYE_TIMEOUT_S):
                await self._dht.shutdown()
        await self._p2p.shutdown()
        await self._streams.close()
        shutil.rmtree(self._socket_dir, ignore_errors=True)


async def _answer_of(calling: Awaitable[Any], what: str, timeout_s: float) -> Any:
    try:
        async with asyncio.timeout(timeout_s):  # not wait_for, which in Python 3.11 can swallow a cancellation
            return await calling
    except TimeoutError as error:
        raise Unreachable(f"{what} did not answer within {timeout_s:g} s") from error
    except (P2PDaemonError, P2PHandlerError, ControlFailure, ConnectionError, asyncio.IncompleteReadError) as error:
        raise Unreachable(f"{what} could not be reached: {error}") from error


def _check_port_free(maddr: Multiaddr) -> None:
    """Refuse a TCP port that somebody listens on: the daemon shares ports (SO_REUSEPORT) and would not say a word.

    Raises:
        UserError: the port is in use, or the address is none of this computer's.
    """
    family, host = (socket.AF_INET, maddr["ip4"]) if "ip4" in maddr else (socket.AF_INET6, maddr["ip6"])
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that only waits out old connections is free
        try:
            probe.bind((host, int(maddr["tcp"])))
        except OSError as error:
            raise UserError(f"cannot listen on {maddr}: {error.strerror}; choose another address with --listen") from error


def _parse_listen(listen: Sequence[str]) -> list[Multiaddr]:
    hosts = []
    for text in listen:
        try:
            maddr = Multiaddr(text)
            if "tcp" not in maddr or ("ip4" not in maddr and "ip6" not in maddr):
                raise ValueError("no IP address or no TCP port")
        except (ValueError, LookupError) as error:
            raise UserError(f"cannot listen on {text!r}: it is not a multiaddress like /ip4/0.0.0.0/tcp/31000") from error
        _check_port_free(maddr)
        hosts.append(maddr)
    return hosts


async def _start_daemon(socket_dir: str, identity_path: Path, listen: Sequence[str]) -> P2P:
    hosts = _parse_listen(listen)
    try:
        p2p = await _daemon_class(socket_dir).create(
            host_maddrs=hosts,
            identity_path=str(identity_path),
            check_if_identity_free=False,
            startup_timeout=_STARTUP_TIMEOUT_S,
        )
    except P2PDaemonError as error:
        raise OwnFault(f"hivemind's p2p daemon did not start: {error}") from error
    p2p._client.control._pending_calls = _PendingCalls()
    return p2p


async def _connect(p2p: P2P, nodes: Sequence[tuple[PublicKey, str]]) -> None:
    """Connect to the nodes, at least to one.

    Raises:
        Unreachable: none answered.
    """

    async def one(key: PublicKey, maddr: str) -> None:
        address = Multiaddr(maddr).decapsulate(Multiaddr(f"/p2p/{peer_name(key)}"))
        await _answer_of(p2p._client.connect(PeerID(peer_id(key)), [address]), maddr, _CONNECT_TIMEOUT_S)

    results = await asyncio.gather(*(one(key, maddr) for key, maddr in nodes), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, Unreachable):
            raise failure
    if nodes and len(failures) == len(nodes):
        raise Unreachable(f"no answer from {', '.join(maddr for _, maddr in nodes)}")
