"""manta-search data: what a data set holds, and its digest; and the set in shards."""

from pathlib import Path

import click

from automl.commands import clear_errors, loading
from automl.data.names import OWN_IMAGES, SHARDS, check_name, check_shards_name
from protocol.errors import UserError


@click.command()
@click.argument("name")
@click.option(
    "--data-root", "--root", "root", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the data that no library brings along."
)
@click.option("--download", is_flag=True, help="Let torchvision fetch what is missing into DIR.")
@click.option("--shard", "out", type=click.Path(path_type=Path), metavar="OUT", help="Write the set in shards to OUT, a new folder.")
@click.option("--shard-mib", type=click.IntRange(1, 512), default=64, show_default=True, metavar="N", help="Size of a shard, about.")
@click.option(
    "--side", type=click.IntRange(8, 8192), metavar="PX", help="In shards, scale a picture's shorter side down to PX.  [as it is]"
)
@click.option("--check", is_flag=True, help="Of a set in shards: read all of it, and name each shard that is damaged or missing.")
def data(name: str, root: Path | None, download: bool, out: Path | None, shard_mib: int, side: int | None, check: bool) -> None:
    """Read the data set NAME and print what it holds. Its digest, which a run's manifest pins down, is printed too.

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
        with loading():
            from automl.jobs import data as job
        if out is not None:
            job.shard(name, root, download, out, shard_mib << 20, side)
        elif check:
            job.check(name, root)
        else:
            job.show(name, root, download)
