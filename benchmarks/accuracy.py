"""How good subnets are: supernets trained by each schedule, and beside each subnet the same architecture trained alone from scratch.

    .venv/bin/python benchmarks/accuracy.py --data DIR [--task classification|stereo] [--seeds N] [--device cuda] [--json FILE]

DIR holds FashionMNIST/raw (the official files) and middlebury (stereo pairs, manifest.json). Classification: the first 10,000 training
images of FashionMNIST; figures are of the 10,000 test images, or with --choose of the last 10,000 training images, by which settings are
chosen. Stereo: Middlebury pairs; scenes that occur in several sets, and Teddy and Art, are all on one side of the split. Twins have the
sandwich's recipe, optimiser and rates, and are trained at two lengths:

- equal samples: each twin sees as many samples as the supernet did, all of them through its one architecture;
- equal MACs: each twin is trained for as many multiply-accumulates as all of the supernet's training took.

Nothing is fine-tuned. BatchNorm statistics of all come from the same training images. With several seeds (first weights, samples,
architectures) figures are means over them, with the range. Prints a table.

One process a core, one thread each; how fast the machine is changes the time and nothing else.
"""

import gzip
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import results
import torch
from torch import Tensor, nn

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.pairs import PairFiles, pairs
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.evaluation.held_out import CALIBRATION_BATCH, CALIBRATION_SAMPLES, Quality, baseline, evaluate, measure
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.stereo import PlainStereo
from manta_swarm.automl.models.supernet import draw
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.microbatches import classification_loss, stereo_loss
from manta_swarm.automl.training.optimizers import is_matrix
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import recipe_for, usual
from manta_swarm.automl.training.trainer import SimulatedSwarm, Trainer
from manta_swarm.protocol.manifest import SCHEDULES
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices
from manta_swarm.protocol.signing import sha256

_TRAIN_IMAGES = 10_000
_CHOOSE_IMAGES = slice(50_000, 60_000)
_NUM_ENDS = 2  # the largest and the smallest
_NUM_RANDOM_TWINS = 4
_NUM_SPREAD = 20
_NUM_MACS_TWINS = 3  # largest, smallest and one random: the small ones take several times as long as at equal samples
_TWIN_KEY = bytes([1]) * 32


@dataclass(frozen=True)
class Setting:
    """One task's training."""

    task: str
    rounds: int
    batch: int
    microbatch: int
    rate: str
    weight_decay: str
    folder: str = ""
    device: str = "cpu"
    chooses: bool = False
    augmentation: int | None = None  # percent; None: the default for so many passes over the data
    taught: int | None = None  # percent of the rounds; None: the default

    def plan(self, schedule: str, seed: int, rounds: int | None = None) -> Plan:
        usually = usual(self.task)
        optimizer = replace(usually.optimizer, learning_rate=self.rate, warmup_percent=10, weight_decay=self.weight_decay)
        recipe = recipe_for(self.task, load(self).num_train, self.rounds * self.batch)
        if self.augmentation is not None:
            recipe = replace(recipe, first_percent=self.augmentation, last_percent=self.augmentation)
        taught = recipe.taught_percent if self.taught is None else self.taught
        recipe = replace(recipe, taught_percent=taught if schedule == "sandwich" else 0)
        return Plan(usually.supernet, schedule, "data-parallel", optimizer, rounds or self.rounds, seed, recipe=recipe)


_SETTINGS = {
    "classification": Setting("classification", 3000, 128, 64, "0.02", "0.05"),
    "stereo": Setting("stereo", 300, 32, 8, "0.01", "0.05"),
}


def fashion_mnist(folder: Path, *, chooses: bool) -> ImageDataset:
    """Return the official files' images, the first 10,000 of the training ones; ``chooses``: the last ones of these held out."""
    parts = []
    for name in ("train", "t10k"):
        images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
        pixels = np.frombuffer(images, dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28)
        parts.append((pixels, np.frombuffer(labels, dtype=np.uint8, offset=8).astype(np.int64)))
    (train_images, train_labels), (test_images, test_labels) = parts
    few = slice(_TRAIN_IMAGES)
    held_out = (train_images[_CHOOSE_IMAGES], train_labels[_CHOOSE_IMAGES]) if chooses else (test_images, test_labels)
    return ImageDataset("fashionmnist", 255, 10, train_images[few], train_labels[few], *held_out, flips=True)


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
def _loaded(task: str, folder: str, chooses: bool) -> Dataset:
    if task == "classification":
        return fashion_mnist(Path(folder) / "FashionMNIST" / "raw", chooses=chooses)
    return middlebury(Path(folder) / "middlebury")


def load(setting: Setting) -> Dataset:
    """Return the task's data in this process."""
    return _loaded(setting.task, setting.folder, setting.chooses)


def twins(space: SearchSpace) -> list[Architecture]:
    """Return the architectures that are trained alone too."""
    return [space.largest(), space.smallest(), *(space.sample(random.Random(f"twin:{index}")) for index in range(_NUM_RANDOM_TWINS))]


def spread(space: SearchSpace) -> list[Architecture]:
    """Return the random architectures whose spread is reported."""
    return [space.sample(random.Random(f"spread:{index}")) for index in range(_NUM_SPREAD)]


def rounds_at_equal_macs(setting: Setting, architecture: Architecture) -> int:
    """Return for how many rounds a twin is trained until it has taken the multiply-accumulates of the sandwich's training, on average.

    Forward and backward take three times a forward pass, which is what the teacher takes of each sample of a taught round.
    """
    plan = setting.plan("sandwich", 0)
    space = plan.space
    drawn = [macs(space.sample(random.Random(f"cost:{index}")), space) for index in range(1000)]
    a_sample = (macs(space.largest(), space) + macs(space.smallest(), space) + 2 * statistics.mean(drawn)) / 4
    a_sample += macs(space.largest(), space) / 3 * plan.recipe.taught_percent / 100
    return round(setting.rounds * a_sample / macs(architecture, space))


def train_supernet(setting: Setting, schedule: str, seed: int) -> tuple[list[Quality], float]:
    """Return the held-out qualities of the subnets of ``twins`` and ``spread``, and the seconds of training."""
    torch.set_num_threads(1)
    dataset, plan = load(setting), setting.plan(schedule, seed)
    started_s = time.monotonic()
    trainer = Trainer(plan, dataset, SimulatedSwarm(setting.microbatch, setting.batch), device=setting.device)
    while not trainer.finished:
        trainer.step()
    elapsed_s = time.monotonic() - started_s
    supernet = build(plan.space, setting.device)
    supernet.load(trainer.state.parameters)
    return evaluate(supernet, dataset, [*twins(plan.space), *spread(plan.space)]), elapsed_s


def train_alone(setting: Setting, index: int, rounds: int, seed: int) -> tuple[list[Quality], float]:
    """Return the held-out quality of one architecture's plain network, trained from scratch, and the seconds of training."""
    torch.set_num_threads(1)
    dataset, plan = load(setting), setting.plan("sandwich", seed, rounds)
    architecture = twins(plan.space)[index]
    started_s = time.monotonic()
    network = first_network(plan, architecture).to(setting.device)
    optimizer = optimizer_of(network, plan)
    num_microbatches = setting.batch // setting.microbatch
    for round_ in range(1, plan.num_rounds + 1):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate(round_)
        optimizer.zero_grad(set_to_none=False)
        base = sha256(b"twin round %d" % round_)
        for microbatch in range(num_microbatches):
            identity = (plan.seed, base, 0, _TWIN_KEY, microbatch)
            indices = sample_indices(*identity, dataset.num_train, setting.microbatch)
            strength = plan.augmentation(round_, architecture)
            batch = dataset.training_batch(indices, microbatch_seed(*identity), architecture.resolution, strength)
            inputs, targets = batch.inputs.to(setting.device), batch.targets.to(setting.device)
            (loss_of(network, inputs, targets) / num_microbatches).backward()
        optimizer.step()
    elapsed_s = time.monotonic() - started_s
    recalibrate(network, dataset, architecture.resolution, setting.device)
    return [measure(lambda inputs: network(inputs.to(setting.device)), dataset, architecture.resolution)], elapsed_s


def optimizer_of(network: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """Return AdamW with the plan's settings; what decays is what decays in the supernet."""
    settings, everything = plan.optimizer, plan.recipe.decay == "all"
    decays = [one for one in network.parameters() if everything or is_matrix(one)]
    others = [one for one in network.parameters() if not (everything or is_matrix(one))]
    groups = [{"params": decays, "weight_decay": float(settings.weight_decay)}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(float(settings.beta1), float(settings.beta2)), eps=float(settings.epsilon))


def first_network(plan: Plan, architecture: Architecture) -> nn.Module:
    """Return a plain network with first weights of its own, by the rules of the supernet's."""
    supernet = build(plan.space)
    generator = torch.Generator().manual_seed(plan.seed)
    supernet.initialise(generator)
    network = supernet.extract(architecture).train()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d) and module.weight.shape[-1] != 1 and module.bias is None:
                draw(module.weight, generator)  # evenly: the supernet begins with bells, and their centres
    return network


def loss_of(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return what a microbatch of the supernet minimises, without a teacher."""
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if isinstance(network, PlainStereo):
        return stereo_loss(network.scales(inputs), targets)
    return classification_loss(network(inputs), targets)


@torch.no_grad()
def recalibrate(network: nn.Module, dataset: Dataset, resolution: int, device: str) -> None:
    """Take BatchNorm's statistics from the training images that automl.evaluation.held_out uses."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the plain mean over all batches
    network.train()
    for inputs in dataset.calibration_batches(resolution, CALIBRATION_BATCH[dataset.task], CALIBRATION_SAMPLES[dataset.task]):
        network(inputs.to(device).contiguous(memory_format=torch.channels_last))
    network.eval()


Job = tuple[str, int, Callable[..., tuple[list[Quality], float]], tuple[object, ...]]


def jobs(setting: Setting, schedules: Sequence[str], seeds: int, *, with_twins: bool) -> list[Job]:
    """Return what there is to train, the longest first: a name, its rounds, what trains it, and the arguments after the setting.

    Without a schedule those are the largest and the smallest network alone.
    """
    space = setting.plan("sandwich", 0).space
    found: list[Job] = [(f"{name} {seed}", 2 * setting.rounds, train_supernet, (name, seed)) for name in schedules for seed in range(seeds)]
    for index, architecture in enumerate(twins(space) if with_twins else []):
        lengths = {"samples": setting.rounds}
        if not schedules and index >= _NUM_ENDS:
            break
        if schedules and index < _NUM_MACS_TWINS:
            lengths["macs"] = rounds_at_equal_macs(setting, architecture)
        for length, rounds in lengths.items():
            found += [(f"{length} {index} {seed}", rounds, train_alone, (index, rounds, seed)) for seed in range(seeds)]
    return sorted(found, key=lambda job: -job[1])


def run(setting: Setting, schedules: Sequence[str], seeds: int, workers: int, *, with_twins: bool) -> dict[str, object]:
    """Train everything, ``workers`` processes at a time, and return the figures."""
    space, started_s = setting.plan("sandwich", 0).space, time.monotonic()
    found: dict[str, list[Quality]] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        asked = jobs(setting, schedules, seeds, with_twins=with_twins)
        futures = {name: pool.submit(train, setting, *arguments) for name, _, train, arguments in asked}
        for name, future in futures.items():
            found[name], seconds = future.result()
            print(f"  {name}: trained in {seconds:.0f} s: {found[name][0]}", file=sys.stderr, flush=True)
    dataset = load(setting)
    return {
        "task": setting.task,
        "rounds": setting.rounds,
        "samples": setting.rounds * setting.batch,
        "seeds": seeds,
        "recipe": str(setting.plan("sandwich", 0).recipe),
        "held_out": sum(len(batch.targets) for batch in dataset.held_out_batches(space.resolutions[-1], 256)),
        "baseline": baseline(dataset, space.resolutions[-1]) if setting.task == "stereo" else None,
        "architectures": [one.text for one in twins(space)],
        "macs_rounds": [rounds_at_equal_macs(setting, one) for one in twins(space)],
        "found": found,
        "wall_time_s": round(time.monotonic() - started_s),
    }


def show(figures: dict[str, object]) -> None:
    """Print the figures for a person."""
    task = str(figures["task"])
    counted = f"{figures['samples']} samples each, {figures['seeds']} seeds, {figures['held_out']} held out"
    print(f"\n{task}: {counted}, {figures['wall_time_s']} s in all")
    print(figures["recipe"])
    if figures["baseline"] is not None:
        print(f"constant median: EPE {figures['baseline']:.2f} px")
    for metric in ["accuracy"] if task == "classification" else ["epe", "bad3"]:
        show_metric(figures, metric)


def show_metric(figures: dict[str, object], metric: str) -> None:
    """Print one metric's table."""
    found: dict[str, list[Quality]] = figures["found"]  # type: ignore[assignment]
    seeds = range(int(str(figures["seeds"])))
    schedules = [name for name in SCHEDULES if f"{name} 0" in found]
    lengths = [length for length in ("samples", "macs") if f"{length} 0 0" in found]
    names = ["largest", "smallest", *(f"random {index + 1}" for index in range(_NUM_RANDOM_TWINS))]
    print(f"\n{metric:<10} " + " ".join(f"{title:>22}" for title in [*(f"alone, equal {length}" for length in lengths), *schedules]))
    for index, name in enumerate(names):
        alone = [[found.get(f"{length} {index} {seed}") for seed in seeds] for length in lengths]
        columns = [[one[0][metric] for one in of_seeds if one is not None] for of_seeds in alone]
        columns += [[found[f"{schedule} {seed}"][index][metric] for seed in seeds] for schedule in schedules]
        print(f"{name:<10} " + " ".join(f"{with_range(values, metric):>22}" for values in columns))
    for schedule in schedules:
        medians = [statistics.median(quality[metric] for quality in found[f"{schedule} {seed}"][len(names) :]) for seed in seeds]
        ends = [quality[metric] for seed in seeds for quality in found[f"{schedule} {seed}"][len(names) :]]
        extent = f"all from {written(min(ends), metric)} to {written(max(ends), metric)}"
        print(f"{schedule}: median of {_NUM_SPREAD} random subnets {with_range(medians, metric)}; {extent}")


def with_range(values: Sequence[float], metric: str) -> str:
    """Return the mean, and the range where there are several."""
    if not values:
        return "-"
    mean = written(statistics.mean(values), metric)
    return mean if len(values) == 1 else f"{mean} ({written(min(values), metric)}-{written(max(values), metric)})"


def written(value: float, metric: str) -> str:
    """Return a figure in percent, or in pixels."""
    return f"{value:.2f}" if metric == "epe" else f"{100 * value:.2f}"


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--data", required=True, type=Path, metavar="DIR")
    parser.add_argument("--task", choices=sorted(_SETTINGS), action="append", help="both, where it is not given")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append", help="both, where it is not given")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, metavar="N", help="shorter or longer than usual")
    parser.add_argument("--batch", type=int, metavar="N", help="samples of a round, other than usual")
    parser.add_argument("--microbatch", type=int, metavar="N", help="samples of a microbatch, other than usual")
    parser.add_argument("--augmentation", type=int, metavar="PERCENT", help="other than usual, 0 to 200")
    parser.add_argument("--taught", type=int, metavar="PERCENT", help="of the sandwich's rounds, other than usual, 0 to 100")
    parser.add_argument("--choose", action="store_true", help="hold out what settings are chosen by, in place of the test images")
    parser.add_argument("--alone", action="store_true", help="the largest and the smallest network alone: what a change of networks brings")
    parser.add_argument("--no-twins", action="store_true", help="supernets alone")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where everything is computed: cpu, cuda")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, metavar="N")
    arguments = parser.parse_args()
    needed = {"classification": "FashionMNIST/raw/train-images-idx3-ubyte.gz", "stereo": "middlebury/manifest.json"}
    every = []
    for task in arguments.task or sorted(_SETTINGS):
        if not (arguments.data / needed[task]).exists():
            sys.exit(
                f"{arguments.data / needed[task]} is missing: --data names a folder with FashionMNIST/raw and middlebury; see the docstring"
            )
        usually = _SETTINGS[task]
        setting = replace(
            usually,
            rounds=arguments.rounds or usually.rounds,
            batch=arguments.batch or usually.batch,
            microbatch=arguments.microbatch or usually.microbatch,
            augmentation=arguments.augmentation,
            taught=arguments.taught,
            chooses=arguments.choose,
            folder=str(arguments.data),
            device=arguments.device,
        )
        schedules = () if arguments.alone else arguments.schedule or SCHEDULES
        every.append(run(setting, schedules, arguments.seeds, arguments.workers, with_twins=not arguments.no_twins))
        show(every[-1])
    results.keep(tasks=every)
    results.write(arguments)


if __name__ == "__main__":
    main()
