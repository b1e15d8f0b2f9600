"""manta-search space: what a search space holds."""

from collections.abc import Iterable
from dataclasses import replace

import click

from manta_swarm.automl.commands import clear_errors
from manta_swarm.automl.spaces.cost import fixed_num_weights, macs, num_weights, unit_macs, unit_num_weights
from manta_swarm.automl.spaces.space import TINY, SearchSpace, space_named


@click.command()
@click.option("--supernet", default=TINY.name, show_default=True, metavar="NAME", help="Supernet whose space is meant.")
def space(supernet: str) -> None:
    """Print what a search space holds."""
    with clear_errors():
        chosen = space_named(supernet)
    click.echo(f"{chosen.name} ({chosen.task}): {chosen.size():,} architectures of {len(chosen.genes())} genes")
    rows = [("resolutions", ", ".join(f"{height} x {height * chosen.aspect}" for height in chosen.resolutions))]
    for number, unit in enumerate(chosen.units, 1):
        choices = f"depths {_listed(unit.depths)}; kernels {_listed(unit.kernels)}; expansions {_listed(unit.expansions)}"
        rows.append((f"unit {number}", f"{_listed(unit.widths or (unit.width,))} channels; {choices}"))
    for name, architecture in (("largest", chosen.largest()), ("smallest", chosen.smallest())):
        size = f"{macs(architecture, chosen) / 1e6:,.2f} M MACs, {num_weights(architecture, chosen):,} weights"
        rows.append((name, f"{size}: {architecture.text}"))
    for name, text in rows:
        click.echo(f"  {name:<12} {text}")
    _echo_units(chosen)


def _echo_units(space: SearchSpace) -> None:
    """Print MACs and weights of each unit: of the smallest and the largest choices, both at the largest resolution."""
    ends = [replace(architecture, resolution=space.resolutions[-1]) for architecture in (space.smallest(), space.largest())]
    click.echo(f"of each unit, smallest and largest choices at {space.resolutions[-1]} px:")
    costs = [zip(unit_macs(end, space), unit_num_weights(end, space), strict=True) for end in ends]
    for number, pairs in enumerate(zip(*costs, strict=True), 1):
        click.echo(f"  {f'unit {number}':<12} {_ranged(pairs)}")
    fixed = [(macs(end, space) - sum(unit_macs(end, space)), fixed_num_weights(end, space)) for end in ends]
    click.echo(f"  {'the rest':<12} {_ranged(fixed)}")
    click.echo(f"  {'all':<12} {_ranged([(macs(end, space), num_weights(end, space)) for end in ends])}")


def _ranged(costs: Iterable[tuple[int, int]]) -> str:
    """Return smallest and largest as text."""
    (least_macs, least_weights), (most_macs, most_weights) = costs
    return f"{least_macs / 1e6:10,.2f} to {most_macs / 1e6:10,.2f} M MACs, {least_weights:10,} to {most_weights:10,} weights"


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
