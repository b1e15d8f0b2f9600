"""What a table comes to: its mean, and what it leaves to the tables after it. A pure function of rows, bodies and the entries before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exact.coding import Body
from exact.mean import Masks, Sum, next_floor, total_weights
from protocol.exchange import MIN_FLOOR
from protocol.records import Threshold
from protocol.table import Row, clipped_weight, limit_square, next_thresholds, shifted, weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table's mean, and what its round entry says of the weights, exponents and norms."""

    mean: NDArray[np.float32]  # (N,)
    weights: tuple[int, ...]  # that each row counted with, clipped: what ``Round.weights`` is the root over
    thresholds: tuple[Threshold, ...]
    floor: int
    clipped: tuple[bytes, ...]  # founders of the rows that counted with less than their norm


def outcome(
    rows: Sequence[Row],
    bodies: Sequence[Body],
    floors: Sequence[int],
    thresholds: Sequence[Threshold],
    floor: int,
    num_values: int,
    masks: Masks | None = None,
) -> Outcome:
    """Return what a table comes to.

    Args:
        rows: in the table's order.
        bodies: of the rows, all of one codec.
        floors: exponent floor of each row's base.
        thresholds: of the round entry before.
        floor: that entry's exponent floor; the thresholds are in units of 2^floor.
        num_values: N.
        masks: what each row's architecture covers, where that is a part; rows that cover the same may share one array. A body's norm is
            that of all its values all the same.

    Raises:
        ValueError: as ``Sum.add`` and ``total_weights``: rows and bodies that no log has in a table.
    """
    least = min(floor, *floors)
    norms = [body.norm_square << 2 * (of_row - least) for body, of_row in zip(bodies, floors, strict=True)]
    row_weights = weights(rows)
    counted = _clipped(rows, row_weights, norms, thresholds, 2 * (floor - least))
    total = Sum(num_values, least)
    for body, of_row, weight, mask in zip(bodies, floors, counted, masks or [None] * len(rows), strict=True):
        total.add(body, of_row - least, weight, mask)
    # A body of zeros says nothing about exponents; a table of nothing else, that the floor may be too high.
    said = [place for place, norm in enumerate(norms) if norm]
    highest = [floors[place] + bodies[place].max_exponent for place in said]
    said_weights = [row_weights[place] for place in said]
    new_floor = next_floor(highest, said_weights, floor, bodies[0].codec.window) if said else max(floor - 1, MIN_FLOOR)
    new_norms = [shifted(norm, 2 * (least - new_floor)) for norm in norms]
    return Outcome(
        mean=total.mean(total_weights(row_weights, masks, num_values)),
        weights=counted,
        thresholds=next_thresholds(rows, new_norms, thresholds, new_floor - floor),
        floor=new_floor,
        clipped=tuple(row.founder for row, weight, less in zip(rows, row_weights, counted, strict=True) if less < weight),
    )


def _clipped(
    rows: Sequence[Row], row_weights: Sequence[int], norms: Sequence[int], thresholds: Sequence[Threshold], finer: int
) -> tuple[int, ...]:
    """Return what each row counts with; squared norms are in units that are 2^finer times smaller than those of the thresholds' squares."""
    by_role = {threshold.role: threshold for threshold in thresholds}
    limits = [limit_square(row, by_role) for row in rows]
    return tuple(
        clipped_weight(weight, norm, None if limit is None else limit << finer)
        for weight, norm, limit in zip(row_weights, norms, limits, strict=True)
    )
