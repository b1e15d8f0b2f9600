"""manta-search evaluate: how good a snapshot's subnets are, or an exported network."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manta_swarm.automl.commands import (
    DATA_ROOT,
    FILE,
    FOLDER,
    SEARCH,
    THREADS,
    checked_data,
    clear_errors,
    use_threads,
)
from manta_swarm.automl.data.dataset import ALL, PARTS, STEREO, TEST
from manta_swarm.automl.data.names import check_name
from manta_swarm.automl.forms import SUFFIXES, check_opens
from manta_swarm.automl.precisions import FP32, PRECISIONS, check_device, check_precision
from manta_swarm.automl.spaces.choice import chosen
from manta_swarm.automl.spaces.cost import macs, num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.snapshot_header import described
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.automl.data.dataset import Dataset, EvaluationSet
    from manta_swarm.automl.evaluation.held_out import Quality


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they were given."""

    path: Path | None
    snapshot: Path | None
    architecture: str | None
    search: Path | None
    data: str | None
    data_root: Path | None
    test_folder: Path | None
    part: str | None
    num_random: int
    seed: int
    device: str
    precision: str
    threads: int | None


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False, metavar="[FILE|DIR]")
@click.option("--snapshot", type=FILE, metavar="FILE", help="A snapshot, whatever it is called.")
@click.option("--arch", "architecture", metavar="ARCH", help="Subnet of a snapshot; see manta-search export.")
@SEARCH
@click.option("--data", metavar="NAME", help="Data set to test on.  [default: the one that the file names]")
@DATA_ROOT
@click.option("--test-folder", type=FOLDER, metavar="DIR", help="Images to test on, a folder for each class.")
@click.option("--part", type=click.Choice(PARTS), help="Part of the held-out samples.  [default: test; of a snapshot: all]")
@click.option(
    "--random", "num_random", type=click.IntRange(0, 1000), default=8, show_default=True, metavar="N", help="Random subnets to measure."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N", help="Seed of the random subnets.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU; of a snapshot.")
@click.option("--precision", type=click.Choice(PRECISIONS), default=FP32, show_default=True, help="What a GPU computes in.")
@THREADS
def evaluate(**arguments: Any) -> None:
    """Print how good a snapshot's subnets, or an export, are. That is measured on held-out data. A snapshot is a .safetensors file, an
    export a .pt2 or .onnx file or a folder.

    With --test-folder DIR it is all images of a folder that are looked at, however many; its class folders are called as the network calls
    its classes. (A snapshot's subnets still need the data that they were trained on, for their statistics.)

    Of a snapshot these are the largest, the smallest and some random subnets, or the one that --arch names; none is fine-tuned.
    """
    with clear_errors():
        options = Options(**arguments)
        source = _source(options.path, options.snapshot)
        check_opens(source)
        check_device(options.device)
        check_precision(options.precision, options.device)
        if options.test_folder is not None and options.part is not None:
            raise UserError("--test-folder is tested on as a whole: leave --part out")
        is_export = source == options.path and (source.is_dir() or source.suffix in SUFFIXES)
        if is_export:
            _check_export(source, options)
        else:
            space, metadata = described(source)
            data = checked_data(metadata, options.data, options.data_root)
            picked = None if options.architecture is None else chosen(options.architecture, space, options.search)
        with ending_at_ctrl_c():
            import manta_swarm.automl.api
            import manta_swarm.automl.data.image_folder  # noqa: F401 - they take seconds
        use_threads(options.threads)
        for line in _export_lines(source, options) if is_export else _snapshot_lines(source, picked, data, options):
            click.echo(line)


def _check_export(source: Path, options: Options) -> None:
    """Refuse what is said of an exported network and is no good for it.

    Raises:
        UserError: there is something.
    """
    if options.architecture is not None:
        raise UserError(f"{source} is one network already; --arch is for snapshots")
    if options.device != "cpu":
        raise UserError(f"{source} is an export, which is measured on the CPU: leave --device out")
    if options.data is not None and options.test_folder is not None:
        raise UserError(f"{source} needs no --data beside --test-folder: leave one of them out")
    if options.data is not None:
        check_name(options.data, options.data_root)


def _source(path: Path | None, snapshot: Path | None) -> Path:
    source = path or snapshot
    if source is None or (path is not None and snapshot is not None):
        raise UserError("name one file or folder: a snapshot's .safetensors, a .pt2, an .onnx, or an exported folder")
    if not source.exists():
        raise UserError(f"there is no {source}; check the name")
    return source


def _export_lines(path: Path, options: Options) -> list[str]:
    """Return how good an exported network is.

    Raises:
        UserError: it is none, or the data do not fit.
    """
    if options.test_folder is not None:
        return _tested(path, options.test_folder)
    return _exported(path, options.data, options.data_root, options.part or TEST)


def _snapshot_lines(path: Path, picked: Architecture | None, data: str, options: Options) -> list[str]:
    """Return how good a snapshot's subnets are on a data set: the ``picked`` one, or the largest, the smallest and random ones.

    Raises:
        UserError: it is no snapshot, or the data do not fit.
    """
    from manta_swarm.automl import api
    from manta_swarm.automl.evaluation.held_out import check_fit

    snapshot = api.open_snapshot(path, options.device)
    space, dataset = snapshot.space, api.load_dataset(data, options.data_root)
    check_fit(dataset, space)
    networks = [(picked.id[:8], picked)] if picked is not None else _networks(space, options.num_random, options.seed)
    tested: EvaluationSet
    part, tested, said = options.part or ALL, dataset, _samples(dataset, options.part or ALL)
    if options.test_folder is not None:
        tested, said = _whole(options.test_folder, dataset.class_titles, space, dataset.preparation.kept_side, dataset)
    how = "" if options.device == "cpu" else f", computed in {options.precision} on {options.device}"
    qualities = api.evaluate(snapshot, dataset, [each for _, each in networks], part=part, precision=options.precision, tested=tested)
    return [f"{space.name} after round {snapshot.state.round}, {said}{how}", *_subnets(space, networks, qualities)]


def _networks(space: SearchSpace, num_random: int, seed: int) -> list[tuple[str, Architecture]]:
    """Return what to evaluate, each with what to call it."""
    sampled = [space.sample(random.Random(f"{seed}:report:{index}")) for index in range(num_random)]
    return [("largest", space.largest()), ("smallest", space.smallest()), *(("random", architecture) for architecture in sampled)]


def _subnets(space: SearchSpace, networks: list[tuple[str, Architecture]], qualities: "Sequence[Quality]") -> list[str]:
    from manta_swarm.automl.export.card import metric_texts

    return [
        f"  {name:<8}  {metric_texts(quality)}, {_cost(architecture, space)}"
        for (name, architecture), quality in zip(networks, qualities, strict=True)
    ]


def _exported(path: Path, data: str | None, data_root: Path | None, part: str) -> list[str]:
    """Return what to say of an exported network."""
    from manta_swarm.automl import api
    from manta_swarm.automl.data.names import UNKNOWN
    from manta_swarm.automl.export.card import metric_texts

    network = api.open_exported(path)
    description = network.description
    name = data or description.dataset
    if name == UNKNOWN:
        raise UserError(f"{path} does not say what data it is for; say it with --data NAME")
    dataset = api.load_dataset(name, data_root)
    quality = api.evaluate_exported(network, dataset, part=part)
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
    from manta_swarm.automl.evaluation.held_out import measure
    from manta_swarm.automl.export.card import metric_texts
    from manta_swarm.automl.export.files import open_exported

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
    folder: Path, titles: Sequence[str], space: SearchSpace, kept_side: int | None, calibrating: "Dataset | None"
) -> "tuple[EvaluationSet, str]":
    """Return all of a folder as a test set, and what to say of it."""
    from manta_swarm.automl.data.image_folder import WholeFolder

    if space.task == STEREO:
        raise UserError("--test-folder is for labelled images, and the network is for stereo: leave it out")
    tested = WholeFolder(folder, titles, space.image_channels, kept_side, calibrating)
    return tested, f"all {len(tested)} images of {folder}"


def _samples(dataset: "Dataset", part: str) -> str:
    """Return what is measured on, for people."""
    samples = f"{dataset.num_held_out} held-out {'pairs' if dataset.task == STEREO else 'images'} of {dataset.name}"
    return samples if part == ALL else f'part "{part}" of {samples}'


def _cost(architecture: Architecture, space: SearchSpace) -> str:
    return f"{macs(architecture, space) / 1e6:.2f} M MACs, {num_weights(architecture, space):,} weights"
