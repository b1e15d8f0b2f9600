"""The run file's [monitor], and the address at which the monitor listens. Imports no server, so that a mistake is told at once."""

import ipaddress
import os
import socket
from dataclasses import dataclass

from pydantic import Field, field_validator

from manta_swarm.aggregator.settings.base import Section
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.listen_address import host_and_port

DEFAULT_ADDRESS = "127.0.0.1:8787"
DIRECTORY = "monitor"  # in the run's: what the monitor's processes write

_BACKLOG = 1024
_SHOWN_DIGITS = 16  # of the run's id, as manta-peer status prints them: the line stays one that people read


class MonitorSection(Section):
    """[monitor] (not part of the manifest: may change at any start)"""

    address: str = Field(default=DEFAULT_ADDRESS, description="HOST:PORT of the page; on loopback only this computer sees it; empty: none")
    purpose: str = Field(
        default="", max_length=1000, description="what the run is for, shown on the page; empty: a sentence about the task"
    )
    host_names: tuple[str, ...] = Field(default=(), description="on loopback: names by which a reverse proxy asks, as monitor.example.org")
    streams: int = Field(default=500, ge=1, le=10_000, description="pages kept up to date at a time; further ones are told so")
    evaluate_share: float = Field(
        default=0.05, ge=0, le=1, description="share of one core's time for evaluating a few subnets during the run; 0: none"
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address:
            host_and_port(address)
        return address


@dataclass(frozen=True, slots=True)
class MonitorSocket:
    """Where the monitor listens: the socket is the aggregator's, so the address stays while the monitor's process comes and goes."""

    socket: socket.socket
    host: str  # as the person wrote it
    at: tuple[str, int]  # address and port of the socket, known after it is closed, too

    @classmethod
    def listening(cls, host: str, port: int) -> "MonitorSocket":
        """Return a socket that listens at the address; port 0: at any port that is free.

        Raises:
            OSError, ValueError: nobody can.
        """
        listening = _listen(host, port)
        return cls(listening, host, listening.getsockname()[:2])

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.at[1]}/"

    @property
    def is_loopback(self) -> bool:
        """Whether only this computer can come in."""
        return ipaddress.ip_address(self.at[0]).is_loopback


def open_listener(asked: str | None, settings: MonitorSection) -> MonitorSocket | None:
    """Return where to listen: at ``asked``, else where the run file says; None: the run file wants no monitor.

    The usual address is nobody's choice: where it is taken, a free port is.

    Raises:
        UserError: it is no address, or one where nobody can listen.
    """
    address = settings.address if asked is None else asked
    if not address:
        return None
    try:
        host, port = host_and_port(address)
    except ValueError as error:
        raise UserError(f"--monitor {error}") from error  # that of the run file was checked when it was read
    try:
        return MonitorSocket.listening(host, port)
    except OSError as error:
        if asked is None and address == DEFAULT_ADDRESS:
            return MonitorSocket.listening(host, 0)
        reason = error.strerror if isinstance(error, socket.gaierror) or not error.errno else os.strerror(error.errno)
        raise _refused(asked, address, reason or "it cannot be looked up") from error
    except ValueError as error:  # an empty label, one of more than 63 bytes, a byte of no letter
        raise _refused(asked, address, f"{host!a} is no name of a computer") from error


def check_address(asked: str | None, settings: MonitorSection) -> None:
    """Refuse an address at which the monitor could not be; nothing stays open. The arguments are those of ``open_listener``.

    Raises:
        UserError: as ``open_listener``.
    """
    if (settings.address if asked is None else asked) == DEFAULT_ADDRESS:  # which may give way
        return
    monitor_socket = open_listener(asked, settings)
    if monitor_socket is not None:
        monitor_socket.socket.close()


def address_to_show(url: str, run: str) -> str:
    """Return the page's address as people are told it: the page then compares the run that it shows with what their terminal says."""
    return f"{url}#run={run[:_SHOWN_DIGITS]}"


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(found, family=family, backlog=_BACKLOG)


def _refused(asked: str | None, address: str, reason: str) -> UserError:
    shown = address if address.isprintable() else ascii(address)
    where = ", which is [monitor] address in the run file: write another there, or" if asked is None else ":"
    return UserError(f"cannot listen on {shown} ({reason}){where} give another --monitor HOST:PORT, or --no-monitor")
