"""A run whose contributions are audited, for tests: rounds of peers, and verdicts that may stand in its log, unless they are changed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.reputation import Audit
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import AuditRules, Outcome, Settlement, Verdict
from tests.contributions import header_of, in_order, round_of
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

OPERATOR = Identity(b"operator".ljust(32, b"."))
AUDITORS = tuple(sorted((Identity(bytes([seed]) * 32) for seed in (31, 32, 33, 34)), key=lambda auditor: auditor.public_key))
AUDITOR = AUDITORS[0]
RULES = AuditRules(
    named=(AUDITOR.public_key,), proven_after=2, audit_percent=100, newcomer_percent=100, kept_rounds=3, pending_rounds=6, pool_percent=10
)


def audited_ledger(
    num_rounds: int = 40,
    max_rows: int = 8,
    operators: Sequence[Identity] = (OPERATOR,),
    local_steps: int = 1,
    auditors: int = 1,
    proven: Sequence[Identity] = (),
    **changes: Any,
) -> Ledger:
    """Return the ledger of a new run of OPERATOR's, which names so many of ``AUDITORS``; ``changes`` of its rules of audits."""
    named = tuple(auditor.public_key for auditor in AUDITORS[:auditors])
    keys = tuple(sorted(peer.public_key for peer in proven))
    manifest = manifest_of(
        OPERATOR,
        exchange=replace(EXCHANGE, max_rows=max_rows, local_steps=local_steps),
        num_rounds=num_rounds,
        audits=(replace(RULES, named=named, proven=keys, **changes),),
        operators=tuple(each.public_key for each in operators),
        quorum=len(operators) // 2 + 1,
    )
    return Ledger(SignedManifest.sign(manifest, OPERATOR), FixedTrainingSpec())


def works_of(ledger: Ledger, peers: Iterable[Identity], payout: bytes | None = None) -> list[Header]:
    """Return what peers hand in, each alone; their claims name ``payout``, if it is given."""
    named = {} if payout is None else {"payout": payout}
    return in_order(header_of(ledger, peer, **named) for peer in peers)


def go_on(ledger: Ledger, peers: Iterable[Identity], verdicts: Iterable[Signed[Verdict]] = (), payout: bytes | None = None) -> None:
    """Append verdicts, in their order, and a round in which all these peers worked."""
    hand_in(ledger, works_of(ledger, peers, payout), verdicts)


def hand_in(ledger: Ledger, headers: Iterable[Header], verdicts: Iterable[Signed[Verdict]] = ()) -> None:
    """Append verdicts, in their order, and a round of these."""
    before, table = sorted(verdicts, key=lambda verdict: verdict.digest), in_order(headers)
    listed = [ledger.listed(header, ledger.round + 1) for header in table]
    for entry in (*map(entry_of, before), *map(entry_of, table), entry_of(round_of(ledger, listed, before=len(before)))):
        ledger.append(entry)


def settle(ledger: Ledger, verdicts: Iterable[Signed[Verdict]] = ()) -> None:
    """Append verdicts, in their order, and the settlement."""
    for verdict in sorted(verdicts, key=lambda verdict: verdict.digest):
        ledger.append(entry_of(verdict))
    ledger.append(entry_of(Settlement(ledger.run, ledger.last_commit)))


def audit_of(ledger: Ledger, peer: Identity, round: int | None = None) -> Audit:
    """Return the audit of what lists a peer's claim in a round, by default in the newest that is audited."""
    of_round = ledger.round - 1 if round is None else round
    return next(audit for audit in ledger.reputation.audits.values() if audit.round == of_round and peer.public_key in audit.work.keys)


def verdict_of(
    ledger: Ledger,
    peer: Identity,
    *outcomes: Outcome,
    auditor: Identity = AUDITOR,
    round: int | None = None,
    **changes: Any,
) -> Signed[Verdict]:
    """Return what an auditor says of what lists a peer's claim: of each claim an outcome, by default that all are good."""
    audit = audit_of(ledger, peer, round)
    said = tuple(map(int, outcomes or (Outcome.GOOD,) * len(audit.work.keys)))
    verdict = Verdict(ledger.run, auditor.public_key, audit.round, audit.work.contribution, said, auditor.public_key)
    return Signed.sign(replace(verdict, **changes), auditor)
