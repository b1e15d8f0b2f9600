"""The certificate that a program shows on its TLS links, and the TLS context that accepts one other certificate alone."""

import datetime
import ssl
import tempfile

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from manta_swarm.protocol.errors import EncodingError


class LinkCertificate:
    """A key that is made anew at each start of the program, and a self-signed certificate of it that names nobody."""

    def __init__(self) -> None:
        key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "manta")])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        builder = builder.not_valid_before(datetime.datetime(2000, 1, 1)).not_valid_after(datetime.datetime(9999, 12, 31))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        certificate = builder.sign(key, None)
        self.der = certificate.public_bytes(Encoding.DER)
        self._pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)

    def context(self, other: bytes, *, is_server: bool) -> ssl.SSLContext:
        """Return a context in which nothing but the certificate ``other`` (DER) is accepted.

        Raises:
            EncodingError: it is no certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate itself is known
        context.verify_mode = ssl.CERT_REQUIRED
        if is_server:
            context.num_tickets = 0  # no session is ever resumed
        with tempfile.NamedTemporaryFile() as file:  # mode 0600; ``ssl`` reads a key from nothing but a file
            file.write(self._pem)
            file.flush()
            context.load_cert_chain(file.name)
        try:
            context.load_verify_locations(cadata=other)
        except ssl.SSLError as error:
            raise EncodingError("a greeting with a certificate that is none") from error
        return context
