"""manta-search train: a supernet trained in this process, by the code of a swarm's peers."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from automl.commands import MAX_THREADS, check_device, clear_errors, loading
from automl.data.names import check_name
from automl.spaces.space import FAMILIES, space_named
from automl.training.settings import usual
from protocol.errors import UserError
from protocol.exchange import MAX_LOCAL_STEPS, MAX_ROWS, codec_named
from protocol.fields import MAX_ROUND
from protocol.manifest import ALGORITHMS, SCHEDULES, TASKS
from protocol.recipe import ALL_PERCENT, MAX_PERCENT


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options as they were given; None: the default depends on others."""

    directory: Path
    supernet: str | None
    dataset: str
    data_root: Path | None
    schedule: str
    algorithm: str
    rounds: int | None
    local_steps: int
    cohorts: int
    codec: str | None
    residual_percent: int | None
    lot_samples: int | None
    target_batch: int | None
    learning_rate: str | None
    augmentation: int | None
    taught: int | None
    seed: int
    device: str
    cuda_graphs: bool
    threads: int | None


@click.command()
@click.option(
    "--out", "directory", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Where it is kept."
)
@click.option("--supernet", metavar="NAME", help="Which supernet.  [default: the tiny one of the data's task]")
@click.option("--data", "dataset", default="digits", show_default=True, metavar="NAME", help="What to train on; see: manta-search data.")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option(
    "--schedule",
    type=click.Choice(SCHEDULES),
    default="sandwich",
    show_default=True,
    help="How the sizes are trained; shrinking is experimental.",
)
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default=ALGORITHMS[0], show_default=True, help="What a cohort trains in a round."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, MAX_ROUND),
    metavar="N",
    help="Rounds, each of --local-steps updates.  [default: what suits the task]",
)
@click.option("--local-steps", type=int, default=1, show_default=True, metavar="H", help="Updates of a cohort between two exchanges.")
@click.option("--cohorts", type=int, default=1, show_default=True, metavar="C", help="Cohorts to simulate, one peer each.")
@click.option(
    "--codec",
    metavar="NAME",
    help="Of what cohorts exchange: int16, int8, topk-256-4, ...  [default: int16; nothing is coded if H = C = 1]",
)
@click.option(
    "--residual-percent", type=int, metavar="P", help="Of what a sparse codec left out, given with the next exchange.  [default: 100]"
)
@click.option("--lot-samples", type=click.IntRange(2, 65536), metavar="N", help="Samples of one pass through one architecture.")
@click.option("--target-batch", type=click.IntRange(min=2), metavar="N", help="Samples of one update, of all cohorts together.")
@click.option("--learning-rate", metavar="DECIMAL", help="Peak of the rate.")
@click.option(
    "--augmentation",
    type=click.IntRange(0, MAX_PERCENT),
    metavar="PERCENT",
    help="How strongly images are changed in training.  [default: 100 where all of the data are seen more than 50 times, else 0]",
)
@click.option(
    "--taught",
    type=click.IntRange(0, ALL_PERCENT),
    metavar="PERCENT",
    help="Of the sandwich's rounds, the last ones, in which all networks learn from the largest one too.  "
    "[default: 50 where all of the images are seen more than 20 times, else 0]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N", help="Everything random follows from it."
)
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU.")
@click.option("--cuda-graphs", is_flag=True, help="Record lots on the GPU and replay them; no GPU has run this yet.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def train(**options: Any) -> None:
    """Train a supernet in this process. The same command goes on after a break."""
    with clear_errors():
        wishes = Wishes(**options)
        _check(wishes)
        with loading():
            from automl.jobs import train as job
        job.train(wishes)


def _check(wishes: Wishes) -> None:
    """Refuse what cannot be, whatever is in the data.

    Raises:
        UserError: there is something.
    """
    if not 1 <= wishes.local_steps <= MAX_LOCAL_STEPS:
        raise UserError(f"--local-steps takes a number from 1 to {MAX_LOCAL_STEPS}, not {wishes.local_steps}")
    if wishes.taught and wishes.schedule != "sandwich":
        raise UserError(f"--taught is for the sandwich: the later phases of {wishes.schedule} have a teacher of their own; leave it out")
    if not 1 <= wishes.cohorts <= MAX_ROWS:
        raise UserError(f"--cohorts takes a number from 1 to {MAX_ROWS}, not {wishes.cohorts}")
    try:
        is_sparse = wishes.codec is not None and codec_named(wishes.codec).is_sparse
    except ValueError as error:
        raise UserError(f"--codec: {error}") from error
    if wishes.residual_percent is not None:
        _check_residual(wishes.residual_percent, is_sparse=is_sparse)
    if wishes.supernet is not None and wishes.supernet not in FAMILIES:
        space_named(wishes.supernet)
    if wishes.learning_rate is not None:
        try:
            dataclasses.replace(usual(TASKS[0]).optimizer, learning_rate=wishes.learning_rate)
        except ValueError as error:
            raise UserError(f"--learning-rate: {error}; write it like 0.01") from error
    check_device(wishes.device)
    if wishes.cuda_graphs and wishes.device == "cpu":
        raise UserError("--cuda-graphs is for GPUs: give --device cuda as well, or leave it out")
    check_name(wishes.dataset, wishes.data_root)


def _check_residual(residual_percent: int, *, is_sparse: bool) -> None:
    if not 0 <= residual_percent <= 100:
        raise UserError(f"--residual-percent takes a number from 0 to 100, not {residual_percent}")
    if not is_sparse:
        raise UserError("--residual-percent is about what a sparse codec leaves out: give --codec topk-256-4, or another one, as well")
