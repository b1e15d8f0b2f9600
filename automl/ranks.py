"""How alike two rankings are: a latency table's and the networks', a predictor's and the measured losses'."""

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def rank_correlation(one_N: Values, other_N: Values) -> float:
    """Return Spearman's rank correlation, -1 to 1; 0 of fewer than two values, or where all of one side are equal: nothing is ranked."""
    if len(one_N) < 2 or np.ptp(one_N) == 0.0 or np.ptp(other_N) == 0.0:
        return 0.0
    from scipy.stats import spearmanr  # takes longer to load than all else of a program that ranks nothing

    return float(np.clip(spearmanr(one_N, other_N).statistic, -1.0, 1.0))  # which rounding can leave
