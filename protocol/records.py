"""The records that travel and that the log keeps: announcement, claim, contribution, inclusion promise, round, receipt.

Each is a frozen dataclass of int, text, bytes and tuples, encoded by ``protocol.encoding``; ``__post_init__`` checks the ranges,
so a decoded record is a valid one. Signatures are checked by ``open``, kind by kind. The manifest is in ``protocol.manifest``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, get_args

from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.affinity import NOWHERE, Position
from manta_swarm.protocol.cohorts import ALL, is_size, size_of
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.exchange import (
    GREATEST_MIN_EXPONENT,
    LEAST_MIN_EXPONENT,
    MAX_COHORT,
    MAX_LOCAL_STEPS,
    MAX_MICROBATCH_MS,
    MAX_OPEN_MS,
    MAX_ROWS,
)
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_key, check_name, require
from manta_swarm.protocol.manifest import MAX_SHARDS
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.signed import Signed, Signing
from manta_swarm.protocol.signing import Digest, sha256
from manta_swarm.protocol.verdicts import Settlement, Verdict

MAX_ENTRY_BYTES = 65_535  # what a bundle of C2SP's tlog-tiles has room for
MAX_HEADER_BYTES = MAX_ENTRY_BYTES - 32  # the kind of its entry and the framing are fewer bytes
MAX_SIGNED_BYTES = 4096  # a record with its signature, but for a header, a claim and a contribution
MAX_CLAIM_BYTES = 32_768  # a claim, or a contribution, of all local steps that a run may have, with its signature
MAX_PAYLOAD_BYTES = MAX_SIGNED_BYTES - 96  # its signature and the framing are fewer bytes
MAX_ANNOUNCEMENT_BYTES = 512
MAX_ARCHITECTURES = 32  # that a round asks of a cohort
MAX_ROLES = 8
MAX_NORM = 2**62 - 1  # of a threshold
MAX_MICROBATCHES = 2**32
MAX_INDEX = 2**40  # of a microbatch of one key on one base
MAX_SKIPPED = 64  # microbatches that a claim leaves out of one step


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a peer says of itself in the DHT, again and again: that it is there, whose state it can hand out, and who is near it."""

    run: bytes
    key: bytes
    cohort: str  # without its size, which follows from those of its members
    round: int  # whose state it holds
    sequence: int  # grows with every announcement of this key: milliseconds since 1970
    position: Position = NOWHERE
    size: int = ALL  # the largest that its device is fast enough for, see ``protocol.cohorts``; in data-parallel it means nothing

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_name(self.cohort, "cohort")
        require(size_of(self.cohort) == ALL, "an announced cohort's name says no size")
        require(is_size(self.size), "size out of range")
        require(0 <= self.round <= MAX_ROUND, "round out of range")
        require(0 <= self.sequence < 2**62, "sequence out of range")


@dataclass(frozen=True, slots=True)
class ClaimStep:
    """What a peer trained in one local step: its microbatches from ``first`` to ``last``, but for those that it left out."""

    first: int  # index
    last: int  # index, not below ``first``
    skipped: tuple[int, ...]  # indices in between that it did not train, in order
    vector: bytes  # SHA-256 of its own mean gradient of the step, float32 little-endian
    every: int = 1  # from one index to the next; 1 but for light contributors, whose microbatches are of one architecture

    def __post_init__(self) -> None:
        check_digest(self.vector, "vector")
        require(0 <= self.first <= self.last < MAX_INDEX, "indices out of range")
        require(1 <= self.every <= MAX_ARCHITECTURES and (self.last - self.first) % self.every == 0, "indices are equally far apart")
        require(len(self.skipped) <= MAX_SKIPPED and list(self.skipped) == sorted(set(self.skipped)), "skipped indices are sorted, few")
        between = range(self.first + self.every, self.last, self.every)
        require(all(index in between for index in self.skipped), "skipped indices are between the first and the last")

    @property
    def count(self) -> int:
        """Microbatches that it trained."""
        return (self.last - self.first) // self.every + 1 - len(self.skipped)

    def __contains__(self, index: int) -> bool:
        """Return whether it trained the microbatch of this index."""
        return index in range(self.first, self.last + 1, self.every) and index not in self.skipped

    def indices(self) -> Iterator[int]:
        """Yield the indices of its microbatches, in order: as many as a claim may have, see ``count``."""
        return (index for index in range(self.first, self.last + 1, self.every) if index not in self.skipped)


@dataclass(frozen=True, slots=True)
class Claim:
    """A peer's statement of its microbatches on one base, made once: whoever hands it in, and when, does not change its bytes."""

    signing: ClassVar[Signing] = Signing("claim", MAX_CLAIM_BYTES, by="key")

    run: bytes
    round: int  # the round after the base
    base: bytes  # digest of the commit whose state the microbatches were trained on; the run's id before the first
    key: bytes
    payout: bytes  # the public key that this claim's credit adds up to: the account; ``key`` itself where its person names no other
    founder: bytes  # the key that convenes the cohort: naming it is the consent; a peer alone names itself
    cohort: str  # the name, with the size, that model-parallel's architectures follow from
    steps: tuple[ClaimStep, ...]  # its local steps from the first on: all of the round's, or up to where it dropped out
    work: tuple[
        int, ...
    ]  # microbatches of each architecture that the round asks of the cohort, in that order: what the steps' indices come to
    given: bytes  # SHA-256 of what it gives for the body, float32: what it learnt, with a part of its residual; up to a step: empty
    residual: bytes  # SHA-256 of that residual; empty: of zeros; up to a step: empty
    microbatch_ms: int  # median duration of its microbatches
    shards: int = (
        0  # of the shards to train with, where the peer has no room for all: how many, see ``protocol.microbatches.held_shards``; else 0
    )
    partner: bytes = b""  # of a stereo run, whose key had the other view of its samples, and computed with it; empty: it had both

    def __post_init__(self) -> None:
        for what in ("run", "base", "key", "founder"):
            check_digest(getattr(self, what), what)
        check_key(self.payout, "payout")
        check_name(self.cohort, "cohort")
        require(1 <= self.round <= MAX_ROUND, "round out of range")
        require(1 <= len(self.steps) <= MAX_LOCAL_STEPS, f"a claim has 1 to {MAX_LOCAL_STEPS} local steps")
        in_order = all(before.last < step.first for before, step in pairwise(self.steps))
        require(in_order, "the indices of a step come after those of the step before")
        require(0 < len(self.work) <= MAX_ARCHITECTURES, f"a claim counts 1 to {MAX_ARCHITECTURES} architectures")
        require(all(0 <= microbatches <= MAX_MICROBATCHES for microbatches in self.work), "microbatches out of range")
        require(sum(self.work) == sum(step.count for step in self.steps), "a claim counts as many microbatches as its steps have")
        require({len(self.given), len(self.residual)} <= {0, 32}, "the digest of a vector has 32 bytes, or none")
        require(bool(self.given) or not self.residual, "a residual is a part of what is given")
        require(1 <= self.microbatch_ms <= MAX_MICROBATCH_MS, f"a microbatch takes 1 to {MAX_MICROBATCH_MS} ms")
        require(0 <= self.shards < MAX_SHARDS, "shards out of range")
        require(len(self.partner) in (0, 32) and self.partner != self.key, "a partner is another key, or none")

    @property
    def microbatches(self) -> int:
        """Microbatches over all architectures."""
        return sum(self.work)


@dataclass(frozen=True, slots=True)
class StepMean:
    """What a cohort's local step came to."""

    mean: bytes  # SHA-256 of the mean that all went on with, float32 little-endian
    included: int  # which of the contribution's claims are in it, as bits, the first claim's the lowest

    def __post_init__(self) -> None:
        check_digest(self.mean, "mean")
        require(1 <= self.included < 2**MAX_COHORT, "a step has a claim in it")


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a cohort hands in for one base: its claims, and the body that was coded from their vectors."""

    signing: ClassVar[Signing] = Signing("contribution", MAX_CLAIM_BYTES, by="founder")

    run: bytes
    round: int  # the round after the base; it may count in a later one
    base: bytes
    founder: bytes
    claims: tuple[bytes, ...]  # Signed[Claim].digest of each member, in the order of their keys
    included: int  # which of these claims are in the body, as bits, the first claim's the lowest: who dropped out is in none
    steps: tuple[StepMean, ...]  # one a local step; of one local step alone: the mean of what was given, residuals included
    body: bytes  # root over the body's groups
    residual: bytes  # SHA-256 of what coding left out of the cohort's vector: the residual of each member once this is listed; empty: zeros

    def __post_init__(self) -> None:
        for what in ("run", "base", "founder", "body"):
            check_digest(getattr(self, what), what)
        require(1 <= self.round <= MAX_ROUND, "round out of range")
        require(1 <= len(self.claims) <= MAX_COHORT, f"a contribution has 1 to {MAX_COHORT} claims")
        for claim in self.claims:
            check_digest(claim, "claim")
        require(1 <= self.included < 2 ** len(self.claims), "a body has a claim in it")
        require(1 <= len(self.steps) <= MAX_LOCAL_STEPS, f"a contribution has 1 to {MAX_LOCAL_STEPS} local steps")
        require(len(self.residual) in (0, 32), "a residual's digest has 32 bytes, or none")

    @property
    def in_body(self) -> tuple[bytes, ...]:
        """The claims that are in the body."""
        return tuple(claim for place, claim in enumerate(self.claims) if self.included >> place & 1)


@dataclass(frozen=True, slots=True)
class Header:
    """A contribution with the claims that it lists, in its order: as it is handed in, beside its body, and exactly what the log keeps."""

    contribution: Signed[Contribution]
    claims: tuple[Signed[Claim], ...]

    def __post_init__(self) -> None:
        require(1 <= len(self.claims) <= MAX_COHORT, f"a header has 1 to {MAX_COHORT} claims")


@dataclass(frozen=True, slots=True)
class InclusionPromise:
    """The log's word that a contribution and its body are on its disk, and will be in the table of a round."""

    signing: ClassVar[Signing] = Signing("inclusion-promise", MAX_PAYLOAD_BYTES, by="")  # any operator of the run

    run: bytes
    round: int  # that it counts in
    contribution: bytes  # Signed[Contribution].digest

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.contribution, "contribution")
        require(1 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class Threshold:
    """How large contributions of one role usually are: what the next tables are clipped by."""

    role: int
    norm: int  # weighted median of their norms, in units of 2^min_exponent of the entry that has it
    samples: int  # weighted median of their samples

    def __post_init__(self) -> None:
        require(0 <= self.role < MAX_ROLES, "role out of range")
        require(0 <= self.norm <= MAX_NORM and 1 <= self.samples <= 2**48, "norm or samples out of range")


@dataclass(frozen=True, slots=True)
class Round:
    """A round entry: the contributions right before it in the log are its table."""

    run: bytes
    round: int
    base: bytes  # digest of the commit before; the run's id before the first
    first: int  # index in the log of its first contribution
    contributions: int  # how many it has
    weights: bytes  # root over what each weighs in the mean, see ``protocol.table.Weighed``
    mean: bytes  # root over the mean's groups
    state: bytes  # digest of the next state
    thresholds: tuple[Threshold, ...]  # by role, for the tables to come
    min_exponent: int  # of the exponents of bodies on this base
    open_ms: int  # how long the next round is open

    def __post_init__(self) -> None:
        for what in ("run", "base", "weights", "mean", "state"):
            check_digest(getattr(self, what), what)
        require(1 <= self.round <= MAX_ROUND, "round out of range")
        require(0 <= self.first < MAX_SIZE and 1 <= self.contributions <= MAX_ROWS, "contributions out of range")
        roles = [threshold.role for threshold in self.thresholds]
        require(len(roles) <= MAX_ROLES and roles == sorted(set(roles)), "thresholds are sorted by role, one each")
        require(LEAST_MIN_EXPONENT <= self.min_exponent <= GREATEST_MIN_EXPONENT, "min exponent out of range")
        require(1 <= self.open_ms <= MAX_OPEN_MS, "a round is open for 1 ms to a day")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry's record: ``kind`` says what is packed in the body, as ``_ENTRIES`` has it."""

    kind: str
    body: bytes

    def __post_init__(self) -> None:
        require(self.kind in _ENTRIES, f"unknown kind of entry {self.kind!r}")


_ENTRIES: dict[str, type] = {
    "admission": Signed[Admission],
    "revocation": Signed[Revocation],
    "contribution": Header,
    "round": Round,
    "verdict": Signed[Verdict],
    "settlement": Settlement,
}
_KINDS: dict[type, str] = {next(iter(get_args(cls)), cls): kind for kind, cls in _ENTRIES.items()}
Logged = Signed[Admission] | Signed[Revocation] | Header | Round | Signed[Verdict] | Settlement


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry, its inclusion proof and the signed tree head (a C2SP note) that it is proven under."""

    entry: bytes  # a packed Entry
    index: int
    proof: tuple[bytes, ...]
    tree_head: str


@dataclass(frozen=True, slots=True)
class Included:
    """An entry and its inclusion proof, under a tree head that comes with it."""

    entry: bytes  # a packed Entry
    index: int
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """What proves that a round counted a contribution: that the log has both, at places that go together."""

    receipt: Receipt  # of the round
    contribution: Included  # under the receipt's tree head


def open_entry(data: bytes) -> Logged:
    """Return the record inside an entry's bytes; signatures are not checked here (see ``protocol.ledger``).

    Raises:
        EncodingError: not an entry.
    """
    entry = unpack(Entry, data, max_bytes=MAX_ENTRY_BYTES)
    record: Logged = unpack(_ENTRIES[entry.kind], entry.body, max_bytes=MAX_ENTRY_BYTES)
    return record


def entry_of(record: Logged) -> bytes:
    """Return the log entry of a record."""
    return pack(Entry(kind_of(record), pack(record)))


def kind_of(record: Logged) -> str:
    """Return the kind of a record's entry."""
    return _KINDS[record.of if isinstance(record, Signed) else type(record)]


def commit_digest(entry: bytes) -> Digest:
    """Return a commit's digest: SHA-256 of its round entry's bytes. Before the first round it is the run's id."""
    return sha256(entry)
