"""hivemind's libp2p daemon: started under our keeper, asked over its socket, and what hivemind's tasks leave when somebody hangs up."""

import asyncio
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import hivemind
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from manta_swarm.network import timeouts
from manta_swarm.network.addresses import check_listen, not_to_listen_on
from manta_swarm.protocol.errors import OwnFault
from manta_swarm.runtime.child import tethered

_MAX_SOCKET_DIR = 60  # a unix socket's path has at most 108 bytes, and hivemind adds a name of about 30
# The daemon's -relay=0 leaves on what is on in its default configuration: relaying for strangers. Only a file of its own turns it off.
_CONFIGURATION = {"Relay": {"Enabled": False}}

# What hivemind's tasks raise when a peer, a caller or the daemon is suddenly gone; nobody awaits them.
_HANG_UPS = (ConnectionError, asyncio.IncompleteReadError, P2PDaemonError, P2PHandlerError, asyncio.InvalidStateError)
_Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]
_HIVEMIND, _ASYNCIO = (os.path.dirname(str(package.__file__)) + os.sep for package in (hivemind, asyncio))


async def ask(p2p: P2P, request: p2pd_pb2.Request) -> tuple[p2pd_pb2.Response, asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the daemon's answer and the connection that it came on. hivemind leaves that open when it fails or is cut off.

    Raises:
        ControlFailure: the daemon says no.
        ConnectionError, IncompleteReadError: the daemon has ended.
    """
    try:
        reader, writer = await p2p._client.control.daemon_connector.open_connection()
    except FileNotFoundError as error:  # its socket went with it
        raise ConnectionRefusedError("the p2p daemon has ended") from error
    try:
        await write_pbmsg(writer, request)
        response = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, response)
        raise_if_failed(response)
    except BaseException:
        writer.transport.abort()
        raise
    return response, reader, writer


class HangUps:
    """A loop's exception handler that counts what hivemind's own tasks leave when somebody hangs up, and hands on the rest."""

    def __init__(self, behind: _Handler | None) -> None:
        """Hand on to the handler ``behind``; without one, to the loop's own."""
        self.counts: Counter[str] = Counter()  # by the error's class
        self._behind = behind

    @classmethod
    def watch(cls) -> "HangUps":
        """Return the one in front of the running loop's handlers. It stays: what a node leaves is often found after its end."""
        loop = asyncio.get_running_loop()
        front = loop.get_exception_handler()
        if not isinstance(front, HangUps):
            front = cls(front)
            loop.set_exception_handler(front)
        return front

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, _HANG_UPS) and _is_hiveminds(error.__traceback__):
            self.counts[type(error).__name__] += 1
        elif _is_abandoned_wait(context):
            self.counts["abandoned wait"] += 1
        elif self._behind is not None:
            self._behind(loop, context)
        else:
            loop.default_exception_handler(context)


def _is_hiveminds(trace: TracebackType | None) -> bool:
    """Return whether an error came out of a task of hivemind's in which nobody else's function had a part."""
    files = []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return any(file.startswith(_HIVEMIND) for file in files) and all(file.startswith((_HIVEMIND, _ASYNCIO)) for file in files)


def _is_abandoned_wait(context: dict[str, Any]) -> bool:
    """Return whether this is one of the tasks for ``Event.wait`` that hivemind's searches leave when they are cut off."""
    task = context.get("task")
    is_wait = task is not None and getattr(task.get_coro(), "__qualname__", "") == "Event.wait"
    return is_wait and "destroyed but it is pending" in context["message"]


def make_socket_dir() -> str:
    """Return a new directory for the daemon's sockets; its name is short enough."""
    directory = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="manta-", dir=directory if len(directory) < _MAX_SOCKET_DIR else "/tmp")


async def start_daemon(socket_dir: str, identity_path: Path, listen: Sequence[str]) -> P2P:
    """Start the daemon with its sockets in ``socket_dir``; without addresses to listen on it only dials out.

    Raises:
        UserError: an address that cannot be listened on.
        OwnFault: the daemon does not start.
    """
    hosts = _parse_listen(listen)
    try:
        # Of NAT, all is as hivemind has it: where a router allows it (UPnP), the daemon maps the ports that it listens on.
        return await _daemon_class(socket_dir).create(
            host_maddrs=hosts,
            no_listen=not hosts,
            nat_port_map=bool(hosts),
            dht_mode="off",
            identity_path=str(identity_path),
            check_if_identity_free=False,
            startup_timeout=timeouts.DAEMON_S,
            use_relay=False,  # with _CONFIGURATION: two peers that both only dial out do not reach each other
            use_auto_relay=False,
        )
    except P2PDaemonError as error:
        raise OwnFault(f"hivemind's p2p daemon did not start: {error}") from error


def _daemon_class(socket_dir: str) -> type[P2P]:
    """Return hivemind's P2P with its sockets in ``socket_dir`` and its daemon under our keeper, with our configuration."""
    configuration = Path(socket_dir, "p2pd.json")
    configuration.write_text(json.dumps(_CONFIGURATION))

    class Daemon(P2P):  # type: ignore[misc]
        _UNIX_SOCKET_PREFIX = f"/unix{socket_dir}/"
        # Without libp2p's own DHT: it dials whatever addresses anybody in it says that others have. See network.dialling.
        DHT_MODE_MAPPING: ClassVar[dict[str, dict[str, int]]] = {"off": {}}

        @staticmethod
        def _make_process_args(*args: object, **kwargs: object) -> list[str]:
            command: list[str] = P2P._make_process_args(*args, **kwargs)
            return [*tethered(socket_dir), *command, f"-f={configuration}"]

    return Daemon


def _parse_listen(listen: Sequence[str]) -> list[Multiaddr]:
    check_listen(listen)
    try:
        return [Multiaddr(text) for text in listen]
    except (ValueError, LookupError) as error:
        raise not_to_listen_on(", ".join(listen)) from error
