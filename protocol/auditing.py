"""Rules and messages of audits: who audits which contribution of a round, what an audit needs, what it finds, and whether lying pays.

A peer asks what is *wanted* of its contributions, and *brings* it: the means of the steps, and the residuals of all claims; where a step
does not fit, the own vectors of that step. An auditor asks for its *assignments*, gets what was brought a page at a time, *needs* own
vectors where a step does not fit, and says what it found: a named one by a verdict for the log, a volunteer by a *finding* for a named one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import ClassVar

from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.exchange import GREATEST_MIN_EXPONENT, LEAST_MIN_EXPONENT, MAX_COHORT, MAX_LOCAL_STEPS
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, require
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.records import Claim, Contribution, Header
from manta_swarm.protocol.signed import Signed, Signing
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.verdicts import LEAST_PENDING, MAX_VERDICT_BYTES, AuditRules, Outcome

WANTED, BRING = "audit.wanted", "audit.bring"  # methods: for peers
ASSIGNMENTS, NEED, FINDING, VERDICT = "audit.assignments", "audit.need", "audit.finding", "audit.verdict"  # for auditors
VECTOR = "audit.vector"  # of operators and of peers, for auditors: the answer is the bytes of the page

PAGE_BYTES = 1 << 20
MAX_ASKED = 64  # contributions in one question
MAX_WANTED = 64  # vectors of a contribution that are asked for at a time
MAX_ASSIGNMENTS = 8
MAX_VECTOR_BYTES = 1 << 40
MAX_ASK_VECTOR_BYTES = 128
MAX_ASK_BYTES = 128 + MAX_ASKED * 64
MAX_WANTED_BYTES = 128 + MAX_ASKED * (64 + MAX_WANTED * 40)
MAX_PAGE_BYTES = PAGE_BYTES + 256
MAX_FINDING_BYTES = 512
MAX_SIGNED_FINDING_BYTES = MAX_FINDING_BYTES + 128
MAX_SIGNED_VERDICT_BYTES = MAX_VERDICT_BYTES + 128
MAX_HEADER_BYTES = 65_535
MAX_ASSIGNMENTS_BYTES = 256 + MAX_ASSIGNMENTS * (MAX_HEADER_BYTES + MAX_SIGNED_FINDING_BYTES + 2048 + 16 * MAX_LOCAL_STEPS)

KNOWN_PERCENT = 50  # of what audits of unproven keys may cost, for keys that were found good before

MOST_GAIN = 1.0  # contributions: making a new key proven costs more work than that


class WantedFate(IntEnum):
    """What the log says of a contribution to one of its keys."""

    LATER = 0  # its beacon is not there yet
    NOTHING = 1  # it is not audited, or not any more: nothing of it has to be kept
    BRING = 2  # it is audited: what is named has to be brought
    HELD = 3  # it is audited, and nothing lacks now; something may still be asked for


@dataclass(frozen=True, slots=True)
class PlacedContribution:
    """A contribution, and the round that has it."""

    round: int
    contribution: bytes  # Signed[Contribution].digest

    def __post_init__(self) -> None:
        check_digest(self.contribution, "contribution")
        require(1 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class AskWanted:
    """Asks what is wanted of own contributions."""

    contributions: tuple[PlacedContribution, ...]

    def __post_init__(self) -> None:
        require(1 <= len(self.contributions) <= MAX_ASKED, f"1 to {MAX_ASKED} contributions are asked about")


@dataclass(frozen=True, slots=True)
class WantedOf:
    """What is wanted of one contribution."""

    fate: int  # of WantedFate
    vectors: tuple[bytes, ...]  # with BRING: their SHA-256; there may be more once these are there

    def __post_init__(self) -> None:
        require(self.fate in tuple(WantedFate), "an unknown fate")
        require(
            len(self.vectors) <= MAX_WANTED and bool(self.vectors) == (self.fate == WantedFate.BRING), "vectors are named to be brought"
        )
        for digest in self.vectors:
            check_digest(digest, "vector")


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """The answer to ``AskWanted``: what is wanted of each contribution, in the order of the question."""

    answers: tuple[WantedOf, ...]

    def __post_init__(self) -> None:
        require(len(self.answers) <= MAX_ASKED, f"at most {MAX_ASKED} answers")


@dataclass(frozen=True, slots=True)
class VectorPage:
    """Brings a page of a vector (float32, little-endian); its pages come in order."""

    contribution: bytes
    vector: bytes  # SHA-256
    first: int  # place of the page's first byte, a multiple of ``PAGE_BYTES``
    data: bytes

    def __post_init__(self) -> None:
        check_digest(self.contribution, "contribution")
        check_digest(self.vector, "vector")
        require(0 <= self.first < MAX_VECTOR_BYTES and self.first % PAGE_BYTES == 0, "a page begins at a multiple of its size")
        require(1 <= len(self.data) <= PAGE_BYTES, f"a page has 1 to {PAGE_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class AskVector:
    """Asks for a page of a vector: its bytes from ``first`` on, ``PAGE_BYTES`` or what is left."""

    kept_by: bytes  # what it is kept by: at an operator the digest of the contribution, at a peer that of the commit that this stands on
    digest: bytes  # SHA-256 of the vector
    first: int  # place of the page's first byte, a multiple of ``PAGE_BYTES``

    def __post_init__(self) -> None:
        check_digest(self.kept_by, "kept_by")
        check_digest(self.digest, "digest")
        require(0 <= self.first < MAX_VECTOR_BYTES and self.first % PAGE_BYTES == 0, "a page begins at a multiple of its size")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a volunteer found of a contribution, by computing it."""

    signing: ClassVar[Signing] = Signing("audit-finding", MAX_FINDING_BYTES, by="by")

    run: bytes
    by: bytes
    round: int
    contribution: bytes
    outcomes: tuple[int, ...]  # of Outcome, one a claim

    def __post_init__(self) -> None:
        for what in ("run", "by", "contribution"):
            check_digest(getattr(self, what), what)
        require(1 <= self.round <= MAX_ROUND, "round out of range")
        require(1 <= len(self.outcomes) <= MAX_COHORT, f"a contribution has 1 to {MAX_COHORT} claims")
        require(all(outcome in tuple(Outcome) for outcome in self.outcomes), "an unknown outcome")


@dataclass(frozen=True, slots=True)
class AskAssignments:
    """Asks what waits for this auditor; a volunteer that asks is counted on for some rounds."""

    round: int  # the newest that the caller knows

    def __post_init__(self) -> None:
        require(0 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class Needed:
    """A step of a contribution that does not fit: its members' own vectors are asked for."""

    step: int
    round: int  # the newest one when an operator was told so first

    def __post_init__(self) -> None:
        require(0 <= self.step < MAX_LOCAL_STEPS, "step out of range")
        require(1 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A contribution that waits for the caller's word."""

    round: int  # that has it
    header: Header
    state: bytes  # digest of that of its base
    min_exponent: int  # of its base
    left: tuple[int, ...]  # by claim: 1: the residual that it names was left to its key, see ``protocol.listed.was_left``
    is_here: int  # 1: all that was asked for is here
    is_late: int  # 1: the time to bring it is over
    lacks_room: int  # 1: the log had no room for it: nobody is to blame for what lacks
    needed: tuple[Needed, ...]  # in the order of the steps
    volunteer: tuple[bytes, ...]  # who computes it, for a named auditor; none: nobody does
    finding: tuple[Signed[Finding], ...]  # what that one found

    def __post_init__(self) -> None:
        check_digest(self.state, "state")
        require(
            1 <= self.round <= MAX_ROUND and LEAST_MIN_EXPONENT <= self.min_exponent <= GREATEST_MIN_EXPONENT,
            "round or min exponent out of range",
        )
        require(len(self.left) == len(self.header.claims), "one word on a residual a claim")
        require({self.is_here, self.is_late, self.lacks_room, *self.left} <= {0, 1}, "an assignment says yes or no")
        steps = [needed.step for needed in self.needed]
        require(steps == sorted(set(steps)), "each step that does not fit is told of once")
        require(len(self.volunteer) <= 1 and len(self.finding) <= len(self.volunteer), "a finding is a volunteer's")
        for key in self.volunteer:
            check_digest(key, "volunteer")


@dataclass(frozen=True, slots=True)
class Assignments:
    """The answer to ``AskAssignments``: what waits, accused contributions first, then the oldest."""

    assignments: tuple[Assignment, ...]
    may_audit: int  # 1: the caller is a named auditor, or proven
    audited: int  # contributions that are audited and not paid yet, whoever looks at them: once the run is over and settled none is

    def __post_init__(self) -> None:
        require(len(self.assignments) <= MAX_ASSIGNMENTS, f"at most {MAX_ASSIGNMENTS} assignments at once")
        require(self.may_audit in (0, 1) and 0 <= self.audited <= MAX_SIZE, "an auditor is one, or is none, of a number of contributions")


@dataclass(frozen=True, slots=True)
class Need:
    """A named auditor's word that a step of a contribution does not fit: its members have to bring their own vectors of it."""

    contribution: bytes
    step: int

    def __post_init__(self) -> None:
        check_digest(self.contribution, "contribution")
        require(0 <= self.step < MAX_LOCAL_STEPS, "step out of range")


def vectors_of(contribution: Contribution, claims: tuple[Claim, ...], failed: tuple[int, ...] = ()) -> tuple[bytes, ...]:
    """Return the digests of what has to be brought of a contribution, none twice, in the order in which it is asked for.

    Args:
        contribution: opened.
        claims: its, opened, in order.
        failed: steps of which the members' own vectors are asked for.
    """
    means = [step.mean for step in contribution.steps]
    residuals = [claim.residual for claim in claims if claim.residual]
    own = [claim.steps[step].vector for step in failed for claim in claims if step < len(claim.steps)]
    return tuple(dict.fromkeys((*means, *residuals, *own)))


@dataclass(frozen=True, slots=True)
class AuditCandidate:
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


def drawn(rules: AuditRules, beacon: bytes, candidates: Sequence[AuditCandidate]) -> frozenset[bytes]:
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


def _paid_by(budget: int, beacon: bytes, candidates: Iterable[AuditCandidate]) -> list[AuditCandidate]:
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


def gain(rules: AuditRules, part: float) -> float:
    """Return what a proven key gains that leaves out the work of this part of its contributions, in contributions, until it is found.

    The number of contributions until it is found is geometric: each is the last one with probability q = part * audit. It may bring what
    an audit needs at the last moment, ``kept_rounds`` later. What was handed in more than ``pending_rounds`` before that is paid, though
    it did not work for that part; what came later is not paid, though it worked for the rest, unless that was drawn and found good.
    """
    return _gain(rules, part, rules.pending_rounds - rules.kept_rounds)


def _gain(rules: AuditRules, part: float, rounds: int) -> float:
    audit = rules.audit_percent / 100
    found = audit * part
    undetected = (1 - found) ** rounds  # the probability of a life that long
    return (part * undetected - (1 - part) * (1 - audit) * (1 - undetected)) / found


def most_gain(rules: AuditRules) -> float:
    """Return the most that any part of the work left out gains, in contributions."""
    return _most_gain(rules, rules.pending_rounds - rules.kept_rounds)


def _most_gain(rules: AuditRules, rounds: int) -> float:
    return max(_gain(rules, percent / 100, rounds) for percent in range(1, 101))


def least_pending_rounds(rules: AuditRules) -> int:
    """Return how many ``pending_rounds`` it takes at least so that nobody gains more than ``MOST_GAIN``, the rest of the rules as they are.

    For the rarest audits, of one in a hundred, these are ``kept_rounds`` and 459.
    """
    least = rules.kept_rounds + LEAST_PENDING
    return next(pending for pending in count(least) if _most_gain(rules, pending - rules.kept_rounds) <= MOST_GAIN)
