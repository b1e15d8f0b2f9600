"""Says of a run, before it is begun, that a considerable part of what it pays would never be final, and how less of it would be. Pure."""

from collections.abc import Iterator

from protocol.accounts import Horizon
from protocol.audits import PATIENCE, Trust

LEAST_KEPT_ROUNDS = 8  # of a run file
_CONSIDERABLE = 0.1  # of the rounds


def lines_on_horizon(horizon: Horizon, trust: Trust) -> Iterator[str]:
    """Yield the line, if it is worth one."""
    stays = horizon.num_rounds - horizon.last_final
    if stays < _CONSIDERABLE * horizon.num_rounds or not stays:
        return
    rounds = f"the last {stays} of {horizon.num_rounds} rounds" if horizon.last_final else f"all {stays} rounds"
    least = trust.kept_rounds + PATIENCE + 2
    ways = ["more rounds"]
    if trust.pending_rounds > least:
        ways = [f"a smaller pending_rounds (kept_rounds + {PATIENCE + 2} = {least} at least)", *ways]
    elif trust.kept_rounds > LEAST_KEPT_ROUNDS:
        ways = [f"smaller kept_rounds and pending_rounds (kept_rounds + {PATIENCE + 2} at least)", *ways]
    yield f"what {rounds} pay stays pending: the run ends before it is final; less of it does with {' or '.join(ways)} in the run file"
