"""What is given, what is left, and the mean of a cohort: against fractions, and whatever happens to a cohort nothing is lost."""

import hashlib
import struct
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.residuals import PART_VALUES, VectorHash, covered, given, left_over, near_mean, residual_digest, vector_digest
from manta_swarm.protocol.errors import OwnFault
from tests.codec import reference
from tests.codec.reference import float32

Floats = np.ndarray
MODERATE = st.floats(-(2.0**80), 2.0**80, width=32)
COUNT, MIN_EXPONENT = 24, 0


def vector(*values: float) -> Floats:
    return np.array(values, np.float32)


def vectors(elements: st.SearchStrategy[float] = MODERATE, count: int = 6) -> st.SearchStrategy[Floats]:
    return hnp.arrays(np.float32, count, elements=elements)


def exact(value: np.float32) -> Fraction:
    return Fraction(float(value))


def as_floats(values: list[Fraction]) -> list[float]:
    return [float(float32(value)) for value in values]


@for_all(vectors(), vectors(), st.integers(0, 100))
def test_what_is_given_is_what_fractions_say(learnt: Floats, residual: Floats, percent: int) -> None:
    factor = exact(float32(Fraction(percent, 100)))
    parts = [exact(float32(exact(value) * factor)) for value in residual]
    expected = as_floats([exact(value) + part for value, part in zip(learnt, parts, strict=True)])
    before = learnt.tobytes(), residual.tobytes()
    found = given(learnt, residual, percent)
    assert found.dtype == np.float32
    assert found.tolist() == expected
    assert (learnt.tobytes(), residual.tobytes()) == before


@for_all(vectors(), vectors(), st.integers(0, 100), hnp.arrays(np.bool_, 6))
def test_outside_of_what_an_architecture_covers_the_residual_is_given_whole(
    learnt: Floats, residual: Floats, percent: int, mask: np.ndarray
) -> None:
    found, everywhere = given(learnt, residual, percent, mask), given(learnt, residual, percent)
    assert found[mask].tobytes() == everywhere[mask].tobytes()
    assert found[~mask].tobytes() == residual[~mask].tobytes()
    assert covered(found, mask)[mask].tobytes() == found[mask].tobytes()
    assert not covered(found, mask)[~mask].any()
    assert given(learnt, None, percent, mask).tobytes() == covered(learnt, mask).tobytes()
    assert covered(found, None) is found


def test_without_a_residual_what_was_learnt_is_given_in_a_vector_of_its_own() -> None:
    learnt = vector(1.0, -0.0, 2.0**-149)
    found = given(learnt, None, 95)
    assert found.tobytes() == learnt.tobytes()
    assert not np.shares_memory(found, learnt)
    assert given(learnt, learnt, 0).tolist() == learnt.tolist()
    assert given(vector(0.0), vector(1.0), 95).tolist() == [float(np.float32(0.95))]


def test_what_leaves_the_range_of_a_float_is_given_as_it_is_and_not_coded() -> None:
    for learnt, residual in ((3e38, 3e38), (np.inf, -np.inf), (np.nan, 1.0)):
        found = given(vector(learnt), vector(residual), 100)
        assert not np.isfinite(found).any()
        with pytest.raises(ValueError, match="not finite"):
            encode(CODEC, found, MIN_EXPONENT)


@for_all(vectors(), reference.SPARSE_CODECS, st.integers(-60, 60))
def test_what_is_left_is_what_fractions_say(whole: Floats, codec: str, min_exponent: int) -> None:
    body = parse(codec, encode(codec, whole, min_exponent), whole.size)
    decoded = [exact(value) for value in body.values(min_exponent)]
    before = whole.tobytes()
    found = left_over(whole, body, min_exponent)
    assert found.dtype == np.float32
    assert found.tolist() == as_floats([exact(value) - other for value, other in zip(whole, decoded, strict=True)])
    assert whole.tobytes() == before


@for_all(st.lists(st.tuples(vectors(), st.integers(1, 2**40)), min_size=2, max_size=5))
def test_a_mean_of_a_cohort_is_what_fractions_say(members: list[tuple[Floats, int]]) -> None:
    factors = [exact(float32(Fraction(weight))) for _, weight in members]
    total = exact(float32(Fraction(sum(weight for _, weight in members))))
    expected = []
    for column in zip(*(one for one, _ in members), strict=True):
        products = [exact(float32(exact(value) * factor)) for value, factor in zip(column, factors, strict=True)]
        sum_ = products[0]
        for product in products[1:]:
            sum_ = exact(float32(sum_ + product))
        expected.append(sum_ / total)
    found = near_mean([one for one, _ in members], [weight for _, weight in members])
    assert found.dtype == np.float32
    assert found.tolist() == as_floats(expected)


def test_a_long_mean_is_that_of_its_parts() -> None:
    rng = np.random.default_rng(1)
    members = [rng.standard_normal(200_003).astype(np.float32) for _ in range(3)]
    whole = near_mean(members, [3, 5, 640])
    for start in (0, 65_535, 65_536, 131_072, 200_000):
        part = near_mean([member[start : start + 3] for member in members], [3, 5, 640])
        assert part.tobytes() == whole[start : start + 3].tobytes()
    assert near_mean(members[::-1], [640, 5, 3]).tobytes() != whole.tobytes()  # sums of floats have an order


def test_a_peer_alone_is_its_own_mean_to_the_bit() -> None:
    values = (np.arange(1000) / 7 - 50).astype(np.float32)
    found = near_mean([values], [3])
    assert found.tobytes() == values.tobytes()
    assert not np.shares_memory(found, values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_cohort_has_no_mean_of_what_is_not_finite(value: float) -> None:
    for members in ([vector(1.0, value)], [vector(1.0, 2.0), vector(1.0, value)], [vector(value, 0.0), vector(-value, 0.0)]):
        with pytest.raises(ValueError, match="not finite"):
            near_mean(members, [1] * len(members))


def test_a_mean_that_leaves_the_range_of_a_float_on_its_way_is_none() -> None:
    with pytest.raises(ValueError, match="not finite"):
        near_mean([vector(2.0**127), vector(2.0**127)], [64, 64])


@pytest.mark.parametrize(
    ("members", "weights", "why"),
    [
        ([], [], "no mean"),
        ([vector(1.0)], [1, 1], "no mean"),
        ([vector(1.0), vector(1.0)], [1], "no mean"),
        ([vector(1.0), vector(1.0, 2.0)], [1, 1], "one length"),
        ([vector(1.0), np.ones(1)], [1, 1], "float32"),
        ([np.ones((1, 1), np.float32)], [1], "one length"),
        ([vector(1.0), vector(1.0)], [0, 1], "out of range"),
        ([vector(1.0), vector(1.0)], [2**53, 1], "out of range"),
    ],
)
def test_what_is_no_cohort_has_no_mean(members: list[Floats], weights: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        near_mean(members, weights)


def test_vectors_that_do_not_belong_together_are_refused() -> None:
    body = parse("int8", encode("int8", vector(1.0, 2.0), 0), 2)
    with pytest.raises(ValueError, match="one length"):
        given(vector(1.0), vector(1.0, 2.0), 95)
    with pytest.raises(ValueError, match="one length"):
        left_over(vector(1.0), body, 0)
    with pytest.raises(ValueError, match="float32"):
        given(np.ones(1), None, 95)
    for percent in (-1, 101):
        with pytest.raises(ValueError, match="%"):
            given(vector(1.0), vector(1.0), percent)


@pytest.mark.usefixtures("_flushing")
def test_a_thread_that_flushes_denormals_takes_no_part() -> None:
    body = parse("int8", b"\x00\x01", 1)
    for call in (lambda: given(vector(1.0), None, 9), lambda: left_over(vector(1.0), body, 0), lambda: near_mean([vector(1.0)], [1])):
        with pytest.raises(OwnFault, match="denormal"):
            call()


def test_vectors_are_named_by_their_bytes_and_a_residual_of_zeros_by_nothing() -> None:
    values = vector(1.0, -2.5, 0.0)
    digest = hashlib.sha256(struct.pack("<3f", 1.0, -2.5, 0.0)).digest()
    assert vector_digest(values) == residual_digest(values) == digest
    assert vector_digest(values.astype(">f4")) == digest
    assert vector_digest(np.repeat(values, 2)[::2]) == digest
    assert residual_digest(None) == residual_digest(vector(0.0, -0.0)) == b""
    assert vector_digest(vector(0.0)) == hashlib.sha256(bytes(4)).digest()


@dataclass
class Member:
    """A member of a swarm that is split into cohorts anew each round; its vectors hold integers, so every sum below is exact."""

    weight: int
    residual: Floats | None = None


INTEGERS = st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).integers(-50, 51, COUNT).astype(np.float32))
CODEC = "topk-512-3"  # of 24 values the 3 largest


def weighted(members: list[Member], given_by: list[Floats | None]) -> Floats:
    """The sum of weight times vector over members; float64 holds these sums exactly."""
    sums = np.zeros(COUNT)
    for member, values in zip(members, given_by, strict=True):
        if values is not None:
            sums += member.weight * values.astype(np.float64)
    return sums


def hand_in(cohort: list[Member], learnt: list[Floats], mask: np.ndarray | None, is_listed: bool) -> None:
    """Let a cohort code what it has, and check that nothing is lost; unlisted, its residuals stay as they are."""
    gave = [given(vector_, member.residual, 100, mask) for member, vector_ in zip(cohort, learnt, strict=True)]
    before, had = weighted(cohort, gave), weighted(cohort, [member.residual for member in cohort])
    assert np.array_equal(before, weighted(cohort, [covered(vector_, mask) for vector_ in learnt]) + had)
    whole = near_mean(gave, [member.weight for member in cohort])
    body = parse(CODEC, encode(CODEC, covered(whole, mask), MIN_EXPONENT), COUNT)
    left, decoded = left_over(whole, body, MIN_EXPONENT), body.values(MIN_EXPONENT)
    assert np.array_equal(before, weighted(cohort, [decoded + left] * len(cohort)))
    assert mask is None or not decoded[~mask].any()
    if is_listed:
        for member in cohort:
            member.residual = left
    remains = before - weighted(cohort, [decoded] * len(cohort)) if is_listed else had
    assert np.array_equal(weighted(cohort, [member.residual for member in cohort]), remains)


@for_all(st.data())
def test_over_splits_merges_and_what_is_not_listed_nothing_is_lost(data: st.DataObject) -> None:
    """Weights add up to powers of two in each cohort, so that means are exact: this is about the arithmetic, not about rounding."""
    swarm = [Member(weight) for weight in data.draw(st.sampled_from([[2] * 4, [1] * 4, [8] * 4, [4, 4, 2, 2]]))]
    for _ in range(data.draw(st.integers(1, 4))):
        cohorts = data.draw(st.sampled_from([[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1], [2], [3]], [[0, 1], [2], [3]]]))
        for cohort in cohorts:
            members = [swarm[place] for place in cohort]
            if sum(member.weight for member in members).bit_count() != 1:  # not exact: another round
                continue
            learnt = [data.draw(INTEGERS) for _ in members]
            mask = data.draw(st.none() | hnp.arrays(np.bool_, COUNT))
            hand_in(members, learnt, mask, data.draw(st.booleans()))


@for_all(st.data(), st.integers(1, 5))
def test_with_any_weights_what_is_lost_is_lost_to_rounding_only(data: st.DataObject, num_members: int) -> None:
    members = [Member(data.draw(st.integers(1, 640)), data.draw(st.none() | INTEGERS)) for _ in range(num_members)]
    given_by = [given(data.draw(INTEGERS), member.residual, 100) for member in members]
    before = weighted(members, given_by)
    whole = near_mean(given_by, [member.weight for member in members])
    body = parse(CODEC, encode(CODEC, whole, MIN_EXPONENT), COUNT)
    after = weighted(members, [body.values(MIN_EXPONENT)] * num_members)
    left = weighted(members, [left_over(whole, body, MIN_EXPONENT)] * num_members)
    total = sum(member.weight for member in members)
    assert np.abs(before - after - left).max() <= total * 200 * 2.0**-23


def test_what_is_never_large_enough_comes_through_in_the_end() -> None:
    """Error feedback: a value a fifth as large as its neighbours is sent every few rounds, as much of it as was learnt."""
    learnt = vector(*([5.0] * 3 + [1.0] + [0.0] * 20))
    residual, sent = None, np.zeros(COUNT, np.float32)
    for round_ in range(1, 61):
        whole = given(learnt, residual, 100)
        body = parse(CODEC, encode(CODEC, whole, MIN_EXPONENT), COUNT)
        residual = left_over(whole, body, MIN_EXPONENT)
        sent += body.values(MIN_EXPONENT)
        assert (sent + residual).tolist() == (learnt * round_).tolist()
    assert sent[3] >= 50.0


@for_all(st.integers(0, 3 * PART_VALUES + 5), st.lists(st.integers(1, 6 * PART_VALUES), max_size=8))
@settings(max_examples=30, deadline=None)
def test_a_digest_of_bytes_that_come_piece_by_piece_is_that_of_the_whole(count: int, pieces: list[int]) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype("<f4")
    found, rest = VectorHash(), memoryview(values.tobytes())
    for size in pieces:
        found.update(rest[:size])
        rest = rest[size:]
    found.update(rest)
    assert found.digest() == vector_digest(values)
