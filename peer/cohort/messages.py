"""What cohort peers say to each other about a roster, its steps and its contribution: requests, and their answers. Sizes are bounded."""

from dataclasses import dataclass
from enum import IntEnum

from manta_swarm.codec.residuals import DIGEST_BYTES
from manta_swarm.network.links import MAX_LINKS
from manta_swarm.protocol.exchange import MAX_COHORT, MAX_LOCAL_STEPS, MAX_MICROBATCH_MS, MAX_OPEN_MS
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_name
from manta_swarm.protocol.records import MAX_CLAIM_BYTES, MAX_SIGNED_BYTES, Claim, Contribution, InclusionPromise
from manta_swarm.protocol.signed import Signed

JOIN, GIVE, HAND_OVER = "near.join", "near.give", "near.hand-over"  # methods: a member calls its founder
PLAN, ADD, SUM = "near.plan", "near.add", "near.sum"  # the founder calls members, and owners; anybody asks the founder for a part

MAX_SMALL_BYTES = 4096
MAX_PARTS = 2**14  # of a vector: a billion values
NORM_BYTES = 8  # binary64, little-endian
_PART_BYTES = DIGEST_BYTES + NORM_BYTES
MAX_HAND_OVER_BYTES = MAX_CLAIM_BYTES + MAX_SMALL_BYTES + MAX_PARTS * _PART_BYTES  # of what has a claim
MAX_WORD_BYTES = MAX_CLAIM_BYTES + MAX_SIGNED_BYTES + MAX_SMALL_BYTES + MAX_PARTS * DIGEST_BYTES
MAX_PART_REPORTS_BYTES = 2**20 + 2**19  # what an owner says of its part of the members' vectors
MAX_ATTEMPTS = 2
_MAX_SAMPLES = 2**53
_MAX_REASON = 100


class PlaceAnswer(IntEnum):
    """What a cohort peer says to one who asks it to be its founder."""

    TAKEN = 0
    ELSEWHERE = 1  # it asks another one itself
    TOO_SLOW = 2  # the asker's microbatches do not fit the roster's steps
    NO_FOUNDER = 3  # it is alone itself
    LATE = 4  # the roster is closed, or full, or it works on something newer
    NOT_YET = 5  # it does not work on that base yet, and the asker waits no longer
    OTHER_COHORT = 6  # its own is another one on that base


@dataclass(frozen=True, slots=True)
class Join:
    """Asks a cohort peer to be the founder for work on a base."""

    base: bytes
    round: int  # the one after the base
    microbatch_ms: int  # median duration of a microbatch
    timeout_ms: int  # the asker waits so long
    cohort: str  # that its claim will name

    def __post_init__(self) -> None:
        check_digest(self.base, "base")
        check_name(self.cohort, "cohort")
        if not (1 <= self.round <= MAX_ROUND and 0 <= self.microbatch_ms <= MAX_MICROBATCH_MS and 0 <= self.timeout_ms <= MAX_OPEN_MS):
            raise ValueError("round, duration or timeout out of range")


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """A place, or none."""

    place: int  # of PlaceAnswer
    founder: tuple[bytes, ...] = ()  # with ELSEWHERE
    members: tuple[bytes, ...] = ()  # with TAKEN: in the order of their keys
    ends_ms: int = 0  # with TAKEN: the vector of the first step is due in so many ms
    step_ms: int = 0  # with TAKEN: how long a step is

    def __post_init__(self) -> None:
        for key in (*self.founder, *self.members):
            check_digest(key, "key")
        if self.place not in tuple(PlaceAnswer) or len(self.founder) != (self.place == PlaceAnswer.ELSEWHERE):
            raise ValueError("an answer without its meaning")
        if len(self.members) > MAX_COHORT or list(self.members) != sorted(set(self.members)):
            raise ValueError("members out of order, or too many")
        _check_duration(self.ends_ms)
        _check_duration(self.step_ms)


@dataclass(frozen=True, slots=True)
class VectorSummary:
    """What a member says of the vector that it has for the others; the founder compares it with what the owners got."""

    count: int  # of its values
    digests: bytes  # SHA-256 of each part
    norms: bytes  # the square of each part's norm
    linked: tuple[bytes, ...]  # to whom the member has a direct link, in the order of the keys

    def __post_init__(self) -> None:
        _check_parts(self.digests, self.norms)
        if not 0 <= self.count < 2**40:
            raise ValueError("a vector of no size")
        if len(self.linked) > MAX_LINKS or list(self.linked) != sorted(set(self.linked)):
            raise ValueError("links out of order, or too many")
        for key in self.linked:
            check_digest(key, "key")


@dataclass(frozen=True, slots=True)
class Give:
    """Says that the vector of a step is there, with the claim up to that step: the founder may hand that in, whatever comes after."""

    base: bytes
    step: int
    claim: Signed[Claim]
    vector: VectorSummary

    def __post_init__(self) -> None:
        check_digest(self.base, "base")
        if not 0 <= self.step < MAX_LOCAL_STEPS:
            raise ValueError("step out of range")


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    """The mean of a step, by the digests of its parts, or why the caller is left out of it and goes on alone."""

    digests: bytes  # empty: none
    turn: int  # of the sums that have them
    reason: str
    ends_ms: int  # the vector of the next step is due in so many ms

    def __post_init__(self) -> None:
        _check_digests(self.digests)
        _check_turn(self.turn)
        _check_reason(self.reason)
        _check_duration(self.ends_ms)


@dataclass(frozen=True, slots=True)
class Plan:
    """Tells the members who adds which part of their vectors: the parts are shared among the owners evenly, in the order of the keys."""

    base: bytes
    step: int  # H: what is given at the end
    attempt: int
    left_ms: int  # so long owners wait for the others' parts
    owners: tuple[bytes, ...]
    members: tuple[bytes, ...]  # whose vectors are added

    def __post_init__(self) -> None:
        _check_step(self.base, self.step, self.attempt)
        _check_duration(self.left_ms)
        for keys in (self.owners, self.members):
            _check_keys(keys)
        if not self.owners or not set(self.owners) <= set(self.members):
            raise ValueError("owners that are no members")


@dataclass(frozen=True, slots=True)
class PartReport:
    """What came of one member's vector to an owner, whole: the norms of its parts, and their digests in an audited run."""

    key: bytes
    digests: bytes
    norms: bytes

    def __post_init__(self) -> None:
        check_digest(self.key, "key")
        if self.digests:
            _check_parts(self.digests, self.norms)
        if not self.norms or len(self.norms) % NORM_BYTES or len(self.norms) > MAX_PARTS * NORM_BYTES:
            raise ValueError("norms of no parts")


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What an owner got; of anybody else nothing."""

    reports: tuple[PartReport, ...]

    def __post_init__(self) -> None:
        _check_keys(tuple(report.key for report in self.reports))


@dataclass(frozen=True, slots=True)
class Add:
    """Tells an owner whose parts to add, with which weights, and who reads the sums."""

    base: bytes
    step: int
    attempt: int
    turn: int
    keys: tuple[bytes, ...]
    weights: tuple[int, ...]
    readers: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _check_step(self.base, self.step, self.attempt)
        _check_turn(self.turn)
        _check_keys(self.keys)
        _check_keys(self.readers)
        if not self.keys or len(self.keys) != len(self.weights) or not all(1 <= weight <= _MAX_SAMPLES for weight in self.weights):
            raise ValueError("not a weight for each, or one out of range")


@dataclass(frozen=True, slots=True)
class AddAnswer:
    """The digests of the sums of an owner's parts; none: they are not finite."""

    digests: bytes

    def __post_init__(self) -> None:
        _check_digests(self.digests)


@dataclass(frozen=True, slots=True)
class AskSum:
    """Asks the founder for a part of a mean that an owner did not send."""

    base: bytes
    step: int
    turn: int
    part: int

    def __post_init__(self) -> None:
        _check_step(self.base, self.step, 0)
        _check_turn(self.turn)
        if not 0 <= self.part < MAX_PARTS:
            raise ValueError("no such part")


@dataclass(frozen=True, slots=True)
class HandOver:
    """Gives the founder a claim, and says what of the vector that goes with it."""

    base: bytes
    claim: Signed[Claim]
    vector: VectorSummary

    def __post_init__(self) -> None:
        check_digest(self.base, "base")


@dataclass(frozen=True, slots=True)
class Taken:
    """The cohort's contribution is on the log's disk."""

    contribution: Signed[Contribution]
    inclusion_promise: Signed[InclusionPromise]
    weights: tuple[int, ...]  # of the members listed, in order, where all gave the same vector: so each can tell its mean; else empty
    digests: bytes  # of the mean's parts, where they did not, and need it
    turn: int  # of the sums that have them

    def __post_init__(self) -> None:
        _check_digests(self.digests)
        _check_turn(self.turn)
        if (self.digests and self.weights) or len(self.weights) > MAX_COHORT:
            raise ValueError("more than one way to a mean")
        if not all(1 <= weight <= _MAX_SAMPLES for weight in self.weights):
            raise ValueError("weights out of range")


@dataclass(frozen=True, slots=True)
class Word:
    """What became of what was handed over; nothing: hand in alone, and why."""

    taken: tuple[Taken, ...]
    reason: str

    def __post_init__(self) -> None:
        if len(self.taken) > 1:
            raise ValueError("taken more than once")
        _check_reason(self.reason)


def _check_digests(digests: bytes) -> None:
    if len(digests) % DIGEST_BYTES or len(digests) > MAX_PARTS * DIGEST_BYTES:
        raise ValueError("digests of no vector")


def _check_parts(digests: bytes, norms: bytes) -> None:
    _check_digests(digests)
    if not digests or len(norms) * DIGEST_BYTES != len(digests) * NORM_BYTES:
        raise ValueError("not a norm for each part")


def _check_step(base: bytes, step: int, attempt: int) -> None:
    check_digest(base, "base")
    if not (0 <= step <= MAX_LOCAL_STEPS and 0 <= attempt < MAX_ATTEMPTS):
        raise ValueError("step or attempt out of range")


def _check_turn(turn: int) -> None:
    if not 0 <= turn < 2**16:
        raise ValueError("turn out of range")


def _check_keys(keys: tuple[bytes, ...]) -> None:
    for key in keys:
        check_digest(key, "key")
    if len(keys) > MAX_COHORT or list(keys) != sorted(set(keys)):
        raise ValueError("members out of order, or too many")


def _check_reason(reason: str) -> None:
    if len(reason) > _MAX_REASON or not reason.isprintable():
        raise ValueError("a reason that cannot be shown")


def _check_duration(duration_ms: int) -> None:
    if not 0 <= duration_ms <= MAX_OPEN_MS:
        raise ValueError("a duration of more than a day")
