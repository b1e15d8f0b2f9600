"""How far an honest lot is from the same lot computed elsewhere, and how far a false one is: what an audit's tolerance is chosen by.

    .venv/bin/python benchmarks/tolerances.py [--supernets NAMES] [--lots 200] [--each 5] [--threads 1,2] [--taught] [--keep DIR]

A setting is so many threads of the CPU, images in memory channels last or channels first, and the instruction sets that torch and the
libraries below it (oneDNN, MKL) may use: SSE4, AVX2, AVX-512. Lots are of random architectures, some of the largest and the smallest, in
claims of 20, in turn at the first weights and at those after --trained steps. The lots of a claim are computed in --each of the settings,
drawn for that claim, and these compared with one another, as an audit compares them (``automl.training.auditing``). Prints how far the
lots are in the middle, the farthest in a hundred and in a thousand, the farthest, how many the tolerance refuses, and how many of these an
auditor's second look, four more lots of the claim, does not clear: whose claim would be accused. Last the same by what the settings differ
in. Then what --cheats lots of each cheat come to: how near the nearest of them is, the nearest in a hundred, and how many would pass.

One process computes at a time, 2,000 lots in one setting. With --keep what is done stays in DIR, and the same command goes on from
there. 100,000 comparisons are --lots 10000: of classifier-tiny about an hour of one core.
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
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from automl.data.catalog import load_dataset
from automl.models.networks import build
from automl.spaces.space import Architecture, SearchSpace, space_named
from automl.training.auditing import FP32, Deviation, deviation, is_held
from automl.training.lots import NUM_PROJECTIONS, Lot, LotResult, Worker
from automl.training.settings import usual
from protocol.records import LotRecord

BASE, KEY, SEED = b"b" * 32, b"k" * 32, 1
LAYOUTS = ("last", "first")
# What torch, oneDNN and MKL are told to use at most.
INSTRUCTIONS = {"sse4": ("default", "SSE41", "SSE4_2"), "avx2": ("avx2", "AVX2", "AVX2"), "avx512": ("avx512", "AVX512_CORE", "AVX512")}
CLAIM_LOTS = 20
BLOCK_LOTS = 2_000  # that a process computes: its start takes as long as a hundred of them
_ME = str(Path(__file__).resolve())


@dataclass(frozen=True, slots=True)
class Setting:
    """How a machine computes."""

    threads: int
    layout: str  # channels "last" | "first"
    instructions: str

    def differs_in(self, other: "Setting") -> str:
        """Return what is another, for people."""
        return ", ".join(name for name in ("threads", "layout", "instructions") if getattr(self, name) != getattr(other, name))

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process compute so. How threads wait for each other changes no result, and leaves others the cores."""
        torchs, onednns, mkls = INSTRUCTIONS[self.instructions]
        libraries = {"ATEN_CPU_CAPABILITY": torchs, "ONEDNN_MAX_CPU_ISA": onednns, "MKL_ENABLE_INSTRUCTIONS": mkls}
        return {**os.environ, **libraries, "OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "passive"}


@dataclass(frozen=True, slots=True)
class Results:
    """What lots came to in one setting: one row a lot."""

    indices: NDArray[np.int64]  # of the lots, ascending
    projections: NDArray[np.float32]
    losses: NDArray[np.float64]
    norms: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is to compute: of the lots from ``first`` to before ``end`` those that are computed in its setting."""

    supernet: str
    folder: str
    setting: int  # its number
    settings: int  # how many there are
    each: int  # of them compute a lot
    first: int
    end: int
    samples: int  # of a lot
    threads: int
    layout: str
    is_taught: int  # 1: lots learn from the largest network of the same weights, too

    @property
    def out(self) -> Path:
        """Where it writes what came out."""
        return Path(self.folder) / f"{self.supernet}-{self.first:07}-{self.end:07}-{self.setting:02}.npz"

    @property
    def weights(self) -> Path:
        """Where both states are."""
        return Path(self.folder) / f"{self.supernet}-weights.npy"


# One setting, in a process of its own.


def lot_at(space: SearchSpace, index: int, samples: int) -> Lot:
    """Return the lot that all settings compute as number ``index``."""
    fixed = {0: space.largest(), 1: space.smallest()}
    architecture = fixed.get(index % 8) or space.sample(random.Random(f"lot:{index}"))
    return Lot(SEED, BASE, 0, KEY, index, architecture, samples)


def settings_of(index: int, settings: int, each: int) -> list[int]:
    """Return in which of so many settings lot ``index`` is computed: those of its claim."""
    return sorted(random.Random(f"claim:{index // CLAIM_LOTS}").sample(range(settings), each))


def compute(task: Task) -> None:
    """Compute lots, and write down what they came to."""
    states = torch.from_numpy(np.load(task.weights))
    space = space_named(task.supernet)
    worker = Worker(task.supernet, load_dataset(usual(space.task).dataset))
    indices = [index for index in range(task.first, task.end) if task.setting in settings_of(index, task.settings, task.each)]
    projections, losses, norms = list[NDArray[np.float32]](), list[float](), list[float]()
    for index in indices:
        if not losses or index % CLAIM_LOTS == 0:
            _load(worker, states[index // CLAIM_LOTS % 2], task.is_taught)
        result = worker.train(lot_at(space, index, task.samples))
        projections.append(np.frombuffer(result.projection, "<f4"))
        losses.append(result.loss)
        norms.append(float(result.gradient.double().norm()))
    writing = task.out.with_suffix(".part.npz")
    rows = np.array(projections, np.float32).reshape(len(indices), NUM_PROJECTIONS)
    np.savez(writing, indices=np.array(indices, np.int64), projections=rows, losses=np.array(losses), norms=np.array(norms))
    writing.rename(task.out)


def _load(worker: Worker, weights: Tensor, is_taught: int) -> None:
    worker.load(weights)
    worker.teach(weights if is_taught else None)


def be_child(task: Task) -> None:
    """Be the process of one setting."""
    torch.set_num_threads(task.threads)
    if task.layout == "first":
        torch.channels_last = torch.contiguous_format  # every place that asks for the one gets the other
    compute(task)


def run(task: Task, setting: Setting) -> Results:
    """Have a process compute its lots, unless one has; return what came out."""
    if not task.out.exists():
        subprocess.run([sys.executable, _ME, "--child", json.dumps(asdict(task))], env=setting.environment, check=True)
    with np.load(task.out) as data:
        return Results(data["indices"], data["projections"], data["losses"], data["norms"])


# Comparing.


@dataclass(slots=True)
class Compared:
    """How far honest lots are from each other in two settings."""

    found: list[Deviation] = field(default_factory=list)
    same: int = 0  # to the bit
    accused: int = 0  # refused, and not cleared by the auditor's second look

    def add(self, claimed: Results, own: Results) -> None:
        """Compare the lots that both have."""
        indices, of_claimed, of_own = np.intersect1d(claimed.indices, own.indices, assume_unique=True, return_indices=True)
        apart = claimed.projections[of_claimed].astype(np.float64) - own.projections[of_own].astype(np.float64)
        losses = np.array([float(f"{loss:.6g}") for loss in claimed.losses[of_claimed]])
        of_projection = np.sqrt(np.square(apart).mean(axis=1)) / own.norms[of_own]
        of_loss = np.abs(losses - own.losses[of_own]) / np.abs(own.losses[of_own])
        new = [Deviation(float(one), float(other)) for one, other in zip(of_projection, of_loss, strict=True)]
        self.same += int((of_projection == 0).sum())
        self.found += new
        places = {int(index): place for place, index in enumerate(indices)}
        for index, deviation_ in zip(places, new, strict=True):
            first = index - index % CLAIM_LOTS
            behind_it = [*range(index + 1, first + CLAIM_LOTS), *range(first, index)]
            self.accused += not is_held(FP32, deviation_, (new[places[other]] for other in behind_it if other in places))

    def __add__(self, other: "Compared") -> "Compared":
        return Compared(self.found + other.found, self.same + other.same, self.accused + other.accused)

    def __str__(self) -> str:
        if not self.found:
            return "nothing compared"
        projections, losses = ([getattr(each, name) for each in self.found] for name in ("projection", "loss"))
        refused = sum(not each.is_within(FP32) for each in self.found)
        shown = ", ".join(f"{np.quantile(projections, part):.1e}" for part in (0.5, 0.99, 0.999, 1.0))
        of_loss = ", ".join(f"{np.quantile(losses, part):.1e}" for part in (0.5, 0.999, 1.0))
        counts = f"{len(self.found):,} compared, {self.same:,} the same to the bit, {refused} refused, {self.accused} accused"
        return f"{counts}; projection {shown}; loss {of_loss}"


def honest(supernet: str, settings: Sequence[Setting], lots: int, each: int, samples: int, folder: Path, is_taught: int) -> None:
    """Compute lots block by block and compare them; print what all so far come to after each block."""
    together = {other.differs_in(one): Compared() for one, other in combinations(settings, 2)}
    began = time.perf_counter()
    for first in range(0, lots, BLOCK_LOTS):
        end = min(first + BLOCK_LOTS, lots)
        found: list[Results] = []
        for number, setting in enumerate(settings):
            task = Task(supernet, str(folder), number, len(settings), each, first, end, samples, setting.threads, setting.layout, is_taught)
            found.append(run(task, setting))
        for one, other in combinations(range(len(settings)), 2):
            together[settings[other].differs_in(settings[one])].add(found[other], found[one])
        print(f"  {end:,} lots: {sum(together.values(), Compared())} ({time.perf_counter() - began:.0f} s)", flush=True)
    for name, compared in together.items():
        print(f"  settings that differ in {name}: {compared}", flush=True)


def record_of(lot: Lot, result: LotResult) -> LotRecord:
    """Return what a peer would say of a lot."""
    return LotRecord(lot.step, lot.index, lot.architecture.text, lot.samples, f"{result.loss:.6g}", result.projection)


def cheats(supernet: str, weights: Path, lots: int, samples: int, is_taught: int) -> None:
    """Print how far false lots are from the ones that they are claimed to be."""
    space, states = space_named(supernet), torch.from_numpy(np.load(weights))
    worker = Worker(supernet, load_dataset(usual(space.task).dataset))
    noise = np.random.default_rng(0)
    found: dict[str, list[Deviation]] = {}
    for index in range(lots):
        lot = lot_at(space, index, samples)
        _load(worker, states[index % 2], is_taught)
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
        off = states[index % 2] * (1 + 0.05 * torch.randn(states.shape[1], generator=torch.Generator().manual_seed(index)))
        _load(worker, off, is_taught)
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
    parser.add_argument("--lots", type=int, default=200, metavar="N", help="that are compared")
    parser.add_argument("--each", type=int, default=5, metavar="N", help="settings that a lot is computed in")
    parser.add_argument("--cheats", type=int, default=40, metavar="N", help="lots of each cheat")
    parser.add_argument("--threads", default="1,2", metavar="NUMBERS")
    parser.add_argument("--trained", type=int, default=60, metavar="N", help="steps to the second weights")
    parser.add_argument("--taught", action="store_true", help="lots learn from the largest network, too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where what is done stays, for the same command to go on from")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        be_child(Task(**json.loads(arguments.child)))
        return
    is_taught = int(arguments.taught)
    settings = [Setting(int(number), *each) for number, *each in product(arguments.threads.split(","), LAYOUTS, INSTRUCTIONS)]
    if arguments.lots < 1 or not 2 <= arguments.each <= len(settings):
        parser.error(f"--lots is at least 1, --each between 2 and {len(settings)}")
    print(
        f"tolerance: projection {FP32.projection}, loss {FP32.loss}; torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    )
    with tempfile.TemporaryDirectory() if arguments.keep is None else nullcontext(arguments.keep) as folder:
        try:
            check_kept(
                Path(folder),
                f"--each {arguments.each} --threads {arguments.threads} --trained {arguments.trained}{' --taught' * is_taught}",
            )
        except ValueError as error:
            parser.error(str(error))
        for supernet in arguments.supernets.split(","):
            samples = usual(space_named(supernet).task).lot_samples
            weights = Task(supernet, str(folder), 0, 0, 0, 0, 0, samples, 1, "last", is_taught).weights
            if not weights.exists():
                np.save(weights, states_of(supernet, arguments.trained, samples).numpy())
            print(f"{supernet}, lots of {samples}: middle, one in a hundred, one in a thousand, farthest")
            honest(supernet, settings, arguments.lots, arguments.each, samples, Path(folder), is_taught)
            print("  cheats: nearest, one in a hundred, middle")
            cheats(supernet, weights, arguments.cheats, samples, is_taught)


def check_kept(folder: Path, options: str) -> None:
    """Note in a folder what the results in it are of.

    Raises:
        ValueError: they are of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "options.txt"
    if note.exists() and note.read_text() != options:
        raise ValueError(f"{folder} has results of {note.read_text()}: use these options, or another folder")
    note.write_text(options)


if __name__ == "__main__":
    main()
