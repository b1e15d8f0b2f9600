"""manta-search space: what a search space holds."""

import click

from automl.commands import clear_errors
from automl.spaces.cost import macs, num_weights
from automl.spaces.space import TINY, space_named


@click.command()
@click.option("--supernet", default=TINY.name, show_default=True, metavar="NAME", help="Which supernet's space.")
def space(supernet: str) -> None:
    """Print what a search space holds."""
    with clear_errors():
        chosen = space_named(supernet)
    click.echo(f"{chosen.name} ({chosen.task}): {chosen.size():,} architectures of {len(chosen.genes())} genes")
    rows = [("resolutions", ", ".join(f"{height} x {height * chosen.aspect}" for height in chosen.resolutions))]
    for number, unit in enumerate(chosen.units, 1):
        choices = f"depths {_listed(unit.depths)}; kernels {_listed(unit.kernels)}; expansions {_listed(unit.expansions)}"
        rows.append((f"unit {number}", f"{unit.width} channels; {choices}"))
    for name, architecture in (("largest", chosen.largest()), ("smallest", chosen.smallest())):
        size = f"{macs(architecture, chosen) / 1e6:,.2f} M MACs, {num_weights(architecture, chosen):,} weights"
        rows.append((name, f"{size}: {architecture.text}"))
    for name, text in rows:
        click.echo(f"  {name:<12} {text}")


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
