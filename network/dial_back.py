"""One call back to a node's port: is there somebody, and is it the node that was meant?

libp2p itself cannot tell: asked to connect to a peer that is connected already, it does nothing. So this opens a TCP connection of its
own, agrees on TLS as libp2p does, and looks at the certificate, in which the node signs that the connection's key is its own (libp2p's
specifications of multistream-select and of TLS, "handshake protocol" and "libp2p public key extension"). A router that leads the port to
another computer, even to another node, is so found out. Nothing is said beyond the handshake.
"""

import asyncio
import ssl

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from manta_swarm.network import timeouts
from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.signing import PublicKey, public_key_of

_PROTOCOLS = (b"/multistream/1.0.0", b"/tls/1.0.0")
_MAX_LINE_BYTES = 127  # so that its length is one byte; what is expected is shorter
_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED_PREFIX = b"libp2p-tls-handshake:"
_IDENTITY_MULTIHASH = b"\x00\x24"  # before libp2p's protobuf of an Ed25519 key it makes the node's peer id


async def is_there(key: PublicKey, host: str, port: int) -> bool:
    """Return whether the node ``key`` answers a new connection to ``host``, an IP address, and ``port``."""
    try:
        async with asyncio.timeout(timeouts.DIAL_BACK_S):
            return await _certificate(host, port, key)
    except (OSError, TimeoutError, EncodingError, asyncio.IncompleteReadError):
        return False


async def _certificate(host: str, port: int, key: PublicKey) -> bool:
    reader, writer = await asyncio.open_connection(host, port, limit=4096)
    try:
        writer.write(b"".join(map(_line, _PROTOCOLS)))
        for protocol in _PROTOCOLS:
            if await _read_line(reader) != protocol:
                raise EncodingError("something else listens there")
        await writer.start_tls(_context())
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return der is not None and signer_of(der) == key
    finally:
        writer.transport.abort()


def _line(protocol: bytes) -> bytes:
    return bytes([len(protocol) + 1]) + protocol + b"\n"


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    (length,) = await reader.readexactly(1)
    if not 0 < length <= _MAX_LINE_BYTES:
        raise EncodingError("no line of multistream-select")
    return (await reader.readexactly(length)).removesuffix(b"\n")


def _context() -> ssl.SSLContext:
    """Return TLS as libp2p has it: 1.3, and certificates that say who they are by an extension of its own, not by an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["libp2p"])
    return context


def signer_of(der: bytes) -> PublicKey:
    """Return the Ed25519 key of the node that made a certificate, its signature checked.

    Raises:
        EncodingError: it is no certificate of such a node.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        extension = certificate.extensions.get_extension_for_oid(_EXTENSION).value
        public, signature = _octet_strings(extension.public_bytes())
        key = public_key_of(_IDENTITY_MULTIHASH + public)
        own = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _SIGNED_PREFIX + own)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, SignatureError, InvalidSignature) as error:
        raise EncodingError("no certificate of a libp2p node with an Ed25519 key") from error
    return key


def _octet_strings(der: bytes) -> tuple[bytes, bytes]:
    """Return the two octet strings of an ASN.1 sequence of just these; all are short enough for lengths of one byte.

    Raises:
        EncodingError: it is something else.
    """

    def content(tag: int, rest: bytes) -> tuple[bytes, bytes]:
        if len(rest) < 2 or rest[0] != tag or rest[1] > min(len(rest) - 2, 0x7F):
            raise EncodingError("not the ASN.1 of a key and its signature")
        return rest[2 : 2 + rest[1]], rest[2 + rest[1] :]

    inside, behind = content(0x30, der)
    public, rest = content(0x04, inside)
    signature, more = content(0x04, rest)
    if behind or more:
        raise EncodingError("more than a key and its signature")
    return public, signature
