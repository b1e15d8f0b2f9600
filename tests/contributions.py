"""What peers hand in and what the log makes of it, for tests: headers and rounds that may follow a ledger, unless they are changed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from protocol.ledger import Ledger, Listed, entries_of
from protocol.records import Claim, Contribution, Header, Round, SignedClaim, SignedContribution, entry_of
from protocol.signing import Identity, sha256
from protocol.table import table_root

PEERS = sorted((Identity(bytes([seed]) * 32) for seed in range(11, 19)), key=lambda peer: peer.public_key)


def header_of(
    ledger: Ledger,
    identity: Identity,
    *,
    round: int | None = None,
    lots: tuple[int, ...] = (2, 2),
    body: bytes | None = None,
    cohort: str = "here",
    **changes: Any,
) -> Header:
    """Return what a peer alone hands in.

    Args:
        round: the round after its base; None: the ledger's next one.
        lots: of each architecture.
        body: root over its body's groups; None: one that no other peer and no other base has.
        changes: of the claim; the contribution follows in what both say.
    """
    round = ledger.round + 1 if round is None else round
    claim = Claim(
        run=ledger.run,
        round=round,
        base=ledger.commit_at(round - 1) or sha256(b"a commit that this log does not have"),
        key=identity.public_key,
        founder=identity.public_key,
        cohort=cohort,
        local_steps=1,
        work=lots,
        lots_root=sha256(b"lots"),
        vector=sha256(b"vector"),
        residual=b"",
        lot_ms=10,
    )
    claim = replace(claim, **changes)
    signed = SignedClaim.sign(claim, identity)
    root = body or sha256(claim.key + claim.base)
    contribution = Contribution(claim.run, claim.round, claim.base, claim.founder, (signed.digest,), root, (b"",))
    return Header(SignedContribution.sign(contribution, identity), (signed,))


def with_contribution(header: Header, identity: Identity, **changes: Any) -> Header:
    """Return the header with the same claims and a changed contribution, signed by ``identity``."""
    return replace(header, contribution=SignedContribution.sign(replace(header.contribution.open(), **changes), identity))


def in_order(headers: Iterable[Header]) -> list[Header]:
    """Return headers in a table's order: by founder."""
    return sorted(headers, key=lambda header: header.contribution.open().founder)


def round_of(ledger: Ledger, listed: Sequence[Listed], **changes: Any) -> Round:
    """Return the round entry of a table of these, in its order; nobody is clipped, and the floor stays where it is."""
    number = ledger.round + 1
    round_ = Round(
        run=ledger.run,
        round=number,
        base=ledger.last_commit,
        table=table_root([one.row for one in listed]),
        rows=len(listed),
        mean=sha256(f"mean {number}".encode()),
        state=sha256(f"state {number}".encode()),
        counted=sum(one.counted for one in listed),
        thresholds=(),
        floor=ledger.floor_at(ledger.round),
        open_ms=ledger.next_open_ms(listed),
    )
    return replace(round_, **changes)


def commit(ledger: Ledger, headers: Iterable[Header], **changes: Any) -> list[bytes]:
    """Append the headers' contributions in a table's order and their round, with changes; return the entries."""
    table = in_order(headers)
    listed = [ledger.listed(header, ledger.round + 1) for header in table]
    entries = [*entries_of(table), entry_of(round_of(ledger, listed, **changes))]
    for entry in entries:
        ledger.append(entry)
    return entries
