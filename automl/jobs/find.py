"""manta-search find, at work."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import click
import torch
from rich.console import Console

from automl.commands import program
from automl.commands.doors import AskedRun
from automl.commands.find import JOURNAL, OPTIONS, Wishes
from automl.data.catalog import load_dataset
from automl.evaluation.held_out import check_fit
from automl.files import write_whole
from automl.latency.table import Conditions, LatencyTable
from automl.models.supernet import Supernet
from automl.opening import checked_device, dataset_of, opened_snapshot
from automl.precisions import FP32
from automl.search.constraints import Constraint, Cost, Region
from automl.search.earlier import EarlierSearch, Recalling
from automl.search.evaluators import Evaluator, LocalEvaluator
from automl.search.evolution import Effort
from automl.search.journal import FileJournal, Settings
from automl.search.members import MembersEvaluator
from automl.search.processes import ProcessEvaluator
from automl.search.progress import Progress
from automl.search.report import plot, result_json, words
from automl.search.report import table as result_table
from automl.search.search import BrokenWeights, Found, Strategy, default_predictor, search
from automl.spaces.cost import macs as macs_of
from automl.spaces.cost import num_weights
from automl.training.update import state_digest
from protocol.errors import UserError
from protocol.signing import sha256

_INTERRUPTED = 130  # as of a program that SIGINT ended

_Evaluators: TypeAlias = Callable[[], AbstractContextManager[Evaluator]]
_Made: TypeAlias = tuple[_Evaluators, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class _Task:
    """What to search in, opened and checked."""

    region: Region
    costs: tuple[Cost, ...]
    axes: tuple[Cost, ...]  # of the Pareto front
    evaluator: _Evaluators  # who measures
    origin: dict[str, str | int | None]  # which weights, data and latencies
    measured: Conditions | None  # of the latencies


def find(wishes: Wishes, folder: Path, limits: Mapping[str, float], table: LatencyTable | None, members: AskedRun | None = None) -> None:
    """Search, keep what is found in a folder, and say what it is.

    Args:
        wishes: what the person typed, with the snapshot.
        folder: of what is found.
        limits: by the names of their costs.
        table: of latencies.
        members: the run whose members measure the snapshot's state; None: this computer does.

    Raises:
        UserError: the snapshot, the data, the limits or what there is in the folder do not fit.
    """
    if wishes.threads is not None:
        torch.set_num_threads(wishes.threads)
    try:
        task = _opened(wishes, limits, table, members)
        has_predictor = default_predictor(task.region.space) if wishes.predictor is None else wishes.predictor
        strategy = Strategy(Effort(wishes.population, wishes.generations), wishes.seed, has_predictor, wishes.samples, wishes.compared)
        earlier = None if wishes.warm_start is None else EarlierSearch(wishes.warm_start / JOURNAL, task.region.space)
        if earlier is not None:
            most = (strategy.num_samples if has_predictor else strategy.effort.population) // 2
            strategy = replace(strategy, start=tuple(earlier.promising(task.region, task.axes, most)))
        settings = _settings(task, strategy)
        found = _searched(task, strategy, _evaluator(task, earlier), folder, settings)
        _save(found, task, folder, settings)
    except KeyboardInterrupt:
        click.echo(f"{program()}: stopped; {folder} keeps what is measured, and the same command goes on from there", err=True)
        sys.exit(_INTERRUPTED)
    _show(found, task, folder, () if members is None else members.words())


def _opened(wishes: Wishes, limits: Mapping[str, float], table: LatencyTable | None, members: AskedRun | None) -> _Task:
    assert wishes.snapshot is not None
    supernet, state, metadata = opened_snapshot(wishes.snapshot, checked_device(wishes.device))
    space = supernet.space
    latency = [] if table is None else [Cost("latency", OPTIONS["latency"], table.latency_ms)]
    counts = [("macs", macs_of), ("weights", num_weights)]
    costs = (*latency, *(Cost(name, OPTIONS[name], functools.partial(of, space=space)) for name, of in counts))
    constraints = [Constraint(cost, limits[cost.name]) for cost in costs if cost.name in limits]
    made, data = (_here if members is None else _by_members)(wishes, supernet, metadata, members)
    origin: dict[str, str | int | None] = {
        "supernet": space.name,
        "round": state.round,
        "state": state_digest(state).hex(),
        **data,
        **({} if wishes.precision == FP32 else {"precision": wishes.precision}),
        "latencies": None if table is None else sha256(table.to_bytes()).hex(),
    }
    axes = tuple(constraint.cost for constraint in constraints) or costs[:1]
    measured = None if table is None else table.conditions
    return _Task(Region(space, constraints), costs, axes, made, origin, measured)


def _here(wishes: Wishes, supernet: Supernet, metadata: Mapping[str, str], _: object) -> _Made:
    """Return what measures on this computer, and which data it measures on."""
    dataset = dataset_of(metadata, wishes.data, wishes.data_root)
    check_fit(dataset, supernet.space)
    assert wishes.snapshot is not None
    make = functools.partial(made_evaluator, wishes.snapshot, dataset.name, wishes.data_root, wishes.device, wishes.precision)
    made = (
        _itself(LocalEvaluator(supernet, dataset, wishes.precision))
        if wishes.workers <= 1
        else functools.partial(ProcessEvaluator, make, wishes.workers)
    )
    return made, {"dataset": dataset.name, "data": dataset.digest.hex()}


def _by_members(_: Wishes, supernet: Supernet, metadata: Mapping[str, str], members: AskedRun | None) -> _Made:
    """Return what has a run's members measure, and which data they measure on."""
    assert members is not None
    evaluator = MembersEvaluator(members.ask, supernet.space.task)
    return _itself(evaluator), {"dataset": metadata["dataset"], "data": metadata["data"]}


def _itself(evaluator: Evaluator) -> _Evaluators:
    return lambda: contextlib.nullcontext(evaluator)


def made_evaluator(snapshot: Path, data: str, data_root: Path | None, device: str, precision: str = FP32) -> LocalEvaluator:
    """Return the evaluator of another process, which opens the files itself."""
    supernet, _, _ = opened_snapshot(snapshot, device)
    return LocalEvaluator(supernet, load_dataset(data, data_root), precision)


@contextlib.contextmanager
def _evaluator(task: _Task, earlier: EarlierSearch | None) -> Iterator[Evaluator]:
    with task.evaluator() as evaluator:
        yield Recalling(evaluator, earlier) if earlier is not None and earlier.is_of(task.origin) else evaluator


def _settings(task: _Task, strategy: Strategy) -> Settings:
    return {
        **task.origin,
        **{OPTIONS[constraint.cost.name].removeprefix("--"): constraint.limit for constraint in task.region.constraints},
        "population": strategy.effort.population,
        "generations": strategy.effort.generations,
        "samples": strategy.num_samples if strategy.has_predictor else None,
        "seed": strategy.seed,
        "warm start": sha256(" | ".join(each.text for each in strategy.start).encode()).hex() if strategy.start else None,
    }


def _searched(task: _Task, strategy: Strategy, evaluator: AbstractContextManager[Evaluator], folder: Path, settings: Settings) -> Found:
    try:
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another one with --out") from error
    try:
        return _journaled(task, strategy, evaluator, folder, settings)
    except BrokenWeights:
        if made:  # else it has what others, or an earlier search, left there
            _take_away(made)
        raise


def _take_away(made: Sequence[Path]) -> None:
    """Remove the folder of a search that found nothing, and those around it that were made for it."""
    (made[0] / JOURNAL).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody put something there meanwhile
        for folder in made:
            folder.rmdir()


def _journaled(task: _Task, strategy: Strategy, made: AbstractContextManager[Evaluator], folder: Path, settings: Settings) -> Found:
    with (
        FileJournal(folder / JOURNAL, task.region.space, settings) as journal,
        made as evaluator,
        Progress(Console(stderr=True)) as progress,
    ):
        if journal.num_outdated:
            click.echo(
                f"{journal.num_outdated} measurements of an earlier version lack the losses that rank now: they are repeated", err=True
            )
        return search(task.region, task.axes, evaluator, strategy, journal, progress)


def _save(found: Found, task: _Task, folder: Path, settings: Settings) -> None:
    space = task.region.space
    title = f"{space.name} after round {task.origin['round']}, {task.origin['dataset']}"
    write_whole(folder / "best.json", found.best.architecture.to_json().encode() + b"\n")
    write_whole(folder / "result.json", result_json(found, task.costs, task.axes, settings, task.measured))
    write_whole(folder / "front.png", plot(found, task.axes, task.region.constraints, space.task, title))


def _show(found: Found, task: _Task, folder: Path, others: Sequence[str]) -> None:
    console = Console(highlight=False, markup=False)
    if "precision" in task.origin:
        console.print(f"figures: of networks computed in {task.origin['precision']}", soft_wrap=True)
    if task.measured is not None:
        of = task.measured
        console.print(f"latencies: of {of.name} ({of.device}), {of.runtime} {of.version}, batch {of.batch}", soft_wrap=True)
    if found.fit is not None:
        fit = found.fit
        console.print(
            f"predictor: rank correlation {fit.rank_correlation:.2f}, error {fit.rmse:.4f} "
            f"(root mean square, cross-validated on {fit.samples} architectures)",
            soft_wrap=True,
        )
        if fit.is_weak:
            console.print("it ranks hardly better than chance: search with --no-predictor, or give it more --samples", soft_wrap=True)
    console.print(result_table(found, task.costs, task.region.space.task))
    for line in words(found, task.region.space.task):
        console.print(line, soft_wrap=True)
    for line in others:
        console.print(line, soft_wrap=True)
    console.print(f"best: {found.best.architecture.text}", soft_wrap=True)
    console.print(f"written to {folder}: best.json, result.json, front.png", soft_wrap=True)
