"""How good subnets are: supernets trained by each schedule, and beside each subnet the same architecture trained alone from scratch.

    .venv/bin/python benchmarks/accuracy.py --data DIR [--task classification|stereo] [--rounds N] [--out FILE]

DIR holds FashionMNIST/raw (the official files) and middlebury (stereo pairs, manifest.json). Classification: the first 10,000 training
images of FashionMNIST, all 10,000 test images. Stereo: Middlebury pairs; scenes that occur in several sets, and Teddy and Art, are all on
one side of the split. A supernet and each stand-alone twin see the same number of samples; the twins' optimiser and rates are those of
the sandwich. Nothing is fine-tuned. BatchNorm statistics of all come from the same training images. Prints a table; --out keeps the
figures as JSON.

One process a core, one thread each; how fast the machine is changes the time and nothing else.
"""

import argparse
import gzip
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from automl.data.dataset import Dataset
from automl.data.images import ImageDataset
from automl.data.pairs import PairFiles, pairs
from automl.data.views import StereoDataset
from automl.evaluation.held_out import CALIBRATION_BATCH, CALIBRATION_SAMPLES, Quality, baseline, evaluate, measure
from automl.models.networks import build
from automl.models.stereo import PlainStereo
from automl.models.supernet import draw
from automl.spaces.space import Architecture, SearchSpace
from automl.training.objective import classification_loss, stereo_loss
from automl.training.schedule import Plan
from automl.training.settings import usual
from automl.training.trainer import Trainer
from protocol.lots import lot_seed, sample_indices
from protocol.records import SCHEDULES
from protocol.signing import sha256

_TRAIN_IMAGES = 10_000
_NUM_RANDOM_TWINS = 4
_NUM_SPREAD = 20
_TWIN_KEY = bytes([1]) * 32


@dataclass(frozen=True)
class Setting:
    """One task's training."""

    task: str
    rounds: int
    batch: int
    lot: int
    rate: str

    def plan(self, schedule: str) -> Plan:
        usually = usual(self.task)
        optimizer = replace(usually.optimizer, learning_rate=self.rate, warmup_percent=10)
        return Plan(usually.supernet, schedule, "data-parallel", optimizer, self.rounds, seed=0)


_SETTINGS = {
    "classification": Setting("classification", 3000, 128, 32, "0.02"),
    "stereo": Setting("stereo", 300, 32, 8, "0.01"),
}


def fashion_mnist(folder: Path) -> ImageDataset:
    """Return the official files' images, the first 10,000 of the training ones; the files stay as they are."""
    parts = []
    for name in ("train", "t10k"):
        images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
        pixels = np.frombuffer(images, dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28)
        parts.append((pixels, np.frombuffer(labels, dtype=np.uint8, offset=8).astype(np.int64)))
    (train_images, train_labels), (test_images, test_labels) = parts
    few = slice(_TRAIN_IMAGES)
    return ImageDataset("fashionmnist", 255, 10, train_images[few], train_labels[few], test_images, test_labels, flips=True)


# One side of the split: Teddy and Art, whose like is in no other set, and both pictures of what was taken twice.
_HELD_OUT = ("Teddy", "Art", "Reindeer", "Aloe", "Flowerpots", "venus", "Wood1", "Wood2")


def middlebury(folder: Path) -> StereoDataset:
    """Return the Middlebury pairs of a folder with a manifest.json, split by scene."""
    manifest = json.loads((folder / "manifest.json").read_text())
    train, held_out = [], []
    for pair in manifest["pairs"]:
        where = folder / pair["set"] / pair["scene"]
        files = PairFiles(where / "im0.png", where / "im1.png", where / "disp0.png", float(pair["disp_scale"]))
        (held_out if pair["scene"] in _HELD_OUT else train).append(files)
    return StereoDataset.from_pairs("middlebury", pairs(train), pairs(held_out))


@cache
def load(task: str, folder: str) -> Dataset:
    """Return the task's data in this process."""
    return fashion_mnist(Path(folder) / "FashionMNIST" / "raw") if task == "classification" else middlebury(Path(folder) / "middlebury")


def twins(space: SearchSpace) -> list[Architecture]:
    """Return the architectures that are trained alone too."""
    return [space.largest(), space.smallest(), *(space.sample(random.Random(f"twin:{index}")) for index in range(_NUM_RANDOM_TWINS))]


def spread(space: SearchSpace) -> list[Architecture]:
    """Return the random architectures whose spread is reported."""
    return [space.sample(random.Random(f"spread:{index}")) for index in range(_NUM_SPREAD)]


def train_supernet(setting: Setting, schedule: str, folder: str) -> tuple[list[Quality], float]:
    """Return the held-out qualities of the subnets of ``twins`` and ``spread``, and the seconds of training."""
    torch.set_num_threads(1)
    dataset, plan = load(setting.task, folder), setting.plan(schedule)
    started_s = time.monotonic()
    trainer = Trainer(plan, dataset, lot_samples=setting.lot, target_batch=setting.batch)
    while not trainer.finished:
        trainer.step()
    elapsed_s = time.monotonic() - started_s
    supernet = build(plan.space)
    supernet.load(trainer.state.parameters)
    return evaluate(supernet, dataset, [*twins(plan.space), *spread(plan.space)]), elapsed_s


def train_alone(setting: Setting, index: int, folder: str) -> tuple[Quality, float]:
    """Return the held-out quality of one architecture's plain network, trained from scratch, and the seconds of training."""
    torch.set_num_threads(1)
    dataset, plan = load(setting.task, folder), setting.plan("sandwich")
    architecture = twins(plan.space)[index]
    started_s = time.monotonic()
    network = first_network(plan, architecture)
    settings = plan.optimizer
    betas = (float(settings.beta1), float(settings.beta2))
    optimizer = torch.optim.AdamW(network.parameters(), betas=betas, eps=float(settings.epsilon), weight_decay=float(settings.weight_decay))
    num_lots = setting.batch // setting.lot
    for round_ in range(1, plan.num_rounds + 1):
        optimizer.param_groups[0]["lr"] = plan.learning_rate(round_)
        optimizer.zero_grad(set_to_none=False)
        base = sha256(b"twin round %d" % round_)
        for lot in range(num_lots):
            identity = (plan.seed, base, 0, _TWIN_KEY, lot)
            indices = sample_indices(*identity, dataset.num_train, setting.lot)
            batch = dataset.training_batch(indices, lot_seed(*identity), architecture.resolution)
            (loss_of(network, batch.inputs, batch.targets) / num_lots).backward()
        optimizer.step()
    elapsed_s = time.monotonic() - started_s
    recalibrate(network, dataset, architecture.resolution)
    return measure(network, dataset, architecture.resolution), elapsed_s


def first_network(plan: Plan, architecture: Architecture) -> nn.Module:
    """Return a plain network with first weights of its own."""
    supernet = build(plan.space)
    generator = torch.Generator().manual_seed(plan.seed)
    supernet.initialise(generator)
    network = supernet.extract(architecture).train()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d) and module.weight.shape[-1] != 1 and module.bias is None:
                draw(module.weight, generator)  # the supernet's are the centres of larger kernels, and too small
    return network


def loss_of(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return what a lot of the supernet minimises, without a teacher."""
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if isinstance(network, PlainStereo):
        return stereo_loss(network.scales(inputs), targets)
    return classification_loss(network(inputs), targets)


@torch.no_grad()
def recalibrate(network: nn.Module, dataset: Dataset, resolution: int) -> None:
    """Take BatchNorm's statistics from the training images that automl.evaluation.held_out uses."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the plain mean over all batches
    network.train()
    for inputs in dataset.calibration_batches(resolution, CALIBRATION_BATCH[dataset.task], CALIBRATION_SAMPLES[dataset.task]):
        network(inputs.contiguous(memory_format=torch.channels_last))
    network.eval()


def run(setting: Setting, folder: str, workers: int) -> dict[str, object]:
    """Train everything, ``workers`` processes at a time, and return the figures."""
    space = setting.plan("sandwich").space
    started_s = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        supernets = {schedule: pool.submit(train_supernet, setting, schedule, folder) for schedule in SCHEDULES}
        alone: list[Future[tuple[Quality, float]]] = [
            pool.submit(train_alone, setting, index, folder) for index in range(2 + _NUM_RANDOM_TWINS)
        ]
        for name, future in [*supernets.items(), *((f"alone {index}", one) for index, one in enumerate(alone))]:
            print(f"  {name}: trained in {future.result()[1]:.0f} s", file=sys.stderr, flush=True)
        qualities = {schedule: future.result()[0] for schedule, future in supernets.items()}
        twins_alone = [future.result()[0] for future in alone]
    dataset = load(setting.task, folder)
    return {
        "task": setting.task,
        "rounds": setting.rounds,
        "samples": setting.rounds * setting.batch,
        "held_out": sum(len(batch.targets) for batch in dataset.held_out_batches(space.resolutions[-1], 256)),
        "baseline": baseline(dataset, space.resolutions[-1]) if setting.task == "stereo" else None,
        "architectures": [one.text for one in twins(space)],
        "alone": twins_alone,
        **{schedule: {"twins": found[: len(twins_alone)], "spread": found[len(twins_alone) :]} for schedule, found in qualities.items()},
        "wall_time_s": round(time.monotonic() - started_s),
    }


def show(figures: dict[str, object]) -> None:
    """Print the figures for a person."""
    task = str(figures["task"])
    metrics = ["accuracy"] if task == "classification" else ["epe", "bad3"]
    print(f"\n{task}: {figures['samples']} samples each, {figures['held_out']} held out, {figures['wall_time_s']} s in all")
    if figures["baseline"] is not None:
        print(f"constant median: EPE {figures['baseline']:.2f} px")
    for metric in metrics:
        show_metric(figures, metric)


def show_metric(figures: dict[str, object], metric: str) -> None:
    """Print one metric's table."""
    names = ["largest", "smallest", *(f"random {index + 1}" for index in range(_NUM_RANDOM_TWINS))]
    print(
        f"\n{metric:<10} {'alone':>8} "
        + " ".join(f"{schedule:>10} {'less' if metric == 'accuracy' else 'more':>6}" for schedule in SCHEDULES)
    )
    alone: Sequence[Quality] = figures["alone"]  # type: ignore[assignment]
    for index, name in enumerate(names):
        row = [f"{name:<10} {written(alone[index][metric], metric):>8}"]
        for schedule in SCHEDULES:
            found: Quality = figures[schedule]["twins"][index]  # type: ignore[index]
            worse = (alone[index][metric] - found[metric]) * (1 if metric == "accuracy" else -1)
            row.append(f"{written(found[metric], metric):>10} {written(worse, metric):>6}")
        print(" ".join(row))
    for schedule in SCHEDULES:
        values = [quality[metric] for quality in figures[schedule]["spread"]]  # type: ignore[index]
        low, middle, high = (written(value, metric) for value in (min(values), statistics.median(values), max(values)))
        print(f"{schedule}: {len(values)} random subnets from {low} to {high}, median {middle}")


def written(value: float, metric: str) -> str:
    """Return a figure in percent, or in pixels."""
    return f"{value:.2f}" if metric == "epe" else f"{100 * value:.2f}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, metavar="DIR")
    parser.add_argument("--task", choices=sorted(_SETTINGS), action="append", help="both, where it is not given")
    parser.add_argument("--rounds", type=int, metavar="N", help="shorter or longer than usual")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the figures as JSON")
    arguments = parser.parse_args()
    for needed in ("FashionMNIST/raw/train-images-idx3-ubyte.gz", "middlebury/manifest.json"):
        if not (arguments.data / needed).exists():
            sys.exit(f"{arguments.data / needed} is missing: --data names a folder with FashionMNIST/raw and middlebury; see the docstring")
    every = []
    for task in arguments.task or sorted(_SETTINGS):
        setting = _SETTINGS[task]
        figures = run(replace(setting, rounds=arguments.rounds or setting.rounds), str(arguments.data), arguments.workers)
        show(figures)
        every.append(figures)
    if arguments.out:
        arguments.out.write_text(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
