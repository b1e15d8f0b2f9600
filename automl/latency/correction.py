"""The correction of a latency table: from sums over layers that ran alone to whole networks, and how alike two rankings are. Pure.

A layer alone finds its weights in the caches, and pays for its call; in a network it is otherwise, for all layers in much the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from manta_swarm.automl.latency.table import Accuracy, Conditions, LatencyTable
from manta_swarm.automl.spaces.space import Architecture, SearchSpace

Values = npt.NDArray[np.float64]

_UNKNOWN = Accuracy(1, 1, 0.0, 0.0, 0.0)


def rank_correlation(one_N: Values, other_N: Values) -> float:
    """Return Spearman's rank correlation, -1 to 1; 0 of fewer than two values, or where all of one side are equal: nothing is ranked."""
    if len(one_N) < 2 or np.ptp(one_N) == 0.0 or np.ptp(other_N) == 0.0:
        return 0.0
    from scipy.stats import spearmanr  # takes longer to load than all else of a program that ranks nothing

    return float(np.clip(spearmanr(one_N, other_N).statistic, -1.0, 1.0))  # which rounding can leave


def fitted_table(
    space: SearchSpace, conditions: Conditions, entries: Mapping[str, float], measured: Sequence[tuple[Architecture, float]]
) -> LatencyTable:
    """Return the table, its correction fitted on every second of the whole networks by size, its error that of the others.

    Args:
        space: what ``entries`` prices.
        conditions: of all measurements.
        entries: milliseconds by the keys of the cost table.
        measured: (architecture, milliseconds) of whole networks, at least one.
    """
    raw = LatencyTable(space.name, conditions, entries, 0.0, 1.0, _UNKNOWN)
    by_sum = sorted((raw.latency_ms(architecture), time_ms) for architecture, time_ms in measured)
    fitted, checked = np.array(by_sum[::2]), np.array(by_sum[1::2] or by_sum)
    offset, factor = _correction(fitted[:, 0], fitted[:, 1], raw.minimum_ms(space))
    errors = _errors((offset, factor), checked[:, 0], checked[:, 1])
    accuracy = Accuracy(len(fitted), len(checked), float(errors.mean()), float(errors.max()), rank_correlation(*checked.T))
    return replace(raw, offset=offset, factor=factor, accuracy=accuracy)


def _correction(sums_ms: Values, times_ms: Values, minimum_ms: float) -> tuple[float, float]:
    """Return offset and factor: with an offset where that foretells networks better that were left out, and no network takes no time."""
    offset, factor = _affine(sums_ms, times_ms)
    if len(sums_ms) < 3 or factor <= 0.0 or offset + factor * minimum_ms <= 0.0:
        return _proportional(sums_ms, times_ms)
    errors = [_error_left_out(sums_ms, times_ms, has_offset=has_offset) for has_offset in (True, False)]
    return _fitted(sums_ms, times_ms, has_offset=errors[0] <= errors[1])


def _fitted(sums_ms: Values, times_ms: Values, *, has_offset: bool) -> tuple[float, float]:
    return _affine(sums_ms, times_ms) if has_offset else _proportional(sums_ms, times_ms)


def _affine(sums_ms: Values, times_ms: Values) -> tuple[float, float]:
    """Return offset and factor with the least squares of the relative errors."""
    terms = np.stack([1.0 / times_ms, sums_ms / times_ms], axis=1)
    offset, factor = np.linalg.lstsq(terms, np.ones(len(terms)), rcond=None)[0]
    return float(offset), float(factor)


def _proportional(sums_ms: Values, times_ms: Values) -> tuple[float, float]:
    """Return no offset, and the factor with the least squares of the relative errors."""
    shares = sums_ms / times_ms
    return 0.0, float(shares.sum() / (shares**2).sum())


def _error_left_out(sums_ms: Values, times_ms: Values, *, has_offset: bool) -> float:
    """Return the mean relative error of each network by the fit on the others."""
    errors = []
    for index in range(len(sums_ms)):
        correction = _fitted(np.delete(sums_ms, index), np.delete(times_ms, index), has_offset=has_offset)
        errors.append(_errors(correction, sums_ms[[index]], times_ms[[index]]).item())
    return sum(errors) / len(errors)


def _errors(correction: tuple[float, float], sums_ms: Values, times_ms: Values) -> Values:
    offset, factor = correction
    errors: Values = np.abs(offset + factor * sums_ms - times_ms) / times_ms
    return errors
