"""manta-search export: a subnet of a snapshot as .pt2, .onnx and a folder for model hubs."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from automl.commands import MAX_THREADS, check_data, clear_errors, described, loading
from automl.forms import ALL_FORMATS, FORMATS, INT8, check_licence, check_targets
from automl.spaces.choice import chosen
from automl.spaces.space import Architecture, SearchSpace
from protocol.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options as they were given."""

    snapshot: Path
    architecture: str
    search: Path | None
    formats: str
    out: Path
    name: str | None
    data: str | None
    data_root: Path | None
    licence: str
    data_licence: str | None
    stored: bool
    force: bool
    threads: int | None


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
@click.option(
    "--format", "formats", default=",".join(FORMATS), show_default=True, metavar="LIST", help=f"In which forms: {', '.join(ALL_FORMATS)}."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Where to.")
@click.option("--name", metavar="NAME", help="What to call it.  [default: of supernet and architecture]")
@click.option("--data", metavar="NAME", help="Data set to calibrate and measure with.  [default: what the snapshot was trained on]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option("--licence", default="unknown", show_default=True, metavar="NAME", help="The network's, for its card: like mit.")
@click.option("--data-licence", metavar="NAME", help="The data set's.  [default: what the set tells, else unknown]")
@click.option("--stored", is_flag=True, help="Read no data: take what manta-search calibrate has written beside the snapshot.")
@click.option("--force", is_flag=True, help="Replace an earlier export of that name.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def export(**options: Any) -> None:
    """Export a subnet of a snapshot, without fine-tuning. Its statistics are measured anew on training data."""
    with clear_errors():
        wishes = Wishes(**options)
        forms = _forms(wishes.formats)
        for licence in (wishes.licence, wishes.data_licence or wishes.licence):
            check_licence(licence)
        space, metadata = described(wishes.snapshot)
        picked = chosen(wishes.architecture, space, wishes.search)
        name = _name(wishes, space, picked)
        check_targets(wishes.out, name, forms, wishes.force)
        if not wishes.stored:
            check_data(metadata, wishes.data, wishes.data_root)
        elif wishes.data is not None or INT8 in forms:
            raise UserError("--stored reads no data: leave --data out, and int8, whose numbers are scaled by data")
        with loading():
            from automl.jobs import export as job
        job.export(wishes, picked, name, forms)


def _name(wishes: Wishes, space: SearchSpace, picked: Architecture) -> str:
    name = wishes.name or f"{space.name}-{picked.id[:8]}"
    if _NAME.fullmatch(name) is None:
        raise UserError(f"--name {name!r} is no plain name: letters, digits, dots, dashes and underscores, 100 at most")
    return name


def _forms(text: str) -> list[str]:
    forms = text.split(",")
    for form in forms:
        if form not in ALL_FORMATS:
            raise UserError(f"--format {text!r}: {form!r} is none of {', '.join(ALL_FORMATS)}")
    return forms
