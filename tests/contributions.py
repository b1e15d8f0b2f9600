"""What peers hand in and what the log makes of it, for tests: headers and rounds that may follow a ledger, unless they are changed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed, open_ms_after, paid_once, weighed_in
from manta_swarm.protocol.records import Claim, Contribution, Header, Round, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.table import weights, weights_root
from tests.claim_steps import means_of, steps_of

PEERS = sorted((Identity(bytes([seed]) * 32) for seed in range(11, 19)), key=lambda peer: peer.public_key)


def claim_of(
    ledger: Ledger,
    identity: Identity,
    *,
    round: int | None = None,
    microbatches: tuple[int, ...] = (2, 2),
    cohort: str = "here",
    **changes: Any,
) -> Signed[Claim]:
    """Return a peer's claim, which names itself as the founder.

    Args:
        ledger: the claim may follow it.
        identity: the peer's.
        round: the round after its base; None: the ledger's next one.
        microbatches: of each architecture.
        cohort: the name that it claims.
        changes: of the claim.
    """
    round = ledger.round + 1 if round is None else round
    base = ledger.commit_at(round - 1) or sha256(b"a commit that this log does not have")
    steps = changes.get("steps") or steps_of(microbatches, base, identity.public_key, steps=ledger.manifest.exchange.local_steps)
    claim = Claim(
        run=ledger.run,
        round=round,
        base=base,
        key=identity.public_key,
        payout=identity.public_key,
        founder=identity.public_key,
        cohort=cohort,
        steps=steps,
        work=microbatches,
        given=sha256(b"given") if len(steps) == ledger.manifest.exchange.local_steps else b"",
        residual=b"",
        microbatch_ms=10,
    )
    return Signed.sign(replace(claim, **changes), identity)


def listing(claims: Iterable[Signed[Claim]], founder: Identity, *, body: bytes | None = None, left: bytes = b"") -> Header:
    """Return what a founder hands in of these claims; run and base are those of the first.

    Args:
        claims: in any order.
        founder: signs it, whomever the claims name.
        body: root over its body's groups; None: one that no other claims have.
        left: digest of the residual that it leaves; none if it is empty.
    """
    claimed = sorted(((signed.unchecked(), signed) for signed in claims), key=lambda each: each[0].key)
    opened, ordered = [claim for claim, _ in claimed], [signed for _, signed in claimed]
    first = opened[0]
    included = sum(1 << place for place, claim in enumerate(opened) if claim.given) or 1
    root = body or sha256(b"".join(claim.key for claim in opened) + first.base)
    contribution = Contribution(
        run=first.run,
        round=first.round,
        base=first.base,
        founder=founder.public_key,
        claims=tuple(signed.digest for signed in ordered),
        included=included,
        steps=means_of(opened),
        body=root,
        residual=left,
    )
    return Header(Signed.sign(contribution, founder), tuple(ordered))


def header_of(ledger: Ledger, identity: Identity, *, body: bytes | None = None, left: bytes = b"", **changes: Any) -> Header:
    """Return what a peer alone hands in: ``listing`` of its one claim, which is ``claim_of`` with changes."""
    return listing([claim_of(ledger, identity, **changes)], identity, body=body, left=left)


def cohort_header_of(
    ledger: Ledger, members: Sequence[Identity], *, body: bytes | None = None, left: bytes = b"", **changes: Any
) -> Header:
    """Return what a cohort hands in whose founder is the first of ``members``; the same changes in all of their claims."""
    claims = [claim_of(ledger, member, **{"founder": members[0].public_key, **changes}) for member in members]
    return listing(claims, members[0], body=body, left=left)


def with_contribution(header: Header, identity: Identity, **changes: Any) -> Header:
    """Return the header with the same claims and a changed contribution, signed by ``identity``."""
    return replace(header, contribution=Signed.sign(replace(header.contribution.unchecked(), **changes), identity))


def in_order(headers: Iterable[Header]) -> list[Header]:
    """Return headers in a table's order: by founder."""
    return sorted(headers, key=lambda header: header.contribution.unchecked().founder)


def round_of(ledger: Ledger, listed: Sequence[Listed], *, before: int = 0, **changes: Any) -> Round:
    """Return the round entry of a table of these, in its order; nobody is clipped, and the min exponent stays where it is.

    The ledger may have all of them already, or none; ``before`` is how many entries then come before them.
    """
    number, unclipped = ledger.round + 1, weights([one.weighing for one in listed])
    round_ = Round(
        run=ledger.run,
        round=number,
        base=ledger.last_commit,
        first=ledger.size - len(ledger._contents.listed) + before,
        contributions=len(listed),
        weights=weights_root(weighed_in(listed, unclipped, unclipped)),
        mean=sha256(f"mean {number}".encode()),
        state=sha256(f"state {number}".encode()),
        thresholds=(),
        min_exponent=ledger.min_exponent_at(ledger.round),
        open_ms=open_ms_after(ledger.manifest.exchange, ledger.open_ms, listed),
    )
    return replace(round_, **changes)


def commit(ledger: Ledger, headers: Iterable[Header], **changes: Any) -> list[bytes]:
    """Append the headers' contributions in a table's order and their round, with changes; return the entries."""
    table = in_order(headers)
    listed = paid_once([ledger.listed(header, ledger.round + 1) for header in table])
    entries = [*map(entry_of, table), entry_of(round_of(ledger, listed, **changes))]
    for entry in entries:
        ledger.append(entry)
    return entries
