"""manta-search profile: how long every layer of a supernet takes on this device, as a table that a search can use."""

from pathlib import Path

import click

from automl.commands import MAX_THREADS, clear_errors, loading
from automl.files import check_writable
from automl.forms import check_onnx_packages
from automl.latency.table import DTYPES, GRAPHS, ONNXRUNTIME, RUNTIMES
from automl.spaces.space import TINY, space_named
from protocol.errors import UserError


@click.command()
@click.option("--supernet", default=TINY.name, show_default=True, metavar="NAME", help="Whose layers to measure.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads to compute with.  [default: all cores]")
@click.option("--dtype", type=click.Choice(DTYPES), default="fp32", show_default=True, help="What is computed in.")
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, metavar="N", help="Samples of one run.")
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="What runs the layers: torch launches kernels one by one, cuda-graphs all at once; onnxruntime measures as exported .onnx files "
    "run, on the CPU in fp32.  [default: torch; on a GPU cuda-graphs, where they can be made]",
)
@click.option("--quick", is_flag=True, help="Measure seldom: a rough table in seconds.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where the table goes (JSON); an older one is replaced."
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
        with loading():
            from automl.jobs import profile as job
        job.profile(space, device, threads, dtype, batch, runtime, is_quick=quick, out=out)
