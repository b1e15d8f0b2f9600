"""manta-search train: a supernet trained in this process, by the code of a swarm's peers."""

import dataclasses
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manta_swarm.automl.commands import DATA_ROOT, DEVICE, THREADS, clear_errors, use_threads
from manta_swarm.automl.data.names import check_name
from manta_swarm.automl.precisions import check_device
from manta_swarm.automl.spaces.space import FAMILIES, fitted_name, space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import Settings, recipe_for, usual
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import MAX_LOCAL_STEPS, MAX_ROWS, codec_named
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.manifest import ALGORITHMS, ALL_PERCENT, MAX_PERCENT, SCHEDULES, TASKS, Recipe
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.automl.data.dataset import Dataset
    from manta_swarm.automl.training.trainer import Traffic, Trainer, TrainingDirectory

_EVERY = 20  # rounds between snapshots


@dataclass(frozen=True, slots=True)
class Options:
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
    microbatch_samples: int | None
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
    "--out", "directory", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Folder to keep it in."
)
@click.option("--supernet", metavar="NAME", help="Supernet.  [default: the tiny one of the data's task]")
@click.option("--data", "dataset", default="digits", show_default=True, metavar="NAME", help="Data set; see manta-search data.")
@DATA_ROOT
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
    help="Codec of exchanges: int16, int8 or topk-KEPT-BITS.  [default: int16; none if H = C = 1]",
)
@click.option("--residual-percent", type=int, metavar="P", help="Percent of the residual that the next exchange adds.  [default: 100]")
@click.option("--microbatch-samples", type=click.IntRange(2, 65536), metavar="N", help="Samples of one pass through one architecture.")
@click.option("--target-batch", type=click.IntRange(min=2), metavar="N", help="Samples of one update of all cohorts together.")
@click.option("--learning-rate", metavar="DECIMAL", help="Peak of the learning rate.")
@click.option(
    "--augmentation",
    type=click.IntRange(0, MAX_PERCENT),
    metavar="PERCENT",
    help="Strength of image changes.  [default: 100 for data seen more than 50 times, else 0]",
)
@click.option(
    "--taught",
    type=click.IntRange(0, ALL_PERCENT),
    metavar="PERCENT",
    help="Percent of the sandwich's rounds, the last, with distillation.  [default: 50 for images seen more than 20 times, else 0]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N", help="Everything random follows from it."
)
@DEVICE
@click.option("--cuda-graphs", is_flag=True, help="Record microbatches on the GPU and replay them: small networks train faster.")
@THREADS
def train(**arguments: Any) -> None:
    """Train a supernet in this process. The same command goes on after a break."""
    with clear_errors():
        options = Options(**arguments)
        _check(options)
        with ending_at_ctrl_c():
            import rich.progress  # noqa: F401 - before the signals are its own, as the others

            import manta_swarm.automl.data.catalog
            import manta_swarm.automl.devices
            import manta_swarm.automl.training.trainer  # noqa: F401 - they take seconds
        _train(options)


def _check(options: Options) -> None:
    """Refuse what cannot be, whatever is in the data.

    Raises:
        UserError: there is something.
    """
    if not 1 <= options.local_steps <= MAX_LOCAL_STEPS:
        raise UserError(f"--local-steps takes a number from 1 to {MAX_LOCAL_STEPS}, not {options.local_steps}")
    if options.taught and options.schedule != "sandwich":
        raise UserError(f"--taught is for the sandwich: the later phases of {options.schedule} have a teacher of their own; leave it out")
    if not 1 <= options.cohorts <= MAX_ROWS:
        raise UserError(f"--cohorts takes a number from 1 to {MAX_ROWS}, not {options.cohorts}")
    try:
        is_sparse = options.codec is not None and codec_named(options.codec).is_sparse
    except ValueError as error:
        raise UserError(f"--codec: {error}") from error
    if options.residual_percent is not None:
        _check_residual(options.residual_percent, is_sparse=is_sparse)
    if options.supernet is not None and options.supernet not in FAMILIES:
        space_named(options.supernet)
    if options.learning_rate is not None:
        try:
            dataclasses.replace(usual(TASKS[0]).optimizer, learning_rate=options.learning_rate)
        except ValueError as error:
            raise UserError(f"--learning-rate: {error}; write it like 0.01") from error
    check_device(options.device)
    if options.cuda_graphs and options.device == "cpu":
        raise UserError("--cuda-graphs is for GPUs: give --device cuda as well, or leave it out")
    check_name(options.dataset, options.data_root)


def _check_residual(residual_percent: int, *, is_sparse: bool) -> None:
    if not 0 <= residual_percent <= 100:
        raise UserError(f"--residual-percent takes a number from 0 to 100, not {residual_percent}")
    if not is_sparse:
        raise UserError("--residual-percent is about what a sparse codec leaves out: give --codec topk-256-4, or another one, as well")


def _train(options: Options) -> None:
    """Train to the end, or until the person stops it.

    Raises:
        UserError: the data, or what there is in the folder, do not fit.
    """
    from manta_swarm.automl.data.catalog import load_dataset
    from manta_swarm.automl.devices import CudaGraphs
    from manta_swarm.automl.environment import keep_freed_memory
    from manta_swarm.automl.evaluation.held_out import check_fit
    from manta_swarm.automl.training.snapshot import checked_device
    from manta_swarm.automl.training.trainer import SimulatedSwarm, Trainer, TrainingDirectory

    keep_freed_memory()
    use_threads(options.threads)
    device = checked_device(options.device)
    data = load_dataset(options.dataset, options.data_root)
    usually = usual(data.task)
    settings = dataclasses.replace(
        usually,
        supernet=options.supernet or usually.supernet,
        microbatch_samples=options.microbatch_samples or usually.microbatch_samples,
        target_batch=options.target_batch or usually.target_batch,
    ).with_local_steps(options.local_steps)
    settings = dataclasses.replace(settings, num_rounds=options.rounds or settings.num_rounds)
    plan = _plan(settings, options, data)
    check_fit(data, plan.space)
    percent = 100 if options.residual_percent is None else options.residual_percent
    swarm = SimulatedSwarm(settings.microbatch_samples, settings.target_batch, options.cohorts, options.codec, percent)
    trainer = Trainer(plan, data, swarm, device=device, recorder=CudaGraphs() if options.cuda_graphs else None)
    _run(trainer, TrainingDirectory(options.directory, trainer, data))


def _plan(settings: Settings, options: Options, data: "Dataset") -> Plan:
    optimizer, percent = settings.optimizer, options.augmentation
    if options.learning_rate is not None:
        optimizer = dataclasses.replace(optimizer, learning_rate=options.learning_rate)
    name = settings.supernet if settings.supernet not in FAMILIES else fitted_name(settings.supernet, data.image_channels, data.num_classes)
    space_named(name)  # refuses one that nobody knows
    usually = recipe_for(data.task, data.num_train, settings.num_rounds * settings.target_batch)
    taught = usually.taught_percent if options.taught is None else options.taught
    recipe = dataclasses.replace(
        usually if percent is None else Recipe(percent, percent), taught_percent=taught if options.schedule == "sandwich" else 0
    )
    return Plan(name, options.schedule, options.algorithm, optimizer, settings.num_rounds, options.seed, settings.local_steps, recipe)


def _run(trainer: "Trainer", kept: "TrainingDirectory") -> None:
    """Train to the end or to a Ctrl-C, with a bar for the person; what was trained up to then is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
            for step in kept.rounds(_EVERY):
                progress.update(bar, completed=step.round, description=f"{step.phase} loss {step.loss:.3f}")
                if told:
                    break
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


def _sent(traffic: "Traffic", rounds: int) -> str:
    """Return what went between the cohorts, in a sentence."""
    return (
        f"between cohorts: {traffic.sent_bytes:,} bytes a round, {traffic.sent_bytes * rounds:,} in all; "
        f"with 2 bytes a weight after every update it were {traffic.fp16_ratio:.1f} times as many"
    )
