"""Records that decide who may take part in a run: the manifest's rule, invitations, admissions, and their revocation.

An operator signs an invitation, which names a public key of its own. Whoever has the secret half of that key lets keys in, each by an entry
of the log: so the log counts them, and nobody has to be asked. People hand on both, in one token (``network.invitation``). The log never
shows the secret, so who reads the log cannot use the places left. What the log's entries add up to is in ``protocol.admitted``.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_key, require
from manta_swarm.protocol.signed import Signed, Signing

OPEN, INVITATION, LIST = "open", "invitation", "list"
ADMISSIONS = (OPEN, INVITATION, LIST)
GUEST, MEMBER, PROVEN = "guest", "member", "proven"  # looks on and trains nothing; trains; trains, and is proven from the start
ACCESSES = (GUEST, MEMBER, PROVEN)
MAX_LISTED = 2048  # keys that a manifest lists
MAX_LET_IN = 2**20  # keys by one invitation
MAX_ADMISSION_BYTES = 1024
MAX_ADMISSION_PROOF_BYTES = 192

PEER, INVITED = "peer", "invitation"
TAKEN_BACK = "an operator of the run took this key's admission back"  # what is said of a key that is out
MAX_REVOCATION_BYTES = 256
MAX_PAGE = 256  # revocations in one answer
MAX_PAGE_BYTES = MAX_PAGE * (MAX_REVOCATION_BYTES + 96)


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """What a manifest says of who may take part; its operators always may."""

    how: str  # one of ADMISSIONS
    keys: tuple[bytes, ...] = ()  # of a list: those who may, in order

    def __post_init__(self) -> None:
        require(self.how in ADMISSIONS, f"admission must be one of {', '.join(ADMISSIONS)}")
        require(bool(self.keys) == (self.how == LIST), "keys are listed where admission is by a list, and only there")
        require(len(self.keys) <= MAX_LISTED, f"at most {MAX_LISTED} keys are listed")
        require(list(self.keys) == sorted(set(self.keys)), "the listed keys are sorted, each once")
        for key in self.keys:
            check_key(key, "a listed key")

    @property
    def is_open(self) -> bool:
        """Whether everybody may take part."""
        return self.how == OPEN


EVERYBODY = AdmissionRule(OPEN)


@dataclass(frozen=True, slots=True)
class Invitation:
    """An operator's word that lets a number of keys into a run."""

    signing: ClassVar[Signing] = Signing("invitation", MAX_ADMISSION_BYTES, by="operator")

    run: bytes
    operator: bytes  # who signs it
    key: bytes  # made for this invitation alone; it names it, and its secret half signs the admissions
    keys: int  # how many it lets in
    until_round: int  # they come in before this round is committed, and then stay
    access: str  # one of ACCESSES: what they may do

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_key(self.operator, "operator")
        check_key(self.key, "an invitation's key")
        require(1 <= self.keys <= MAX_LET_IN, f"an invitation lets in 1 to {MAX_LET_IN} keys")
        require(1 <= self.until_round <= MAX_ROUND, "until_round out of range")
        require(self.access in ACCESSES, f"access must be one of {', '.join(ACCESSES)}")


@dataclass(frozen=True, slots=True)
class Admission:
    """Lets one key in, by an invitation."""

    signing: ClassVar[Signing] = Signing("admission", MAX_ADMISSION_BYTES, by="signer")

    invitation: Signed[Invitation]
    key: bytes

    def __post_init__(self) -> None:
        check_key(self.key, "an admitted key")

    @property
    def signer(self) -> bytes:
        """The invitation's key, the invitation's own signature checked.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
        """
        return self.invitation.open().key


@dataclass(frozen=True, slots=True)
class AdmissionProof:
    """An operator's word to other peers, who have no copy of the log, that a key was admitted."""

    signing: ClassVar[Signing] = Signing("admission-proof", MAX_ADMISSION_PROOF_BYTES, by="operator")

    run: bytes
    operator: bytes  # who signs it
    key: bytes
    access: str  # one of ACCESSES

    def __post_init__(self) -> None:
        for what in ("run", "operator", "key"):
            check_digest(getattr(self, what), what)
        require(self.access in ACCESSES, f"access must be one of {', '.join(ACCESSES)}")


def access_shown(shown: Signed[AdmissionProof], run: bytes, key: bytes, operators: Collection[bytes]) -> str:
    """Return as what ``key`` was let into ``run``, whose ``operators`` are these, by the admission proof that it shows.

    Raises:
        EncodingError: it is no admission proof, or another key's, or for another run.
        SignatureError: none of them signed it.
    """
    found = shown.open()
    if (found.run, found.key) != (run, key):
        raise EncodingError("an admission proof for another key, or for another run")
    if found.operator not in operators:
        raise SignatureError("the signature of this admission proof is by no operator of the run")
    return found.access


@dataclass(frozen=True, slots=True)
class Revocation:
    """An operator's word that takes a key or an invitation back."""

    signing: ClassVar[Signing] = Signing("revocation", MAX_REVOCATION_BYTES, by="operator")

    run: bytes
    operator: bytes  # who does
    what: str  # PEER or INVITED
    target: bytes  # the peer's key, or the invitation's

    def __post_init__(self) -> None:
        for what in ("run", "operator", "target"):
            check_digest(getattr(self, what), what)
        require(self.what in (PEER, INVITED), f"a revocation is of a {PEER} or of an {INVITED}")


@dataclass(frozen=True, slots=True)
class AskRevoked:
    """Asks the log for its revocations, but the first so many, which are known."""

    known: int

    def __post_init__(self) -> None:
        require(0 <= self.known < 2**31, "known out of range")


@dataclass(frozen=True, slots=True)
class Revoked:
    """The answer to ``AskRevoked``: the next revocations, in the log's order; none where there are no more."""

    signed: tuple[Signed[Revocation], ...]

    def __post_init__(self) -> None:
        require(len(self.signed) <= MAX_PAGE, f"at most {MAX_PAGE} revocations come at once")
