"""What a table comes to: its mean, and what it leaves to the tables after it. A pure function of its bodies and the entries before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.coding import Body
from manta_swarm.codec.mean import Masks, group_mean, next_min_exponent, total_weights
from manta_swarm.protocol.exchange import LEAST_MIN_EXPONENT
from manta_swarm.protocol.records import Threshold
from manta_swarm.protocol.table import Weighing, clipped_weight, limit_square, next_thresholds, shifted, weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table's mean, and what its round entry says of the weights, exponents and norms."""

    mean: NDArray[np.float32]  # (N,)
    weights: tuple[int, ...]  # of each contribution
    clipped: tuple[int, ...]  # the same, less where its norm is above the limit
    thresholds: tuple[Threshold, ...]
    min_exponent: int

    @property
    def num_clipped(self) -> int:
        """How many contributions counted with less than their norm."""
        return sum(less < weight for weight, less in zip(self.weights, self.clipped, strict=True))


def outcome(
    table: Sequence[Weighing],
    bodies: Sequence[Body],
    min_exponents: Sequence[int],
    thresholds: Sequence[Threshold],
    min_exponent: int,
    num_values: int,
    masks: Masks | None = None,
) -> Outcome:
    """Return what a table comes to.

    Args:
        table: the round's contributions, in order.
        bodies: of each, all of one codec.
        min_exponents: min exponent of each one's base.
        thresholds: of the round entry before.
        min_exponent: that entry's min exponent; the thresholds are in units of 2^min_exponent.
        num_values: N.
        masks: what each one's architecture covers, where that is a part; those that cover the same may share one array. A body's norm is
            that of all its values all the same.

    Raises:
        ValueError: as ``Sum.add`` and ``total_weights``: contributions and bodies that no log has in a table.
    """
    least = min(min_exponent, *min_exponents)
    norms = [body.norm_square << 2 * (of_base - least) for body, of_base in zip(bodies, min_exponents, strict=True)]
    table_weights = weights(table)
    clipped = _clipped(table, table_weights, norms, thresholds, 2 * (min_exponent - least))
    # A body of zeros says nothing about exponents; a table of nothing else, that the min exponent may be too high.
    said = [place for place, norm in enumerate(norms) if norm]
    highest = [min_exponents[place] + bodies[place].max_exponent for place in said]
    said_weights = [table_weights[place] for place in said]
    new_min_exponent = (
        next_min_exponent(highest, said_weights, min_exponent, bodies[0].codec.window)
        if said
        else max(min_exponent - 1, LEAST_MIN_EXPONENT)
    )
    new_norms = [shifted(norm, 2 * (least - new_min_exponent)) for norm in norms]
    return Outcome(
        mean=mean_of(table_weights, clipped, bodies, min_exponents, num_values, masks),
        weights=table_weights,
        clipped=clipped,
        thresholds=next_thresholds(table, new_norms, thresholds, new_min_exponent - min_exponent),
        min_exponent=new_min_exponent,
    )


def mean_of(
    weights: Sequence[int],
    clipped: Sequence[int],
    bodies: Sequence[Body],
    min_exponents: Sequence[int],
    num_values: int,
    masks: Masks | None = None,
) -> NDArray[np.float32]:
    """Return the mean (N,) of bodies whose weights are known; the arguments are those of ``outcome``.

    Raises:
        ValueError: as ``outcome``.
    """
    return group_mean(bodies, clipped, min_exponents, masks, total_weights(weights, masks, num_values))


def _clipped(
    table: Sequence[Weighing], table_weights: Sequence[int], norms: Sequence[int], thresholds: Sequence[Threshold], finer: int
) -> tuple[int, ...]:
    """Return what each contribution counts with; squared norms are in units 2^finer times smaller than those of the thresholds' squares."""
    by_role = {threshold.role: threshold for threshold in thresholds}
    limits = [limit_square(one, by_role) for one in table]
    return tuple(
        clipped_weight(weight, norm, None if limit is None else limit << finer)
        for weight, norm, limit in zip(table_weights, norms, limits, strict=True)
    )
