"""Why the log refuses a header or a body, counted by the key that brought it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from protocol.closing import GONE, NotTaken
from protocol.errors import ClaimError, EncodingError, LedgerError, RemoteFault, SignatureError
from protocol.ledger import Ledger
from protocol.records import Claim
from protocol.revocation import TAKEN_BACK
from protocol.signing import PublicKey
from swarm.budget import Faults


class NotTheirs(RemoteFault):
    """A contribution or a body that another key than its members' brings."""


_REASONS: tuple[tuple[type[RemoteFault], str], ...] = (
    (EncodingError, "malformed"),
    (SignatureError, "signature"),
    (LedgerError, "not for this log"),
    (NotTheirs, "another's identity"),
)
_OTHER = "other"
REASONS = (*(reason for _, reason in _REASONS), _OTHER, *GONE)  # all that there are


@contextmanager
def noted(faults: Faults, caller: PublicKey) -> Iterator[None]:
    """Count what is refused inside of it; that there is no place for something is nobody's fault."""
    try:
        yield
    except NotTaken:
        raise
    except RemoteFault as error:
        faults.note(caller, next((reason for kind, reason in _REASONS if isinstance(error, kind)), _OTHER))
        raise


def check_trusted(ledger: Ledger, claims: Sequence[Claim]) -> None:
    """Refuse new work of keys that audits found guilty, or an operator took back; what has a ticket is listed all the same.

    Raises:
        ClaimError: there are some.
    """
    out = tuple(claim.key for claim in claims if ledger.admitted.is_out(claim.key))
    if out:
        raise ClaimError(TAKEN_BACK, out)
    guilty = tuple(claim.key for claim in claims if claim.key in ledger.standing.guilty)
    if guilty:
        raise ClaimError("audits found this key guilty: its work counts no more in this run", guilty)
