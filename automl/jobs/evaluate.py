"""manta-search evaluate, at work."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import torch

from automl.commands.evaluate import Wishes
from automl.data.catalog import load_dataset
from automl.data.dataset import ALL, STEREO, TEST, Dataset, EvaluationSet
from automl.data.whole_folder import WholeFolder
from automl.evaluation.held_out import Quality, check_fit, measure
from automl.evaluation.held_out import evaluate as evaluate_subnets
from automl.export.card import metric_texts
from automl.export.description import UNKNOWN
from automl.export.opened import open_exported
from automl.opening import checked_device, dataset_of, opened_snapshot
from automl.spaces.cost import macs, num_weights
from automl.spaces.space import Architecture, SearchSpace
from protocol.errors import UserError


def evaluate_exported(path: Path, wishes: Wishes) -> None:
    """Say how good an exported network is.

    Raises:
        UserError: it is none, or the data do not fit.
    """
    _begin(wishes)
    if wishes.test_folder is not None:
        _show(_tested(path, wishes.test_folder))
        return
    _show(_exported(path, wishes.data, wishes.data_root, wishes.part or TEST))


def evaluate_snapshot(path: Path, picked: Architecture | None, wishes: Wishes) -> None:
    """Say how good a snapshot's subnets are: the ``picked`` one, or the largest, the smallest and random ones.

    Raises:
        UserError: it is no snapshot, or the data do not fit.
    """
    _begin(wishes)
    supernet, state, metadata = opened_snapshot(path, checked_device(wishes.device))
    dataset = dataset_of(metadata, wishes.data, wishes.data_root)
    check_fit(dataset, supernet.space)
    networks = [(picked.id[:8], picked)] if picked is not None else _networks(supernet.space, wishes.num_random, wishes.seed)
    tested: EvaluationSet
    part, tested, said = wishes.part or ALL, dataset, _samples(dataset, wishes.part or ALL)
    if wishes.test_folder is not None:
        tested, said = _whole(wishes.test_folder, dataset.class_titles, supernet.space, dataset.preparation.kept_side, dataset)
    how = "" if wishes.device == "cpu" else f", computed in {wishes.precision} on {wishes.device}"
    qualities = evaluate_subnets(supernet, tested, [each for _, each in networks], part=part, precision=wishes.precision)
    _show([f"{supernet.space.name} after round {state.round}, {said}{how}", *_subnets(supernet.space, networks, qualities)])


def _begin(wishes: Wishes) -> None:
    if wishes.threads is not None:
        torch.set_num_threads(wishes.threads)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _networks(space: SearchSpace, num_random: int, seed: int) -> list[tuple[str, Architecture]]:
    """Return what to evaluate, each with what to call it."""
    sampled = [space.sample(random.Random(f"{seed}:report:{index}")) for index in range(num_random)]
    return [("largest", space.largest()), ("smallest", space.smallest()), *(("random", architecture) for architecture in sampled)]


def _subnets(space: SearchSpace, networks: list[tuple[str, Architecture]], qualities: Sequence[Quality]) -> list[str]:
    return [
        f"  {name:<8}  {metric_texts(quality)}, {_cost(architecture, space)}"
        for (name, architecture), quality in zip(networks, qualities, strict=True)
    ]


def _exported(path: Path, data: str | None, data_root: Path | None, part: str) -> list[str]:
    """Return what to say of an exported network."""
    network = open_exported(path)
    description = network.description
    name = data or description.dataset
    if name == UNKNOWN:
        raise UserError(f"{path} does not say what data it is for; say it with --data NAME")
    dataset = load_dataset(name, data_root)
    check_fit(dataset, description.space)
    quality = measure(network, dataset, description.architecture.resolution, part=part)
    lines = [f"{description.supernet} after round {description.provenance.round}, {_samples(dataset, part)}"]
    lines += [f"  measured   {metric_texts(quality)}, {_cost(description.architecture, description.space)}"]
    lines += [
        f"  file says  {metric_texts(description.own_metrics)} on {description.test_samples} held-out samples of {description.dataset}"
    ]
    if dataset.digest.hex() != description.dataset_digest:
        lines += [f"  {dataset.name} here has other samples than the data set that the file was made with"]
    return [*lines, f"  {description.architecture.text}"]


def _tested(path: Path, folder: Path) -> list[str]:
    """Return how good an exported network is on all of a folder."""
    network = open_exported(path)
    description = network.description
    told = description.presentation
    if told is None:
        raise UserError(f"{path} does not say what its classes are called: export it again, or give the data set's name with --data")
    tested, said = _whole(folder, told.class_titles, description.space, told.preparation.kept_side, None)
    quality = measure(network, tested, description.architecture.resolution)
    lines = [f"{description.supernet} after round {description.provenance.round}, {said}"]
    lines += [f"  measured   {metric_texts(quality)}, {_cost(description.architecture, description.space)}"]
    return [*lines, f"  {description.architecture.text}"]


def _whole(
    folder: Path, titles: Sequence[str], space: SearchSpace, kept_side: int | None, calibrating: Dataset | None
) -> tuple[EvaluationSet, str]:
    """Return all of a folder as a test set, and what to say of it."""
    if space.task == STEREO:
        raise UserError("--test-folder is for labelled images, and the network is for stereo: leave it out")
    tested = WholeFolder(folder, titles, space.image_channels, kept_side, calibrating)
    return tested, f"all {len(tested)} images of {folder}"


def _samples(dataset: Dataset, part: str) -> str:
    """Return what is measured on, for people."""
    samples = f"{dataset.num_held_out} held-out {'pairs' if dataset.task == STEREO else 'images'} of {dataset.name}"
    return samples if part == ALL else f'part "{part}" of {samples}'


def _cost(architecture: Architecture, space: SearchSpace) -> str:
    return f"{macs(architecture, space) / 1e6:.2f} M MACs, {num_weights(architecture, space):,} weights"
