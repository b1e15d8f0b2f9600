"""manta-search split, at work: a data set in parts, each in class folders."""

from pathlib import Path

import click

from automl.data.catalog import load_dataset
from automl.data.images import ImageDataset
from automl.data.splitting import dirichlet_split, write_class_folders
from protocol.errors import UserError

_LEAST = 50  # images that a part has, of which a fifth will be held out: more than a usual lot


def split(name: str, parts: int, alpha: float, out: Path, seed: int, root: Path | None) -> None:
    """Write the parts into ``out`` and say what each holds.

    Raises:
        UserError: the set cannot be read, or not be split so.
    """
    dataset = load_dataset(name, root)
    if not isinstance(dataset, ImageDataset):
        raise UserError(f"{name} is a set for {dataset.task}: only labelled images can be split by class")
    split_N = dirichlet_split(dataset.train_labels, parts, alpha, seed, _LEAST)
    for number, chosen in enumerate(split_N):
        folder = out / f"part-{number:0{len(str(parts - 1))}}"
        write_class_folders(dataset, chosen.tolist(), folder)
        classes = len(set(dataset.train_labels[chosen].tolist()))
        click.echo(f"{folder}: {len(chosen)} images of {classes} classes")
