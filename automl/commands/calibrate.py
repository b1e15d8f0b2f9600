"""manta-search calibrate: statistics beside a snapshot, so that its subnets can be used without the training data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from automl.commands import MAX_THREADS, check_data, clear_errors, described, loading
from automl.forms import MAX_STORED
from automl.spaces.choice import chosen
from protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options as they were given."""

    snapshot: Path
    architectures: tuple[str, ...]
    search: Path | None
    data: str | None
    data_root: Path | None
    threads: int | None


@click.command()
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="A .safetensors file.")
@click.option("--arch", "architectures", multiple=True, metavar="ARCH", help="One more subnet; see: manta-search export.")
@click.option("--search", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="A search's folder, to look up ids in.")
@click.option("--data", metavar="NAME", help="Data set to calibrate and measure with.  [default: what the snapshot was trained on]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def calibrate(**options: Any) -> None:
    """Measure subnets' statistics and write them beside the snapshot. They are those of the largest, the smallest and any that are named.

    Whoever has both files exports these subnets without the data: manta-search export --stored.
    """
    with clear_errors():
        wishes = Wishes(**options)
        space, metadata = described(wishes.snapshot)
        named = (chosen(text, space, wishes.search) for text in wishes.architectures)
        picked = list(dict.fromkeys([space.largest(), space.smallest(), *named]))
        if len(picked) > MAX_STORED:
            raise UserError(f"{len(picked)} subnets, and beside a snapshot is place for {MAX_STORED}: give fewer --arch")
        check_data(metadata, wishes.data, wishes.data_root)
        with loading():
            from automl.jobs import calibrate as job
        job.calibrate(wishes, picked)
