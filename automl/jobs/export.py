"""manta-search export, at work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch

from automl.commands.export import Wishes
from automl.export.card import metric_texts
from automl.export.description import UNKNOWN
from automl.export.presentation import presentation_of
from automl.export.quantised import quantised
from automl.export.statistics import add_statistics, statistics_path, stored_subnet
from automl.export.subnet import Subnet, cut, provenance_of
from automl.export.writer import write
from automl.forms import INT8
from automl.opening import dataset_of, opened_snapshot
from automl.spaces.space import Architecture
from protocol.errors import UserError


def export(wishes: Wishes, picked: Architecture, name: str, forms: Sequence[str]) -> None:
    """Write the subnet and say where to.

    Raises:
        UserError: the snapshot or the data do not fit, or the disk refuses.
        OwnFault: a file does not compute what the subnet computes.
    """
    if wishes.threads is not None:
        torch.set_num_threads(wishes.threads)
    supernet, state, metadata = opened_snapshot(wishes.snapshot)
    provenance = provenance_of(wishes.snapshot, state, metadata)
    beside = statistics_path(wishes.snapshot)
    if wishes.stored:
        subnet = _licensed(stored_subnet(beside, supernet, provenance.state, picked.id), wishes)
    else:
        dataset = dataset_of(metadata, wishes.data, wishes.data_root)
        subnet = cut(supernet, picked, dataset, provenance, presentation_of(dataset, wishes.licence, wishes.data_licence))
        if INT8 in forms:
            subnet = quantised(subnet, dataset)
    written = write(subnet, wishes.out, name, forms, overwrite=wishes.force)
    _print(subnet)
    for each in written:
        click.echo(f"  {each.path}  (differs by at most {each.difference:.1e})" if each.difference else f"  {each.path}")
    if not wishes.stored:
        _keep(subnet, beside)


def _keep(subnet: Subnet, beside: Path) -> None:
    """Keep the statistics beside the snapshot, for who exports this subnet again; what is in the way there is said, and loses nothing."""
    try:
        add_statistics(beside, [subnet])
    except UserError as error:
        click.echo(f"  its statistics are not kept beside the snapshot: {error}")


def _licensed(subnet: Subnet, wishes: Wishes) -> Subnet:
    """Return a stored subnet under the licences that the person names; the data set's stays where none is named."""
    told = subnet.description.presentation
    if told is None:
        return subnet
    told = replace(told, licence=wishes.licence, dataset_licence=wishes.data_licence or told.dataset_licence)
    return replace(subnet, description=replace(subnet.description, presentation=told))


def _print(subnet: Subnet) -> None:
    """Print what was exported."""
    description = subnet.description
    click.echo(f"{description.supernet} after round {description.provenance.round}: {description.architecture.text}")
    click.echo(f"  {metric_texts(description.metrics)} on {description.test_samples} held-out samples of {description.dataset}")
    if description.int8 is not None:
        latency = description.int8.latency
        times = (
            f"{latency.fp32_ms:.3g} ms a sample in fp32, {latency.int8_ms:.3g} ms in int8, by {latency.runtime}, threads: {latency.threads}"
        )
        click.echo(f"  with 8 bits {metric_texts(description.int8.metrics)}; {times}")
    if description.provenance.ledger_root == UNKNOWN:
        click.echo("  no file of a ledger lies beside the snapshot: the export says that its root is unknown")
