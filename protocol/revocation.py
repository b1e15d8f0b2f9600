"""Taking back what let keys into a run that not everybody may take part in: an operator's word, which the log keeps.

It is about a key, which is out from then on, for good; or about an invitation, which lets nobody in any more: those whom it let in stay.
What follows from it in the log is in ``protocol.admitted``.
"""

from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.fields import Signed, check_digest, require
from protocol.signing import Identity, verify

PEER, INVITED = "peer", "invitation"
TAKEN_BACK = "an operator of the run took this key's admission back"  # what is said of a key that is out
MAX_REVOCATION_BYTES = 256
MAX_PAGE = 256  # revocations in one answer
MAX_PAGE_BYTES = MAX_PAGE * (MAX_REVOCATION_BYTES + 96)


@dataclass(frozen=True, slots=True)
class Revocation:
    """What is taken back."""

    run: bytes
    operator: bytes  # who does
    what: str  # PEER or INVITED
    target: bytes  # the peer's key, or the digest of the SignedInvitation

    def __post_init__(self) -> None:
        for what in ("run", "operator", "target"):
            check_digest(getattr(self, what), what)
        require(self.what in (PEER, INVITED), f"a revocation is of a {PEER} or of an {INVITED}")


@dataclass(frozen=True, slots=True)
class SignedRevocation(Signed):
    """A revocation's bytes with its operator's signature: exactly what the log keeps."""

    def open(self) -> Revocation:
        """Return the revocation, its signature checked; whether that key is an operator's is the run's to say.

        Raises:
            EncodingError: the payload is none.
            SignatureError: its operator did not sign it.
        """
        revocation = unpack(Revocation, self.payload, max_bytes=MAX_REVOCATION_BYTES)
        verify("revocation", revocation.operator, self.payload, self.signature)
        return revocation

    @classmethod
    def sign(cls, revocation: Revocation, operator: Identity) -> "SignedRevocation":
        """Return ``revocation`` signed by its operator."""
        payload = pack(revocation)
        return cls(payload, operator.sign("revocation", payload))


@dataclass(frozen=True, slots=True)
class AskRevoked:
    """Asks the log for its revocations, but the first so many, which are known."""

    known: int

    def __post_init__(self) -> None:
        require(0 <= self.known < 2**31, "known out of range")


@dataclass(frozen=True, slots=True)
class Revoked:
    """The next ones, in the log's order; none where there are no more."""

    signed: tuple[SignedRevocation, ...]

    def __post_init__(self) -> None:
        require(len(self.signed) <= MAX_PAGE, f"at most {MAX_PAGE} revocations come at once")
