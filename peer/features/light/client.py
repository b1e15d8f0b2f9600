"""A light contributor's side of HTTP: requests to one of its gateways, bounded in time and size, by the standard library alone.

Answers are checked here as far as they can be without knowing what was asked for: by digest, by signature, by form.
"""

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Protocol

from manta_swarm.network.light_pay import MAX_PAY_BYTES, PAY, LightPay
from manta_swarm.network.traffic import PIECE_BYTES
from manta_swarm.peer.config import GatewayUrl
from manta_swarm.protocol.admission import AdmissionProof
from manta_swarm.protocol.encoding import Record, pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable
from manta_swarm.protocol.light import (
    BLOBS,
    LEASES,
    MAX_LEASE_BYTES,
    MAX_SIGNED_PROOF_BYTES,
    MAX_WELCOME_BYTES,
    MAX_WORD_BYTES,
    PASSES,
    RETURNS,
    WELCOME,
    WORDS,
    EnterRequest,
    LeaseAnswer,
    LeaseRequest,
    LightReturn,
    LightWord,
    Welcome,
)
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import peer_name, sha256

_SHORT_S = 30.0  # for a request whose answer is short; a lease waits for its samples to be read
_LONG_S = 120.0  # weights, samples, and what came of them: 5 MB over a line of 0.4 Mbit/s
_SILENCE_S = 30.0  # without a byte
_MAX_REASON_BYTES = 500


class NotKnown(RemoteFault):
    """The gateway knows nothing of what was asked for; it may have been started again."""


class NotLetIn(RemoteFault):
    """The run does not let this key in, as the gateway says."""


class Meter(Protocol):
    """Counts what is sent and received, and holds it back (``peer.features.light.work_gate``)."""

    def send(self, num_bytes: int) -> None:
        """Wait until so many bytes may be sent."""

    def receive(self, num_bytes: int) -> None:
        """Wait until so many bytes more may be received."""


class GatewayClient:
    """Requests to the gateways that a person named: to one of them, as long as it answers."""

    def __init__(self, gateways: Sequence[GatewayUrl], meter: Meter | None = None) -> None:
        """Begin with the first; ``meter`` is told of contents, both ways."""
        self._meter = meter
        self._gateways = tuple(gateways)
        self._number = 0
        self.bytes_down = self.bytes_up = 0  # of contents

    @property
    def gateway(self) -> GatewayUrl:
        """The gateway that is asked."""
        return self._gateways[self._number % len(self._gateways)]

    def turn(self) -> bool:
        """Ask the next gateway from now on; return whether that is another one."""
        self._number += 1
        return len(self._gateways) > 1

    def welcome(self) -> Welcome:
        """Return what the gateway says of itself; it is who the person meant, its manifest is not checked here.

        Raises:
            Unreachable: it does not answer.
            RemoteFault: it is no gateway, or another one than was meant.
        """
        welcome = self._record(Welcome, WELCOME, None, MAX_WELCOME_BYTES)
        if self.gateway.name not in ("", peer_name(welcome.gateway)):
            raise RemoteFault(f"{self.gateway.url} is {peer_name(welcome.gateway)}, not {self.gateway.name}")
        return welcome

    def enter(self, request: EnterRequest) -> Signed[AdmissionProof]:
        """Return the admission proof of a key that shows what lets it in; it is not checked here.

        Raises:
            NotLetIn: nothing does.
            Unreachable, RemoteFault: see ``welcome``; or the gateway reaches no log.
        """
        return self._record(Signed[AdmissionProof], PASSES, pack(request), MAX_SIGNED_PROOF_BYTES)

    def lease(self, request: Signed[LeaseRequest]) -> LeaseAnswer:
        """Return the gateway's answer to a request for work.

        Raises:
            Unreachable, RemoteFault: see ``welcome``.
        """
        return self._record(LeaseAnswer, LEASES, pack(request), MAX_LEASE_BYTES)

    def blob(self, digest: bytes, size: int) -> bytes:
        """Return what has this digest and size.

        Raises:
            NotKnown: the gateway has it no more.
            Unreachable, RemoteFault: see ``welcome``, or it is something else.
        """
        data = self._request(f"{BLOBS}/{digest.hex()}", None, size, _LONG_S)
        if len(data) != size or sha256(data) != digest:
            raise EncodingError("other bytes than the lease names")
        return data

    def give_back(self, back: LightReturn) -> LightWord:
        """Bring what came of a lease, and return what the gateway says to it.

        Raises:
            Unreachable, RemoteFault: see ``welcome``.
        """
        return self._record(LightWord, RETURNS, pack(back), MAX_WORD_BYTES, _LONG_S)

    def word(self, name: bytes) -> LightWord:
        """Return what became of a return.

        Raises:
            NotKnown: the gateway knows nothing of it.
            Unreachable, RemoteFault: see ``welcome``.
        """
        return self._record(LightWord, f"{WORDS}/{name.hex()}", None, MAX_WORD_BYTES)

    def pay(self, contribution: bytes, key: bytes) -> LightPay:
        """Return what a round paid for a key's claim in a contribution, and what the log says of it; nothing of it is proven yet.

        Raises:
            NotKnown: no round counted it yet, as far as the gateway knows.
            Unreachable, RemoteFault: see ``welcome``.
        """
        return self._record(LightPay, f"{PAY}/{contribution.hex()}/{key.hex()}", None, MAX_PAY_BYTES)

    def _record(self, kind: type[Record], path: str, data: bytes | None, max_bytes: int, timeout_s: float = _SHORT_S) -> Record:
        return unpack(kind, self._request(path, data, max_bytes, timeout_s), max_bytes=max_bytes)

    def _request(self, path: str, data: bytes | None, max_bytes: int, timeout_s: float) -> bytes:
        method = "GET" if data is None else "POST"
        headers = {"Content-Type": "application/octet-stream", "User-Agent": "manta-light"}
        if data is not None:
            headers["Content-Length"] = str(len(data))  # its pieces don't say it
        request = urllib.request.Request(self.gateway.url + path, None if data is None else self._pieces(data), headers, method=method)
        until_s = time.monotonic() + timeout_s
        try:
            with urllib.request.urlopen(request, timeout=min(_SILENCE_S, timeout_s)) as response:
                content = self._read(response, max_bytes, until_s)
        except urllib.error.HTTPError as error:
            with error:
                reason = _reason(error)
            if error.code == 404:
                raise NotKnown(reason) from error
            if error.code == 403:
                raise NotLetIn(reason.removeprefix("HTTP 403 ")) from error
            if error.code in (408, 429, 500, 502, 503, 504):  # it is busy, or its proxy finds nobody
                raise Unreachable(f"{self.gateway.url}: {reason}") from error
            raise RemoteFault(f"{self.gateway.url}: {reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(f"no answer from {self.gateway.url}: {_in_words(error)}") from error
        self.bytes_down += len(content)
        self.bytes_up += len(data or b"")
        return content

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if self._meter is not None:
                self._meter.send(len(piece))
            yield piece

    def _read(self, response: object, max_bytes: int, until_s: float) -> bytes:
        parts, size = [], 0
        while part := response.read1(PIECE_BYTES):  # type: ignore[attr-defined]
            size += len(part)
            if size > max_bytes:
                raise EncodingError(f"an answer of more than {max_bytes} bytes")
            if self._meter is not None:
                self._meter.receive(len(part))
            if time.monotonic() > until_s:
                raise TimeoutError("too slow")
            parts.append(part)
        return b"".join(parts)


def _reason(error: urllib.error.HTTPError) -> str:
    """Return what an answer that is none says, in one line that can be shown."""
    try:
        text = error.read(_MAX_REASON_BYTES).decode(errors="replace")
    except OSError:
        text = ""
    line = "".join(character for character in text if character.isprintable()).strip()
    return f"HTTP {error.code} {line}".strip()


def _in_words(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)
