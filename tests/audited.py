"""A run whose audits count, for tests: claims over real lots' records, and findings that may stand in its log, unless they are changed."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from protocol.audits import AUDITED, HOLDS, LOT, WITHHELD, Finding, LotEvidence, SignedExtra, SignedFinding, Trust
from protocol.encoding import pack
from protocol.ledger import Ledger
from protocol.manifest import SignedManifest
from protocol.merkle import Tree, leaf_hash, root
from protocol.records import Header, LotRecord, SignedClaim, StepRecord, entry_of
from protocol.signing import Identity, sha256
from protocol.standing import Claimed
from protocol.trust import lots_audited
from tests.contributions import claim_of, in_order, listing, round_of
from tests.runs import EXCHANGE, FixedCourse, manifest_of

OPERATOR = Identity(b"operator".ljust(32, b"."))
SECOND, THIRD = (Identity(bytes([seed]) * 32) for seed in (31, 32))  # auditors that some runs name
TRUST = Trust(
    AUDITED,
    proven_samples=96,
    pending_rounds=8,
    kept_rounds=3,
    audit_percent=5,
    whole_percent=0,
    audit_pool_percent=10,
)
LOTS = 3


def audited_ledger(
    num_rounds: int = 40,
    max_rows: int = 8,
    operators: Sequence[Identity] = (OPERATOR,),
    local_steps: int = 1,
    **changes: Any,
) -> Ledger:
    """Return the ledger of a new run of OPERATOR's; ``changes`` of its trust."""
    manifest = manifest_of(
        OPERATOR,
        exchange=replace(EXCHANGE, max_rows=max_rows, local_steps=local_steps),
        num_rounds=num_rounds,
        trust=replace(TRUST, **changes),
        operators=tuple(each.public_key for each in operators),
        quorum=len(operators) // 2 + 1,
    )
    return Ledger(SignedManifest.sign(manifest, OPERATOR), FixedCourse())


def records_of(key: bytes, lots: int = LOTS, steps: int = 1) -> list[bytes]:
    """Return the packed records of a key's lots: one in each step, and the others in the last."""
    return [pack(LotRecord(min(index, steps - 1), index, "r32", 16, "1.5", bytes([index + 1]) * 32)) for index in range(lots)]


def steps_of(steps: int) -> tuple[StepRecord, ...]:
    """Return the records of a claim's steps, none where there is one; the weights before each are its number's, four times."""
    states = [sha256(struct.pack("<4f", *4 * (number,))) for number in range(steps)]
    return tuple(StepRecord(number, 16, state, sha256(b"v"), sha256(b"m")) for number, state in enumerate(states)) if steps > 1 else ()


def tree_of(key: bytes, lots: int = LOTS, steps: int = 1) -> Tree:
    """Return the tree over them."""
    tree = Tree()
    for record in records_of(key, lots, steps):
        tree.append(leaf_hash(record))
    return tree


def work_of(ledger: Ledger, peer: Identity, lots: int = LOTS, **changes: Any) -> SignedClaim:
    """Return a peer's claim over lots whose records are known."""
    steps = ledger.manifest.exchange.local_steps
    steps_root = root([leaf_hash(pack(step)) for step in steps_of(steps)]) if steps > 1 else b""
    lots_root = tree_of(peer.public_key, lots, steps).root()
    return claim_of(ledger, peer, lots=(lots, 0), lots_root=lots_root, steps_root=steps_root, **changes)


def works_of(ledger: Ledger, peers: Iterable[Identity], lots: int = LOTS, payout: bytes | None = None) -> list[Header]:
    """Return what peers hand in, each alone; their claims name ``payout``, if it is given."""
    named = {} if payout is None else {"payout": payout}
    return in_order(listing([work_of(ledger, peer, lots, **named)], peer) for peer in peers)


def go_on(
    ledger: Ledger, peers: Iterable[Identity], extras: Iterable[SignedExtra] = (), lots: int = LOTS, payout: bytes | None = None
) -> None:
    """Append extras, in their order, and a round in which all these peers worked."""
    before = sorted(extras, key=lambda extra: extra.digest)
    headers = works_of(ledger, peers, lots, payout)
    listed = [ledger.listed(header, ledger.round + 1) for header in headers]
    for entry in (*map(entry_of, before), *map(entry_of, headers), entry_of(round_of(ledger, listed, before=len(before)))):
        ledger.append(entry)


def claimed_of(ledger: Ledger, peer: Identity, round: int | None = None) -> Claimed:
    """Return a peer's claim in the table of a round, by default in the newest that may be audited."""
    table = ledger.standing.tables[ledger.round - 1 if round is None else round]
    return next(claimed for claimed in table.values() if claimed.key == peer.public_key)


def finding_of(
    ledger: Ledger, auditor: Identity, peer: Identity, outcome: str = HOLDS, *, round: int | None = None, **changes: Any
) -> SignedFinding:
    """Return what an auditor says of the lot of a peer's claim that the beacon chose."""
    claimed = claimed_of(ledger, peer, round)
    asked = ledger.standing.asked[claimed.round]
    (lot, *_) = lots_audited(ledger.manifest.trust, asked.beacon, claimed.digest, claimed.lots)
    proof = tuple(tree_of(peer.public_key, claimed.lots).inclusion_proof(lot, claimed.lots))
    evidence = (LotEvidence(records_of(peer.public_key, claimed.lots)[lot], proof),)
    is_withheld = outcome == WITHHELD
    finding = Finding(
        run=ledger.run,
        auditor=auditor.public_key,
        claim=claimed.digest,
        round=claimed.round,
        row=claimed.row,
        check=LOT,
        lot=lot,
        outcome=outcome,
        projection=b"" if is_withheld else b"p" * 32,
        evidence=() if is_withheld else evidence,
    )
    return SignedFinding.sign(replace(finding, **changes), auditor)
