"""manta-search profile: how long every layer of a supernet takes on this device, as a table that a search can use."""

from pathlib import Path

import click

from manta_swarm.automl.commands import DEVICE, THREADS, clear_errors, use_threads
from manta_swarm.automl.files import check_writable
from manta_swarm.automl.forms import check_onnx_packages
from manta_swarm.automl.latency.table import DTYPES, GRAPHS, ONNXRUNTIME, RUNTIMES, LatencyTable
from manta_swarm.automl.latency.visits import QUICK, THOROUGH
from manta_swarm.automl.spaces.space import TINY, Architecture, SearchSpace, space_named
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c


@click.command()
@click.option("--supernet", default=TINY.name, show_default=True, metavar="NAME", help="Supernet whose layers are measured.")
@DEVICE
@THREADS
@click.option("--dtype", type=click.Choice(DTYPES), default="fp32", show_default=True, help="Type to compute in.")
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, metavar="N", help="Samples of one run.")
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="What runs the layers; torch launches kernels one by one, cuda-graphs all at once; onnxruntime measures as "
    "exported .onnx files run, on the CPU in fp32.  [default: torch; on a GPU cuda-graphs, where possible]",
)
@click.option("--quick", is_flag=True, help="Measure less: a rough table in seconds.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="File of the table (JSON); an older one is replaced."
)
def profile(supernet: str, device: str, threads: int | None, dtype: str, batch: int, runtime: str | None, quick: bool, out: Path) -> None:
    """Measure a latency table on this device. It says too how well the table foretells the latency of whole networks."""
    with clear_errors():
        space = space_named(supernet)
        if device not in ("cpu", "cuda"):
            raise UserError(f"there is no device {device!r}; use --device cpu or --device cuda")
        if runtime == ONNXRUNTIME:
            if (device, dtype) != ("cpu", "fp32"):
                raise UserError(
                    "onnxruntime is measured on the CPU in fp32 only: leave --device and --dtype out, or measure with --runtime torch"
                )
            check_onnx_packages()
        if runtime == GRAPHS and device != "cuda":
            raise UserError("CUDA graphs are for GPUs: give --device cuda as well, or leave --runtime out")
        check_writable(out)
        with ending_at_ctrl_c():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            from manta_swarm.automl.latency.profiler import profile as measure
        use_threads(threads)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("exporting" if runtime == ONNXRUNTIME else "measuring")

            def show(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total, description="measuring")

            table = measure(space, device, dtype, batch, QUICK if quick else THOROUGH, show, runtime)
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
