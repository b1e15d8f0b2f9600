"""What part of a claim may be false before an audit finds it, and how far what cheats hand in is beyond what an audit allows.

    .venv/bin/python benchmarks/audit_limits.py [--supernets classifier-tiny] [--claims 1,2,5,10,20,50,100,500] [--trained 60]

Trains the microbatches of one step of a claim, at the weights after --trained steps, of random architectures, some of the largest and the
smallest. For claims of each size it prints how far each false mean is from the true one, in parts of what an audit allows
(``automl.training.audited_step``): above 1 it is found. Then how many of a claim's microbatches may be left out, the mean of the others
standing for theirs, before it is found: any, in the best of 50 draws for the cheat, and those of the smallest norms, which a cheat would
have to know.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results
from tolerances import SEED, microbatch_at, states_of

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.audited_step import FP32, StepGradient, WeightedGradient
from manta_swarm.automl.training.microbatches import Worker
from manta_swarm.automl.training.settings import usual

Gradients = NDArray[np.float32]  # (microbatches, N)
DRAWS = 50
NOTHING = np.zeros(0, np.float32)


def bound_of(norms: NDArray[np.float64]) -> float:
    """Return how far the mean of microbatches of these norms may be off."""
    each = norms / len(norms)
    return FP32.bound([WeightedGradient(1.0, StepGradient(NOTHING, float(np.square(each).sum()), float(each.max()), NOTHING))])


def false_means(true: Gradients, stale: Gradients, other: Gradients) -> dict[str, Gradients]:
    """Return what cheats hand in, by what they do; each (N,)."""
    mean = true.mean(axis=0)
    noise = np.random.default_rng(0).normal(size=mean.size)
    tenth = max(1, len(true) // 10)

    def with_tenth(instead: Gradients) -> Gradients:
        mixed: Gradients = np.concatenate([instead[:tenth], true[tenth:]]).mean(axis=0)
        return mixed

    return {
        "reversed": -mean,
        "half of it": mean / 2,
        "twice it": mean * 2,
        "zero": mean * 0,
        "noise": (noise * np.linalg.norm(mean) / np.linalg.norm(noise)).astype(np.float32),
        "other weights'": stale.mean(axis=0),
        "other images'": other.mean(axis=0),
        "a tenth zero": with_tenth(true * 0),
        "a tenth reversed": with_tenth(-true),
        "a tenth of other images": with_tenth(other),
    }


def unnoticed(true: Gradients, norms: NDArray[np.float64], orders: list[NDArray[np.int64]]) -> int:
    """Return how many microbatches may be left out, the first of the best order, before the mean of the others is found out."""
    bound, total = bound_of(norms), true.sum(axis=0, dtype=np.float64)
    mean, count, best = total / len(true), len(true), 0
    for order in orders:
        rest = total.copy()
        for left, place in enumerate(order[: count - 1]):
            rest -= true[place]
            if np.linalg.norm(rest / (count - left - 1) - mean) > bound:
                break
            best = max(best, left + 1)
    return best


def measure(supernet: str, sizes: list[int], trained: int) -> None:
    """Print the tables of a supernet."""
    space = space_named(supernet)
    samples = usual(space.task).microbatch_samples
    worker = Worker(supernet, load_dataset(usual(space.task).dataset))
    first, weights = states_of(supernet, trained, samples)
    microbatches = [microbatch_at(space, index, samples) for index in range(max(sizes))]

    def trained_on(parameters: torch.Tensor, run_seed: int = SEED) -> Gradients:
        worker.load(parameters)
        return np.stack([worker.train(replace(microbatch, run_seed=run_seed)).gradient.numpy() for microbatch in microbatches])

    began = time.process_time()
    true = trained_on(weights)
    per_microbatch_s = (time.process_time() - began) / len(microbatches)
    stale, other = trained_on(first), trained_on(weights, run_seed=SEED + 1)
    norms = np.linalg.norm(true.astype(np.float64), axis=1)
    print(f"{supernet}, N = {true.shape[1]:,}: norms {norms.min():.3g} to {norms.max():.3g}, {1000 * per_microbatch_s:.1f} ms a microbatch")
    rng = np.random.default_rng(0)
    for size in sizes:
        part = slice(0, size)
        bound = bound_of(norms[part])
        found = {
            name: float(np.linalg.norm(each - true[part].mean(axis=0))) / bound
            for name, each in false_means(true[part], stale[part], other[part]).items()
        }
        results.say(
            f"  {size}: " + ", ".join(f"{name} {far:.2g}" for name, far in found.items()),
            supernet=supernet,
            microbatches=size,
            parts_of_bound=found,
        )
        any_ = unnoticed(true[part], norms[part], [rng.permutation(size) for _ in range(DRAWS)])
        smallest = unnoticed(true[part], norms[part], [np.argsort(norms[part])])
        text = f"  {size}: may be left out unnoticed: any {any_}, those of the smallest norms {smallest}"
        results.say(text, supernet=supernet, microbatches=size, any_left_out=any_, smallest_left_out=smallest)


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--supernets", default="classifier-tiny", metavar="NAMES")
    parser.add_argument("--claims", default="1,2,5,10,20,50,100,500", metavar="NUMBERS")
    parser.add_argument("--trained", type=int, default=60, metavar="N", help="steps to the weights")
    arguments = parser.parse_args()
    for supernet in arguments.supernets.split(","):
        measure(supernet, [int(number) for number in arguments.claims.split(",")], arguments.trained)
    results.write(arguments)


if __name__ == "__main__":
    main()
