"""manta-search train, at work."""

import dataclasses
import signal
import sys
import time

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from automl.commands.train import Wishes
from automl.data.catalog import load_dataset
from automl.data.dataset import Dataset
from automl.evaluation.held_out import check_fit
from automl.graphs import CudaGraphs
from automl.memory import keep_freed_memory
from automl.opening import checked_device
from automl.spaces.space import FAMILIES, fitted_name, space_named
from automl.training.schedule import Plan
from automl.training.settings import Settings, recipe_for, usual
from automl.training.trainer import Step, Traffic, Trainer, TrainingDirectory
from protocol.recipe import Recipe

_EVERY = 20  # rounds between snapshots


def train(wishes: Wishes) -> None:
    """Train to the end, or until the person stops it.

    Raises:
        UserError: the data, or what there is in the folder, do not fit.
    """
    keep_freed_memory()
    if wishes.threads is not None:
        torch.set_num_threads(wishes.threads)
    device = checked_device(wishes.device)
    data = load_dataset(wishes.dataset, wishes.data_root)
    usually = usual(data.task)
    settings = dataclasses.replace(
        usually,
        supernet=wishes.supernet or usually.supernet,
        lot_samples=wishes.lot_samples or usually.lot_samples,
        target_batch=wishes.target_batch or usually.target_batch,
    ).with_local_steps(wishes.local_steps)
    settings = dataclasses.replace(settings, num_rounds=wishes.rounds or settings.num_rounds)
    plan = _plan(settings, wishes, data)
    check_fit(data, plan.space)
    trainer = Trainer(
        plan,
        data,
        lot_samples=settings.lot_samples,
        target_batch=settings.target_batch,
        device=device,
        recorder=CudaGraphs() if wishes.cuda_graphs else None,
        cohorts=wishes.cohorts,
        codec=wishes.codec,
        residual_percent=100 if wishes.residual_percent is None else wishes.residual_percent,
    )
    sizes: dict[str, int | str] = {"lot_samples": settings.lot_samples, "target_batch": settings.target_batch}
    _run(trainer, TrainingDirectory(wishes.directory, trainer, data, sizes))


def _plan(settings: Settings, wishes: Wishes, data: Dataset) -> Plan:
    optimizer, percent = settings.optimizer, wishes.augmentation
    if wishes.learning_rate is not None:
        optimizer = dataclasses.replace(optimizer, learning_rate=wishes.learning_rate)
    name = settings.supernet if settings.supernet not in FAMILIES else fitted_name(settings.supernet, data.image_channels, data.num_classes)
    space_named(name)  # refuses one that nobody knows
    usually = recipe_for(data.task, data.num_train, settings.num_rounds * settings.target_batch)
    taught = usually.taught_percent if wishes.taught is None else wishes.taught
    recipe = dataclasses.replace(
        usually if percent is None else Recipe(percent, percent), taught_percent=taught if wishes.schedule == "sandwich" else 0
    )
    return Plan(name, wishes.schedule, wishes.algorithm, optimizer, settings.num_rounds, wishes.seed, settings.local_steps, recipe)


def _run(trainer: Trainer, kept: TrainingDirectory) -> None:
    """Train to the end or to a Ctrl-C, with a bar for the person; what was trained up to then is kept."""
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        told.append(number)
        if len(told) == 1:
            click.echo("stopping after this round; press Ctrl-C again to stop at once, without it", err=True)
        elif len(told) == 2:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
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
    except KeyboardInterrupt:
        if len(told) < 2:
            raise  # it came before there was anything to stop
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
