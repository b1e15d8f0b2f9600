"""manta-search evaluate: how good a snapshot's subnets are, or an exported network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from automl.commands import MAX_THREADS, check_data, check_device, clear_errors, described, loading
from automl.data.dataset import PARTS
from automl.data.names import check_name
from automl.forms import SUFFIXES, check_opens
from automl.precisions import FP32, PRECISIONS, check_precision
from automl.spaces.choice import chosen
from protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class Wishes:
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
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A snapshot, whatever it is called.")
@click.option("--arch", "architecture", metavar="ARCH", help="One subnet of a snapshot; see: manta-search export.")
@click.option("--search", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="A search's folder, to look up an id in.")
@click.option("--data", metavar="NAME", help="Data set whose held-out samples are used.  [default: the one that the file names]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option(
    "--test-folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Test on all images in DIR, a folder for each class.",
)
@click.option("--part", type=click.Choice(PARTS), help="Part of the held-out samples.  [default: test; of a snapshot: all]")
@click.option(
    "--random", "num_random", type=click.IntRange(0, 1000), default=8, show_default=True, metavar="N", help="Random subnets to try."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N", help="Which random subnets.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU; of a snapshot.")
@click.option("--precision", type=click.Choice(PRECISIONS), default=FP32, show_default=True, help="What a GPU computes in.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def evaluate(**options: Any) -> None:
    """Print how good a snapshot's subnets, or an export, are. That is measured on held-out data. A snapshot is a .safetensors file, an
    export a .pt2 or .onnx file or a folder.

    With --test-folder DIR it is all images of a folder that are looked at, however many; its class folders are called as the network calls
    its classes. (A snapshot's subnets still need the data that they were trained on, for their statistics.)

    Of a snapshot these are the largest, the smallest and some random subnets, or the one that --arch names; none is fine-tuned.
    """
    with clear_errors():
        wishes = Wishes(**options)
        source = _source(wishes.path, wishes.snapshot)
        check_opens(source)
        check_device(wishes.device)
        check_precision(wishes.precision, wishes.device)
        if wishes.test_folder is not None and wishes.part is not None:
            raise UserError("--test-folder is tested on as a whole: leave --part out")
        if source == wishes.path and (source.is_dir() or source.suffix in SUFFIXES):
            if wishes.architecture is not None:
                raise UserError(f"{source} is one network already; --arch is for snapshots")
            if wishes.device != "cpu":
                raise UserError(f"{source} is an export, which is measured on the CPU: leave --device out")
            if wishes.data is not None and wishes.test_folder is not None:
                raise UserError(f"{source} needs no --data beside --test-folder: leave one of them out")
            if wishes.data is not None:
                check_name(wishes.data, wishes.data_root)
            with loading():
                from automl.jobs import evaluate as job
            job.evaluate_exported(source, wishes)
        else:
            space, metadata = described(source)
            check_data(metadata, wishes.data, wishes.data_root)
            picked = None if wishes.architecture is None else chosen(wishes.architecture, space, wishes.search)
            with loading():
                from automl.jobs import evaluate as job
            job.evaluate_snapshot(source, picked, wishes)


def _source(path: Path | None, snapshot: Path | None) -> Path:
    source = path or snapshot
    if source is None or (path is not None and snapshot is not None):
        raise UserError("name one file or folder: a snapshot's .safetensors, a .pt2, an .onnx, or an exported folder")
    if not source.exists():
        raise UserError(f"there is no {source}; check the name")
    return source
