"""Entries of a log, opened: what each says, without checking signatures, and the same as plain values for JSON."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.records import Claim, Contribution, Header, Logged, Round, kind_of, open_entry
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.protocol.verified import Verified

Said = Admission | Revocation | Contribution | Round | Verdict | Settlement


@dataclass(frozen=True, slots=True)
class Opened:
    """One entry of the log, opened."""

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
    kind = kind_of(record)
    if isinstance(record, Signed):
        return Opened(kind, record.unchecked(), record)
    if not isinstance(record, Header):
        return Opened(kind, record, record)
    if verified is None:
        return Opened(kind, record.contribution.unchecked(), record, tuple(signed.unchecked() for signed in record.claims))
    return Opened(kind, verified.contribution(record.contribution), record, tuple(map(verified.claim, record.claims)))


def fields(one: Opened) -> dict[str, Any]:
    """Return an entry's record with its fields' own names, bytes in hexadecimal; signature and digest among them where it has these.

    A contribution has its claims, not their digests alone.
    """
    plain: dict[str, Any] = _plain(one.said)
    if isinstance(one.record, Header):
        claims = [_plain(said) | _signed(signed) for said, signed in zip(one.claims, one.record.claims, strict=True)]
        return plain | {"claims": claims} | _signed(one.record.contribution)
    return plain if isinstance(one.record, Round | Settlement) else plain | _signed(one.record)


def _signed(record: Signed[Any]) -> dict[str, Any]:
    return {"digest": record.digest.hex(), "signature": record.signature.hex()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
