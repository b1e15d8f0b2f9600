"""manta-search export: a subnet of a snapshot as .pt2, .onnx and a folder for model hubs."""

import re
from pathlib import Path

import click
import torch

from automl.choice import chosen
from automl.commands import clear_errors, dataset_of, opened_snapshot
from automl.export.card import metric_texts
from automl.export.description import UNKNOWN
from automl.export.subnet import Subnet, cut, provenance_of
from automl.export.writer import FORMATS, check_targets, write
from protocol.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@click.command()
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="A .safetensors file.")
@click.option(
    "--arch",
    "architecture",
    required=True,
    metavar="ARCH",
    help="Which subnet: a file that holds one (a search's best.json), an id with --search, a text of genes, largest or smallest.",
)
@click.option("--search", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="A search's folder, to look up an id in.")
@click.option("--format", "formats", default=",".join(FORMATS), show_default=True, metavar="LIST", help="In which forms.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Where to.")
@click.option("--name", metavar="NAME", help="What to call it.  [default: of supernet and architecture]")
@click.option("--data", metavar="NAME", help="Data set to calibrate and measure with.  [default: what the snapshot was trained on]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option("--force", is_flag=True, help="Replace an earlier export of that name.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def export(
    snapshot: Path,
    architecture: str,
    search: Path | None,
    formats: str,
    out: Path,
    name: str | None,
    data: str | None,
    data_root: Path | None,
    force: bool,
    threads: int | None,
) -> None:
    """Export a subnet of a snapshot, its statistics measured anew on training data, without fine-tuning."""
    if threads is not None:
        torch.set_num_threads(threads)
    with clear_errors():
        forms = _forms(formats)
        supernet, state, metadata = opened_snapshot(snapshot)
        picked = chosen(architecture, supernet.space, search)
        name = name or f"{supernet.space.name}-{picked.id[:8]}"
        if _NAME.fullmatch(name) is None:
            raise UserError(f"--name {name!r} is no plain name: letters, digits, dots, dashes and underscores, 100 at most")
        check_targets(out, name, forms, force)  # before the work
        provenance = provenance_of(snapshot, state, metadata)
        subnet = cut(supernet, picked, dataset_of(metadata, data, data_root), provenance)
        written = write(subnet, out, name, forms, replace=force)
    _print(subnet)
    for each in written:
        click.echo(f"  {each.path}  (differs by at most {each.difference:.1e})" if each.difference else f"  {each.path}")


def _forms(text: str) -> list[str]:
    forms = text.split(",")
    for form in forms:
        if form not in FORMATS:
            raise UserError(f"--format {text!r}: {form!r} is none of {', '.join(FORMATS)}")
    return forms


def _print(subnet: Subnet) -> None:
    """Print what was exported."""
    description = subnet.description
    click.echo(f"{description.supernet} after round {description.provenance.round}: {description.architecture.text}")
    click.echo(f"  {metric_texts(description.metrics)} on {description.test_samples} held-out samples of {description.dataset}")
    if description.provenance.ledger_root == UNKNOWN:
        click.echo("  no file of a ledger lies beside the snapshot: the export says that its root is unknown")
