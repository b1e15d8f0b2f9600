"""Which architectures a round trains, and at which rate: functions of the manifest alone, the same at every peer.

The sandwich rule (arXiv:1903.05134): every step trains the largest, the smallest and two random architectures. Data-parallel
does so each round; model-parallel has one architecture per cohort and round, so a cohort goes through the four roles in four rounds.
"""

import random

from automl.space import Architecture, SearchSpace
from protocol.records import Optimizer

_ROLES = ("largest", "smallest", "random", "random")
_FINAL_PART = 0.01


def round_architectures(space: SearchSpace, manifest_seed: int, round: int, algorithm: str, cohort: str) -> tuple[Architecture, ...]:
    """Return the architectures of a round (from 1) in a cohort; see ``architecture_of_lot`` for which lot trains which."""
    if round < 1:
        raise ValueError("rounds count from 1")
    if algorithm == "data-parallel":
        return tuple(_of_role(space, role, f"{manifest_seed}:{round}:{index}") for index, role in enumerate(_ROLES))
    if algorithm == "model-parallel":
        block, place = divmod(round - 1, len(_ROLES))
        roles = list(_ROLES)
        random.Random(f"{manifest_seed}:{cohort}:block:{block}").shuffle(roles)
        return (_of_role(space, roles[place], f"{manifest_seed}:{cohort}:{round}"),)
    raise ValueError(f"unknown algorithm {algorithm!r}")


def architecture_of_lot(architectures: tuple[Architecture, ...], key: bytes, index: int) -> Architecture:
    """Return what lot ``index`` of a peer trains: one after the other, from a place that follows from its key.

    So where a round closes in mid-sweep, the swarm favours none of them.
    """
    return architectures[(key[0] + index) % len(architectures)]


def _of_role(space: SearchSpace, role: str, seed: str) -> Architecture:
    if role == "largest":
        return space.largest()
    if role == "smallest":
        return space.smallest()
    return space.sample(random.Random(seed))


def learning_rate(optimizer: Optimizer, round: int, num_rounds: int) -> float:
    """Return the rate of a round (1 to ``num_rounds``): linear up to the peak, then linear down to 1 % of it in the last round.

    Only + - * / on doubles, which IEEE 754 rounds exactly: the same bits everywhere.
    """
    if not 1 <= round <= num_rounds:
        raise ValueError(f"round {round} is not between 1 and {num_rounds}")
    peak = float(optimizer.learning_rate)
    warmup = num_rounds * optimizer.warmup_percent // 100
    if round <= warmup:
        return peak * round / warmup
    left = (num_rounds - round) / (num_rounds - warmup)
    return peak * (_FINAL_PART + (1.0 - _FINAL_PART) * left)
