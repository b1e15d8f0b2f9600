"""How far an honest microbatch, and an honest claim's mean, are from the same computed elsewhere: what audits' tolerance is chosen by.

    .venv/bin/python benchmarks/tolerances.py [--supernets NAMES] [--microbatches 200] [--each 5] [--threads 1,2] [--taught] [--keep DIR]

A setting is so many threads of the CPU, images in memory channels last or channels first, and the instruction sets that torch and the
libraries below it (oneDNN, MKL) may use: SSE4, AVX2, AVX-512. Microbatches are of random architectures, some of the largest and the
smallest, in claims of 20, in turn at the first weights and at those after --trained steps. The microbatches of a claim are computed in
--each of the settings, drawn for that claim, and these compared with one another. Of a gradient 32 random sums are kept, which tell how far
two are apart to an eighth, and add up as the gradients do.

Prints how far single ones are in the middle, the farthest in a hundred, in a thousand, and the farthest, in parts of their norms; then the
same of claims of --claims so many, drawn from those that two settings both computed: how far their mean gradients are apart in parts of
what an audit allows (``automl.training.audited_step``), and how many it would not pass. Last the same of single ones by what the settings
differ in. What false ones come to: ``benchmarks/audit_limits.py``.

One process computes at a time, 2,000 microbatches in one setting. With --keep what is done stays in DIR, and the same command goes on from
there. 100,000 comparisons are --microbatches 10000: of classifier-tiny about an hour of one core.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import SearchSpace, space_named
from manta_swarm.automl.training.audited_step import FP32, StepGradient, WeightedGradient
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.settings import usual

BASE, KEY, SEED = b"b" * 32, b"k" * 32, 1
LAYOUTS = ("last", "first")
# What torch, oneDNN and MKL are told to use at most.
INSTRUCTIONS = {"sse4": ("default", "SSE41", "SSE4_2"), "avx2": ("avx2", "AVX2", "AVX2"), "avx512": ("avx512", "AVX512_CORE", "AVX512")}
CLAIM_MICROBATCHES = 20
BLOCK_MICROBATCHES = 2_000  # that a process computes: its start takes as long as a hundred of them
NUM_SUMS = 32
NOTHING = np.zeros(0, np.float32)
DRAWN_CLAIMS = 2_000  # of each size that are compared
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
    """What microbatches came to in one setting: one row a microbatch."""

    indices: NDArray[np.int64]  # of the microbatches, ascending
    sums: NDArray[np.float64]
    norms: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is to compute: of the microbatches from ``first`` to before ``end`` those that are computed in its setting."""

    supernet: str
    folder: str
    setting: int  # its number
    settings: int  # how many there are
    each: int  # of them compute a microbatch
    first: int
    end: int
    samples: int  # of a microbatch
    threads: int
    layout: str
    is_taught: int  # 1: microbatches learn from the largest network of the same weights, too

    @property
    def out(self) -> Path:
        """Where it writes what came out."""
        return Path(self.folder) / f"{self.supernet}-{self.first:07}-{self.end:07}-{self.setting:02}.npz"

    @property
    def weights(self) -> Path:
        """Where both states are."""
        return Path(self.folder) / f"{self.supernet}-weights.npy"


# One setting, in a process of its own.


def microbatch_at(space: SearchSpace, index: int, samples: int) -> Microbatch:
    """Return the microbatch that all settings compute as number ``index``."""
    fixed = {0: space.largest(), 1: space.smallest()}
    architecture = fixed.get(index % 8) or space.sample(random.Random(f"microbatch:{index}"))
    return Microbatch(SEED, BASE, 0, KEY, index, architecture, samples)


def settings_of(index: int, settings: int, each: int) -> list[int]:
    """Return in which of so many settings microbatch ``index`` is computed: those of its claim."""
    return sorted(random.Random(f"claim:{index // CLAIM_MICROBATCHES}").sample(range(settings), each))


def compute(task: Task) -> None:
    """Compute microbatches, and write down what they came to."""
    states = torch.from_numpy(np.load(task.weights))
    space = space_named(task.supernet)
    worker = Worker(task.supernet, load_dataset(usual(space.task).dataset))
    indices = [index for index in range(task.first, task.end) if task.setting in settings_of(index, task.settings, task.each)]
    sums, norms = list[NDArray[np.float64]](), list[float]()
    for index in indices:
        if not norms or index % CLAIM_MICROBATCHES == 0:
            _load(worker, states[index // CLAIM_MICROBATCHES % 2], task.is_taught)
        result = worker.train(microbatch_at(space, index, task.samples))
        sums.append(sums_of(result.gradient.numpy()))
        norms.append(float(result.gradient.double().norm()))
    writing = task.out.with_suffix(".part.npz")
    rows = np.array(sums, np.float64).reshape(len(indices), NUM_SUMS)
    np.savez(writing, indices=np.array(indices, np.int64), sums=rows, norms=np.array(norms))
    writing.rename(task.out)


def sums_of(gradient_N: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return sums of a gradient under random signs: the root of the mean of their squares is about its norm."""
    sums: NDArray[np.float32] = _signs(len(gradient_N)) @ gradient_N
    return sums.astype(np.float64)


@cache
def _signs(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).integers(0, 2, (NUM_SUMS, count)).astype(np.float32) * np.float32(2) - np.float32(1)


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
    """Have a process compute its microbatches, unless one has; return what came out."""
    if not task.out.exists():
        subprocess.run([sys.executable, _ME, "--child", json.dumps(asdict(task))], env=setting.environment, check=True)
    with np.load(task.out) as data:
        return Results(data["indices"], data["sums"], data["norms"])


# Comparing.


@dataclass(slots=True)
class Compared:
    """How far honest microbatches are from each other in two settings."""

    parts: list[float] = field(default_factory=list)  # of the norm
    same: int = 0  # to the bit, as far as the sums tell
    pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=list
    )  # differences (microbatches, sums), norms (microbatches,)

    def add(self, claimed: Results, own: Results) -> None:
        """Compare the microbatches that both have."""
        _, of_claimed, of_own = np.intersect1d(claimed.indices, own.indices, assume_unique=True, return_indices=True)
        apart, norms = claimed.sums[of_claimed] - own.sums[of_own], own.norms[of_own]
        parts = _rms(apart) / norms
        self.same += int((parts == 0).sum())
        self.parts += parts.tolist()
        self.pairs.append((apart, norms))

    def __add__(self, other: "Compared") -> "Compared":
        return Compared(self.parts + other.parts, self.same + other.same, self.pairs + other.pairs)

    def __str__(self) -> str:
        if not self.parts:
            return "nothing compared"
        alone = FP32.bound([WeightedGradient(1.0, StepGradient(NOTHING, 1.0, 1.0, NOTHING))])
        refused = sum(part > alone for part in self.parts)
        return f"{len(self.parts):,} compared, {self.same:,} the same, {refused} refused; parts of the norm {_shown(self.parts)}"

    def claims(self, size: int) -> str:
        """Return how far claims of so many microbatches are from each other, in parts of what is allowed, none with a microbatch twice."""
        rng, found = np.random.default_rng(size), list[float]()
        pairs = [pair for pair in self.pairs if len(pair[1]) >= size]
        for _ in range(DRAWN_CLAIMS if pairs else 0):
            apart, norms = pairs[int(rng.integers(len(pairs)))]
            drawn = rng.choice(len(norms), size, replace=False)
            gradient = StepGradient(NOTHING, float(np.square(norms[drawn] / size).sum()), float(norms[drawn].max() / size), NOTHING)
            found.append(float(_rms(apart[drawn].mean(axis=0))) / FP32.bound([WeightedGradient(1.0, gradient)]))
        if not found:
            return f"claims of {size}: too few microbatches"
        return f"claims of {size}: {sum(part > 1 for part in found)} of {len(found):,} refused; parts of what is allowed {_shown(found)}"


def _rms(values: NDArray[np.float64]) -> NDArray[np.float64]:
    root: NDArray[np.float64] = np.sqrt(np.square(values).mean(axis=-1))
    return root


def _shown(parts: Sequence[float]) -> str:
    return ", ".join(f"{np.quantile(parts, part):.1e}" for part in (0.5, 0.99, 0.999, 1.0))


def honest(
    supernet: str,
    settings: Sequence[Setting],
    microbatches: int,
    each: int,
    samples: int,
    folder: Path,
    is_taught: int,
    sizes: Sequence[int],
) -> None:
    """Compute microbatches block by block and compare them; print what all so far come to after each block."""
    together = {other.differs_in(one): Compared() for one, other in combinations(settings, 2)}
    began = time.perf_counter()
    for first in range(0, microbatches, BLOCK_MICROBATCHES):
        end = min(first + BLOCK_MICROBATCHES, microbatches)
        found: list[Results] = []
        for number, setting in enumerate(settings):
            task = Task(supernet, str(folder), number, len(settings), each, first, end, samples, setting.threads, setting.layout, is_taught)
            found.append(run(task, setting))
        for one, other in combinations(range(len(settings)), 2):
            together[settings[other].differs_in(settings[one])].add(found[other], found[one])
        so_far = str(sum(together.values(), Compared()))
        results.say(
            f"  {end:,} microbatches: {so_far} ({time.perf_counter() - began:.0f} s)", supernet=supernet, microbatches=end, apart=so_far
        )
    every = sum(together.values(), Compared())
    for size in sizes:
        results.say(f"  {every.claims(size)}", supernet=supernet, claims_of=size, apart=every.claims(size))
    for name, compared in together.items():
        results.say(f"  settings that differ in {name}: {compared}", supernet=supernet, differ_in=name, apart=str(compared))


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
        gradient_N = worker.train(replace(microbatch_at(space, 8 * step, samples), base=BASE[::-1])).gradient
        moment_N = 0.9 * moment_N + gradient_N / max(1.0, float(gradient_N.norm()))
        weights_N = weights_N - 0.02 * moment_N
    return torch.stack((first_N, weights_N))


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--supernets", default="classifier-tiny,stereo-tiny", metavar="NAMES")
    parser.add_argument("--microbatches", type=int, default=200, metavar="N", help="that are compared")
    parser.add_argument("--each", type=int, default=5, metavar="N", help="settings that a microbatch is computed in")
    parser.add_argument(
        "--claims", default="1,2,5,10,20,50,100,500", metavar="NUMBERS", help="microbatches of the claims that are compared"
    )
    parser.add_argument("--threads", default="1,2", metavar="NUMBERS")
    parser.add_argument("--trained", type=int, default=60, metavar="N", help="steps to the second weights")
    parser.add_argument("--taught", action="store_true", help="microbatches learn from the largest network, too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where what is done stays, for the same command to go on from")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        be_child(Task(**json.loads(arguments.child)))
        return
    is_taught = int(arguments.taught)
    settings = [Setting(int(number), *each) for number, *each in product(arguments.threads.split(","), LAYOUTS, INSTRUCTIONS)]
    if arguments.microbatches < 1 or not 2 <= arguments.each <= len(settings):
        parser.error(f"--microbatches is at least 1, --each between 2 and {len(settings)}")
    print(f"tolerance: each {FP32.each}, one {FP32.one}; torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    with tempfile.TemporaryDirectory() if arguments.keep is None else nullcontext(arguments.keep) as folder:
        try:
            check_kept(
                Path(folder),
                f"--each {arguments.each} --threads {arguments.threads} --trained {arguments.trained}{' --taught' * is_taught}",
            )
        except ValueError as error:
            parser.error(str(error))
        for supernet in arguments.supernets.split(","):
            samples = usual(space_named(supernet).task).microbatch_samples
            weights = Task(supernet, str(folder), 0, 0, 0, 0, 0, samples, 1, "last", is_taught).weights
            if not weights.exists():
                np.save(weights, states_of(supernet, arguments.trained, samples).numpy())
            print(f"{supernet}, microbatches of {samples}: middle, one in a hundred, one in a thousand, farthest")
            sizes = [int(number) for number in arguments.claims.split(",")]
            honest(supernet, settings, arguments.microbatches, arguments.each, samples, Path(folder), is_taught, sizes)
    results.write(arguments)


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
