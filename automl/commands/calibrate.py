"""manta-search calibrate: statistics beside a snapshot, so that its subnets can be used without the training data."""

from pathlib import Path

import click

from manta_swarm.automl.commands import DATA, DATA_ROOT, SEARCH, SNAPSHOT, THREADS, checked_data, clear_errors, use_threads
from manta_swarm.automl.forms import MAX_STORED
from manta_swarm.automl.spaces.choice import chosen
from manta_swarm.automl.training.snapshot_header import described
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c


@click.command()
@SNAPSHOT
@click.option("--arch", "architectures", multiple=True, metavar="ARCH", help="One more subnet; see manta-search export.")
@SEARCH
@DATA
@DATA_ROOT
@THREADS
def calibrate(
    snapshot: Path, architectures: tuple[str, ...], search: Path | None, data: str | None, data_root: Path | None, threads: int | None
) -> None:
    """Measure subnets' statistics and write them beside the snapshot. They are those of the largest, the smallest and any that are named.

    Whoever has both files exports these subnets without the data: manta-search export --stored.
    """
    with clear_errors():
        space, metadata = described(snapshot)
        picked = list(dict.fromkeys([space.largest(), space.smallest(), *(chosen(text, space, search) for text in architectures)]))
        if len(picked) > MAX_STORED:
            raise UserError(f"{len(picked)} subnets, and beside a snapshot is place for {MAX_STORED}: give fewer --arch")
        name = checked_data(metadata, data, data_root)
        with ending_at_ctrl_c():
            from manta_swarm.automl import api
            from manta_swarm.automl.export.card import metric_texts
            from manta_swarm.automl.export.statistics import add_statistics, statistics_path
        use_threads(threads)
        opened, dataset = api.open_snapshot(snapshot), api.load_dataset(name, data_root)
        subnets = [api.cut(opened, architecture, dataset) for architecture in picked]
        path = statistics_path(snapshot)
        add_statistics(path, subnets)
        for subnet in subnets:
            description = subnet.description
            click.echo(f"{description.architecture.id[:8]}  {metric_texts(description.metrics)}, {description.architecture.text}")
        click.echo(f"statistics written to {path}")
