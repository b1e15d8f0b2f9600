"""A program that prints which instruction set torch uses, and what updates come to by it.

``ATEN_CPU_CAPABILITY`` names another set. torch reads that at its first operation, and no import of this project is one.
"""

import hashlib

import numpy as np
import torch

from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State, _known_vector, known_digest, next_state, sort_channels, state_digest
from manta_swarm.protocol.manifest import Optimizer, Recipe

OPTIMIZER = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
PLAN = Plan("classifier-tiny", "sandwich", "data-parallel", OPTIMIZER, 30, 3, 1, Recipe(decay="all"))
PLACES = (0, 1, 7, 8, 15, 16, 33_333, 69_999, 70_000)  # of the vectors that the self-test uses
TOO_MUCH = 2.0**64  # its square is 2^128; that of the number below is the largest that float32 has room for


def steps_around_the_largest_number() -> list[str]:
    """What becomes of a mean that overflows in one place, or nearly does; for each place whether the step was taken, and the digest."""
    found = []
    state = State(0, _known_vector(1), (_known_vector(2), _known_vector(3).abs()))  # torch's own random numbers would differ
    known = _known_vector(4)
    for place in PLACES:
        for value in (np.nextafter(np.float32(TOO_MUCH), np.float32(0)), np.float32(TOO_MUCH)):
            mean = known.clone()
            mean[place] = -float(value)
            following = next_state(state, mean, PLAN)
            found += [str(not torch.equal(following.parameters, state.parameters)), state_digest(following).hex()]
    return found


def sorted_digest() -> str:
    """Return the digest of channels that were sorted."""
    vector_N = _known_vector(3).repeat(4)[: Classifier(TINY).num_weights]
    return hashlib.sha256(sort_channels(vector_N, (), "classifier-tiny")[0].numpy().tobytes()).hexdigest()


def digests_by_threads() -> list[str]:
    """Return this process's instruction set; then the digests of updates and of a sort, and those steps, by one thread and by two."""
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(" ".join([known_digest(), sorted_digest(), *steps_around_the_largest_number()]))
    torch.set_num_threads(before)
    return [torch.backends.cpu.get_cpu_capability().lower(), *found]


def main() -> None:
    """Print them, a line each."""
    print(*digests_by_threads(), sep="\n")


if __name__ == "__main__":
    main()
