"""Revoking a key's admission, or an invitation: an operator's signed word, which the log keeps.

A key is out from then on, for good. An invitation lets nobody in any more; those whom it let in stay. ``protocol.admitted`` has the rules.
"""

from dataclasses import dataclass
from typing import ClassVar

from manta_swarm.protocol.fields import check_digest, require
from manta_swarm.protocol.signed import Signed, Signing

PEER, INVITED = "peer", "invitation"
TAKEN_BACK = "an operator of the run took this key's admission back"  # what is said of a key that is out
MAX_REVOCATION_BYTES = 256
MAX_PAGE = 256  # revocations in one answer
MAX_PAGE_BYTES = MAX_PAGE * (MAX_REVOCATION_BYTES + 96)


@dataclass(frozen=True, slots=True)
class Revocation:
    """What is taken back."""

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
    """The next ones, in the log's order; none where there are no more."""

    signed: tuple[Signed[Revocation], ...]

    def __post_init__(self) -> None:
        require(len(self.signed) <= MAX_PAGE, f"at most {MAX_PAGE} revocations come at once")
