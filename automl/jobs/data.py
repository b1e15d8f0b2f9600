"""manta-search data, at work."""

import sys
from pathlib import Path

import click

from automl.data.catalog import load_dataset
from automl.data.dataset import STEREO, Dataset
from automl.data.names import OWN_IMAGES, SHARDS, own_folder, without_size
from automl.data.shards.layout import IMAGES, ShardList
from automl.data.shards.reading import open_shards
from automl.data.shards.writing import shard_images, shard_pairs
from automl.data.views import StereoDataset
from protocol.errors import UserError


def show(name: str, root: Path | None, download: bool) -> None:
    """Say what a data set holds.

    Raises:
        UserError: as ``load_dataset``.
    """
    dataset = load_dataset(name, root, download=download)
    rows = _rows(dataset)
    if name.startswith(SHARDS):
        shards = open_shards(own_folder(name, SHARDS, root))
        rows.insert(-1, ("shards", _shards(shards.list)))
        num_train, num_all = shards.list.num_train_shards, len(shards.list.shards)
        kinds = ((shards.missing(), num_train, "to train with"), (shards.missing_held_out(), num_all - num_train, "held out"))
        for missing, count, what in kinds:
            if missing:
                rows.insert(-1, ("missing", f"{len(missing)} of the {count} {what}, or of another size; the first: {missing[0]}"))
    _say(dataset.name, rows)


def shard(name: str, root: Path | None, download: bool, out: Path, shard_bytes: int, side: int | None) -> None:
    """Write a data set in shards, and say what it holds.

    Raises:
        UserError: it cannot be read or written, or is not of a kind that comes in shards.
    """
    progress = _Progress("written")
    kind, sized = without_size(name)
    if kind.startswith(OWN_IMAGES):
        if kind != name:
            raise UserError(f"{name}: pictures in shards have sizes of their own: say --side {sized} in place of -{sized}px")
        shard_images(own_folder(name, OWN_IMAGES, root), out, progress, shard_bytes=shard_bytes, side=side)
    else:
        dataset = load_dataset(name, root, download=download)
        if not isinstance(dataset, StereoDataset) or name.startswith(SHARDS):
            raise UserError(f"{name} is not written in shards: that is for folder-NAME, and for stereo pairs")
        shard_pairs(dataset, out, progress, shard_bytes=shard_bytes)
    progress.end()
    show(f"{SHARDS}{out.name}", out.parent, False)


def check(name: str, root: Path | None) -> None:
    """Read all of a set in shards.

    Raises:
        UserError: a shard is damaged or missing; each is named.
    """
    shards = open_shards(own_folder(name, SHARDS, root))
    progress, wrong = _Progress("read"), 0
    for number, (_, error) in enumerate(shards.damaged()):
        progress(number + 1, len(shards.list.shards))
        if error is not None:
            wrong += 1
            progress.end()
            click.echo(str(error), err=True)
    progress.end()
    if wrong:
        raise UserError(f"{wrong} of {len(shards.list.shards)} shards of {name} cannot be used: copy them again from where they were made")
    _say(name, [("shards", _shards(shards.list)), ("digest", shards.list.digest.hex()), ("check", "all is as it should be")])


class _Progress:
    """A line on a terminal that says how far it is; nothing elsewhere."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // total
        if percent != self._shown and sys.stderr.isatty():
            click.echo(f"\r{percent} % {self._what}", err=True, nl=False)
            self._shown = percent

    def end(self) -> None:
        """Clear the line."""
        if self._shown >= 0:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._shown = -1


def _rows(dataset: Dataset) -> list[tuple[str, str]]:
    what = "pairs" if dataset.task == STEREO else "images"
    rows = [("task", dataset.task), (what, f"{dataset.num_train:,} to train with, {dataset.num_held_out:,} held out")]
    rows += [("channels", str(dataset.image_channels))]
    if dataset.num_classes:
        rows += [("classes", str(dataset.num_classes))]
    return [*rows, ("digest", dataset.digest.hex())]


def _shards(list_: ShardList) -> str:
    what = "images" if list_.kind == IMAGES else "pairs"
    return f"{len(list_.shards):,} with {list_.size_bytes / 2**20:,.1f} MiB of {what}, {list_.num_train_shards:,} of them to train with"


def _say(name: str, rows: list[tuple[str, str]]) -> None:
    click.echo(name)
    for title, text in rows:
        click.echo(f"  {title:<10} {text}")
