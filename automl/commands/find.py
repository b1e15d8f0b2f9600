"""manta-search find: the best subnet of a snapshot that keeps limits on latency, MACs or weights."""

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from rich.console import Console

from automl.commands import checked_device, clear_errors, dataset_of, opened_snapshot
from automl.cost import macs as macs_of
from automl.cost import num_weights
from automl.data.catalog import load_dataset
from automl.evaluation import check_fit
from automl.files import write_whole
from automl.latency import LatencyTable
from automl.search.constraints import Constraint, Cost, Region
from automl.search.course import Found, Strategy, default_predictor, search
from automl.search.evaluators import Evaluator, LocalEvaluator
from automl.search.evolution import Effort
from automl.search.journal import FileJournal, Settings
from automl.search.predictor import MIN_SAMPLES
from automl.search.processes import ProcessEvaluator
from automl.search.progress import Progress
from automl.search.report import plot, result_json, table
from automl.space import SearchSpace
from automl.update import state_digest
from protocol.errors import UserError
from protocol.signing import sha256

_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)([kKMG]?)")
_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_OPTIONS = {"latency": "--latency-ms", "macs": "--macs", "weights": "--weights"}
_INTERRUPTED = 130  # as of a program that SIGINT ended


@dataclass(frozen=True, slots=True)
class _Task:
    """What to search in, opened and checked."""

    region: Region
    costs: tuple[Cost, ...]
    axis: Cost  # of the Pareto front
    dataset: str
    evaluator: LocalEvaluator
    origin: dict[str, str | int | None]  # which weights, data and latencies


@click.command()
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="A .safetensors file.")
@click.option("--latency-ms", metavar="X", help="At most so many milliseconds, by --latency-table.")
@click.option("--macs", metavar="M", help="At most so many multiply-accumulates, like 2.5M or 300k.")
@click.option("--weights", metavar="W", help="At most so many weights, like 80k.")
@click.option("--latency-table", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Made by manta-search profile.")
@click.option("--data", metavar="NAME", help="Data set that subnets are measured on.  [default: what the snapshot was trained on]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option(
    "--population", type=click.IntRange(2, 10_000), default=40, show_default=True, help="Of one generation; of a predictor's best."
)
@click.option("--generations", type=click.IntRange(1, 10_000), default=15, show_default=True, help="The first one is random.")
@click.option("--predictor/--no-predictor", default=None, help="Predict accuracies, measure the best.  [default: in large spaces]")
@click.option(
    "--samples", type=click.IntRange(MIN_SAMPLES, 100_000), default=256, show_default=True, help="Measured to fit the predictor to."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Everything random follows from it.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Results.  [default: named by the limits]")
@click.option("--workers", type=click.IntRange(0, 1024), default=0, show_default=True, help="Processes; 0 or 1: this one.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads of this process.  [default: all cores]")
def find(
    snapshot: Path,
    latency_ms: str | None,
    macs: str | None,
    weights: str | None,
    latency_table: Path | None,
    data: str | None,
    data_root: Path | None,
    population: int,
    generations: int,
    predictor: bool | None,
    samples: int,
    seed: int,
    out: Path | None,
    workers: int,
    device: str,
    threads: int | None,
) -> None:
    """Find the best subnet of a snapshot within limits, without any training; the same command goes on after a break.

    Half of the held-out data chooses, the other half says how good the choice is. The folder gets best.json (for export), result.json,
    front.png and the journal search.jsonl.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    with clear_errors():
        limits = _limits({"latency": latency_ms, "macs": macs, "weights": weights})
        folder = out or Path("-".join([snapshot.stem, *(f"{name}-{limit:.12g}" for name, limit in limits.items())]))
        try:
            task = _opened(snapshot, data, data_root, device, latency_table, limits)
            has_predictor = default_predictor(task.region.space) if predictor is None else predictor
            strategy = Strategy(Effort(population, generations), seed, has_predictor, samples)
            settings = _settings(task, strategy)
            make = functools.partial(made_evaluator, snapshot, task.dataset, data_root, device)
            found = _searched(task, strategy, _evaluator(task, make, workers), folder, settings)
            _save(found, task, folder, settings)
        except KeyboardInterrupt:
            click.echo(f"manta-search: stopped; {folder} keeps what is measured, and the same command goes on from there", err=True)
            sys.exit(_INTERRUPTED)
    _show(found, task, folder)


def _limits(typed: Mapping[str, str | None]) -> dict[str, float]:
    """Return the limits by the names of their costs."""
    return {name: _amount(text, _OPTIONS[name]) for name, text in typed.items() if text is not None}


def _amount(text: str, option: str) -> float:
    match = _AMOUNT.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if value <= 0.0:
        raise UserError(f"{option} {text!r} is no amount above zero: write it like 2.5M, 300k, 1e6 or 1.5")
    return value


def _opened(
    snapshot: Path, data: str | None, data_root: Path | None, device: str, latency_table: Path | None, limits: Mapping[str, float]
) -> _Task:
    supernet, state, metadata = opened_snapshot(snapshot, checked_device(device))
    dataset = dataset_of(metadata, data, data_root)
    space = supernet.space
    check_fit(dataset, space)
    table = None if latency_table is None else _table(latency_table, space)
    if table is None and "latency" in limits:
        raise UserError("--latency-ms needs --latency-table FILE; measure it on the device with: manta-search profile --out FILE")
    latency = [] if table is None else [Cost("latency", _OPTIONS["latency"], table.latency_ms)]
    counts = [("macs", macs_of), ("weights", num_weights)]
    costs = (*latency, *(Cost(name, _OPTIONS[name], functools.partial(of, space=space)) for name, of in counts))
    constraints = [Constraint(cost, limits[cost.name]) for cost in costs if cost.name in limits]
    origin: dict[str, str | int | None] = {
        "supernet": space.name,
        "round": state.round,
        "state": state_digest(state).hex(),
        "dataset": dataset.name,
        "data": dataset.digest.hex(),
        "latencies": None if table is None else sha256(table.to_bytes()).hex(),
    }
    axis = constraints[0].cost if constraints else costs[0]
    return _Task(Region(space, constraints), costs, axis, dataset.name, LocalEvaluator(supernet, dataset), origin)


def _table(path: Path, space: SearchSpace) -> LatencyTable:
    table = LatencyTable.load(path)
    if table.supernet != space.name:
        raise UserError(f"{path} is the latency table of {table.supernet}, and the snapshot is one of {space.name}; measure it anew")
    return table


def made_evaluator(snapshot: Path, data: str, data_root: Path | None, device: str) -> LocalEvaluator:
    """Return the evaluator of another process, which opens the files itself."""
    supernet, _, _ = opened_snapshot(snapshot, device)
    return LocalEvaluator(supernet, load_dataset(data, data_root))


@contextlib.contextmanager
def _evaluator(task: _Task, make: Callable[[], LocalEvaluator], workers: int) -> Iterator[Evaluator]:
    if workers <= 1:
        yield task.evaluator
        return
    with ProcessEvaluator(make, workers) as evaluator:
        yield evaluator


def _settings(task: _Task, strategy: Strategy) -> Settings:
    return {
        **task.origin,
        **{_OPTIONS[constraint.cost.name].removeprefix("--"): constraint.limit for constraint in task.region.constraints},
        "population": strategy.effort.population,
        "generations": strategy.effort.generations,
        "samples": strategy.num_samples if strategy.has_predictor else None,
        "seed": strategy.seed,
    }


def _searched(task: _Task, strategy: Strategy, made: AbstractContextManager[Evaluator], folder: Path, settings: Settings) -> Found:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another one with --out") from error
    with (
        FileJournal(folder / "search.jsonl", task.region.space, settings) as journal,
        made as evaluator,
        Progress(Console(stderr=True)) as progress,
    ):
        return search(task.region, task.axis, evaluator, strategy, journal, progress)


def _save(found: Found, task: _Task, folder: Path, settings: Settings) -> None:
    space = task.region.space
    title = f"{space.name} after round {task.origin['round']}, {task.dataset}"
    write_whole(folder / "best.json", found.best.architecture.to_json().encode() + b"\n")
    write_whole(folder / "result.json", result_json(found, task.costs, task.axis, settings))
    write_whole(folder / "front.png", plot(found, task.axis, task.region.constraints, space.task, title))


def _show(found: Found, task: _Task, folder: Path) -> None:
    console = Console(highlight=False, markup=False)
    if found.fit is not None:
        fit = found.fit
        console.print(
            f"predictor: rank correlation {fit.rank_correlation:.2f}, error {fit.rmse:.4f} "
            f"(root mean square, cross-validated on {fit.samples} architectures)",
            soft_wrap=True,
        )
        if fit.is_weak:
            console.print("it ranks hardly better than chance: search with --no-predictor, or give it more --samples", soft_wrap=True)
    console.print(table(found, task.costs, task.region.space.task))
    console.print(f"best: {found.best.architecture.text}", soft_wrap=True)
    console.print(f"written to {folder}: best.json, result.json, front.png", soft_wrap=True)
