"""manta-search split: a data set in parts, each in class folders, as owners who keep their images at home would have it."""

import math
from pathlib import Path

import click

from automl.commands import clear_errors, loading
from automl.data.dataset import STEREO
from automl.data.names import check_name, task_of
from protocol.errors import UserError

_MAX_PARTS = 1000


@click.command()
@click.argument("name")
@click.option("--parts", type=click.IntRange(1, _MAX_PARTS), default=4, show_default=True, metavar="N", help="How many.")
@click.option(
    "--alpha",
    type=float,
    default=0.3,
    show_default=True,
    metavar="ALPHA",
    help="How alike the parts are: 0.1 hardly (a class or two each), 100 very.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="New; gets a folder a part.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Another one gives another split.")
@click.option(
    "--data-root", "--root", "root", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the data that no library brings along."
)
def split(name: str, parts: int, alpha: float, out: Path, seed: int, root: Path | None) -> None:
    """Split the training images of the data set NAME by class. They become DIR/part-0/CLASS/0000042.png, ...

    Each part's share of a class is drawn (Dirichlet), so parts have different classes. To try a run with private data on this computer:
    manta-swarm up --private DIR.
    """
    with clear_errors():
        if not 0 < alpha < math.inf:
            raise UserError(f"--alpha takes a number above 0, not {alpha:g}")
        check_name(name, root)
        if task_of(name) == STEREO:
            raise UserError(f"{name} is a set for {STEREO}: only labelled images can be split by class")
        if out.exists():
            raise UserError(f"{out} is there already; it is left as it is: choose another name with --out")
        with loading():
            from automl.jobs import split as job
        job.split(name, parts, alpha, out, seed, root)
