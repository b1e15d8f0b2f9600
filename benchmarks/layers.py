"""Bottlenecks against the layers of before, at equal multiply-accumulates: plain networks trained alone, a few minutes each.

    .venv/bin/python benchmarks/layers.py --data-root DIR [--updates 250] [--seeds 2]

The smallest network of the base classifier as it was first, its spatial convolutions on the narrow side, and that of the present space
whose cost is nearest, drawn from 2,000 random ones: FashionMNIST at 48 px, the same first
images, updates of 32, AdamW with a rate that falls to zero. Prints the share of 2,000 test images that each gets right, and the
seconds of a core that an update takes. So short a training shows how fast a network begins to learn, not how good it can get; and
FashionMNIST is not ImageNet.
"""

import argparse
import random
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.datasets import FashionMNIST

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.cost import macs, num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.spaces.units import units_alike

_SIDE = 48
_BATCH = 32
_TEST = 2000
_DRAWN = 2000
_RATE = 2e-3

NOW = replace(space_named("classifier-base-1x10"), resolutions=(_SIDE,))
BEFORE = replace(
    NOW,
    stem_width=24,
    units=units_alike((24, 40, 80, 128, 192), depths=(2, 3, 4), kernels=(3, 5, 7), expansions=(3, 4, 6)),
    head_width=0,
)


def nearest(space: SearchSpace, cost: int) -> Architecture:
    """Return the random architecture whose cost is nearest."""
    return min((space.sample(random.Random(index)) for index in range(_DRAWN)), key=lambda one: abs(macs(one, space) - cost))


def images(root: Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return all images (N, 1, side, side) from 0 to 1, and their labels."""
    data = FashionMNIST(str(root), train=train)
    count = len(data) if train else _TEST
    x_NCHW = F.interpolate(data.data[:count, None].float() / 255, size=_SIDE, mode="bilinear", align_corners=False)
    return x_NCHW, data.targets[:count]


def trained(
    space: SearchSpace, architecture: Architecture, data: tuple[Tensor, Tensor], updates: int, seed: int
) -> tuple[nn.Module, float]:
    """Return a plain network, trained, and the seconds of a core that an update took."""
    supernet = build(space)
    supernet.initialise(torch.Generator().manual_seed(seed))
    network = supernet.extract(architecture).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, updates)
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    started_s = time.process_time()
    for update in range(updates):
        chosen = order[torch.arange(update * _BATCH, (update + 1) * _BATCH) % len(order)]
        inputs = data[0][chosen].contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), data[1][chosen]).backward()
        optimizer.step()
        schedule.step()
    return network.eval(), (time.process_time() - started_s) / updates


@torch.inference_mode()
def accuracy(network: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the share that is right."""
    guesses = torch.cat([network(part.contiguous(memory_format=torch.channels_last)).argmax(1) for part in data[0].split(250)])
    return (guesses == data[1]).float().mean().item()


def main() -> None:
    """Train both, seed by seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", type=Path, required=True, metavar="DIR", help="where FashionMNIST lies unpacked")
    parser.add_argument("--updates", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, test = images(arguments.data_root, train=True), images(arguments.data_root, train=False)
    before = BEFORE.smallest()
    cases = {"before": (BEFORE, before), "now": (NOW, nearest(NOW, macs(before, BEFORE)))}
    for name, (space, architecture) in cases.items():
        size = f"{macs(architecture, space) / 1e6:.2f} M MACs, {num_weights(architecture, space):,} weights"
        print(f"{name}: {size}: {architecture.text}", flush=True)
    for seed in range(arguments.seeds):
        for name, (space, architecture) in cases.items():
            network, update_s = trained(space, architecture, data, arguments.updates, seed)
            print(f"seed {seed} {name:<7} {accuracy(network, test):.2%} right, {1e3 * update_s:.0f} ms of a core an update", flush=True)


if __name__ == "__main__":
    main()
