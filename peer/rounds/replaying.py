"""The weights before local steps, computed again from those at the base and the steps' means, from file to files.

Local steps are exact and work value by value, so it is done a page of values after the other: it takes the memory of a few pages, however
many weights there are.
"""

import contextlib
import logging
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from automl.training.local import LocalSteps
from automl.training.schedule import Plan
from automl.training.update import State
from protocol.records import StepRecord
from protocol.vectors import PAGE_BYTES
from swarm.vectors import VectorPart, VectorsFolder

_VALUE_BYTES = 4

logger = logging.getLogger("manta.peer")


def write_weights(
    folder: VectorsFolder, claim: bytes, round_: int, steps: Sequence[StepRecord], wanted: Collection[int], plan: Plan, num_weights: int
) -> None:
    """Write the weights before the ``wanted`` steps of a claim that are not in its folder, where what they follow from is.

    Args:
        folder: has the weights at the base, and the means up to the last wanted step.
        claim: its digest.
        round_: its round.
        steps: all of its records.
        wanted: steps, from 1 on.
        plan: of the run.
        num_weights: N.

    Raises:
        NoRoom: there is no room for them.
        StorageError: the disk refuses.
    """
    missing = {steps[number].state: number for number in sorted(wanted, reverse=True) if not folder.has(claim, steps[number].state)}
    if not missing:
        return
    last, num_bytes = max(missing.values()), _VALUE_BYTES * num_weights
    with contextlib.ExitStack() as stack:
        parts: dict[int, VectorPart] = {}
        for digest, number in missing.items():
            parts[number] = stack.enter_context(contextlib.closing(folder.begin(round_, claim, digest, num_bytes)))
        for first in range(0, num_bytes, PAGE_BYTES):
            base = _values(folder.page(claim, steps[0].state, first))
            means = [_values(folder.page(claim, step.mean, first)) for step in steps[:last]]
            if base is None or any(mean is None for mean in means):
                logger.error("weights cannot be computed again: a mean, or the base's weights, are gone round=%d", round_)
                return
            place = slice(first // _VALUE_BYTES, first // _VALUE_BYTES + len(base))
            local = LocalSteps(State(round_ - 1, base, ()), plan, place)
            for number, mean in enumerate(means):
                if steps[number + 1].state == steps[number].state:  # whether a step is taken no part of the weights can tell
                    local.pass_over()
                else:
                    assert mean is not None
                    local.step(mean)
                if number + 1 in parts:
                    parts[number + 1].write(local.weights.numpy().astype("<f4", copy=False).data.cast("B"))
        for number, part in parts.items():
            if part.digest == steps[number].state:
                part.finish()
            else:
                logger.error("other weights came out than were trained on round=%d step=%d", round_, number)


def _values(page: bytes | None) -> Tensor | None:
    return None if page is None else torch.from_numpy(np.frombuffer(page, "<f4").astype(np.float32))
