"""Entries of a log, opened: what each says, without checking signatures, and the same as plain values for JSON."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from protocol.admission import Admission, SignedAdmission
from protocol.audits import MAX_EXTRA_BYTES, Extra, Finding, SignedFinding
from protocol.encoding import unpack
from protocol.records import MAX_PAYLOAD_BYTES, Claim, Contribution, Logged, Round, SignedClaim, SignedContribution, open_entry
from protocol.revocation import Revocation, SignedRevocation

Said = Admission | Revocation | Claim | Contribution | Round | Extra


@dataclass(frozen=True, slots=True)
class Opened:
    """One entry."""

    kind: str
    said: Said
    record: Logged  # as it is stored: with a signature where it has one


def opened(entry: bytes) -> Opened:
    """Return what an entry says.

    Raises:
        EncodingError: it is no entry.
    """
    record = open_entry(entry)
    if isinstance(record, SignedAdmission):
        return Opened("admission", unpack(Admission, record.payload, max_bytes=MAX_PAYLOAD_BYTES), record)
    if isinstance(record, SignedRevocation):
        return Opened("revocation", unpack(Revocation, record.payload, max_bytes=MAX_PAYLOAD_BYTES), record)
    if isinstance(record, SignedClaim):
        return Opened("claim", unpack(Claim, record.payload, max_bytes=MAX_PAYLOAD_BYTES), record)
    if isinstance(record, SignedContribution):
        return Opened("contribution", unpack(Contribution, record.payload, max_bytes=MAX_PAYLOAD_BYTES), record)
    if isinstance(record, Round):
        return Opened("round", record, record)
    if isinstance(record, SignedFinding):
        return Opened("finding", unpack(Finding, record.payload, max_bytes=MAX_EXTRA_BYTES), record)


def fields(one: Opened) -> dict[str, Any]:
    """Return an entry's record with its fields' own names, bytes in hexadecimal; signature and digest among them where it has these."""
    plain: dict[str, Any] = _plain(one.said)
    if not isinstance(one.record, Round):
        plain |= {"digest": one.record.digest.hex(), "signature": one.record.signature.hex()}
    return plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
