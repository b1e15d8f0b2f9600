"""manta-search evaluate: how good a snapshot's subnets are, or an exported network."""

import random
from pathlib import Path

import click
import torch

from automl.choice import chosen
from automl.commands import clear_errors, dataset_of, opened_snapshot
from automl.cost import macs, num_weights
from automl.data.catalog import load_dataset
from automl.data.dataset import ALL, PARTS, STEREO, TEST, Dataset
from automl.evaluation import check_fit, measure
from automl.evaluation import evaluate as evaluate_subnets
from automl.export.card import metric_texts
from automl.export.description import UNKNOWN
from automl.exported import SUFFIXES, open_exported
from automl.space import Architecture, SearchSpace
from automl.supernet import Supernet
from protocol.errors import UserError


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False, metavar="[FILE|DIR]")
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A snapshot, whatever it is called.")
@click.option("--arch", "architecture", metavar="ARCH", help="One subnet of a snapshot; see: manta-search export.")
@click.option("--search", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="A search's folder, to look up an id in.")
@click.option("--data", metavar="NAME", help="Data set whose held-out samples are used.  [default: the one that the file names]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option("--part", type=click.Choice(PARTS), help="Part of the held-out samples.  [default: test; of a snapshot: all]")
@click.option("--random", "num_random", type=click.IntRange(0, 1000), default=8, show_default=True, help="Random subnets to try.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which random subnets.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def evaluate(
    path: Path | None,
    snapshot: Path | None,
    architecture: str | None,
    search: Path | None,
    data: str | None,
    data_root: Path | None,
    part: str | None,
    num_random: int,
    seed: int,
    threads: int | None,
) -> None:
    """Print how good a snapshot's subnets are (.safetensors), or an exported network (.pt2, .onnx, folder), on held-out data.

    Of a snapshot these are the largest, the smallest and some random subnets, or the one that --arch names; none is fine-tuned.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    with clear_errors():
        source = _source(path, snapshot)
        if source == path and (path.is_dir() or path.suffix in SUFFIXES):
            if architecture is not None:
                raise UserError(f"{path} is one network already; --arch is for snapshots")
            lines = _exported(path, data, data_root, part or TEST)
        else:
            supernet, state, metadata = opened_snapshot(source)
            dataset = dataset_of(metadata, data, data_root)
            check_fit(dataset, supernet.space)
            networks = _networks(supernet.space, architecture, search, num_random, seed)
            lines = [f"{supernet.space.name} after round {state.round}, {_samples(dataset, part or ALL)}"]
            lines += _subnets(supernet, dataset, networks, part or ALL)
    for line in lines:
        click.echo(line)


def _source(path: Path | None, snapshot: Path | None) -> Path:
    source = path or snapshot
    if source is None or (path is not None and snapshot is not None):
        raise UserError("name one file or folder: a snapshot's .safetensors, a .pt2, an .onnx, or an exported folder")
    if not source.exists():
        raise UserError(f"there is no {source}; check the name")
    return source


def _networks(
    space: SearchSpace, architecture: str | None, search: Path | None, num_random: int, seed: int
) -> list[tuple[str, Architecture]]:
    """Return what to evaluate, each with what to call it."""
    if architecture is not None:
        picked = chosen(architecture, space, search)
        return [(picked.id[:8], picked)]
    sampled = [space.sample(random.Random(f"{seed}:report:{index}")) for index in range(num_random)]
    return [("largest", space.largest()), ("smallest", space.smallest()), *(("random", architecture) for architecture in sampled)]


def _subnets(supernet: Supernet, dataset: Dataset, networks: list[tuple[str, Architecture]], part: str) -> list[str]:
    qualities = evaluate_subnets(supernet, dataset, [architecture for _, architecture in networks], part=part)
    return [
        f"  {name:<8}  {metric_texts(quality)}, {_cost(architecture, supernet.space)}"
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
    lines += [f"  file says  {metric_texts(description.metrics)} on {description.test_samples} held-out samples of {description.dataset}"]
    if dataset.digest.hex() != description.dataset_digest:
        lines += [f"  {dataset.name} here has other samples than the data set that the file was made with"]
    return [*lines, f"  {description.architecture.text}"]


def _samples(dataset: Dataset, part: str) -> str:
    """Return what is measured on, for people."""
    samples = f"{dataset.num_held_out} held-out {'pairs' if dataset.task == STEREO else 'images'} of {dataset.name}"
    return samples if part == ALL else f'part "{part}" of {samples}'


def _cost(architecture: Architecture, space: SearchSpace) -> str:
    return f"{macs(architecture, space) / 1e6:.2f} M MACs, {num_weights(architecture, space):,} weights"
