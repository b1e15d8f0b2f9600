"""An invitation as people hand it on: a token, read from a file, or from the words of a flag. No network."""

from dataclasses import dataclass

from protocol.admission import Admission, Invitation
from protocol.errors import RemoteFault, SignatureError, UserError
from protocol.fields import check_digest
from protocol.signed import Signed
from protocol.signing import Identity
from protocol.texts import max_letters, record_in, text_of
from swarm.told import text_or_file

_PREFIX = "manta-invitation-"
_MAX_BYTES = 512


@dataclass(frozen=True, slots=True)
class Token:
    """What people hand on: an invitation and its secret."""

    invitation: Signed[Invitation]
    secret: bytes  # the seed of the invitation's key

    def __post_init__(self) -> None:
        check_digest(self.secret, "secret")

    def to_text(self) -> str:
        """Return the token as people hand it on: one word of letters, digits, dashes and underscores."""
        return text_of(self, _PREFIX)

    @classmethod
    def from_text(cls, text: str) -> "Token":
        """Return the token of ``to_text``'s word; nothing in it is checked yet.

        Raises:
            EncodingError: it is none.
        """
        return record_in(cls, text, _PREFIX, _MAX_BYTES)

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
    source = "the file that manta-aggregator invite wrote"
    text, where = text_or_file(told, _PREFIX, max_letters(_PREFIX, _MAX_BYTES), what="invitation", source=source)
    try:
        token = Token.from_text(text)
        token.open()
    except RemoteFault as error:
        raise UserError(f"{where} is no invitation ({error}); copy it whole, as it was sent to you") from error
    return token
