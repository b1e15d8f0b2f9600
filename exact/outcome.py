"""What a table comes to: its mean, and what it leaves to the tables after it. A pure function of rows, bodies and the entries before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exact.coding import Body
from exact.mean import Sum, next_floor
from protocol.exchange import MIN_FLOOR
from protocol.records import Threshold
from protocol.table import Row, clipped_weight, limit_square, next_thresholds, shifted, weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table's mean, and what its round entry says of the exponents and norms to come."""

    mean: NDArray[np.float32]  # (N,)
    thresholds: tuple[Threshold, ...]
    floor: int
    clipped: tuple[bytes, ...]  # founders of the rows that counted with less than their norm


def outcome(
    rows: Sequence[Row], bodies: Sequence[Body], floors: Sequence[int], thresholds: Sequence[Threshold], floor: int, num_values: int
) -> Outcome:
    """Return what a table comes to.

    Args:
        rows: in the table's order.
        bodies: of the rows.
        floors: exponent floor of each row's base.
        thresholds: of the round entry before.
        floor: that entry's exponent floor; the thresholds are in units of 2^floor.
        num_values: N.
    """
    least = min(floor, *floors)
    norms = [body.norm_square << 2 * (of_row - least) for body, of_row in zip(bodies, floors, strict=True)]
    by_role = {threshold.role: threshold for threshold in thresholds}
    row_weights = weights(rows)
    total = Sum(num_values, least)
    clipped = []
    for row, body, of_row, norm, weight in zip(rows, bodies, floors, norms, row_weights, strict=True):
        limit = limit_square(row, by_role)
        counted = clipped_weight(weight, norm, None if limit is None else limit << 2 * (floor - least))
        total.add(body, of_row - least, counted)
        if counted < weight:
            clipped.append(row.founder)
    # A body of zeros says nothing about exponents; a table of nothing else, that the floor may be too high.
    said = [place for place, norm in enumerate(norms) if norm]
    highest = [floors[place] + bodies[place].max_exponent for place in said]
    new_floor = next_floor(highest, [row_weights[place] for place in said], floor) if said else max(floor - 1, MIN_FLOOR)
    new_norms = [shifted(norm, 2 * (least - new_floor)) for norm in norms]
    return Outcome(total.mean(sum(row_weights)), next_thresholds(rows, new_norms, thresholds, new_floor - floor), new_floor, tuple(clipped))
