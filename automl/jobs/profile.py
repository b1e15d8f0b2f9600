"""manta-search profile, at work."""

from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from automl.latency.profiler import profile as measure
from automl.latency.table import ONNXRUNTIME, LatencyTable
from automl.latency.visits import QUICK, THOROUGH
from automl.spaces.space import Architecture, SearchSpace


def profile(
    space: SearchSpace, device: str, threads: int | None, dtype: str, batch: int, runtime: str | None, *, is_quick: bool, out: Path
) -> None:
    """Measure, with a bar for the person; write the table to ``out`` and say what is in it.

    Raises:
        UserError: the device is not here, or cannot compute so; a package for ONNX is missing.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("exporting" if runtime == ONNXRUNTIME else "measuring")

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total, description="measuring")

        table = measure(space, device, dtype, batch, QUICK if is_quick else THOROUGH, show, runtime)
    table.save(out)
    _print(table, space)
    click.echo(f"table of {len(table.entries)} prices: {out}")


def _print(table: LatencyTable, space: SearchSpace) -> None:
    """Print what was measured, where the time goes, and how far to trust it."""
    conditions = table.conditions
    click.echo(
        f"{table.supernet} on {conditions.name} ({conditions.device}), {conditions.threads} CPU threads, {conditions.dtype}, "
        f"batch {conditions.batch}, {conditions.runtime} {conditions.version}"
    )
    for name, architecture in (("largest", space.largest()), ("smallest", space.smallest())):
        click.echo(f"  {name:<9} {table.latency_ms(architecture):9.3f} ms: {_shares(table, architecture)}")
    click.echo(f"  {'least':<9} {table.minimum_ms(space):9.3f} ms of any architecture")
    accuracy = table.accuracy
    click.echo(
        f"  against {accuracy.num_checked} whole networks: mean error {accuracy.mean_error:.1%}, worst {accuracy.worst_error:.1%}, "
        f"rank correlation {accuracy.rank_correlation:.2f}; corrected by {accuracy.num_fitted} others "
        f"({table.offset:+.3f} ms, times {table.factor:.3f})"
    )


def _shares(table: LatencyTable, architecture: Architecture) -> str:
    """Return which shares of the sum the units and the rest have."""
    resolution, *genes = architecture.genes
    prices = {"rest": table.entries[resolution]}
    for gene in genes:
        unit = gene.split(".")[0]
        prices[unit] = prices.get(unit, 0.0) + table.entries[f"{resolution} {gene}"]
    total = sum(prices.values())
    return ", ".join(f"{name} {price / total:.0%}" for name, price in sorted(prices.items(), key=lambda item: -item[1]))
