"""What the exact update takes of one core, beside what has to be done with its outcome on the CPU in any case: the state's digest.

    .venv/bin/python benchmarks/update.py [--repeats 9]

For each supernet: milliseconds of one core of a step of AdamW, and of the digest of the state after it, medians of --repeats turns; and the
bytes that a device would be given and would have to give back in a round, if it made the step.
"""

import statistics
import time
from collections.abc import Callable

import results
import torch

from manta_swarm.automl.environment import keep_freed_memory
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import BASE, STEREO_BASE, STEREO_TINY, TINY
from manta_swarm.automl.training.optimizers import own_step
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.manifest import Optimizer

_OPTIMIZER = Optimizer("adamw", "0.002", "0.9", "0.999", "0.00000001", "0.01", 30, "0.9", "0.5")


def timed_ms(call: Callable[[], object]) -> float:
    """Return the milliseconds of one core of a call."""
    started_s = time.process_time()
    call()
    return 1000 * (time.process_time() - started_s)


def measured(count: int, repeats: int) -> tuple[float, float]:
    """Return the milliseconds of a step of so many weights, and of the digest."""
    weights_N, first_N, second_N, gradient_N = (torch.rand(count) for _ in range(4))
    state = State(1, weights_N, (first_N, second_N))
    steps, digests = [], []
    for _ in range(repeats):
        steps.append(timed_ms(lambda: own_step(weights_N, (first_N, second_N), gradient_N, _OPTIMIZER, rate=0.001, number=3)))
        digests.append(timed_ms(lambda: state_digest(state)))
    return statistics.median(steps), statistics.median(digests)


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9, metavar="N")
    arguments = parser.parse_args()
    keep_freed_memory()  # as the programs that train do
    torch.set_num_threads(1)
    for space in (TINY, STEREO_TINY, BASE, STEREO_BASE):
        count = build(space, "meta").num_weights
        step_ms, digest_ms = measured(count, arguments.repeats)
        moved = f"a device: {4 * count / 1e6:.1f} MB there, {12 * count / 1e6:.1f} MB back"
        line = f"{space.name:<16} {count:>10,} weights: step {step_ms:6.1f} ms, digest {digest_ms:6.1f} ms; {moved}"
        results.say(line, supernet=space.name, weights=count, step_ms=step_ms, digest_ms=digest_ms)
    results.write(arguments)


if __name__ == "__main__":
    main()
