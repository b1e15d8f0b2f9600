"""A peer's word on how good the model is at its place: what it may say, and how it is summed up."""

import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.private import MAX_MEASURE_BYTES, MAX_SAMPLES, MAX_SIGNED_BYTES, AccuracySpread, Measure
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256

ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
MEASURE = Measure(sha256(b"run"), ALICE.public_key, 7, 100, 90, 80)


def test_a_signed_measure_comes_back_and_the_longest_fits() -> None:
    assert Signed.sign(MEASURE, ALICE).open() == MEASURE
    longest = Measure(MEASURE.run, MEASURE.key, MAX_ROUND, MAX_SAMPLES, MAX_SAMPLES, MAX_SAMPLES)
    assert len(pack(longest)) <= MAX_MEASURE_BYTES
    assert len(pack(Signed.sign(longest, ALICE))) <= MAX_SIGNED_BYTES


@pytest.mark.parametrize(
    "change",
    [{"largest": 101}, {"smallest": -1}, {"samples": 0}, {"samples": MAX_SAMPLES + 1}, {"round": -1}, {"run": b"r"}, {"key": b"k"}],
    ids=repr,
)
def test_a_measure_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"images|round|run|key"):
        replace(MEASURE, **change)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_spread_is_least_median_and_best(shares: list[float]) -> None:
    spread = AccuracySpread.of(shares)
    assert (spread.least, spread.best) == (min(shares), max(shares))
    assert spread.median == pytest.approx(statistics.median(shares))
