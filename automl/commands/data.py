"""manta-search data: what a data set holds, and its digest."""

from pathlib import Path

import click

from automl.commands import clear_errors, loading
from automl.data.dataset import STEREO
from automl.data.names import check_name


@click.command()
@click.argument("name")
@click.option(
    "--data-root", "--root", "root", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the data that no library brings along."
)
@click.option("--download", is_flag=True, help="Let torchvision fetch what is missing into DIR.")
def data(name: str, root: Path | None, download: bool) -> None:
    """Read the data set NAME and print what it holds, and the digest that a run's manifest pins down.

    NAME is digits, layers or motorcycle, which need no files; the lower-case name of one of torchvision's sets, like cifar10 or
    kitti2015stereo; folder-X for images of your own in DIR/X, a folder for each class; or stereo-X for stereo pairs of your own
    in DIR/X/left, right and disparity. Labelled images may be kept smaller: food101-128px.
    """
    with clear_errors():
        check_name(name, root, may_download=download)
        with loading():
            from automl.data.catalog import load_dataset
        dataset = load_dataset(name, root, download=download)
        digest = dataset.digest
    what = "pairs" if dataset.task == STEREO else "images"
    rows = [("task", dataset.task), (what, f"{dataset.num_train:,} to train with, {dataset.num_held_out:,} held out")]
    rows += [("channels", str(dataset.image_channels))]
    if dataset.num_classes:
        rows += [("classes", str(dataset.num_classes))]
    rows += [("digest", digest.hex())]
    click.echo(dataset.name)
    for title, text in rows:
        click.echo(f"  {title:<10} {text}")
