"""The numbers of the exchange between strangers: how contributions are coded, how long a round is open, what one key may weigh.

What a run may choose stands in its manifest (``Exchange``); what every implementation has to do alike are the constants. A manifest whose
numbers would not fit into 62 bits of the mean's sum is refused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CHUNK = 4096  # values that share an exponent
GROUP_CHUNKS = 64  # chunks of a group: what a root's leaf covers
GROUP_VALUES = CHUNK * GROUP_CHUNKS
WINDOW = 20  # exponents that a dense body may use, from the min exponent of its base upwards
SPARSE_WINDOW = 24  # the same of a sparse one, whose integers are smaller
MAX_AGE = 4  # commits between a contribution's base and the base of the round that it counts in
LEAST_MIN_EXPONENT = -200  # of exponents: every float32 is a multiple of 2^-149, and a scale from here upwards is a normal float64
GREATEST_MIN_EXPONENT = 94  # the largest value of a body, below 2^(15 + 19 + 94), is a float32
DRIFT = MAX_AGE  # a min exponent moves by at most one exponent a commit, so within a table min exponents differ by no more
AGE_WEIGHT = (9, 10)  # of a contribution's weight stays for every commit of age
UNPROVEN_PART = (1, 4)  # what all samples of keys that are not proven together weigh at most, of those that are
WEIGHT_BITS = 16  # integer weights are below 2^16
SUM_BITS = 62  # of the mean's sums, which so never leave a signed 64-bit integer
CLIP = 4  # a contribution's norm counts up to so many times the threshold
MAX_COHORT = 32  # members of a cohort, and so claims of a contribution
MAX_ROWS = 1024  # contributions of a table, whatever the manifest says
MAX_OPEN_MS = 86_400_000  # a round is open for a day at most
MAX_MICROBATCH_MS = 3_600_000  # a microbatch's duration is believed up to an hour
MICROBATCHES_A_STEP = 4  # a round is open for at least so many median microbatches a step
MAX_LOCAL_STEPS = 512

# A round's length may change by so much from one to the next, and waits for bodies so long after its deadline.
SHRINK, GROW = (3, 4), (4, 3)
GRACE_PART, GRACE_MIN_MS, GRACE_MAX_MS = 10, 250, 10_000

_SPARSE = re.compile(r"topk-([1-9][0-9]{0,3})-([2-8])")


@dataclass(frozen=True, slots=True)
class Codec:
    """How bodies are coded: integers with one exponent a chunk, of all values of a chunk or of its largest."""

    name: str  # "int16" | "int8" | "topk-<kept>-<bits of an integer with its sign>"
    bits: int  # of an integer's magnitude
    kept: int  # values of a whole chunk; CHUNK: all of them
    window: int  # exponents that a body may use

    @property
    def is_sparse(self) -> bool:
        """Whether only the largest values of a chunk travel, so that peers keep what did not as their residual."""
        return self.kept < CHUNK

    @property
    def limit(self) -> int:
        """The largest magnitude of an integer."""
        return (1 << self.bits) - 1


@cache
def codec_named(name: str) -> Codec:
    """Return the codec of this name.

    Raises:
        ValueError: there is none.
    """
    if name in ("int16", "int8"):
        return Codec(name, int(name[3:]) - 1, CHUNK, WINDOW)
    found = _SPARSE.fullmatch(name)
    if found is None or int(found[1]) > CHUNK // 2:
        raise ValueError(
            f"unknown codec {name!r}: int16, int8 or topk-KEPT-BITS, as topk-256-4: "
            f"of {CHUNK} values the largest KEPT (1 to {CHUNK // 2}), 2 to 8 bits each"
        )
    return Codec(name, int(found[2]) - 1, int(found[1]), SPARSE_WINDOW)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A run's choices for its rounds."""

    codec: str  # of bodies; see ``codec_named``
    residual_percent: int  # of a residual that is added to the next contribution; only sparse bodies leave any
    local_steps: int  # H: exact updates of a cohort between two exchanges; 1: the mean gradient at the committed state
    max_rows: int  # contributions of a table
    target_batch: int  # samples over the whole swarm that a round's length aims at
    max_claim_samples: int  # a claim of more is refused
    weight_cap: int  # samples: nobody weighs more in the mean and in the rewards where others take part
    first_min_exponent: int  # min exponent before the first round
    first_open_ms: int  # how long the first round is open
    min_open_ms: int
    max_open_ms: int

    def __post_init__(self) -> None:
        codec_named(self.codec)
        _require(0 <= self.residual_percent <= 100, "residual_percent is between 0 and 100")
        _require(1 <= self.local_steps <= MAX_LOCAL_STEPS, f"a round has 1 to {MAX_LOCAL_STEPS} local steps")
        _require(1 <= self.max_rows <= MAX_ROWS, f"a table has 1 to {MAX_ROWS} contributions")
        for what in ("target_batch", "max_claim_samples", "weight_cap"):
            _require(1 <= getattr(self, what) <= 2**40, f"{what} is at least 1 and at most 2^40")
        _require(self.weight_cap <= self.max_claim_samples, "weight_cap is at most max_claim_samples")
        _require(
            LEAST_MIN_EXPONENT <= self.first_min_exponent <= GREATEST_MIN_EXPONENT,
            f"first_min_exponent is between {LEAST_MIN_EXPONENT} and {GREATEST_MIN_EXPONENT}",
        )
        _require(
            1 <= self.min_open_ms <= self.first_open_ms <= self.max_open_ms <= MAX_OPEN_MS,
            "a round is open for 1 ms to a day, the first one between the least and the most",
        )
        needed = sum_bits(self.codec, self.max_rows)
        _require(
            needed <= SUM_BITS,
            f"sums over {self.max_rows} contributions of {self.codec} need {needed} bits where {SUM_BITS} are safe: allow fewer",
        )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def sum_bits(codec: str, max_rows: int) -> int:
    """Return how many bits the magnitude of a mean's sum may need."""
    coded = codec_named(codec)
    return coded.bits + coded.window - 1 + DRIFT + WEIGHT_BITS + (max_rows - 1).bit_length()


def next_open_ms(exchange: Exchange, open_ms: int, counted: int, microbatches_ms: Sequence[int]) -> int:
    """Return how long the next round is open.

    It aims at the target batch, by a third at a time, but leaves time for some median microbatches, within the manifest's bounds.

    Args:
        exchange: the manifest's.
        open_ms: how long this round was open.
        counted: samples of its table, before anybody's weight was capped.
        microbatches_ms: the duration that each of its claims names for a microbatch; at least one.
    """
    wanted = open_ms * exchange.target_batch // max(counted, 1)
    lower, upper = open_ms * SHRINK[0] // SHRINK[1], open_ms * GROW[0] // GROW[1]
    median = sorted(microbatches_ms)[(len(microbatches_ms) - 1) // 2]
    enough = max(min(max(wanted, lower), upper), MICROBATCHES_A_STEP * exchange.local_steps * median)
    return min(max(enough, exchange.min_open_ms), exchange.max_open_ms)


def grace_ms(open_ms: int) -> int:
    """Return how long after a round's deadline the log waits for bodies whose headers came in time."""
    return min(max(open_ms // GRACE_PART, GRACE_MIN_MS), GRACE_MAX_MS)
