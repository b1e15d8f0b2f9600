"""What mates say to each other about a roster, its steps and its contribution: requests, and their answers. Sizes are bounded."""

from dataclasses import dataclass
from enum import IntEnum

from protocol.exchange import MAX_COHORT, MAX_LOCAL_STEPS, MAX_LOT_MS, MAX_OPEN_MS
from protocol.fields import MAX_ROUND, check_digest, check_name
from protocol.records import MAX_CLAIM_BYTES, MAX_SIGNED_BYTES, Claim, Contribution, Ticket
from protocol.signed import Signed
from swarm.near import Offer

JOIN, GIVE, HAND_OVER = "near.join", "near.give", "near.hand-over"  # methods

MAX_SMALL_BYTES = 4096
MAX_HAND_OVER_BYTES = MAX_CLAIM_BYTES + MAX_SMALL_BYTES  # of what has a claim
MAX_WORD_BYTES = MAX_CLAIM_BYTES + MAX_SIGNED_BYTES + MAX_SMALL_BYTES
_MAX_SAMPLES = 2**53
_MAX_REASON = 100


class Place(IntEnum):
    """What a mate says to one who asks it to be its founder."""

    TAKEN = 0
    ELSEWHERE = 1  # it asks another one itself
    TOO_SLOW = 2  # the asker's lots do not fit the roster's steps
    NO_FOUNDER = 3  # it is alone itself
    LATE = 4  # the roster is closed, or full, or it works on something newer
    NOT_YET = 5  # it does not work on that base yet, and the asker's patience is over
    OTHER_COHORT = 6  # its own is another one on that base


@dataclass(frozen=True, slots=True)
class Join:
    """Asks a mate to be the founder for work on a base."""

    base: bytes
    round: int  # the one after the base
    lot_ms: int  # median duration of a lot
    patience_ms: int  # the asker waits so long
    cohort: str  # that its claim will name

    def __post_init__(self) -> None:
        check_digest(self.base, "base")
        check_name(self.cohort, "cohort")
        if not (1 <= self.round <= MAX_ROUND and 0 <= self.lot_ms <= MAX_LOT_MS and 0 <= self.patience_ms <= MAX_OPEN_MS):
            raise ValueError("round, duration or patience out of range")


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """A place, or none."""

    place: int  # of Place
    founder: tuple[bytes, ...] = ()  # with ELSEWHERE
    members: tuple[bytes, ...] = ()  # with TAKEN: in the order of their keys
    ends_ms: int = 0  # with TAKEN: the vector of the first step is due in so many ms
    step_ms: int = 0  # with TAKEN: how long a step is

    def __post_init__(self) -> None:
        for key in (*self.founder, *self.members):
            check_digest(key, "key")
        if self.place not in tuple(Place) or len(self.founder) != (self.place == Place.ELSEWHERE):
            raise ValueError("an answer without its meaning")
        if len(self.members) > MAX_COHORT or list(self.members) != sorted(set(self.members)):
            raise ValueError("members out of order, or too many")
        _check_duration(self.ends_ms)
        _check_duration(self.step_ms)


@dataclass(frozen=True, slots=True)
class Give:
    """Gives the founder the vector of a step, with the claim up to that step: the founder may hand that in, whatever comes after."""

    base: bytes
    step: int
    claim: Signed[Claim]
    vector: Offer

    def __post_init__(self) -> None:
        check_digest(self.base, "base")
        if not 0 <= self.step < MAX_LOCAL_STEPS:
            raise ValueError("step out of range")


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    """The mean of a step, or why the caller is left out of it and goes on alone."""

    mean: tuple[Offer, ...]
    reason: str
    ends_ms: int  # the vector of the next step is due in so many ms

    def __post_init__(self) -> None:
        if len(self.mean) > 1:
            raise ValueError("more than one mean")
        _check_reason(self.reason)
        _check_duration(self.ends_ms)


@dataclass(frozen=True, slots=True)
class HandOver:
    """Gives the founder a claim and the vector that goes with it."""

    base: bytes
    claim: Signed[Claim]
    vector: Offer

    def __post_init__(self) -> None:
        check_digest(self.base, "base")


@dataclass(frozen=True, slots=True)
class Taken:
    """The cohort's contribution is on the log's disk."""

    contribution: Signed[Contribution]
    ticket: Signed[Ticket]
    weights: tuple[int, ...]  # of the members listed, in order, where all gave the same vector: so each can tell its mean; else empty
    mean: tuple[Offer, ...]  # where they did not, and need it

    def __post_init__(self) -> None:
        if len(self.mean) > 1 or (self.mean and self.weights) or len(self.weights) > MAX_COHORT:
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


def _check_reason(reason: str) -> None:
    if len(reason) > _MAX_REASON or not reason.isprintable():
        raise ValueError("a reason that cannot be shown")


def _check_duration(duration_ms: int) -> None:
    if not 0 <= duration_ms <= MAX_OPEN_MS:
        raise ValueError("a duration of more than a day")
