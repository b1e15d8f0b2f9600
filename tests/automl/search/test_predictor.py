import random

import numpy as np
import pytest

from manta_swarm.automl.latency.correction import rank_correlation
from manta_swarm.automl.search.evolution import MIN_SAMPLES
from manta_swarm.automl.search.predictor import Predictor, one_hot
from manta_swarm.automl.spaces.space import BASE, TINY
from tests.automl.narrow import SMALL_NARROW
from tests.automl.search.synthetic import score_of


def test_a_predictor_ranks_architectures_that_it_has_not_seen() -> None:
    rng = random.Random(0)
    seen, unseen = ([BASE.sample(rng) for _ in range(count)] for count in (200, 300))
    predictor = Predictor(BASE, seen, [score_of(architecture) for architecture in seen])
    truth = np.array([score_of(architecture) for architecture in unseen])
    correlation = rank_correlation(np.array(predictor.scores(unseen)), truth)
    assert correlation > 0.9
    assert predictor.fit.rank_correlation == pytest.approx(correlation, abs=0.1)
    assert predictor.fit.rmse < np.std(truth)
    assert not predictor.fit.is_weak


def test_a_predictor_of_noise_says_that_it_is_weak() -> None:
    rng = random.Random(0)
    architectures = [TINY.sample(rng) for _ in range(100)]
    assert Predictor(TINY, architectures, [rng.random() for _ in architectures]).fit.is_weak


def test_a_predictor_of_equal_scores_predicts_them() -> None:
    rng = random.Random(0)
    architectures = [TINY.sample(rng) for _ in range(MIN_SAMPLES)]
    predictor = Predictor(TINY, architectures, [0.5] * MIN_SAMPLES)
    assert predictor.scores(architectures) == pytest.approx([0.5] * MIN_SAMPLES)
    assert predictor.fit.rank_correlation == 0.0
    assert predictor.scores([]) == []


def test_too_few_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 20"):
        Predictor(TINY, [TINY.smallest()], [0.5])


def test_different_architectures_have_different_flags() -> None:
    rng = random.Random(0)
    architectures = {TINY.sample(rng) for _ in range(300)}
    flags = {tuple(one_hot(architecture, TINY)) for architecture in architectures}
    assert len(flags) == len(architectures)
    assert sum(one_hot(TINY.smallest(), TINY)) == 1 + 2 * len(TINY.widths)


def test_widths_have_flags_where_there_is_a_choice() -> None:
    flags = {tuple(one_hot(architecture, SMALL_NARROW)) for architecture in SMALL_NARROW}
    assert len(flags) == SMALL_NARROW.size()
    assert {len(each) for each in flags} == {2 + 2 + 2 * (1 + 2) + 2 * (1 + 1) + 3 + (2 + 1)}
