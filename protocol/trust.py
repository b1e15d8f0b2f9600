"""Whom audits ask about what, and what their findings come to: pure functions of the log, by SHA-256 of what nobody knew before.

The *beacon* of a table is the digest of the commit after the table's own: it did not exist when its claims were logged. It says which lots
of a claim are computed again, whether all of them are, and in what order auditors are asked. Who is proven, and what is taken from whom, is
``protocol.standing``'s; nothing here knows a gradient.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.audits import DIFFERS, HOLDS, LOT, PATIENCE, WHOLE, WITHHELD, Finding, Trust
from protocol.encoding import encode, unpack
from protocol.errors import EncodingError, LedgerError, ProofError
from protocol.merkle import leaf_hash, verify_inclusion
from protocol.records import LotRecord
from protocol.signing import sha256

SEATS = 3  # of auditors that the run names, and as many again of proven keys
_WORD = 2**64


@dataclass(frozen=True, slots=True, order=True)
class Question:
    """What can be found of one claim."""

    claim: bytes  # SignedClaim.digest
    check: str  # one of CHECKS
    lot: int  # as ``Finding.lot``


@dataclass(frozen=True, slots=True)
class Vote:
    """One auditor's answer to a question."""

    auditor: bytes
    outcome: str
    round: int  # with whose entry it took effect
    is_named: bool  # the manifest names the auditor: an operator, or one that audits for them

    @property
    def is_against(self) -> bool:
        """Whether it speaks against the claim."""
        return self.outcome != HOLDS


@dataclass(frozen=True, slots=True)
class Decision:
    """What a question came to."""

    outcome: str  # one of OUTCOMES
    outvoted: tuple[bytes, ...]  # auditors that said otherwise


def drawn(what: str, beacon: bytes, claim: bytes, at: int) -> int:
    """Return a number below 2^64 that nobody could know before the beacon; its remainder by a much smaller one is as good as uniform."""
    return int.from_bytes(sha256(encode((what, beacon, claim, at)))[:8], "big") % _WORD


def lots_audited(trust: Trust, beacon: bytes, claim: bytes, lots: int) -> tuple[int, ...]:
    """Return the places of the lots of a claim that are computed again, ascending; ``lots`` is how many it has."""
    wanted, found, at = min(trust.audit_lots, lots), set[int](), 0
    while len(found) < wanted:
        found.add(drawn("audited lot", beacon, claim, at) % lots)
        at += 1
    return tuple(sorted(found))


def percent_audited(trust: Trust, is_proven: bool, samples: int) -> int:
    """Return how likely a claim of a key is audited, of 100: always while it is not proven, then less with ``samples`` found good."""
    if not is_proven:
        return 100
    return max(trust.audit_percent, 100 * trust.proven_samples // max(samples, trust.proven_samples))


def questions_due(trust: Trust, beacon: bytes, claim: bytes, lots: int, percent: int) -> tuple[Question, ...]:
    """Return what has to be found out of a claim of ``lots`` lots, of which ``percent`` of 100 are audited; often nothing."""
    if drawn("audit", beacon, claim, 0) % 100 >= percent:
        return ()
    asked = [Question(claim, LOT, lot) for lot in lots_audited(trust, beacon, claim, lots)]
    if is_whole(trust, beacon, claim):
        asked.append(Question(claim, WHOLE, 0))
    return tuple(asked)


def is_whole(trust: Trust, beacon: bytes, claim: bytes) -> bool:
    """Return whether all lots of a claim are computed again, if it is audited."""
    return drawn("whole audit", beacon, claim, 0) % 100 < trust.whole_percent


def panel(beacon: bytes, claim: bytes, named: Sequence[bytes], proven: Sequence[bytes], mates: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the auditors whose findings on a claim count, in order: those drawn of the named, then those of the proven keys.

    It takes a few draws, however many keys are proven.

    Args:
        beacon: of the claim's table.
        claim: its digest.
        named: sorted: operators and the manifest's auditors, as far as they may audit.
        proven: sorted: proven keys that may audit, and are not named.
        mates: keys of the contribution that lists the claim, which have no say in it.
    """
    return *_seated("named auditor", beacon, claim, named, mates), *_seated("auditor", beacon, claim, proven, mates)


def decided(votes: Sequence[Vote], num_named: int, round: int) -> Decision | None:
    """Return what a question's answers come to by the entry of ``round``; None: nothing yet, or nothing at all.

    Those that the run names decide, if any of them has spoken: two that agree, or one where there is one only. An accusation waits
    ``PATIENCE`` rounds for others; then the majority of the named stands, or, where none of them spoke, that of two proven ones at
    least. A claim is good by the word of one that is named or two that are proven, if nobody contradicts. That a claim holds and that it
    is withheld do not contradict each other: a key may show one auditor what it does not show another, or not any more.

    Args:
        votes: one an auditor, all of the claim's panel, in the log's order.
        num_named: how many the run names that may answer.
        round: the present one.
    """
    named = [vote for vote in votes if vote.is_named]
    against = [vote for vote in votes if vote.is_against]
    voting = named or list(votes)
    if not against:
        return Decision(HOLDS, ()) if named or len(votes) >= 2 else None
    accused, cleared = sum(vote.is_against for vote in voting), sum(not vote.is_against for vote in voting)
    is_over = round - min(vote.round for vote in against) >= PATIENCE
    if named:
        is_settled = accused != cleared and (num_named == 1 or max(accused, cleared) >= 2 or is_over)
    else:
        is_settled = is_over and accused != cleared and max(accused, cleared) >= 2
    if not is_settled:
        return None
    if cleared > accused:
        return Decision(HOLDS, tuple(vote.auditor for vote in votes if vote.outcome == DIFFERS))
    if not any(vote.outcome == DIFFERS for vote in voting):
        return Decision(WITHHELD, ())
    return Decision(DIFFERS, tuple(vote.auditor for vote in votes if not vote.is_against))


def check_evidence(finding: Finding, lots_root: bytes, lots: int) -> LotRecord | None:
    """Return the record that a finding about one lot shows, once it is proven to be the claim's; None: it shows none.

    Args:
        finding: as it was signed.
        lots_root: of the claim.
        lots: of the claim.

    Raises:
        LedgerError: the record is none, or not at that place under the claim's root.
    """
    if not finding.evidence:
        return None
    (shown,) = finding.evidence
    try:
        verify_inclusion(leaf_hash(shown.record), finding.lot, lots, list(shown.proof), lots_root)
        return unpack(LotRecord, shown.record, max_bytes=len(shown.record))
    except (ProofError, EncodingError) as error:
        raise LedgerError(f"a finding whose evidence is not the claim's: {error}") from error


def _seated(what: str, beacon: bytes, claim: bytes, keys: Sequence[bytes], out: Sequence[bytes]) -> list[bytes]:
    """Return the first ``SEATS`` of sorted ``keys`` that are drawn, without those that are ``out``."""
    wanted, seated, at = min(SEATS, len(keys) - sum(_has(keys, key) for key in out)), list[bytes](), 0
    while len(seated) < wanted:
        key = keys[drawn(what, beacon, claim, at) % len(keys)]
        if key not in out and key not in seated:
            seated.append(key)
        at += 1
    return seated


def _has(keys: Sequence[bytes], key: bytes) -> bool:
    """Return whether a key is among sorted ones."""
    place = bisect_left(keys, key)
    return place < len(keys) and keys[place] == key
