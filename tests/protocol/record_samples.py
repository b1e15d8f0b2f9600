"""One record of each kind, and the largest of some, for the tests of records."""

from dataclasses import replace

from manta_swarm.protocol.affinity import MAX_DISTANCES, NUM_STEPS, Position
from manta_swarm.protocol.exchange import LEAST_MIN_EXPONENT, MAX_COHORT, MAX_MICROBATCH_MS, MAX_OPEN_MS, MAX_ROWS
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.records import (
    MAX_ARCHITECTURES,
    MAX_INDEX,
    MAX_MICROBATCHES,
    MAX_ROLES,
    Announcement,
    Claim,
    ClaimStep,
    Contribution,
    Header,
    InclusionPromise,
    Round,
    StepMean,
    Threshold,
)
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Settlement, Verdict

ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
RUN, BASE = sha256(b"run"), sha256(b"base")
CLAIM = Claim(
    run=RUN,
    round=3,
    base=BASE,
    key=ALICE.public_key,
    payout=ALICE.public_key,
    founder=ALICE.public_key,
    cohort="east",
    steps=(ClaimStep(0, 3, (2,), sha256(b"own vector")),),
    work=(2, 0, 1),
    given=sha256(b"given"),
    residual=b"",
    microbatch_ms=250,
)
SIGNED_CLAIM = Signed.sign(CLAIM, ALICE)
CONTRIBUTION = Contribution(
    RUN, 3, BASE, ALICE.public_key, (SIGNED_CLAIM.digest,), 1, (StepMean(sha256(b"mean of a step"), 1),), sha256(b"body"), b""
)
SIGNED_CONTRIBUTION = Signed.sign(CONTRIBUTION, ALICE)
HEADER = Header(SIGNED_CONTRIBUTION, (SIGNED_CLAIM,))
INCLUSION_PROMISE = InclusionPromise(RUN, 4, SIGNED_CONTRIBUTION.digest)
THRESHOLD = Threshold(1, 12_345, 640)
ROUND = Round(
    run=RUN,
    round=4,
    base=BASE,
    first=17,
    contributions=2,
    weights=sha256(b"weights"),
    mean=sha256(b"mean"),
    state=sha256(b"state"),
    thresholds=(replace(THRESHOLD, role=0), THRESHOLD),
    min_exponent=-31,
    open_ms=60_000,
)
POSITION = Position(1, b"h" * 16, b"s" * 8, ((b"a" * 8, 0), (b"b" * 8, 7)))
ANNOUNCEMENT = Announcement(RUN, ALICE.public_key, "east", 3, 5, POSITION)
VERDICT = Verdict(RUN, ALICE.public_key, 3, SIGNED_CONTRIBUTION.digest, (0,), BOB.public_key)
SETTLEMENT = Settlement(RUN, BASE)

LARGEST_CLAIM = replace(
    CLAIM,
    round=MAX_ROUND,
    cohort="c" * 63,
    founder=BOB.public_key,
    steps=(
        ClaimStep(0, MAX_MICROBATCHES * MAX_ARCHITECTURES - 2, (), sha256(b"v")),
        ClaimStep(MAX_INDEX - 1, MAX_INDEX - 1, (), sha256(b"v")),
    ),
    work=(MAX_MICROBATCHES,) * MAX_ARCHITECTURES,
    residual=sha256(b"residual"),
    microbatch_ms=MAX_MICROBATCH_MS,
)
LARGEST_ANNOUNCEMENT = replace(
    ANNOUNCEMENT,
    cohort="c" * 63,
    round=MAX_ROUND,
    sequence=2**62 - 1,
    position=replace(POSITION, distances=tuple((bytes([tag]) * 8, NUM_STEPS - 1) for tag in range(MAX_DISTANCES))),
)
LARGEST_CONTRIBUTION = replace(CONTRIBUTION, round=MAX_ROUND, claims=(sha256(b"claim"),) * MAX_COHORT, residual=sha256(b"residual"))
LARGEST_HEADER = Header(Signed.sign(LARGEST_CONTRIBUTION, ALICE), (Signed.sign(LARGEST_CLAIM, ALICE),) * MAX_COHORT)
LARGEST_ROUND = replace(
    ROUND,
    round=MAX_ROUND,
    first=MAX_SIZE - 1,
    contributions=MAX_ROWS,
    thresholds=tuple(Threshold(role, 2**62 - 1, 2**48) for role in range(MAX_ROLES)),
    min_exponent=LEAST_MIN_EXPONENT,
    open_ms=MAX_OPEN_MS,
)
