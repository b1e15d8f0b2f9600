"""Accuracy of subnets on held-out images, each with its BatchNorm recalibrated and without any fine-tuning."""

import random
from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from automl.calibration import recalibrate
from automl.classifier import Supernet
from automl.data.images import ImageDataset, resize
from automl.space import Architecture, space_named


class AccuracyReport(TypedDict):
    """Held-out accuracies from 0 to 1."""

    largest: float
    smallest: float
    random: list[float]


@torch.no_grad()
def evaluate(
    parameters: Tensor, supernet_name: str, dataset: ImageDataset, architectures: Sequence[Architecture], device: str = "cpu"
) -> list[float]:
    """Return the held-out accuracy (0 to 1) of each architecture's subnet of ``parameters``."""
    supernet = Supernet(space_named(supernet_name), device)
    supernet.load(parameters)
    resolution = supernet.space.resolution
    train_images = resize(dataset.train_images, dataset.white, resolution).to(device)
    images = resize(dataset.held_out_images, dataset.white, resolution).to(device)
    labels = torch.from_numpy(dataset.held_out_labels).to(device)
    accuracies = []
    for architecture in architectures:
        recalibrate(supernet, architecture, train_images)
        predictions = torch.cat([supernet(part, architecture).argmax(1) for part in torch.split(images, 256)])
        accuracies.append((predictions == labels).sum().item() / len(labels))
    return accuracies


def accuracy_report(
    parameters: Tensor, supernet_name: str, dataset: ImageDataset, device: str = "cpu", num_random: int = 8, seed: int = 0
) -> AccuracyReport:
    """Return the accuracies of the largest, the smallest and ``num_random`` random subnets (the same ones for the same seed)."""
    space = space_named(supernet_name)
    sampled = [space.sample(random.Random(f"{seed}:report:{index}")) for index in range(num_random)]
    largest, smallest, *others = evaluate(parameters, supernet_name, dataset, [space.largest(), space.smallest(), *sampled], device)
    return {"largest": largest, "smallest": smallest, "random": others}
