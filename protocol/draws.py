"""Which contributions of a round are audited, and by whom: pure functions of the beacon, by SHA-256.

The *beacon* of a round is the digest of the commit after it: it did not exist when the round's contributions were logged. The rules and
their parameters follow from a model of what audits cost and what lying gains.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.verdicts import AuditRules

KNOWN_PERCENT = 50  # of what audits of unproven keys may cost, for keys that were found good before


@dataclass(frozen=True, slots=True)
class Candidate:
    """A contribution that may be drawn."""

    contribution: bytes  # its digest
    samples: int  # that an audit of it computes
    has_proven: bool  # one of its keys is proven
    is_known: bool  # each of its keys was found good before, since it was last demoted


def number(what: str, beacon: bytes, contribution: bytes) -> int:
    """Return a number below 2^64 that nobody could know before the beacon; its remainder by a much smaller one is as good as uniform."""
    return int.from_bytes(sha256(encode((what, beacon, contribution)))[:8], "big")


def auditor_of(beacon: bytes, contribution: bytes, keys: Sequence[bytes], named: Sequence[bytes]) -> bytes | None:
    """Return the named auditor whose word that a contribution of ``keys`` is good counts; None: each of them is one of these keys.

    ``named`` are in the order of their keys.
    """
    others = [key for key in named if key not in keys]
    return others[number("auditor", beacon, contribution) % len(others)] if others else None


def drawn(rules: AuditRules, beacon: bytes, candidates: Sequence[Candidate]) -> frozenset[bytes]:
    """Return the digests of those of a round's contributions that are audited.

    1. Of those with a proven key each with a probability of ``audit_percent``.
    2. Of the others, in an order that the beacon gives, as many as ``newcomer_percent`` of the samples of those with a proven key pay
       for; where there are none, of all samples. One that this pays in part is drawn with that probability. Half of it is for keys that
       were found good before: else a crowd of keys that never work would keep one that works from being looked at again.
    """
    with_proven = [each for each in candidates if each.has_proven]
    others = sorted((each for each in candidates if not each.has_proven), key=lambda each: number("order", beacon, each.contribution))
    found = {each.contribution for each in with_proven if number("audit", beacon, each.contribution) % 100 < rules.audit_percent}
    budget = rules.newcomer_percent * sum(each.samples for each in with_proven or others)  # in hundredths of a sample
    known = _paid_by(budget * KNOWN_PERCENT // 100, beacon, [each for each in others if each.is_known])
    budget -= sum(100 * each.samples for each in known)
    rest = _paid_by(budget, beacon, [each for each in others if each not in known])
    return frozenset(found.union(each.contribution for each in (*known, *rest)))


def _paid_by(budget: int, beacon: bytes, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return so many of these, in order, as a budget in hundredths of a sample pays for."""
    found = []
    for each in candidates:
        if budget <= 0:
            break
        cost = 100 * each.samples
        if number("part", beacon, each.contribution) % cost < budget:
            found.append(each)
        budget -= cost
    return found
