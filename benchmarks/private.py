"""What it costs that data stay at home: FashionMNIST split by class over 8 peers, against the same images pooled. In one process.

    .venv/bin/python benchmarks/private.py --data-root DIR --out FILE [--settings pooled private alone ...] [--alpha 0.3] [--peers 8]
        [--updates 400] [--seed 0] [--data NAME]

DIR holds FashionMNIST (manta-search data fashionmnist --root DIR --download), or NAME is another set. Its training images are split over
the peers by class (Dirichlet), and of each peer's own a fifth is held out. All settings have as many updates, microbatches and samples, and
exchange alike (``automl.training.settings.thin``: 5 local steps, the largest 192 of 4096 values in 4 bits); every peer is a cohort of its
own:

- ``pooled``: every peer trains on what all peers have together;
- ``private``: each on its own;
- ``alone``: each on its own, and nothing is exchanged: what each would have without the others (only in --settings);
- ``noise=SIGMA@C``: as private, but each round's vector is clipped to the norm C, and noise of SIGMA times C is added to it (likewise).

Measured: the largest, the smallest and the mean of 8 random subnets on the set's test images (for ``alone`` the mean over the peers),
BatchNorm recalibrated, nothing fine-tuned; and on each peer's held-out images, BatchNorm recalibrated on its own: the least, the median and
the best over the peers. Each setting appends a line of JSON to FILE; what is there already is not run again. One thread; 5 to 10 minutes a
setting.
"""

import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.image_folder import dirichlet_split, is_held_out, part_of
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.evaluation.held_out import evaluate, quality_report
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import fitted_name, space_named
from manta_swarm.automl.training.cohorts import LocalCohort
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import thin
from manta_swarm.automl.training.trainer import SimulatedSwarm, Trainer
from manta_swarm.peer.features.private.noise import noisy

_LEAST = 60  # images of a peer
_SETTINGS = ("pooled", "private")
_NOISE = re.compile(r"noise=([0-9.]+)@([0-9.]+)")

Run = dict[str, Any]


def parts_of(whole: ImageDataset, peers: int, alpha: float, seed: int) -> list[ImageDataset]:
    """Return each peer's own images, a fifth of them held out."""
    held_out = np.array([is_held_out(image) for image in whole.train_images], dtype=bool)
    split = dirichlet_split(whole.train_labels, peers, alpha, seed, _LEAST)
    return [part_of(whole, own[~held_out[own]], own[held_out[own]]) for own in split]


def pooled(parts: Sequence[ImageDataset]) -> ImageDataset:
    """Return the training images of all parts together."""
    images = np.concatenate([part.train_images for part in parts])
    return replace(parts[0], train_images=images, train_labels=np.concatenate([part.train_labels for part in parts]))


class NoisyTrainer(Trainer):
    """A training whose cohorts add noise to what they learnt, as a peer does that has data of its own."""

    sigma = 0.0
    clip = 1.0

    def _learn(self, cohort: LocalCohort, base: bytes, losses: list[float]) -> torch.Tensor:
        return torch.from_numpy(noisy(super()._learn(cohort, base, losses).numpy(), self.sigma, self.clip))


def trainer_of(
    plan: Plan, dataset: ImageDataset, parts: Sequence[ImageDataset], cohorts: int, samples: int, kind: type[Trainer] = Trainer
) -> Trainer:
    """Return a training whose cohorts exchange as ``automl.training.settings.thin`` says."""
    usual = thin("classification")
    swarm = SimulatedSwarm(usual.microbatch_samples, samples, cohorts, usual.codec, usual.residual_percent)
    return kind(plan, dataset, swarm, parts=parts)


def trained(setting: str, plan: Plan, parts: Sequence[ImageDataset]) -> list[torch.Tensor]:
    """Return the weights after a training: one vector, or with ``alone`` one for each peer."""
    microbatches = thin("classification").microbatch_samples * plan.local_steps
    if setting == "alone":
        alone = [trainer_of(replace(plan, seed=plan.seed + place), part, (), 1, microbatches) for place, part in enumerate(parts)]
        return [ended(each) for each in alone]
    whole, noise = pooled(parts), _NOISE.fullmatch(setting)
    if noise is not None:
        trainer = trainer_of(plan, whole, parts, len(parts), microbatches * len(parts), NoisyTrainer)
        assert isinstance(trainer, NoisyTrainer)
        trainer.sigma, trainer.clip = float(noise[1]), float(noise[2])
        return [ended(trainer)]
    return [ended(trainer_of(plan, whole, () if setting == "pooled" else parts, len(parts), microbatches * len(parts)))]


def ended(trainer: Trainer) -> torch.Tensor:
    """Train to the end, and return the weights."""
    while not trainer.finished:
        trainer.step()
    return trainer.state.parameters


def measured(setting: str, plan: Plan, test: ImageDataset, parts: Sequence[ImageDataset]) -> Run:
    """Train once; return the figures."""
    started_s = time.monotonic()
    weights = trained(setting, plan, parts)
    trained_s = time.monotonic() - started_s
    reports = [quality_report(each, plan.supernet, test) for each in weights]
    space = space_named(plan.supernet)
    supernet = build(space)
    own: dict[str, list[float]] = {"largest": [], "smallest": []}
    for place, part in enumerate(parts):
        supernet.load(weights[place % len(weights)])
        for which, quality in zip(own, evaluate(supernet, part, [space.largest(), space.smallest()]), strict=True):
            own[which].append(quality["accuracy"])
    return {
        "largest": statistics.mean(report["largest"] for report in reports),
        "smallest": statistics.mean(report["smallest"] for report in reports),
        "random": statistics.mean(statistics.mean(report["random"]) for report in reports),
        "own": own,
        "seconds": round(trained_s),
    }


def show(runs: Sequence[Run], parts: Sequence[ImageDataset]) -> None:
    """Print what the peers have, and a table for a person."""
    print("\nimages to train with, held out, classes with at least 1 % of them:")
    for place, part in enumerate(parts):
        classes = int((np.bincount(part.train_labels, minlength=part.num_classes) >= part.num_train / 100).sum())
        print(f"  {LocalCohort.numbered(place).name:<10} {part.num_train:>7,} {part.num_held_out:>7,} {classes:>3}")
    print(f"\n{'':<16}{'test images':^36}{'own held-out images: least, median, best peer':^52}")
    print(f"{'setting':<16}{'largest':>12}{'smallest':>12}{'random':>12}{'largest':>26}{'smallest':>26}{'seconds':>9}")
    for run in runs:
        spreads = [
            " / ".join(f"{100 * each:.1f}" for each in (min(own), statistics.median(own), max(own)))
            for own in (run["own"]["largest"], run["own"]["smallest"])
        ]
        figures = "".join(f"{100 * run[which]:>12.1f}" for which in ("largest", "smallest", "random"))
        print(f"{run['setting']:<16}{figures}{spreads[0]:>26}{spreads[1]:>26}{run['seconds']:>9}")
    whole = next((run for run in runs if run["setting"] == "pooled"), None)
    for run in runs if whole is not None else ():
        if run is not whole:
            ratios = ", ".join(f"{which} {run[which] / whole[which]:.3f}" for which in ("largest", "smallest", "random"))
            print(f"{run['setting']} against pooled: {ratios}")


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--data-root", type=Path, metavar="DIR")
    parser.add_argument("--data", default="fashionmnist", metavar="NAME")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    parser.add_argument("--settings", nargs="+", default=list(_SETTINGS), metavar="SETTING")
    parser.add_argument("--alpha", type=float, default=0.3)
    parser.add_argument("--peers", type=int, default=8, metavar="N")
    parser.add_argument("--updates", type=int, default=400, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    for setting in arguments.settings:
        if setting not in ("pooled", "private", "alone") and _NOISE.fullmatch(setting) is None:
            parser.error(f"{setting!r} is no setting: pooled, private, alone or noise=SIGMA@C")
    torch.set_num_threads(1)
    usual = thin("classification")
    whole = load_dataset(arguments.data, arguments.data_root)
    if not isinstance(whole, ImageDataset):
        parser.error(f"{arguments.data} is a set for {whole.task}")
    parts = parts_of(whole, arguments.peers, arguments.alpha, arguments.seed)
    rounds = -(-arguments.updates // usual.local_steps)
    supernet = fitted_name(usual.supernet, whole.image_channels, whole.num_classes)
    plan = Plan(supernet, "sandwich", "data-parallel", usual.optimizer, rounds, arguments.seed, usual.local_steps)
    asked = {
        "data": arguments.data,
        "alpha": arguments.alpha,
        "peers": arguments.peers,
        "updates": arguments.updates,
        "seed": arguments.seed,
    }
    runs = []
    for setting in arguments.settings:
        known = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
        place = {"setting": setting, **asked}
        run = next((one for one in known if one.items() >= place.items()), None)
        if run is None:
            run = {**place, **measured(setting, plan, whole, parts)}
            with arguments.out.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(f"  {setting}: {run['seconds']} s", file=sys.stderr, flush=True)
        runs.append(run)
    results.keep(runs=runs)
    show(runs, parts)
    results.write(arguments)


if __name__ == "__main__":
    main()
