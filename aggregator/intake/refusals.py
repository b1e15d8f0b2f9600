"""Why the log refuses a header or a body, counted by who brought it.

Where there are several operators, one passes on to the leader what peers brought it, and names the key that did. Nothing proves that name.
So what is refused then counts against that key only as brought by that operator: not where the key calls itself or comes by another
operator, and not against the operator, whom anybody may bring anything.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from manta_swarm.network.rates import CallerFaults
from manta_swarm.protocol.admission import TAKEN_BACK
from manta_swarm.protocol.closing import GONE, NotTaken
from manta_swarm.protocol.errors import ClaimError, EncodingError, LedgerError, RemoteFault, SignatureError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import MAX_SKIPPED, Claim, Header
from manta_swarm.protocol.rosters import claim_bytes
from manta_swarm.protocol.signing import PublicKey

_OTHER = "other"
_KEY_BYTES = 32
_INDEX_BYTES = 9  # of a microbatch that was left out, at most
_CONTRIBUTION_BYTES, _DIGEST_BYTES, _MEAN_BYTES = 512, 34, 44  # of a contribution: at most, for each claim, for each step
_passed_on_by: ContextVar[bytes] = ContextVar("passed_on_by", default=b"")  # of the call that is being answered; empty: nobody passed it on


class NotTheirs(RemoteFault):
    """A contribution or a body that another key than its members' brings."""


_REASONS: tuple[tuple[type[RemoteFault], str], ...] = (
    (EncodingError, "malformed"),
    (SignatureError, "signature"),
    (LedgerError, "not for this log"),
    (NotTheirs, "another's identity"),
)
REASONS = (*(reason for _, reason in _REASONS), _OTHER, *GONE)  # all that there are


@contextmanager
def passed_on_by(operator: PublicKey) -> Iterator[None]:
    """Say that the call that is answered inside of it came by way of an operator."""
    before = _passed_on_by.set(operator)
    try:
        yield
    finally:
        _passed_on_by.reset(before)


def bringer_of(caller: PublicKey) -> bytes:
    """Return what the faults of the call that is being answered are counted by: its caller's key, after that of who passed it on."""
    return _passed_on_by.get() + caller


def refused_of(faults: CallerFaults) -> dict[PublicKey, dict[str, int]]:
    """Return what was refused of keys that called themselves."""
    return {PublicKey(bringer): reasons for bringer, reasons in faults.by_key().items() if len(bringer) == _KEY_BYTES}


def is_too_much(faults: CallerFaults, caller: PublicKey) -> bool:
    """Return whether so much was refused of who brings this that it is not worth looking at."""
    return faults.is_too_much(bringer_of(caller))


@contextmanager
def noted(faults: CallerFaults, caller: PublicKey) -> Iterator[None]:
    """Count what is refused inside of it; that there is no place for something is nobody's fault."""
    try:
        yield
    except NotTaken:
        raise
    except RemoteFault as error:
        faults.note(bringer_of(caller), next((reason for kind, reason in _REASONS if isinstance(error, kind)), _OTHER))
        raise


def check_lengths(header: Header, local_steps: int) -> None:
    """Refuse what is longer than anything that a run of so many local steps has, before it is opened: what was opened is remembered.

    Raises:
        EncodingError: it is.
    """
    most = claim_bytes(local_steps) + local_steps * MAX_SKIPPED * _INDEX_BYTES
    if any(len(signed.payload) > most for signed in header.claims):
        raise EncodingError(f"a claim of more than {most} bytes in a run of {local_steps} local steps")
    most = _CONTRIBUTION_BYTES + len(header.claims) * _DIGEST_BYTES + local_steps * _MEAN_BYTES
    if len(header.contribution.payload) > most:
        raise EncodingError(f"a contribution of more than {most} bytes in a run of {local_steps} local steps")


def check_trusted(ledger: Ledger, header: Header, claims: Sequence[Claim]) -> None:
    """Refuse new work of keys that audits found guilty, or an operator took back; what has an inclusion promise is listed all the same.

    Where local steps are audited members' claims of that kind are listed, unpaid: the founder's key alone is looked at.

    Raises:
        ClaimError: there are some.
    """
    if ledger.manifest.audits_steps:
        founder = ledger.verified.contribution(header.contribution).founder
        claims = [claim for claim in claims if claim.key == founder]
    out = tuple(claim.key for claim in claims if claim.key in ledger.admitted.out)
    if out:
        raise ClaimError(TAKEN_BACK, out)
    guilty = tuple(claim.key for claim in claims if claim.key in ledger.reputation.guilty)
    if guilty:
        raise ClaimError("audits found this key guilty: its work counts no more in this run", guilty)
