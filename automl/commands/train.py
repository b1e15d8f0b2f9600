"""manta-search train: a supernet trained in this process, by the code of a swarm's peers."""

import dataclasses
import signal
import sys
import time
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from automl.cohorts import MAX_COHORTS
from automl.commands import checked_device, clear_errors
from automl.data.catalog import load_dataset
from automl.evaluation import check_fit
from automl.schedule import Plan
from automl.settings import Settings, usual
from automl.space import FAMILIES, fitted_name, space_named
from automl.trainer import Step, Traffic, Trainer, TrainingDirectory
from protocol.errors import UserError
from protocol.exchange import MAX_LOCAL_STEPS, codec_named
from protocol.records import ALGORITHMS, SCHEDULES

_EVERY = 20  # rounds between snapshots


@click.command()
@click.option(
    "--out", "directory", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Where it is kept."
)
@click.option("--supernet", metavar="NAME", help="Which supernet.  [default: the tiny one of the data's task]")
@click.option("--data", "dataset", default="digits", show_default=True, metavar="NAME", help="What to train on; see: manta-search data.")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option("--schedule", type=click.Choice(SCHEDULES), default="sandwich", show_default=True, help="How the sizes are trained.")
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default=ALGORITHMS[0], show_default=True, help="What a cohort trains in a round."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", help="Rounds, each of --local-steps updates.  [default: what suits the task]"
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
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Everything random follows from it.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads to compute with.  [default: all cores]")
def train(
    directory: Path,
    supernet: str | None,
    dataset: str,
    data_root: Path | None,
    schedule: str,
    algorithm: str,
    rounds: int | None,
    local_steps: int,
    cohorts: int,
    codec: str | None,
    residual_percent: int | None,
    lot_samples: int | None,
    target_batch: int | None,
    learning_rate: str | None,
    seed: int,
    device: str,
    threads: int | None,
) -> None:
    """Train a supernet in this process; the same command goes on after a break."""
    if threads is not None:
        torch.set_num_threads(threads)
    with clear_errors():
        checked_device(device)
        _check(local_steps, cohorts, codec, residual_percent)
        data = load_dataset(dataset, data_root)
        usually = usual(data.task)
        settings = dataclasses.replace(
            usually,
            supernet=supernet or usually.supernet,
            lot_samples=lot_samples or usually.lot_samples,
            target_batch=target_batch or usually.target_batch,
        ).with_local_steps(local_steps)
        settings = dataclasses.replace(settings, num_rounds=rounds or settings.num_rounds)
        plan = _plan(settings, schedule, algorithm, learning_rate, seed, data.image_channels, data.num_classes)
        check_fit(data, plan.space)
        trainer = Trainer(
            plan,
            data,
            lot_samples=settings.lot_samples,
            target_batch=settings.target_batch,
            device=device,
            cohorts=cohorts,
            codec=codec,
            residual_percent=100 if residual_percent is None else residual_percent,
        )
        sizes: dict[str, int | str] = {"lot_samples": settings.lot_samples, "target_batch": settings.target_batch}
        kept = TrainingDirectory(directory, trainer, data, sizes)
        _run(trainer, kept)


def _check(local_steps: int, cohorts: int, codec: str | None, residual_percent: int | None) -> None:
    """Refuse what no exchange has.

    Raises:
        UserError: there is something.
    """
    if not 1 <= local_steps <= MAX_LOCAL_STEPS:
        raise UserError(f"--local-steps takes a number from 1 to {MAX_LOCAL_STEPS}, not {local_steps}")
    if not 1 <= cohorts <= MAX_COHORTS:
        raise UserError(f"--cohorts takes a number from 1 to {MAX_COHORTS}, not {cohorts}")
    try:
        is_sparse = codec is not None and codec_named(codec).is_sparse
    except ValueError as error:
        raise UserError(f"--codec: {error}") from error
    if residual_percent is None:
        return
    if not 0 <= residual_percent <= 100:
        raise UserError(f"--residual-percent takes a number from 0 to 100, not {residual_percent}")
    if not is_sparse:
        raise UserError("--residual-percent is about what a sparse codec leaves out: give --codec topk-256-4, or another one, as well")


def _plan(settings: Settings, schedule: str, algorithm: str, learning_rate: str | None, seed: int, channels: int, classes: int) -> Plan:
    optimizer = settings.optimizer
    try:
        if learning_rate is not None:
            optimizer = dataclasses.replace(optimizer, learning_rate=learning_rate)
    except ValueError as error:
        raise UserError(f"--learning-rate: {error}; write it like 0.01") from error
    name = settings.supernet if settings.supernet not in FAMILIES else fitted_name(settings.supernet, channels, classes)
    space_named(name)  # refuses one that nobody knows
    return Plan(name, schedule, algorithm, optimizer, settings.num_rounds, seed, settings.local_steps)


def _run(trainer: Trainer, kept: TrainingDirectory) -> None:
    """Train to the end or to the first Ctrl-C, with a bar for the person."""
    told: list[int] = []
    before = {number: signal.signal(number, lambda number, _: told.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started_s = time.monotonic()
    first = trainer.state.round
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bar = progress.add_task("training", total=trainer.plan.num_rounds, completed=first)

            def show(step: Step) -> bool:
                progress.update(bar, completed=step.round, description=f"{step.phase} loss {step.loss:.3f}")
                return not told

            kept.run(_EVERY, show)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    path = kept.save()
    click.echo(f"round {trainer.state.round} of {trainer.plan.num_rounds} after {time.monotonic() - started_s:.0f} s: {path}")
    if trainer.traffic is not None:
        click.echo(_sent(trainer.traffic, trainer.state.round))
    if not trainer.finished:
        click.echo("stopped; the same command goes on from here", err=True)
        sys.exit(130)


def _sent(traffic: Traffic, rounds: int) -> str:
    """Return what went between the cohorts, in a sentence."""
    return (
        f"between cohorts: {traffic.sent_bytes:,} bytes a round, {traffic.sent_bytes * rounds:,} in all; "
        f"with 2 bytes a weight after every update it were {traffic.fp16_ratio:.1f} times as many"
    )
