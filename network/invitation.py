"""An invitation as people hand it on: a token, read from a file, or from the words of a flag. No network."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.protocol.admission import Admission, Invitation
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, SignatureError, UserError
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity

_PREFIX = "manta-invitation-"
_MAX_BYTES = 512
_MAX_LETTERS = len(_PREFIX) + -(-_MAX_BYTES * 4 // 3)


@dataclass(frozen=True, slots=True)
class Token:
    """What people hand on: an invitation and its secret."""

    invitation: Signed[Invitation]
    secret: bytes  # the seed of the invitation's key

    def __post_init__(self) -> None:
        check_digest(self.secret, "secret")

    def to_text(self) -> str:
        """Return the token as people hand it on: one word of letters, digits, dashes and underscores."""
        return _PREFIX + urlsafe_b64encode(pack(self)).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> "Token":
        """Return the token of ``to_text``'s word; nothing in it is checked yet.

        Raises:
            EncodingError: it is none.
        """
        if not text.startswith(_PREFIX) or len(text) > _MAX_LETTERS:
            raise EncodingError(f"it does not begin with {_PREFIX}, or is too long")
        code = text.removeprefix(_PREFIX)
        try:
            data = urlsafe_b64decode(code.encode("ascii") + b"=" * (-len(code) % 4))
        except (UnicodeEncodeError, binascii.Error) as error:
            raise EncodingError("it is letters, digits, dashes and underscores, and a part of it is missing") from error
        token = unpack(cls, data, max_bytes=_MAX_BYTES)
        if token.to_text() != text:
            raise EncodingError("it is written in another way than there is")
        return token

    def open(self) -> Invitation:
        """Return the invitation, its signature and its secret checked.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``, or the secret is another's.
        """
        invitation = self.invitation.open()
        if Identity(self.secret).public_key != invitation.key:
            raise SignatureError("the secret in it is another's")
        return invitation

    def admission(self, key: bytes) -> Signed[Admission]:
        """Return the admission of ``key``."""
        return Signed.sign(Admission(self.invitation, key), Identity(self.secret))


def read_invitation(told: str) -> Token:
    """Return the token that ``told`` is, or that the file of this name has; its signature and its secret are checked.

    Raises:
        UserError: it is none, or there is no such file.
    """
    text, where = told.strip(), "what was given"
    if not text.startswith(_PREFIX):
        path = Path(told).expanduser()
        where = str(path)
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_LETTERS + 64).decode("ascii").strip()
        except OSError as error:
            raise UserError(f"cannot read the invitation {path}: {error.strerror}; give its file, or its text") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} holds no invitation; give the file that manta-aggregator invite wrote, or its text") from error
    try:
        token = Token.from_text(text)
        token.open()
    except RemoteFault as error:
        raise UserError(f"{where} is no invitation ({error}); copy it whole, as it was sent to you") from error
    return token
