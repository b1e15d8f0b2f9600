"""Who may take part in a run: everybody, whoever was invited, or those that its manifest lists; and the records of an invitation.

An invitation is signed by an operator, or by a key that the manifest trusts with it, and names a *holder's* key. Whoever can sign by that
key lets keys in, each by an entry of the log: so how many an invitation let in is what the log says, and nobody has to be asked. Where it
is for whoever holds it, the holder's secret key goes with it in a *token*; the log never shows that, so who reads the log can't use it.
What the log's entries add up to is in ``protocol.admitted``.
"""

from collections.abc import Collection
from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, SignatureError
from protocol.fields import MAX_ROUND, Signed, check_digest, require
from protocol.signing import Identity, check_public_key, verify, verify_one_of
from protocol.texts import max_letters, record_in, text_of

OPEN, INVITATION, LIST = "open", "invitation", "list"
ADMISSIONS = (OPEN, INVITATION, LIST)
MAX_LISTED = 2048  # keys that a manifest lists
MAX_INVITERS = 16  # that it trusts, beside the operators
MAX_LET_IN = 2**20  # keys by one invitation, or by one inviter
MAX_ADMISSION_BYTES = 1024
MAX_PASS_BYTES = 192
NUMBER_BYTES = 16

TOKEN = "manta-invitation-"
_MAX_TOKEN_BYTES = 512
MAX_TOKEN_LETTERS = max_letters(TOKEN, _MAX_TOKEN_BYTES)


def _check_key(key: bytes, what: str) -> None:
    try:
        check_public_key(key)
    except SignatureError as error:
        raise ValueError(f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class Inviter:
    """A key that may sign invitations though it is no operator's."""

    key: bytes
    keys: int  # that all its invitations together let in

    def __post_init__(self) -> None:
        _check_key(self.key, "an inviter's key")
        require(1 <= self.keys <= MAX_LET_IN, f"an inviter lets in 1 to {MAX_LET_IN} keys")


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """What a manifest says of who may take part; its operators always may."""

    how: str  # one of ADMISSIONS
    keys: tuple[bytes, ...] = ()  # of a list: those who may, in order
    inviters: tuple[Inviter, ...] = ()  # where keys are invited: who may sign for it beside the operators; they may take part

    def __post_init__(self) -> None:
        require(self.how in ADMISSIONS, f"admission must be one of {', '.join(ADMISSIONS)}")
        require(bool(self.keys) == (self.how == LIST), "keys are listed where admission is by a list, and only there")
        require(not self.inviters or self.how == INVITATION, "inviters are named where admission is by invitation only")
        require(
            len(self.keys) <= MAX_LISTED and len(self.inviters) <= MAX_INVITERS, "too many keys are listed, or trusted with invitations"
        )
        require(list(self.keys) == sorted(set(self.keys)), "the listed keys are sorted, each once")
        invited = [inviter.key for inviter in self.inviters]
        require(invited == sorted(set(invited)), "the inviters are sorted by key, each once")
        for key in self.keys:
            _check_key(key, "a listed key")

    @property
    def is_open(self) -> bool:
        """Whether everybody may take part."""
        return self.how == OPEN


EVERYBODY = AdmissionRule(OPEN)


@dataclass(frozen=True, slots=True)
class Invitation:
    """What lets a number of keys into a run, by the word of its holder."""

    run: bytes
    issuer: bytes  # an operator's key, or an inviter's
    holder: bytes  # the key that signs for those who come in
    keys: int  # so many
    until_round: int  # they come in before this round is committed, and then stay
    number: bytes  # drawn at random: so two invitations are two

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        _check_key(self.issuer, "issuer")
        _check_key(self.holder, "holder")
        require(1 <= self.keys <= MAX_LET_IN, f"an invitation lets in 1 to {MAX_LET_IN} keys")
        require(1 <= self.until_round <= MAX_ROUND, "until_round out of range")
        require(len(self.number) == NUMBER_BYTES, f"an invitation's number has {NUMBER_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class SignedInvitation(Signed):
    """An invitation's bytes with its issuer's signature."""

    def read(self) -> Invitation:
        """Return the invitation; its signature is not looked at.

        Raises:
            EncodingError: the payload is none.
        """
        return unpack(Invitation, self.payload, max_bytes=MAX_ADMISSION_BYTES)

    def open(self) -> Invitation:
        """Return the invitation, its issuer's signature checked; whether that key may invite is the run's to say.

        Raises:
            EncodingError: the payload is none.
            SignatureError: the issuer did not sign it.
        """
        invitation = self.read()
        verify("invitation", invitation.issuer, self.payload, self.signature)
        return invitation

    @classmethod
    def sign(cls, invitation: Invitation, issuer: Identity) -> "SignedInvitation":
        """Return ``invitation`` signed by its issuer."""
        payload = pack(invitation)
        return cls(payload, issuer.sign("invitation", payload))


@dataclass(frozen=True, slots=True)
class Admission:
    """One key's coming in, by an invitation."""

    invitation: SignedInvitation
    key: bytes

    def __post_init__(self) -> None:
        _check_key(self.key, "an admitted key")


@dataclass(frozen=True, slots=True)
class SignedAdmission(Signed):
    """An admission's bytes with the signature of the invitation's holder: exactly what the log keeps."""

    def open(self) -> tuple[Admission, Invitation]:
        """Return the admission and its invitation, both signatures checked.

        Raises:
            EncodingError: the payload is none.
            SignatureError: the holder did not sign the one, or the issuer not the other.
        """
        admission = unpack(Admission, self.payload, max_bytes=MAX_ADMISSION_BYTES)
        invitation = admission.invitation.open()
        verify("admission", invitation.holder, self.payload, self.signature)
        return admission, invitation

    @classmethod
    def sign(cls, admission: Admission, holder: Identity) -> "SignedAdmission":
        """Return ``admission`` signed by the holder of its invitation."""
        payload = pack(admission)
        return cls(payload, holder.sign("admission", payload))


@dataclass(frozen=True, slots=True)
class Pass:
    """The log's word to other peers that a key was admitted: they have no copy of the log."""

    run: bytes
    key: bytes

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.key, "key")


@dataclass(frozen=True, slots=True)
class SignedPass(Signed):
    """A pass's bytes with an operator's signature."""

    def check(self, run: bytes, key: bytes, operators: Collection[bytes]) -> None:
        """Check that one of the run's ``operators`` says that ``key`` was let into ``run``.

        Raises:
            EncodingError: it is no pass, or another key's, or for another run.
            SignatureError: none of them signed it.
        """
        found = unpack(Pass, self.payload, max_bytes=MAX_PASS_BYTES)
        if (found.run, found.key) != (run, key):
            raise EncodingError("a pass for another key, or for another run")
        verify_one_of("pass", operators, self.payload, self.signature)

    @classmethod
    def sign(cls, run: bytes, key: bytes, operator: Identity) -> "SignedPass":
        """Return the pass of ``key``."""
        payload = pack(Pass(run, key))
        return cls(payload, operator.sign("pass", payload))


@dataclass(frozen=True, slots=True)
class Token:
    """What a volunteer is given: an invitation and, where it is for whoever holds it, the secret half of the holder's key."""

    invitation: SignedInvitation
    secret: bytes  # 32 bytes; empty where the holder is the volunteer's own key

    def __post_init__(self) -> None:
        require(len(self.secret) in (0, 32), "a token's secret has 32 bytes, or none")

    def to_text(self) -> str:
        """Return the token as people hand it on: one word of letters, digits, dashes and underscores."""
        return text_of(self, TOKEN)

    @classmethod
    def from_text(cls, text: str) -> "Token":
        """Return the token of ``to_text``'s word; its signature is not looked at.

        Raises:
            EncodingError: it is none.
        """
        return record_in(cls, text, TOKEN, _MAX_TOKEN_BYTES)

    def admission(self, own: Identity) -> SignedAdmission:
        """Return the admission of ``own``'s key.

        Raises:
            EncodingError: the payload is no invitation.
            SignatureError: the token is for another key than ``own``'s, or its secret is another's.
        """
        holder = Identity(self.secret) if self.secret else own
        if holder.public_key != self.invitation.read().holder:
            raise SignatureError("the invitation is for another key" if not self.secret else "the secret in it is another's")
        return SignedAdmission.sign(Admission(self.invitation, own.public_key), holder)
