"""Where a program answers HTTP: an address that a person gave, perhaps with a certificate. What is wrong with either is said in a line."""

import os
import socket
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

from manta_swarm.protocol.errors import UserError


def host_and_port(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        ValueError: it is no such address.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and "/" not in host and port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 2**16):
        raise ValueError(f"{text!a} is no address: give HOST:PORT to listen on, as 127.0.0.1:8080; port 0 is a free one")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a program listens."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    flag: str = "--gateway"  # that it was given by

    @classmethod
    def at(cls, address: str, certificate: Path | None = None, key: Path | None = None, *, flag: str = "--gateway") -> "ListenAddress":
        """Return the listen address at ``HOST:PORT``, which a person gave by ``flag``.

        Raises:
            UserError: it is no such address, or one of certificate and key comes without the other.
        """
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise UserError(f"{flag} {error}") from error
        if (certificate is None) != (key is None):
            raise UserError("--gateway-cert and --gateway-key go together")
        return cls(host, port, certificate, key, flag)

    @property
    def address(self) -> str:
        """HOST:PORT, as ``at`` reads it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """What those who come are told: ``http://HOST:PORT/``, or https where there is a certificate."""
        return f"{'http' if self.certificate is None else 'https'}://{self.address}/"

    def listen(self) -> tuple[socket.socket, "ListenAddress"]:
        """Return a socket that listens there, and the listen address with the port that it has.

        Raises:
            UserError: nobody can listen there, or the certificate cannot be used.
        """
        self._check_certificate()
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((self.host, self.port), family=family)
        except UnicodeError as error:  # as Python says that no name of a host is so long, or has nothing between two dots
            raise self._closed("no such name can be") from error
        except OSError as error:  # a name's errors have numbers of their own
            raise self._closed(os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)) from error
        return listening, replace(self, port=listening.getsockname()[1])

    def _closed(self, reason: str) -> UserError:
        return UserError(f"cannot listen on {self.address} ({reason}): give another {self.flag} HOST:PORT, or stop what uses it")

    def _check_certificate(self) -> None:
        if self.certificate is None or self.key is None:
            return
        try:
            # A key with a passphrase is refused here: what reads it later would ask at the terminal, if there is one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise UserError(
                f"--gateway-cert {self.certificate}, --gateway-key {self.key}: {error}; "
                "give PEM files that belong together, the key without a passphrase"
            ) from error
