"""What a light contributor and its gateway say to each other: a lease, and what comes back of it. HTTP carries it; nothing here does.

A *lease* is the whole work of one claim: microbatches of one architecture on one base, for a key of the contributor's own. With it come the
weights that this architecture covers and the samples of these microbatches, both named by digest. Back comes the claim, what was learnt as
a body of the covered weights. Requests and leases are signed, so that it does not matter through whose hands they go.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from manta_swarm.protocol.admission import Admission, AdmissionProof
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.exchange import GREATEST_MIN_EXPONENT, LEAST_MIN_EXPONENT, MAX_LOCAL_STEPS, MAX_MICROBATCH_MS, MAX_OPEN_MS
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_name
from manta_swarm.protocol.manifest import MAX_MANIFEST_BYTES, Manifest, SignedManifest
from manta_swarm.protocol.private import NO_LEASES
from manta_swarm.protocol.records import MAX_CLAIM_BYTES, MAX_SIGNED_BYTES, Claim, Contribution, InclusionPromise
from manta_swarm.protocol.signed import Signed, Signing
from manta_swarm.protocol.signing import Digest, sha256

PREFIX = "/light/v1"
WELCOME, PASSES, LEASES, BLOBS, RETURNS, WORDS = (
    f"{PREFIX}/{name}" for name in ("welcome", "passes", "leases", "blobs", "returns", "words")
)

NO_AUDITED_STEPS = "in this run several local steps are audited, and light contributors keep nothing to show of theirs: leave --gateway out"
CODEC = "int16"  # of what comes back, whatever the run's

MAX_REQUEST_BYTES = 512
MAX_ENTER_BYTES = 2048
MAX_SIGNED_PROOF_BYTES = 512
MAX_WELCOME_BYTES = MAX_MANIFEST_BYTES + 256
MAX_LEASE_BYTES = 4096
MAX_WORD_BYTES = MAX_CLAIM_BYTES + MAX_SIGNED_BYTES + 1024
MAX_LEASE_MICROBATCHES = 4096  # over all steps
MAX_ARCHITECTURE_TEXT = 1024
MAX_BLOB_BYTES = 2**26  # weights, or samples: 64 MiB

_MAX_REASON = 200


def why_no_leases(manifest: Manifest) -> str:
    """Return why a run has nothing for light contributors; empty: it has."""
    if manifest.is_private:
        return NO_LEASES
    return NO_AUDITED_STEPS if manifest.audits_steps else ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a gateway says of itself to anybody."""

    gateway: bytes  # its key, which its leases are signed with
    manifest: SignedManifest

    def __post_init__(self) -> None:
        check_digest(self.gateway, "gateway")


@dataclass(frozen=True, slots=True)
class EnterRequest:
    """What a key shows before it asks for leases, where not everybody may take part: the log's proof, or what the log gives one for."""

    run: bytes
    key: bytes
    shown: tuple[Signed[AdmissionProof], ...]  # the admission proof, where it has one
    admission: tuple[Signed[Admission], ...]  # by its invitation, where it has none

    def __post_init__(self) -> None:
        for what in ("run", "key"):
            check_digest(getattr(self, what), what)
        if len(self.shown) + len(self.admission) != 1:
            raise ValueError("a key shows its admission proof, or an admission")


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Asks a gateway for work."""

    signing: ClassVar[Signing] = Signing("lease-request", MAX_REQUEST_BYTES, by="key")

    run: bytes
    gateway: bytes  # its key
    key: bytes
    microbatch_ms: int  # how long a microbatch takes lately; 0: not known yet
    way_ms: int  # how long all else of a lease takes lately, the way to the gateway and back included; 0: not known yet

    def __post_init__(self) -> None:
        for what in ("run", "gateway", "key"):
            check_digest(getattr(self, what), what)
        if not (0 <= self.microbatch_ms <= MAX_MICROBATCH_MS and 0 <= self.way_ms <= MAX_OPEN_MS):
            raise ValueError("durations out of range")


@dataclass(frozen=True, slots=True)
class Lease:
    """What a key is to do, and with what."""

    signing: ClassVar[Signing] = Signing("lease", MAX_LEASE_BYTES, by="gateway")

    run: bytes
    gateway: bytes  # the founder that the claim names
    key: bytes
    round: int  # the one after the base
    base: bytes  # the commit
    min_exponent: int  # of the exponents of bodies on that base
    cohort: str  # the gateway's
    architecture: str
    microbatches_a_step: int
    good_ms: int  # from this answer on what comes back has so long
    weights: bytes  # SHA-256 of the weights that the architecture covers, binary32 in their order
    weights_bytes: int
    samples: bytes  # SHA-256 of the microbatches' samples
    samples_bytes: int
    num_train: int  # samples of the whole set: what the microbatches' are drawn from
    residual: bytes  # that the claim names: its gateway adds a part of it; empty: zeros

    def __post_init__(self) -> None:
        for what in ("run", "gateway", "key", "base", "weights", "samples"):
            check_digest(getattr(self, what), what)
        check_name(self.cohort, "cohort")
        if not (
            1 <= self.round <= MAX_ROUND
            and LEAST_MIN_EXPONENT <= self.min_exponent <= GREATEST_MIN_EXPONENT
            and 0 <= self.good_ms <= MAX_OPEN_MS
        ):
            raise ValueError("round, min exponent or time out of range")
        if not (1 <= self.microbatches_a_step <= MAX_LEASE_MICROBATCHES and len(self.architecture) <= MAX_ARCHITECTURE_TEXT):
            raise ValueError("too many microbatches, or no architecture")
        if not (1 <= self.weights_bytes <= MAX_BLOB_BYTES and 1 <= self.samples_bytes <= MAX_BLOB_BYTES):
            raise ValueError("weights or samples that are too large")
        if not 1 <= self.num_train < 2**40:
            raise ValueError("a data set of no samples, or of too many")
        if len(self.residual) not in (0, 32):
            raise ValueError("a residual's digest has 32 bytes, or none")


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """A lease, or why there is none now, and when to ask again."""

    lease: tuple[Signed[Lease], ...]
    reason: str
    wait_ms: int
    is_over: int  # 1: the run is finished

    def __post_init__(self) -> None:
        if len(self.lease) > 1 or self.is_over not in (0, 1):
            raise ValueError("more than one lease")
        _check_words(self.reason, self.wait_ms)


@dataclass(frozen=True, slots=True)
class LightReturn:
    """What a light contributor brings back for a lease."""

    claim: Signed[Claim]
    counts: tuple[int, ...]  # microbatches of each local step that there was time for: of the lease's the first ones, at least one
    body: bytes  # of the covered weights, in their order, in ``CODEC`` on the base's min exponent

    def __post_init__(self) -> None:
        if (
            not 1 <= len(self.counts) <= MAX_LOCAL_STEPS
            or any(count < 1 for count in self.counts)
            or sum(self.counts) > MAX_LEASE_MICROBATCHES
        ):
            raise ValueError("more microbatches or steps than a lease has, or a step without microbatches")

    @property
    def name(self) -> Digest:
        """Return what tells one return from another: SHA-256 of all of it."""
        return sha256(pack(self))


def max_return_bytes(body_bytes: int) -> int:
    """Return how long a packed return with a body of so many bytes is at most."""
    return MAX_CLAIM_BYTES + body_bytes + MAX_REQUEST_BYTES


class ReturnFate(IntEnum):
    """What became of a return."""

    HELD = 0  # the gateway has it, and hands it in with its own
    TAKEN = 1  # the log has it: the inclusion promise says so
    LOST = 2  # it counts for nothing


@dataclass(frozen=True, slots=True)
class LightWord:
    """A gateway's answer to a return."""

    fate: int  # of ReturnFate
    reason: str  # with LOST
    contribution: tuple[Signed[Contribution], ...]  # with TAKEN: the one that lists the claim, and its inclusion promise
    inclusion_promise: tuple[Signed[InclusionPromise], ...]
    wait_ms: int  # with HELD: when to ask again

    def __post_init__(self) -> None:
        if self.fate not in tuple(ReturnFate) or not len(self.contribution) == len(self.inclusion_promise) == (
            self.fate == ReturnFate.TAKEN
        ):
            raise ValueError("a word without its meaning")
        _check_words(self.reason, self.wait_ms)


def _check_words(reason: str, wait_ms: int) -> None:
    if len(reason) > _MAX_REASON or not reason.isprintable():
        raise ValueError("a reason that cannot be shown")
    if not 0 <= wait_ms <= MAX_OPEN_MS:
        raise ValueError("a wait of more than a day")
