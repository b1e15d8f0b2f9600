"""manta-search: looks at trained supernets. Parses, calls, prints, exits; works on snapshots, knows no network.

So far: what a search space holds, and how good a snapshot's subnets are. Search under a latency target and export come later.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import torch

from automl.cost import cost_table, macs
from automl.data.digits import load as load_dataset
from automl.evaluation import accuracy_report
from automl.snapshot import load_snapshot
from automl.space import TINY, space_named
from protocol.errors import MantaError, UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Look at a trained supernet. Searching for a latency target and exporting a network will come in a later version."""


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        click.echo(f"manta-search: {error}", err=True)
        sys.exit(2)
    except MantaError as error:
        click.echo(f"manta-search: {error}", err=True)
        sys.exit(1)


@main.command()
@click.option(
    "--snapshot", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="A run's .safetensors file."
)
@click.option("--data", default="digits", show_default=True, metavar="NAME", help="Data set whose held-out images are used.")
@click.option("--random", "num_random", type=click.IntRange(0, 1000), default=8, show_default=True, help="Random subnets to try.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which random subnets.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def evaluate(snapshot: Path, data: str, num_random: int, seed: int, threads: int | None) -> None:
    """Print the held-out accuracy of a snapshot's largest, smallest and some random subnets, without fine-tuning."""
    if threads is not None:
        torch.set_num_threads(threads)
    with _clear_errors():
        state, metadata = load_snapshot(snapshot)
        space = space_named(metadata.get("supernet", TINY.name))
        dataset = load_dataset(data)
        try:
            report = accuracy_report(state.parameters, space.name, dataset, num_random=num_random, seed=seed)
        except ValueError as error:
            raise UserError(f"{snapshot} is not a state of {space.name}: {error}") from error
    click.echo(f"{space.name} after round {state.round}, {len(dataset.held_out_labels)} held-out images of {dataset.name}")
    click.echo(f"  largest  {report['largest']:6.1%}  {macs(space.largest(), space) / 1e6:6.2f} M MACs")
    click.echo(f"  smallest {report['smallest']:6.1%}  {macs(space.smallest(), space) / 1e6:6.2f} M MACs")
    for accuracy in report["random"]:
        click.echo(f"  random   {accuracy:6.1%}")


@main.command()
@click.option("--supernet", default=TINY.name, show_default=True, metavar="NAME", help="Which supernet's space.")
def space(supernet: str) -> None:
    """Print what a search space holds."""
    with _clear_errors():
        chosen = space_named(supernet)
    click.echo(f"{chosen.name}: {chosen.size()} architectures of {len(cost_table(chosen))} genes, images of {chosen.resolution} px")
    click.echo(f"  units       {len(chosen.widths)}, handing on {', '.join(map(str, chosen.widths))} channels")
    for name, choices in (("depths", chosen.depths), ("kernels", chosen.kernels), ("expansions", chosen.expansions)):
        click.echo(f"  {name:<11} {', '.join(map(str, choices))}")
    for name, architecture in (("largest", chosen.largest()), ("smallest", chosen.smallest())):
        click.echo(f"  {name:<11} {macs(architecture, chosen) / 1e6:.2f} M MACs: {architecture.text}")


if __name__ == "__main__":
    main()
