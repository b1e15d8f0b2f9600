"""manta-search data and split: what a data set holds, its digest, the set in shards, and the set in parts as owners would have them."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from manta_swarm.automl.commands import FOLDER, OWN_ROOT, clear_errors
from manta_swarm.automl.data.dataset import STEREO
from manta_swarm.automl.data.names import OWN_IMAGES, SHARDS, check_name, check_shards_name, own_folder, task_of, without_size
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.automl.data.dataset import Dataset
    from manta_swarm.automl.data.shards.layout import ShardList

_MAX_PARTS = 1000
_LEAST = 50  # images that a part has, of which a fifth will be held out: more than a usual microbatch


@click.command()
@click.argument("name")
@OWN_ROOT
@click.option("--download", is_flag=True, help="Let torchvision fetch what DIR lacks.")
@click.option("--shard", "out", type=click.Path(path_type=Path), metavar="OUT", help="Write shards to the new folder OUT.")
@click.option("--shard-mib", type=click.IntRange(1, 512), default=64, show_default=True, metavar="N", help="Rough size of a shard, in MiB.")
@click.option("--side", type=click.IntRange(8, 8192), metavar="PX", help="Scale pictures to a shorter side of PX.  [default: as they are]")
@click.option("--check", is_flag=True, help="Read all shards, and name damaged or missing ones.")
def data(name: str, root: Path | None, download: bool, out: Path | None, shard_mib: int, side: int | None, check: bool) -> None:
    """Print what the data set NAME holds. Its digest, which a run's manifest pins down, is printed too.

    NAME is digits, layers or motorcycle, which need no files; the lower-case name of one of torchvision's sets, like cifar10 or
    kitti2015stereo; folder-X for images of your own in DIR/X, a folder for each class; stereo-X for stereo pairs of your own
    in DIR/X/left, right and disparity; or shards-X for a set in shards in DIR/X. Labelled images may be kept smaller: food101-128px.

    With --shard OUT the images of folder-X, or a set of stereo pairs, are written in shards: a set that need not fit in memory, whose
    pictures keep their sizes. It is called shards-OUT where OUT's own folder is given as --data-root.
    """
    with clear_errors():
        check_name(name, root, may_download=download)
        if out is not None:
            check_shards_name(out)
            if out.exists():
                raise UserError(f"{out} is there already; it is left as it is: choose another name with --shard")
        if side is not None and (out is None or not name.startswith(OWN_IMAGES)):
            raise UserError("--side is for --shard, of labelled images: leave it out")
        if check and not name.startswith(SHARDS):
            raise UserError(f"--check is for a set in shards, and {name} is none: leave it out")
        with ending_at_ctrl_c():
            import manta_swarm.automl.data.catalog
            import manta_swarm.automl.data.shards.reading
            import manta_swarm.automl.data.shards.writing  # noqa: F401 - they take seconds
        if out is not None:
            _shard(name, root, download, out, shard_mib << 20, side)
            _show(f"{SHARDS}{out.name}", out.parent, False)
        elif check:
            _check(name, root)
        else:
            _show(name, root, download)


def _show(name: str, root: Path | None, download: bool) -> None:
    """Say what a data set holds.

    Raises:
        UserError: as ``load_dataset``.
    """
    from manta_swarm.automl.data.catalog import load_dataset
    from manta_swarm.automl.data.shards.reading import open_shards

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


def _shard(name: str, root: Path | None, download: bool, out: Path, shard_bytes: int, side: int | None) -> None:
    """Write a data set in shards.

    Raises:
        UserError: it cannot be read or written, or is not of a kind that comes in shards.
    """
    from manta_swarm.automl.data.catalog import load_dataset
    from manta_swarm.automl.data.shards.writing import shard_images, shard_pairs
    from manta_swarm.automl.data.views import StereoDataset

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


def _check(name: str, root: Path | None) -> None:
    """Read all of a set in shards.

    Raises:
        UserError: a shard is damaged or missing; each is named.
    """
    from manta_swarm.automl.data.shards.reading import open_shards

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


def _rows(dataset: "Dataset") -> list[tuple[str, str]]:
    what = "pairs" if dataset.task == STEREO else "images"
    rows = [("task", dataset.task), (what, f"{dataset.num_train:,} to train with, {dataset.num_held_out:,} held out")]
    rows += [("channels", str(dataset.image_channels))]
    if dataset.num_classes:
        rows += [("classes", str(dataset.num_classes))]
    return [*rows, ("digest", dataset.digest.hex())]


def _shards(list_: "ShardList") -> str:
    from manta_swarm.automl.data.shards.layout import IMAGES

    what = "images" if list_.kind == IMAGES else "pairs"
    return f"{len(list_.shards):,} with {list_.size_bytes / 2**20:,.1f} MiB of {what}, {list_.num_train_shards:,} of them to train with"


def _say(name: str, rows: list[tuple[str, str]]) -> None:
    click.echo(name)
    for title, text in rows:
        click.echo(f"  {title:<10} {text}")


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
            from manta_swarm.automl.data.image_folder import dirichlet_split, write_class_folders
            from manta_swarm.automl.data.images import ImageDataset
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
