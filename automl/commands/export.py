"""manta-search export and calibrate: a subnet as .pt2, .onnx and a folder for model hubs, and statistics that subnets need."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manta_swarm.automl.commands import DATA, DATA_ROOT, FOLDER, SEARCH, SNAPSHOT, THREADS, checked_data, clear_errors, use_threads
from manta_swarm.automl.forms import ALL_FORMATS, FORMATS, INT8, MAX_STORED, check_licence, check_targets, default_name
from manta_swarm.automl.spaces.choice import chosen
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.snapshot_header import described
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.automl.export.subnet import Subnet

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they were given."""

    snapshot: Path
    architecture: str
    search: Path | None
    formats: str
    out: Path
    name: str | None
    data: str | None
    data_root: Path | None
    licence: str
    data_licence: str | None
    stored: bool
    force: bool
    threads: int | None


@click.command()
@SNAPSHOT
@click.option(
    "--arch",
    "architecture",
    required=True,
    metavar="ARCH",
    help="Subnet: largest, smallest, genes, a file (a search's best.json), or an id with --search.",
)
@SEARCH
@click.option("--format", "formats", default=",".join(FORMATS), show_default=True, metavar="LIST", help=f"Forms: {', '.join(ALL_FORMATS)}.")
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder to write to.")
@click.option("--name", metavar="NAME", help="Name of the export.  [default: of supernet and architecture]")
@DATA
@DATA_ROOT
@click.option("--licence", default="unknown", show_default=True, metavar="NAME", help="Licence of the network, for its card.")
@click.option("--data-licence", metavar="NAME", help="Licence of the data set.  [default: what the set tells, else unknown]")
@click.option("--stored", is_flag=True, help="Read no data: take what manta-search calibrate wrote.")
@click.option("--force", is_flag=True, help="Replace an earlier export of that name.")
@THREADS
def export(**arguments: Any) -> None:
    """Export a subnet of a snapshot, without fine-tuning. Its statistics are measured anew on training data."""
    with clear_errors():
        options = Options(**arguments)
        forms = _forms(options.formats)
        for licence in (options.licence, options.data_licence or options.licence):
            check_licence(licence)
        space, metadata = described(options.snapshot)
        picked = chosen(options.architecture, space, options.search)
        name = _name(options, space, picked)
        check_targets(options.out, name, forms, options.force)
        data = None if options.stored else checked_data(metadata, options.data, options.data_root)
        if options.stored and (options.data is not None or INT8 in forms):
            raise UserError("--stored reads no data: leave --data out, and int8, whose numbers are scaled by data")
        with ending_at_ctrl_c():
            import manta_swarm.automl.api
            import manta_swarm.automl.export.subnet  # noqa: F401 - they take seconds
        _write(options, picked, name, forms, data)


def _name(options: Options, space: SearchSpace, picked: Architecture) -> str:
    name = options.name or default_name(space.name, picked.id)
    if _NAME.fullmatch(name) is None:
        raise UserError(f"--name {name!r} is no plain name: letters, digits, dots, dashes and underscores, 100 at most")
    return name


def _forms(text: str) -> list[str]:
    forms = text.split(",")
    for form in forms:
        if form not in ALL_FORMATS:
            raise UserError(f"--format {text!r}: {form!r} is none of {', '.join(ALL_FORMATS)}")
    return forms


def _write(options: Options, picked: Architecture, name: str, forms: Sequence[str], data: str | None) -> None:
    """Write the subnet and say where to; ``data`` is the set that it is calibrated and measured with, None: it was before.

    Raises:
        UserError: the snapshot or the data do not fit, or the disk refuses.
        OwnFault: a file does not compute what the subnet computes.
    """
    from manta_swarm.automl import api
    from manta_swarm.automl.export.subnet import statistics_path, stored_subnet
    from manta_swarm.automl.training.update import state_digest

    use_threads(options.threads)
    snapshot = api.open_snapshot(options.snapshot)
    beside = statistics_path(options.snapshot)
    if data is None:
        subnet = _licensed(stored_subnet(beside, snapshot.supernet, state_digest(snapshot.state).hex(), picked.id), options)
    else:
        dataset = api.load_dataset(data, options.data_root)
        subnet = api.cut(snapshot, picked, dataset, licence=options.licence, data_licence=options.data_licence, int8=INT8 in forms)
    written = api.export(subnet, options.out, name, forms, overwrite=options.force)
    _print(subnet)
    for each in written:
        click.echo(f"  {each.path}  (differs by at most {each.difference:.1e})" if each.difference else f"  {each.path}")
    if data is not None:
        _keep(subnet, beside)


def _keep(subnet: "Subnet", beside: Path) -> None:
    """Keep the statistics beside the snapshot, for who exports this subnet again; what is in the way there is said, and loses nothing."""
    from manta_swarm.automl.export.subnet import add_statistics

    try:
        add_statistics(beside, [subnet])
    except UserError as error:
        click.echo(f"  its statistics are not kept beside the snapshot: {error}")


def _licensed(subnet: "Subnet", options: Options) -> "Subnet":
    """Return a stored subnet under the licences that the person names; the data set's stays where none is named."""
    told = subnet.description.presentation
    if told is None:
        return subnet
    told = replace(told, licence=options.licence, dataset_licence=options.data_licence or told.dataset_licence)
    return replace(subnet, description=replace(subnet.description, presentation=told))


def _print(subnet: "Subnet") -> None:
    """Print what was exported."""
    from manta_swarm.automl.data.names import UNKNOWN
    from manta_swarm.automl.export.card import metric_texts

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
        click.echo("  no proof by the log lies beside the snapshot: the export says that the log's root is unknown")


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
            from manta_swarm.automl.export.subnet import add_statistics, statistics_path
        use_threads(threads)
        opened, dataset = api.open_snapshot(snapshot), api.load_dataset(name, data_root)
        subnets = [api.cut(opened, architecture, dataset) for architecture in picked]
        path = statistics_path(snapshot)
        add_statistics(path, subnets)
        for subnet in subnets:
            description = subnet.description
            click.echo(f"{description.architecture.id[:8]}  {metric_texts(description.metrics)}, {description.architecture.text}")
        click.echo(f"statistics written to {path}")
