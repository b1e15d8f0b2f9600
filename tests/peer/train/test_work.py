import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manta_swarm.automl.spaces.space import TINY, Architecture
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.codec.coding import encode
from manta_swarm.codec.residuals import residual_digest, vector_digest
from manta_swarm.peer.submit.making import MadeContribution, made_of
from manta_swarm.peer.train.work import ClaimTerms, GradientAccumulator, Lap, Learnt, Vector, Work, claim_of
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.exchange import MAX_MICROBATCH_MS
from manta_swarm.protocol.manifest import MAX_SHARDS
from manta_swarm.protocol.records import MAX_SKIPPED, Claim, ClaimStep, StepMean
from manta_swarm.protocol.rosters import MAX_LEFT_OUT, claim_bytes
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256

PEER = Identity(b"\x0b" * 32)
LARGEST, SMALLEST = TINY.largest(), TINY.smallest()
ASKED = (LARGEST, SMALLEST, LARGEST)  # a round may ask for the same twice


def microbatch(index: int, architecture: Architecture, samples: int) -> Microbatch:
    return Microbatch(7, sha256(b"base"), 0, PEER.public_key, index, architecture, samples)


def result(gradient: list[float], samples: int, loss: float) -> MicrobatchResult:
    return MicrobatchResult(gradient=torch.tensor(gradient), loss=loss, samples=samples)


def three_microbatches() -> GradientAccumulator:
    accumulator = GradientAccumulator(2, ASKED)
    accumulator.add(microbatch(0, LARGEST, 16), 2, result([1.0, 0.0], 16, 2.0))
    accumulator.add(microbatch(1, SMALLEST, 48), 1, result([0.0, 4.0], 48, 1.0))
    accumulator.add(microbatch(3, LARGEST, 16), 2, result([-1.0, 8.0], 16, 0.123456789))
    return accumulator


def test_gradient_and_loss_are_means_over_samples_and_microbatches_are_counted_by_the_place_of_their_architecture() -> None:
    accumulator = three_microbatches()
    assert accumulator.gradient().tolist() == [(16 - 16) / 80, (48 * 4 + 16 * 8) / 80]
    assert accumulator.loss == pytest.approx((16 * 2 + 48 * 1 + 16 * 0.123456789) / 80)
    assert (len(accumulator), accumulator.work) == (3, (0, 1, 2))
    assert (len(GradientAccumulator(2, ASKED)), GradientAccumulator(2, ASKED).work) == (0, (0, 0, 0))


def test_the_microbatches_gradients_are_not_changed() -> None:
    accumulator, one = GradientAccumulator(2, ASKED), result([1.0, 2.0], 16, 1.0)
    accumulator.add(microbatch(0, LARGEST, 16), 0, one)
    accumulator.add(microbatch(1, LARGEST, 16), 0, result([5.0, 5.0], 16, 1.0))
    assert one.gradient.tolist() == [1.0, 2.0]


def test_a_step_that_ended_is_kept_and_the_next_one_has_a_gradient_of_its_own() -> None:
    accumulator = three_microbatches()
    assert accumulator.means == ()
    assert (accumulator.step_microbatches, accumulator.samples) == (3, 80)
    first = accumulator.gradient()
    accumulator.end_step(sha256(b"own"), sha256(b"mean"))
    assert (accumulator.step_microbatches, accumulator.samples, len(accumulator)) == (0, 80, 3)
    accumulator.add(microbatch(4, LARGEST, 16), 0, result([3.0, 5.0], 16, 1.0))
    assert accumulator.gradient().tolist() == [3.0, 5.0]
    assert first.tolist() == [0.0, 4.0]
    accumulator.end_step(sha256(b"own too"), sha256(b"own too"))
    assert accumulator.means == (sha256(b"mean"), sha256(b"own too"))
    assert [(step.vector, step.count) for step in accumulator.claimed(b"")] == [(sha256(b"own"), 3), (sha256(b"own too"), 1)]


BASE = CommitRef(6, sha256(b"base"), sha256(b"state"), -20, None)
ACCOUNT = Identity(b"\x51" * 32).public_key
RUN = sha256(b"run")


TERMS = ClaimTerms(PEER, RUN, ACCOUNT)


def claimed(accumulator: GradientAccumulator, vector: Vector, **changes: Any) -> Signed[Claim]:
    settings: dict[str, Any] = {"founder": PEER.public_key, "given": sha256(b"given"), "microbatch_ms": 12, **changes}
    return claim_of(TERMS, Work(BASE, "home", accumulator), vector_digest(vector), **settings)


def made(
    accumulator: GradientAccumulator, given: Vector, claims: Sequence[Signed[Claim]] | None = None, codec: str = "int16", **changes: Any
) -> MadeContribution:
    coverage = changes.pop("coverage", None)
    return made_of(
        TERMS, codec, Learnt(Work(BASE, "home", accumulator), given, coverage), claims or [claimed(accumulator, given)], given, **changes
    )


def test_what_is_claimed_is_what_was_trained_and_learnt() -> None:
    accumulator = three_microbatches()
    vector = accumulator.gradient()
    claim = claimed(accumulator, vector).open()
    assert (claim.run, claim.round, claim.base, claim.cohort) == (RUN, 7, BASE.commit, "home")
    assert (claim.key, claim.founder, claim.residual, claim.microbatch_ms) == (PEER.public_key, PEER.public_key, b"", 12)
    assert claim.steps == (ClaimStep(0, 3, (2,), sha256(vector.astype("<f4").tobytes())),)
    assert (claim.payout, claim.work, claim.given) == (ACCOUNT, accumulator.work, sha256(b"given"))


def two_steps() -> GradientAccumulator:
    """Two steps that have ended, of the indices 0, 1, 3 and 4."""
    accumulator = three_microbatches()
    accumulator.end_step(sha256(b"own"), sha256(b"mean"))
    accumulator.add(microbatch(4, LARGEST, 16), 0, result([3.0, 5.0], 16, 1.0))
    accumulator.end_step(sha256(b"own too"), sha256(b"mean too"))
    return accumulator


def test_a_member_s_claim_names_its_founder_its_residual_and_its_steps() -> None:
    accumulator, founder = two_steps(), Identity(b"\x0c" * 32).public_key
    claim = claimed(accumulator, np.ones(2, np.float32), founder=founder, residual=sha256(b"left")).open()
    assert (claim.founder, claim.residual, claim.given) == (founder, sha256(b"left"), sha256(b"given"))
    assert claim.steps == (ClaimStep(0, 3, (2,), sha256(b"own")), ClaimStep(4, 4, (), sha256(b"own too")))


def test_a_claim_so_far_has_the_steps_up_to_the_one_under_way() -> None:
    accumulator, founder = three_microbatches(), Identity(b"\x0c" * 32).public_key
    terms = ClaimTerms(PEER, RUN, PEER.public_key, shards=2)
    first = claim_of(terms, Work(BASE, "home", accumulator), sha256(b"own"), founder, 0).open()
    assert (first.run, first.round, first.base, first.key, first.founder, first.cohort) == (
        RUN,
        7,
        BASE.commit,
        PEER.public_key,
        founder,
        "home",
    )
    assert (first.steps, first.work, first.shards) == ((ClaimStep(0, 3, (2,), sha256(b"own")),), accumulator.work, 2)
    assert (first.given, first.residual) == (b"", b"")
    accumulator.end_step(sha256(b"own"), sha256(b"mean"))
    accumulator.add(microbatch(4, LARGEST, 16), 0, result([3.0, 5.0], 16, 1.0))
    second = claim_of(terms, Work(BASE, "home", accumulator), sha256(b"own too"), founder, 0).open()
    assert second.steps == (*first.steps, ClaimStep(4, 4, (), sha256(b"own too")))
    assert second.steps == two_steps().claimed(sha256(b"learnt"))
    assert second.work == accumulator.work


def test_of_what_is_not_to_be_told_a_claim_s_steps_tell_no_digest() -> None:
    accumulator = GradientAccumulator(2, ASKED, is_blind=True)
    accumulator.add(microbatch(0, LARGEST, 16), 0, result([1.0, 2.0], 16, 2.0))
    accumulator.end_step(sha256(b"own"), sha256(b"mean"))
    assert (accumulator.claimed(b""), accumulator.means) == ((ClaimStep(0, 0, (), bytes(32)),), (bytes(32),))


def test_a_step_has_room_for_microbatches_until_too_many_between_them_are_missing() -> None:
    accumulator = GradientAccumulator(2, ASKED, every=2)
    assert accumulator.has_room(10**6)
    accumulator.add(microbatch(4, LARGEST, 16), 0, result([1.0, 2.0], 16, 2.0))
    accumulator.add(microbatch(8, LARGEST, 16), 0, result([1.0, 2.0], 16, 2.0))
    last = 8 + 2 * MAX_SKIPPED  # with 6 they are so many
    assert accumulator.has_room(last)
    assert not accumulator.has_room(last + 2)
    accumulator.add(microbatch(last, LARGEST, 16), 0, result([1.0, 2.0], 16, 2.0))
    (step,) = accumulator.claimed(sha256(b"own"))
    assert (step.first, step.last, step.every, len(step.skipped), step.count) == (4, last, 2, MAX_SKIPPED, 3)


@pytest.mark.parametrize("local_steps", [1, 2, 5, 40, 512])
def test_whoever_leaves_out_microbatches_as_long_as_there_is_room_has_a_claim_that_a_founder_takes(local_steps: int) -> None:
    accumulator, index, left_out = GradientAccumulator(2, [LARGEST] * 32), 2**17, 0  # indices of five bytes
    for _ in range(local_steps):
        gap = max(gap for gap in range(MAX_SKIPPED + 1) if gap + left_out <= MAX_LEFT_OUT)
        accumulator.add(microbatch(index, LARGEST, 16), 0, result([1.0, 2.0], 16, 2.0))
        assert accumulator.has_room(index + gap + 1)
        assert not accumulator.has_room(index + gap + 2)
        accumulator.add(microbatch(index + gap + 1, LARGEST, 16), 0, result([1.0, 2.0], 16, 2.0))
        accumulator.end_step(sha256(b"own"), sha256(b"mean"))
        index, left_out = index + gap + 2, left_out + gap
    terms = ClaimTerms(PEER, RUN, ACCOUNT, shards=MAX_SHARDS - 1)
    claim = claim_of(terms, Work(BASE, "c" * 63, accumulator), b"", ACCOUNT, MAX_MICROBATCH_MS, given=RUN, residual=RUN).open()
    size = len(pack(replace(claim, partner=RUN)))
    assert size + 4 * 31 <= claim_bytes(local_steps)  # where it counts many microbatches of each architecture


def test_a_contribution_lists_who_dropped_out_and_says_who_counted_where() -> None:
    cohort_peers = sorted((Identity(bytes([number]) * 32) for number in (1, 2)), key=lambda cohort_peer: cohort_peer.public_key)
    accumulator, vector = two_steps(), np.ones(2, np.float32)
    first, second = (ClaimTerms(cohort_peer, RUN, cohort_peer.public_key) for cohort_peer in cohort_peers)
    whole = claim_of(first, Work(BASE, "home", accumulator), b"", PEER.public_key, 1, given=bytes(32))
    dropped = claim_of(second, Work(BASE, "home", three_microbatches()), sha256(b"own"), PEER.public_key, 1)
    header = made(accumulator, vector, [claimed(accumulator, vector), whole], dropped=[dropped]).header
    contribution, keys = header.contribution.open(), [claim.open().key for claim in header.claims]
    assert keys == sorted([PEER.public_key, *(cohort_peer.public_key for cohort_peer in cohort_peers)])
    assert contribution.claims == tuple(claim.digest for claim in header.claims)
    without = 7 - (1 << keys.index(cohort_peers[1].public_key))
    assert (contribution.included, contribution.steps) == (without, (StepMean(sha256(b"mean"), 7), StepMean(sha256(b"mean too"), without)))


def test_a_contribution_has_the_body_of_what_is_given() -> None:
    accumulator = three_microbatches()
    vector = accumulator.gradient()
    signed = claimed(accumulator, vector)
    found = made(accumulator, vector, [signed])
    contribution = found.header.contribution.open()
    assert (contribution.run, contribution.round, contribution.base) == (RUN, 7, BASE.commit)
    assert (contribution.founder, contribution.claims, contribution.residual) == (PEER.public_key, (signed.digest,), b"")
    assert (contribution.included, contribution.steps) == (1, (StepMean(vector_digest(vector), 1),))
    assert found.header.claims == (signed,)
    assert found.left is None
    assert found.blob.join() == encode("int16", vector, -20)
    assert contribution.body == found.blob.root
    assert found.body.values(-20).tolist() == vector.tolist()  # these few bits fit


def test_a_sparse_contribution_names_what_it_leaves_out_of_what_is_covered_and_of_what_is_not() -> None:
    given = np.array([0.5, -2.0, 8.0, 0.25], np.float32)
    coverage = np.array([True, True, False, True])
    found = made(three_microbatches(), given, codec="topk-1024-4", coverage=coverage)
    assert found.body.values(-20).tolist() == [0.0, -2.0, 0.0, 0.0]  # one of four values
    assert found.left is not None
    assert found.left.tolist() == [0.5, 0.0, 8.0, 0.25]
    assert found.header.contribution.open().residual == residual_digest(found.left)


def test_a_sparse_contribution_that_leaves_nothing_out_leaves_no_residual() -> None:
    given = np.array([0.0, -2.0, 0.0, 0.0], np.float32)
    found = made(three_microbatches(), given, codec="topk-1024-4")
    assert (found.left, found.header.contribution.open().residual) == (None, b"")


def test_times_add_up_by_name_until_the_line_is_told() -> None:
    lap = Lap()
    for name in ("train", "wait", "train"):
        lap.mark(name)
    assert re.fullmatch(r"train_s=\d+\.\d\d wait_s=\d+\.\d\d", lap.line())
    lap.mark("hand_in")
    assert re.fullmatch(r"hand_in_s=\d+\.\d\d", lap.line())
