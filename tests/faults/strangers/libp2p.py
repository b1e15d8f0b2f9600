"""A small libp2p client: hundreds of keys in one process, each with a connection and streams that do what no honest program does.

It speaks TCP, multistream-select, TLS 1.3 with libp2p's certificate extension, and yamux. Whatever the other side opens is reset, what it
sends is kept, and it is never told that there is room for more: of a stream no more than 256 KiB are taken.
"""

import asyncio
import datetime
import secrets
import ssl
import struct
import tempfile
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

MULTISTREAM, TLS, YAMUX = b"/multistream/1.0.0", b"/tls/1.0.0", b"/yamux/1.0.0"
_HEADER = struct.Struct(">BBHII")  # of a frame: version, type, flags, stream, length
_DATA, _WINDOW, _PING, _GO_AWAY = range(4)
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")


def where(address: str) -> tuple[str, int]:
    """Return the host and the port of a multiaddress like ``/ip4/127.0.0.1/tcp/31000/p2p/12D3Koo...``."""
    parts = address.split("/")
    return parts[2], int(parts[4])


class Stream:
    """One stream of a connection."""

    def __init__(self, connection: "Connection", number: int) -> None:
        """Use ``Connection.stream``."""
        self._connection = connection
        self._number = number
        self.reader = asyncio.StreamReader()  # gives what the other side sends, and its end

    def write(self, data: bytes) -> None:
        """Send bytes, at most 256 KiB in all: the other side's word that it takes more is not looked at."""
        self._connection.send(_DATA, 0, self._number, data)

    def reset(self) -> None:
        """End the stream."""
        self._connection.send(_WINDOW, _RST, self._number)
        self._connection.streams.pop(self._number, None)

    @property
    def is_cut(self) -> bool:
        """Whether the other side has ended it."""
        return self.reader.at_eof() or self._number not in self._connection.streams


class Connection:
    """One connection of one new key."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use ``Connection.open``."""
        self._reader = reader
        self._writer = writer
        self._next = 1
        self.streams: dict[int, Stream] = {}
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> "Connection":
        """Connect under a key that nobody has seen before.

        Raises:
            OSError, EOFError: it is refused, or cut.
        """
        reader, writer = await asyncio.open_connection(host, port)
        try:
            await _select(reader, writer.write, TLS)
            await writer.start_tls(_context(Ed25519PrivateKey.generate()))
            if writer.get_extra_info("ssl_object").selected_alpn_protocol() != YAMUX.decode():
                await _select(reader, writer.write, YAMUX)
        except BaseException:
            writer.transport.abort()
            raise
        connection = cls(reader, writer)
        connection._reading = asyncio.create_task(connection._read())
        return connection

    @property
    def is_cut(self) -> bool:
        """Whether the other side has ended it."""
        return self._reading is None or self._reading.done()

    async def stream(self, protocol: str) -> Stream:
        """Open a stream of a protocol.

        Raises:
            OSError, EOFError: it is refused, or cut.
        """
        stream = Stream(self, self._next)
        self.streams[self._next] = stream
        self.send(_WINDOW, _SYN, self._next)
        self._next += 2
        await _select(stream.reader, stream.write, protocol.encode())
        return stream

    def close(self) -> None:
        """End the connection with all its streams."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.transport.abort()

    def send(self, kind: int, flags: int, number: int, data: bytes = b"", length: int | None = None) -> None:
        """Send a frame; ``length`` stands in its header where that does not count its data."""
        if not self._writer.transport.is_closing():
            self._writer.write(_HEADER.pack(0, kind, flags, number, len(data) if length is None else length) + data)

    async def _read(self) -> None:
        """Take what comes until the connection ends."""
        try:
            while True:
                _, kind, flags, number, length = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                data = await self._reader.readexactly(length) if kind == _DATA else b""
                if kind == _PING and flags & _SYN:
                    self.send(_PING, _ACK, 0, length=length)
                elif kind == _GO_AWAY:
                    return
                elif flags & _SYN:
                    self.send(_WINDOW, _RST, number)
                elif (stream := self.streams.get(number)) is not None:
                    stream.reader.feed_data(data)
                    if flags & (_FIN | _RST):
                        stream.reader.feed_eof()
                        self.streams.pop(number)
        except (OSError, EOFError):
            pass
        finally:
            for stream in self.streams.values():
                stream.reader.feed_eof()
            self._writer.transport.abort()


async def _select(reader: asyncio.StreamReader, write: Callable[[bytes], object], protocol: bytes) -> None:
    """Agree on a protocol by multistream-select, without waiting in between."""
    write(b"".join(bytes([len(line) + 1]) + line + b"\n" for line in (MULTISTREAM, protocol)))
    for line in (MULTISTREAM, protocol):
        (length,) = await reader.readexactly(1)
        if await reader.readexactly(length) != line + b"\n":
            raise ConnectionRefusedError(f"no {protocol.decode()} here")


def _context(key: Ed25519PrivateKey) -> ssl.SSLContext:
    """Return TLS as libp2p has it, with a certificate of ``key``'s node; whoever answers is not looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([YAMUX.decode(), "libp2p"])
    own = Ed25519PrivateKey.generate()
    spki = own.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public = b"\x08\x01\x12\x20" + key.public_key().public_bytes_raw()
    signature = key.sign(b"libp2p-tls-handshake:" + spki)
    inside = b"".join(bytes([0x04, len(each)]) + each for each in (public, signature))
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, own.public_key(), secrets.randbits(63))
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.UnrecognizedExtension(_EXTENSION, bytes([0x30, len(inside)]) + inside), critical=False)
        .sign(own, None)
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context
