"""Samples and seeds of microbatches: fixed for ever, in range, without repetition, and every sample as likely as every other."""

import hashlib
from collections import Counter
from itertools import islice, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol import microbatches
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices

BASE, KEY = b"b" * 32, b"k" * 32
# As computed when the rule was made; a change would make microbatches of old rounds impossible to recompute.
MICROBATCH_SEED = 5_262_827_560_098_698_302
SAMPLES = (1033, 1112, 760, 1314, 637, 377, 1192, 233)
identities = st.tuples(st.integers(0, 2**62), st.binary(max_size=32), st.integers(0, 2**10), st.binary(max_size=32), st.integers(0, 2**32))


def test_a_microbatch_is_the_same_on_every_machine_for_ever() -> None:
    assert microbatch_seed(7, BASE, 3, KEY, 2) == MICROBATCH_SEED
    assert sample_indices(7, BASE, 3, KEY, 2, 1437, 8) == SAMPLES


@given(identities, st.integers(1, 300), st.integers(0, 300))
def test_samples_are_in_range_and_not_repeated_before_all_were_drawn(
    identity: tuple[int, bytes, int, bytes, int], size: int, count: int
) -> None:
    samples = sample_indices(*identity, size, count)
    assert len(samples) == count
    for start in range(0, count, size):
        block = samples[start : start + size]
        assert len(set(block)) == len(block)
    assert all(0 <= sample < size for sample in samples)


@given(identities, st.integers(1, 100), st.data())
def test_a_smaller_microbatch_has_the_first_samples_of_a_larger_one(
    identity: tuple[int, bytes, int, bytes, int], size: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, size))
    assert sample_indices(*identity, size, count) == sample_indices(*identity, size, size)[:count]


@given(identities)
def test_a_seed_has_64_bits(identity: tuple[int, bytes, int, bytes, int]) -> None:
    assert 0 <= microbatch_seed(*identity) < 2**64


def test_every_part_of_a_microbatch_s_identity_counts() -> None:
    identity = (7, BASE, 3, KEY, 2)
    others = [(8, BASE, 3, KEY, 2), (7, b"c" * 32, 3, KEY, 2), (7, BASE, 4, KEY, 2), (7, BASE, 3, b"l" * 32, 2), (7, BASE, 3, KEY, 3)]
    others += [(7, KEY, 3, BASE, 2), (7, BASE, 2, KEY, 3), (3, BASE, 7, KEY, 2)]
    every = [identity, *others]
    assert len({microbatch_seed(*one) for one in every}) == len(every)
    assert len({sample_indices(*one, 1437, 8) for one in every}) == len(every)


def test_every_order_of_a_small_data_set_is_as_likely_as_every_other() -> None:
    draws = 24 * 400
    seen = Counter(sample_indices(0, BASE, 0, KEY, index, 4, 4) for index in range(draws))
    assert set(seen) == set(permutations(range(4)))
    # Chi-square with 23 degrees of freedom: above 49.7 once in a thousand. The draws are fixed, so this passes always or never.
    assert sum((count - 400) ** 2 / 400 for count in seen.values()) < 49.7


def test_words_that_would_favour_small_numbers_are_skipped() -> None:
    words = iter([2**64 - 1, 2**64 - 2, 5])
    assert microbatches._below(words, 2**63 + 1) == 5
    assert microbatches._below(iter([2**64 - 1]), 2**32) == 2**32 - 1


def test_the_words_are_those_of_sha256_in_counter_mode() -> None:
    start = hashlib.sha256(b"label").digest()
    stream = b"".join(hashlib.sha256(start + counter.to_bytes(8, "big")).digest() for counter in range(3))
    expected = [int.from_bytes(stream[offset : offset + 8], "big") for offset in range(0, 96, 8)]
    assert list(islice(microbatches._words(b"label"), 12)) == expected


@pytest.mark.parametrize(("size", "count"), [(0, 1), (-1, 1), (5, -1)])
def test_what_cannot_be_drawn_is_a_value_error(size: int, count: int) -> None:
    with pytest.raises(ValueError, match="drawn"):
        sample_indices(7, BASE, 3, KEY, 2, size, count)
