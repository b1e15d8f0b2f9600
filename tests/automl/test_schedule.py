from collections import Counter
from dataclasses import replace

import pytest

from automl.schedule import learning_rate, round_architectures
from automl.space import TINY
from protocol.records import Optimizer

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20)


def test_data_parallel_trains_the_sandwich_of_the_round_in_every_cohort() -> None:
    for round_ in range(1, 20):
        largest, smallest, *others = round_architectures(TINY, 7, round_, "data-parallel", "a")
        assert (largest, smallest, len(others)) == (TINY.largest(), TINY.smallest(), 2)
        assert round_architectures(TINY, 7, round_, "data-parallel", "b") == (largest, smallest, *others)
    assert round_architectures(TINY, 7, 1, "data-parallel", "a") != round_architectures(TINY, 7, 2, "data-parallel", "a")
    assert round_architectures(TINY, 7, 1, "data-parallel", "a") != round_architectures(TINY, 8, 1, "data-parallel", "a")


def test_model_parallel_takes_a_cohort_through_the_whole_sandwich_in_each_block_of_four_rounds() -> None:
    orders = set()
    for cohort in ("a", "b", "c"):
        for block in range(10):
            rounds = [round_architectures(TINY, 7, 4 * block + place, "model-parallel", cohort) for place in (1, 2, 3, 4)]
            assert all(len(architectures) == 1 for architectures in rounds)
            roles = [{TINY.largest(): "L", TINY.smallest(): "S"}.get(architecture, "r") for (architecture,) in rounds]
            assert Counter(roles) == {"L": 1, "S": 1, "r": 2}
            orders.add("".join(roles))
    assert len(orders) > 4


def test_model_parallel_cohorts_train_different_architectures() -> None:
    pairs = [[round_architectures(TINY, 7, round_, "model-parallel", cohort) for cohort in ("a", "b")] for round_ in range(1, 41)]
    assert sum(a != b for a, b in pairs) > 20


def test_what_the_manifest_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="round"):
        round_architectures(TINY, 7, 0, "data-parallel", "a")
    with pytest.raises(ValueError, match="algorithm"):
        round_architectures(TINY, 7, 1, "none", "a")


def test_the_rate_rises_linearly_to_its_peak_and_falls_linearly_to_one_percent() -> None:
    rates = [learning_rate(ADAMW, round_, 100) for round_ in range(1, 101)]
    assert rates[:20] == pytest.approx([0.02 * step / 20 for step in range(1, 21)])
    assert rates[20:] == pytest.approx([0.02 * (1 - 0.99 * step / 80) for step in range(1, 81)])
    assert max(rates) == rates[19] == 0.02


@pytest.mark.parametrize(("warmup", "rounds"), [(0, 1), (0, 7), (100, 5), (50, 1), (1, 3)])
def test_the_rate_is_defined_in_every_round_of_every_run(warmup: int, rounds: int) -> None:
    rates = [learning_rate(replace(ADAMW, warmup_percent=warmup), round_, rounds) for round_ in range(1, rounds + 1)]
    assert all(0 < rate <= 0.02 for rate in rates)


@pytest.mark.parametrize("round_", [0, 11])
def test_a_round_outside_the_run_has_no_rate(round_: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 10"):
        learning_rate(ADAMW, round_, 10)
