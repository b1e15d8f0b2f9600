"""manta-search split: a data set in parts, each in class folders, as owners who keep their images at home would have it."""

import math
from pathlib import Path

import click

from manta_swarm.automl.commands import FOLDER, OWN_ROOT, clear_errors
from manta_swarm.automl.data.dataset import STEREO
from manta_swarm.automl.data.names import check_name, task_of
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

_MAX_PARTS = 1000
_LEAST = 50  # images that a part has, of which a fifth will be held out: more than a usual microbatch


@click.command()
@click.argument("name")
@click.option("--parts", type=click.IntRange(1, _MAX_PARTS), default=4, show_default=True, metavar="N", help="Parts to make.")
@click.option(
    "--alpha",
    type=float,
    default=0.3,
    show_default=True,
    metavar="ALPHA",
    help="How alike the parts are: 0.1 hardly (a class or two each), 100 very.",
)
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="New folder, with a folder for each part.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of the split.")
@OWN_ROOT
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
            raise _no_classes(name, STEREO)
        if out.exists():
            raise UserError(f"{out} is there already; it is left as it is: choose another name with --out")
        with ending_at_ctrl_c():
            from manta_swarm.automl.data.catalog import load_dataset
            from manta_swarm.automl.data.images import ImageDataset
            from manta_swarm.automl.data.splitting import dirichlet_split, write_class_folders
        dataset = load_dataset(name, root)
        if not isinstance(dataset, ImageDataset):  # where the name does not say it
            raise _no_classes(name, dataset.task)
        split_N = dirichlet_split(dataset.train_labels, parts, alpha, seed, _LEAST)
        for number, chosen in enumerate(split_N):
            folder = out / f"part-{number:0{len(str(parts - 1))}}"
            write_class_folders(dataset, chosen.tolist(), folder)
            classes = len(set(dataset.train_labels[chosen].tolist()))
            click.echo(f"{folder}: {len(chosen)} images of {classes} classes")


def _no_classes(name: str, task: str) -> UserError:
    return UserError(f"{name} is a set for {task}: only labelled images can be split by class")
