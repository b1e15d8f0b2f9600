"""Entries of a log, opened: what each says, without checking signatures, and the same as plain values for JSON."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from protocol.admission import Admission, SignedAdmission
from protocol.encoding import unpack
from protocol.fields import Signed
from protocol.records import MAX_PAYLOAD_BYTES, Claim, Contribution, Header, Logged, Round, open_entry
from protocol.revocation import Revocation, SignedRevocation
from protocol.verdicts import MAX_VERDICT_BYTES, Settlement, SignedVerdict, Verdict
from protocol.verified import Verified

Said = Admission | Revocation | Contribution | Round | Verdict | Settlement


@dataclass(frozen=True, slots=True)
class Opened:
    """One entry."""

    kind: str
    said: Said
    record: Logged  # as it is stored: with a signature where it has one
    claims: tuple[Claim, ...] = ()  # of a contribution


def opened(entry: bytes, verified: Verified | None = None) -> Opened:
    """Return what an entry says; ``verified`` may know it, and what is inside.

    Raises:
        EncodingError: it is no entry.
    """
    record = open_entry(entry) if verified is None else verified.entry(entry)
    if isinstance(record, SignedAdmission):
        return Opened("admission", unpack(Admission, record.payload, max_bytes=MAX_PAYLOAD_BYTES), record)
    if isinstance(record, SignedRevocation):
        return Opened("revocation", unpack(Revocation, record.payload, max_bytes=MAX_PAYLOAD_BYTES), record)
    if isinstance(record, Header):
        if verified is None:
            return Opened("contribution", record.contribution.unchecked(), record, tuple(signed.unchecked() for signed in record.claims))
        return Opened("contribution", verified.contribution(record.contribution), record, tuple(map(verified.claim, record.claims)))
    if isinstance(record, SignedVerdict):
        return Opened("verdict", unpack(Verdict, record.payload, max_bytes=MAX_VERDICT_BYTES), record)
    return Opened("round" if isinstance(record, Round) else "settlement", record, record)


def fields(one: Opened) -> dict[str, Any]:
    """Return an entry's record with its fields' own names, bytes in hexadecimal; signature and digest among them where it has these.

    A contribution has its claims, not their digests alone.
    """
    plain: dict[str, Any] = _plain(one.said)
    if isinstance(one.record, Header):
        claims = [_plain(said) | _signed(signed) for said, signed in zip(one.claims, one.record.claims, strict=True)]
        return plain | {"claims": claims} | _signed(one.record.contribution)
    return plain if isinstance(one.record, Round | Settlement) else plain | _signed(one.record)


def _signed(record: Signed) -> dict[str, Any]:
    return {"digest": record.digest.hex(), "signature": record.signature.hex()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
