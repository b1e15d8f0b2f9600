"""Says of a run, before it is begun, that a considerable part of what it pays would never be final, and how less of it would be. Pure."""

from collections.abc import Iterator

from aggregator.settings.sections import LEAST_KEPT_ROUNDS
from protocol.audits import SETTLING, Trust
from protocol.horizon import Horizon

_CONSIDERABLE = 0.1  # of the rounds


def lines_on_last_rounds(horizon: Horizon, trust: Trust) -> Iterator[str]:
    """Yield the line, if it is worth one."""
    stays = horizon.num_rounds - horizon.last_final
    if stays < _CONSIDERABLE * horizon.num_rounds or not stays:
        return
    rounds = f"the last {stays} of {horizon.num_rounds} rounds" if horizon.last_final else f"all {stays} rounds"
    least = trust.kept_rounds + SETTLING
    ways = ["more rounds"]
    if trust.pending_rounds > least:
        ways = [f"a smaller pending_rounds (kept_rounds + {SETTLING} = {least} at least)", *ways]
    elif trust.kept_rounds > LEAST_KEPT_ROUNDS:
        ways = [f"smaller kept_rounds and pending_rounds (kept_rounds + {SETTLING} at least)", *ways]
    yield f"what {rounds} pay stays pending: the run ends before it is final; less of it does with {' or '.join(ways)} in the run file"
