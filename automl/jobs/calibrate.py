"""manta-search calibrate, at work."""

from collections.abc import Sequence

import click
import torch

from automl.commands.calibrate import Wishes
from automl.export.card import metric_texts
from automl.export.statistics import add_statistics, statistics_path
from automl.export.subnet import cut, provenance_of
from automl.opening import dataset_of, opened_snapshot
from automl.spaces.space import Architecture


def calibrate(wishes: Wishes, picked: Sequence[Architecture]) -> None:
    """Write the statistics of the subnets, and say where to and how good each is.

    Raises:
        UserError: the snapshot or the data do not fit, or the disk refuses.
    """
    if wishes.threads is not None:
        torch.set_num_threads(wishes.threads)
    supernet, state, metadata = opened_snapshot(wishes.snapshot)
    provenance = provenance_of(wishes.snapshot, state, metadata)
    dataset = dataset_of(metadata, wishes.data, wishes.data_root)
    subnets = [cut(supernet, architecture, dataset, provenance) for architecture in picked]
    path = statistics_path(wishes.snapshot)
    add_statistics(path, subnets)
    for subnet in subnets:
        description = subnet.description
        click.echo(f"{description.architecture.id[:8]}  {metric_texts(description.metrics)}, {description.architecture.text}")
    click.echo(f"statistics written to {path}")
