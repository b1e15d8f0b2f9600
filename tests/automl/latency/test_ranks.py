import numpy as np
import pytest

from manta_swarm.automl.latency.correction import rank_correlation


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * 4 / (5 * 24)
        ([1, 1, 2, 2], [1, 2, 3, 4], 2 / 5**0.5),  # equal values share their ranks
        ([1, 2, 3], [5, 5, 5], 0.0),
        ([7], [8], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_rank_correlation_is_spearmans(one: list[float], other: list[float], expected: float) -> None:
    assert rank_correlation(np.array(one, float), np.array(other, float)) == pytest.approx(expected)
