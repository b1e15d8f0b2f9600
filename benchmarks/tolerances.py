"""How far an honest lot is from the same lot computed elsewhere, and how far a false one is: what an audit's tolerance is chosen by.

    .venv/bin/python benchmarks/tolerances.py [--supernets classifier-tiny,stereo-tiny] [--lots 40] [--threads 1,2] [--trained 60]

Computes the same lots in a process for each setting: so many threads of the CPU, images in memory channels last or channels first, and
each instruction set that torch can be told to use (``ATEN_CPU_CAPABILITY``). Lots are of random architectures, some of the largest and
the smallest, in turn at the first weights and at those after --trained steps. --lots is for each setting and supernet. Every setting is
compared with the first one, as an audit compares them (``automl.training.auditing``). Prints how far the lots are in the middle, the
farthest in a hundred and in a thousand, the farthest, and how many the tolerance refuses. Then what --cheats lots of each cheat come to:
how near the nearest of them is, the nearest in a hundred, and how many the tolerance lets pass.

100,000 honest lots: --lots 5000 takes hours. Seconds of each setting are printed, so that one knows before.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from automl.data.catalog import load_dataset
from automl.models.networks import build
from automl.spaces.space import Architecture, SearchSpace, space_named
from automl.training.auditing import FP32, Deviation, deviation
from automl.training.lots import Lot, LotResult, Worker
from automl.training.settings import usual
from protocol.records import LotRecord

BASE, KEY, SEED = b"b" * 32, b"k" * 32, 1
CAPABILITIES = ("default", "avx2", "avx512")
LAYOUTS = ("last", "first")
_ME = str(Path(__file__).resolve())


@dataclass(frozen=True, slots=True)
class Setting:
    """How a machine computes."""

    threads: int
    layout: str  # channels "last" | "first"
    capability: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.threads} threads, channels {self.layout}, {self.capability}"


@dataclass(frozen=True, slots=True)
class Results:
    """What lots came to in one setting: one row a lot."""

    projections: NDArray[np.float32]
    losses: NDArray[np.float64]
    norms: NDArray[np.float64]


# One setting, in a process of its own.


def lot_at(space: SearchSpace, index: int, samples: int) -> Lot:
    """Return the lot that all settings compute as number ``index``."""
    fixed = {0: space.largest(), 1: space.smallest()}
    architecture = fixed.get(index % 8) or space.sample(random.Random(f"lot:{index}"))
    return Lot(SEED, BASE, 0, KEY, index, architecture, samples)


def compute(supernet: str, weights: Path, lots: int, samples: int, out: Path) -> None:
    """Compute the lots, and write down what they came to."""
    states = torch.from_numpy(np.load(weights))
    space = space_named(supernet)
    worker = Worker(supernet, load_dataset(usual(space.task).dataset))
    found: list[LotResult] = []
    for state, first in ((0, 0), (1, 1)):
        worker.load(states[state])
        found += [worker.train(lot_at(space, index, samples)) for index in range(first, lots, 2)]
    np.savez(
        out,
        projections=np.array([np.frombuffer(one.projection, "<f4") for one in found]),
        losses=np.array([one.loss for one in found]),
        norms=np.array([float(one.gradient.double().norm()) for one in found]),
    )


def run(setting: Setting, supernet: str, weights: Path, lots: int, samples: int, folder: Path) -> tuple[Results, float]:
    """Have a process compute the lots; return what came out, and how many seconds that took."""
    out = folder / "out.npz"
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, _ME, "--child", json.dumps([supernet, str(weights), lots, samples, str(out), setting.threads, setting.layout])],
        env={**os.environ, "ATEN_CPU_CAPABILITY": setting.capability, "OMP_NUM_THREADS": str(setting.threads)},
        check=True,
    )
    with np.load(out) as data:
        return Results(data["projections"], data["losses"], data["norms"]), time.perf_counter() - began


def be_child(arguments: str) -> None:
    """Be the process of one setting."""
    supernet, weights, lots, samples, out, threads, layout = json.loads(arguments)
    torch.set_num_threads(threads)
    if layout == "first":
        torch.channels_last = torch.contiguous_format  # every place that asks for the one gets the other
    compute(supernet, Path(weights), lots, samples, Path(out))


# Comparing.


def compared(claimed: Results, own: Results) -> list[Deviation]:
    """Return how far each lot of one setting is from the other's, as an audit sees it."""
    apart = np.sqrt(np.square(claimed.projections.astype(np.float64) - own.projections.astype(np.float64)).mean(axis=1))
    losses = np.array([float(f"{loss:.6g}") for loss in claimed.losses])
    of_loss = np.abs(losses - own.losses) / np.abs(own.losses)
    return [Deviation(float(one), float(other)) for one, other in zip(apart / own.norms, of_loss, strict=True)]


def line_of(found: Sequence[Deviation]) -> str:
    """Return how far honest lots are, for people."""
    projections, losses = ([getattr(each, name) for each in found] for name in ("projection", "loss"))
    refused = sum(not each.is_within(FP32) for each in found)
    shown = ", ".join(f"{np.quantile(projections, part):.1e}" for part in (0.5, 0.99, 0.999, 1.0))
    of_loss = ", ".join(f"{np.quantile(losses, part):.1e}" for part in (0.5, 0.999, 1.0))
    return f"projection {shown}; loss {of_loss}; {refused} of {len(found)} refused"


def honest(supernet: str, settings: Sequence[Setting], weights: Path, lots: int, samples: int, folder: Path) -> list[Deviation]:
    """Compare all settings with the first one, line by line; return all deviations."""
    own, seconds = run(settings[0], supernet, weights, lots, samples, folder)
    print(f"  compared with: {settings[0].name} ({seconds:.0f} s for {lots} lots)", flush=True)
    together: list[Deviation] = []
    for setting in settings[1:]:
        other, seconds = run(setting, supernet, weights, lots, samples, folder)
        found = compared(other, own)
        together += found
        print(f"  {setting.name}: {line_of(found)} ({seconds:.0f} s)", flush=True)
    return together


def record_of(lot: Lot, result: LotResult) -> LotRecord:
    """Return what a peer would say of a lot."""
    return LotRecord(lot.step, lot.index, lot.architecture.text, lot.samples, f"{result.loss:.6g}", result.projection)


def cheats(supernet: str, weights: Path, lots: int, samples: int) -> None:
    """Print how far false lots are from the ones that they are claimed to be."""
    space, states = space_named(supernet), torch.from_numpy(np.load(weights))
    worker = Worker(supernet, load_dataset(usual(space.task).dataset))
    noise = np.random.default_rng(0)
    found: dict[str, list[Deviation]] = {}
    for index in range(lots):
        lot = lot_at(space, index, samples)
        worker.load(states[index % 2])
        own = worker.train(lot)
        norm = float(own.gradient.double().norm())
        other: dict[str, Callable[[], LotResult]] = {
            "noise of the right norm": lambda: replace(own, projection=noise.normal(0, norm, 8).astype("<f4").tobytes()),  # noqa: B023
            "another seed's images": lambda: worker.train(replace(lot, run_seed=SEED + 1)),  # noqa: B023
            "another architecture": lambda: worker.train(replace(lot, architecture=_another(space, lot.architecture))),  # noqa: B023
            "half of the samples": lambda: worker.train(replace(lot, samples=samples // 2)),  # noqa: B023
            "all samples but one": lambda: worker.train(replace(lot, samples=samples - 1)),  # noqa: B023
            "the gradient turned round": lambda: replace(own, projection=(-np.frombuffer(own.projection, "<f4")).tobytes()),  # noqa: B023
        }
        for name, make in other.items():
            found.setdefault(name, []).append(deviation(record_of(lot, make()), own))
        worker.load(states[index % 2] * (1 + 0.05 * torch.randn(states.shape[1], generator=torch.Generator().manual_seed(index))))
        found.setdefault("weights that are 5 % off", []).append(deviation(record_of(lot, worker.train(lot)), own))
    for name, each in found.items():
        passed = sum(one.is_within(FP32) for one in each)
        by_projection = sum(one.projection <= FP32.projection for one in each)
        nearest = ", ".join(f"{np.quantile([one.projection for one in each], part):.2g}" for part in (0, 0.01, 0.5))
        of_loss = ", ".join(f"{np.quantile([one.loss for one in each], part):.1e}" for part in (0, 0.01, 0.5))
        print(f"  {name}: projection {nearest}; loss {of_loss}; {passed} of {lots} would pass ({by_projection} by the projection alone)")


def _another(space: SearchSpace, architecture: Architecture) -> Architecture:
    """Return a random architecture of the same resolution that is not this one."""
    rng = random.Random(architecture.text)
    while True:
        found = replace(space.sample(rng), resolution=architecture.resolution)
        if found != architecture:
            return found


def states_of(supernet: str, steps: int, samples: int) -> Tensor:
    """Return (2, N) the first weights, and those after so many steps of plain gradient descent with momentum."""
    space = space_named(supernet)
    net = build(space)
    net.initialise(torch.Generator().manual_seed(0))
    first_N = net.flat_weights_N.clone()
    worker = Worker(supernet, load_dataset(usual(space.task).dataset))
    weights_N, moment_N = first_N.clone(), torch.zeros_like(first_N)
    for step in range(steps):
        worker.load(weights_N)
        gradient_N = worker.train(replace(lot_at(space, 8 * step, samples), base=BASE[::-1])).gradient
        moment_N = 0.9 * moment_N + gradient_N / max(1.0, float(gradient_N.norm()))
        weights_N = weights_N - 0.02 * moment_N
    return torch.stack((first_N, weights_N))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supernets", default="classifier-tiny,stereo-tiny", metavar="NAMES")
    parser.add_argument("--lots", type=int, default=40, metavar="N", help="in each setting")
    parser.add_argument("--cheats", type=int, default=40, metavar="N", help="lots of each cheat")
    parser.add_argument("--threads", default="1,2", metavar="NUMBERS")
    parser.add_argument("--trained", type=int, default=60, metavar="N", help="steps to the second weights")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        be_child(arguments.child)
        return
    threads = [int(number) for number in arguments.threads.split(",")]
    settings = [Setting(*each) for each in product(threads, LAYOUTS, CAPABILITIES)]
    print(
        f"tolerance: projection {FP32.projection}, loss {FP32.loss}; torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    )
    for supernet in arguments.supernets.split(","):
        samples = usual(space_named(supernet).task).lot_samples
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / "weights.npy"
            np.save(weights, states_of(supernet, arguments.trained, samples).numpy())
            print(f"{supernet}, lots of {samples}: middle, one in a hundred, one in a thousand, farthest")
            together = honest(supernet, settings, weights, arguments.lots, samples, Path(folder))
            print(f"  all {len(together)} comparisons: {line_of(together)}")
            print("  cheats: nearest, one in a hundred, middle")
            cheats(supernet, weights, arguments.cheats, samples)


if __name__ == "__main__":
    main()
