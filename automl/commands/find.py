"""manta-search find: the best subnet of a snapshot that keeps limits on latency, MACs or weights."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manta_swarm.automl.commands import (
    DATA_ROOT,
    DEVICE,
    FILE,
    FOLDER,
    THREADS,
    checked_data,
    clear_errors,
    program,
    use_threads,
)
from manta_swarm.automl.commands.network_interface import AskedRun, CommandContext
from manta_swarm.automl.environment import wait_asleep
from manta_swarm.automl.files import write_whole
from manta_swarm.automl.latency.table import Conditions, LatencyTable
from manta_swarm.automl.precisions import FP32, PRECISIONS, check_device, check_precision
from manta_swarm.automl.search.constraints import Cost, LatencyCost, Macs, Region, WeightCost, costs_of, region_within
from manta_swarm.automl.search.evolution import MIN_SAMPLES, Effort
from manta_swarm.automl.spaces.space import SearchSpace
from manta_swarm.automl.training.snapshot_header import described
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.automl.data.dataset import Dataset
    from manta_swarm.automl.models.supernet import Supernet
    from manta_swarm.automl.search.evaluators import Evaluator
    from manta_swarm.automl.search.journal import EarlierSearch, Settings
    from manta_swarm.automl.search.search import Found, Strategy

OPTIONS = {each.name: each.option for each in (LatencyCost, Macs, WeightCost)}
JOURNAL = "search.jsonl"  # in the folder of a search
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)([kKMG]?)")
_INTERRUPTED = 130  # as of a program that SIGINT ended
_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they were given."""

    snapshot: Path | None
    peers: str | None
    run: str | None
    invitation: str | None
    latency_ms: str | None
    macs: str | None
    weights: str | None
    latency_table: Path | None
    data: str | None
    data_root: Path | None
    population: int
    generations: int
    predictor: bool | None
    samples: int
    compared: int
    seed: int
    warm_start: Path | None
    out: Path | None
    workers: int
    device: str
    precision: str
    threads: int | None


@click.command()
@click.option("--snapshot", type=FILE, metavar="FILE", help="A .safetensors file.")
@click.option("--peers", metavar="ADDRESS", help="Address of a run whose members measure its newest state; instead of --snapshot.")
@click.option("--run", metavar="ID", help="With --peers: the run's id; any other is refused.")
@click.option("--invitation", metavar="FILE|TEXT", help="With --peers: your invitation; for a run that takes invited peers only.")
@click.option("--latency-ms", metavar="X", help="Most milliseconds, by --latency-table.")
@click.option("--macs", metavar="M", help="Most multiply-accumulates, as 2.5M or 300k.")
@click.option("--weights", metavar="W", help="Most weights, as 80k.")
@click.option("--latency-table", type=FILE, metavar="FILE", help="Made by manta-search profile.")
@click.option("--data", metavar="NAME", help="Data set to measure with.  [default: what the snapshot was trained on]")
@DATA_ROOT
@click.option(
    "--population",
    type=click.IntRange(2, 10_000),
    default=Effort().population,
    show_default=True,
    metavar="N",
    help="Subnets of a generation; of a predictor's best.",
)
@click.option(
    "--generations",
    type=click.IntRange(1, 10_000),
    default=Effort().generations,
    show_default=True,
    metavar="N",
    help="Generations; the first one is random.",
)
@click.option("--predictor/--no-predictor", default=None, help="Predict accuracies, measure the best.  [default: in large spaces]")
@click.option(
    "--samples",
    type=click.IntRange(MIN_SAMPLES, 100_000),
    default=256,
    show_default=True,
    metavar="N",
    help="Subnets measured to fit the predictor to.",
)
@click.option(
    "--random",
    "compared",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    metavar="N",
    help="Random subnets that the choice is compared with.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N", help="Everything random follows from it."
)
@click.option("--warm-start", type=FOLDER, metavar="DIR", help="Folder of an earlier search, whose best come first.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Folder of results.  [default: named by the limits]")
@click.option(
    "--workers", type=click.IntRange(0, 1024), default=0, show_default=True, metavar="N", help="Processes; 0 or 1: this one alone."
)
@DEVICE
@click.option("--precision", type=click.Choice(PRECISIONS), default=FP32, show_default=True, help="What a GPU measures in.")
@THREADS
def find(**arguments: Any) -> None:
    """Find the best subnet of a snapshot within limits. Nothing is trained. The same command goes on after a break.

    With --peers the members of a run measure its newest state, as far as they let others ask them; no data are needed here.

    Half of the held-out data chooses: the cheapest subnet within one standard error of the lowest loss. The other half says how good that
    is, beside the smallest subnet and random ones within the limits. The folder gets best.json (for export), result.json, front.png and
    the journal search.jsonl.
    """
    wait_asleep()
    with clear_errors():
        options = Options(**arguments)
        limits = _limits({"latency": options.latency_ms, "macs": options.macs, "weights": options.weights})
        check_device(options.device)
        check_precision(options.precision, options.device)
        if options.warm_start is not None and not (options.warm_start / JOURNAL).is_file():
            raise UserError(f"{options.warm_start} has no {JOURNAL}: give --warm-start the folder of a search")
        if options.latency_table is None and "latency" in limits:
            raise UserError("--latency-ms needs --latency-table FILE; measure it on the device with: manta-search profile --out FILE")
        folder = options.out or _folder(options, limits)
        with _measured_by(options, folder) as (snapshot, members):
            space, metadata = described(snapshot)
            data = checked_data(metadata, options.data, options.data_root) if members is None else metadata["dataset"]
            table = None if options.latency_table is None else _table(options.latency_table, space)
            _load()
            use_threads(options.threads)
            _find(replace(options, snapshot=snapshot, data=data), folder, limits, table, members)


def _load() -> None:
    """Import what takes seconds, while there is nothing to clean up."""
    with ending_at_ctrl_c():
        import manta_swarm.automl.search.evaluators
        import manta_swarm.automl.search.journal
        import manta_swarm.automl.search.processes
        import manta_swarm.automl.search.report  # noqa: F401


def _folder(options: Options, limits: Mapping[str, float]) -> Path:
    stem = "run" if options.snapshot is None else options.snapshot.stem
    return Path("-".join([stem, *(f"{name}-{limit:.12g}" for name, limit in limits.items())]))


@contextlib.contextmanager
def _measured_by(options: Options, folder: Path) -> Iterator[tuple[Path, AskedRun | None]]:
    """Yield the snapshot to search in, and the run whose members measure it; None: it is measured here."""
    if (options.snapshot is None) == (options.peers is None):
        raise UserError("give --snapshot FILE, to measure here, or --peers ADDRESS, to have a run's members measure")
    if options.snapshot is not None:
        for name, value in (("--run", options.run), ("--invitation", options.invitation)):
            if value is not None:
                raise UserError(f"{name} is for --peers ADDRESS: leave it out")
        yield options.snapshot, None
        return
    assert options.peers is not None
    if options.data is not None or options.data_root is not None or options.workers or options.device != "cpu":
        raise UserError("with --peers nothing is measured here: leave out --data, --data-root, --workers and --device")
    context = click.get_current_context().find_object(CommandContext)
    if context is None:
        raise UserError("this program has no network: type manta-search find --peers ADDRESS")
    there = context.network.run_at(options.peers, options.run, options.invitation)
    _load()
    with there.opened(folder) as members:
        yield members.snapshot, members


def _limits(typed: Mapping[str, str | None]) -> dict[str, float]:
    """Return the limits by the names of their costs."""
    return {name: _amount(text, OPTIONS[name]) for name, text in typed.items() if text is not None}


def _amount(text: str, option: str) -> float:
    match = _AMOUNT.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if value <= 0.0:
        raise UserError(f"{option} {text!r} is no amount above zero: write it like 2.5M, 300k, 1e6 or 1.5")
    return value


def _table(path: Path, space: SearchSpace) -> LatencyTable:
    table = LatencyTable.load(path)
    if table.supernet != space.name:
        raise UserError(f"{path} is the latency table of {table.supernet}, and the snapshot is one of {space.name}; measure it anew")
    return table


@dataclass(frozen=True, slots=True)
class _Task:
    """What to search in, opened and checked."""

    supernet: "Supernet"
    dataset: "Dataset | None"  # that is measured on here; None: a run's members measure
    region: Region
    costs: tuple[Cost, ...]
    axes: tuple[Cost, ...]  # of the Pareto front
    origin: dict[str, str | int | None]  # which weights, data and latencies
    measured: Conditions | None  # of the latencies


def _find(options: Options, folder: Path, limits: Mapping[str, float], table: LatencyTable | None, members: AskedRun | None) -> None:
    """Search, keep what is found in a folder, and say what it is.

    Args:
        options: what the person typed, with the snapshot, and the data that it is measured on.
        folder: of what is found.
        limits: by the names of their costs.
        table: of latencies.
        members: the run whose members measure the snapshot's state; None: this computer does.

    Raises:
        UserError: the snapshot, the data, the limits or what there is in the folder do not fit.
    """
    from manta_swarm.automl.search.journal import EarlierSearch
    from manta_swarm.automl.search.search import Strategy, default_predictor

    task = _opened(options, limits, table, members)
    has_predictor = default_predictor(task.region.space) if options.predictor is None else options.predictor
    strategy = Strategy(Effort(options.population, options.generations), options.seed, has_predictor, options.samples, options.compared)
    earlier = None if options.warm_start is None else EarlierSearch(options.warm_start / JOURNAL, task.region.space)
    if earlier is not None:
        most = (strategy.num_samples if has_predictor else strategy.effort.population) // 2
        strategy = replace(strategy, start=tuple(earlier.promising(task.region, task.axes, most)))
    settings = _settings(task, strategy)
    try:
        found = _searched(task, strategy, _evaluator(task, options, members, earlier), folder, settings)
        _save(found, task, folder, settings)
    except KeyboardInterrupt:
        click.echo(f"{program()}: stopped; {folder} keeps what is measured, and the same command goes on from there", err=True)
        sys.exit(_INTERRUPTED)
    _show(found, task, folder, () if members is None else members.words())


def _opened(options: Options, limits: Mapping[str, float], table: LatencyTable | None, members: AskedRun | None) -> _Task:
    from manta_swarm.automl.data.catalog import load_dataset
    from manta_swarm.automl.evaluation.held_out import check_fit
    from manta_swarm.automl.training.snapshot import open_snapshot
    from manta_swarm.automl.training.update import state_digest

    assert options.snapshot is not None
    assert options.data is not None
    snapshot = open_snapshot(options.snapshot, options.device)
    space, state = snapshot.space, snapshot.state
    costs = costs_of(space, table)
    dataset = load_dataset(options.data, options.data_root) if members is None else None
    if dataset is not None:
        check_fit(dataset, space)
    origin: dict[str, str | int | None] = {
        "supernet": space.name,
        "round": state.round,
        "state": state_digest(state).hex(),
        "dataset": options.data if dataset is None else dataset.name,
        "data": snapshot.metadata["data"] if dataset is None else dataset.digest.hex(),
        **({} if options.precision == FP32 else {"precision": options.precision}),
        "latencies": None if table is None else sha256(table.to_bytes()).hex(),
    }
    region, axes = region_within(space, costs, limits)
    return _Task(snapshot.supernet, dataset, region, costs, axes, origin, None if table is None else table.conditions)


@contextlib.contextmanager
def _evaluator(task: _Task, options: Options, members: AskedRun | None, earlier: "EarlierSearch | None") -> "Iterator[Evaluator]":
    """Yield who measures: a run's members, this process, or several of this computer; what an earlier search knows, nobody."""
    from manta_swarm.automl.search.evaluators import Evaluator, LocalEvaluator, MembersEvaluator
    from manta_swarm.automl.search.journal import Recalling
    from manta_swarm.automl.search.process import command
    from manta_swarm.automl.search.processes import ProcessEvaluator

    with contextlib.ExitStack() as stack:
        evaluator: Evaluator
        if members is not None:
            evaluator = MembersEvaluator(members, task.supernet.space.task)
        elif options.workers <= 1:
            assert task.dataset is not None
            evaluator = LocalEvaluator(task.supernet, task.dataset, options.precision)
        else:
            assert options.snapshot is not None
            assert options.data is not None
            by = command(options.snapshot, options.data, options.device, options.precision, options.data_root)
            evaluator = stack.enter_context(ProcessEvaluator(by, options.workers))
        yield Recalling(evaluator, earlier) if earlier is not None and earlier.is_of(task.origin) else evaluator


def _settings(task: _Task, strategy: "Strategy") -> "Settings":
    return {
        **task.origin,
        **{constraint.cost.option.removeprefix("--"): constraint.limit for constraint in task.region.constraints},
        "population": strategy.effort.population,
        "generations": strategy.effort.generations,
        "samples": strategy.num_samples if strategy.has_predictor else None,
        "seed": strategy.seed,
        "warm start": sha256(" | ".join(each.text for each in strategy.start).encode()).hex() if strategy.start else None,
    }


def _searched(
    task: _Task, strategy: "Strategy", evaluator: "AbstractContextManager[Evaluator]", folder: Path, settings: "Settings"
) -> "Found":
    from rich.console import Console

    from manta_swarm.automl.search.journal import FileJournal
    from manta_swarm.automl.search.report import SearchProgress
    from manta_swarm.automl.search.search import BrokenWeights, search

    try:
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another one with --out") from error
    try:
        with (
            FileJournal(folder / JOURNAL, task.region.space, settings) as journal,
            evaluator as measuring,
            SearchProgress(Console(stderr=True)) as progress,
        ):
            if journal.num_outdated:
                said = f"{journal.num_outdated} measurements of an earlier version lack the losses that rank now: they are repeated"
                click.echo(said, err=True)
            return search(task.region, task.axes, measuring, strategy, journal, progress)
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


def _save(found: "Found", task: _Task, folder: Path, settings: "Settings") -> None:
    from manta_swarm.automl.search.report import plot, result_json

    space = task.region.space
    title = f"{space.name} after round {task.origin['round']}, {task.origin['dataset']}"
    write_whole(folder / "best.json", found.best.architecture.to_json().encode() + b"\n")
    write_whole(folder / "result.json", result_json(found, task.costs, task.axes, settings, task.measured))
    write_whole(folder / "front.png", plot(found, task.axes, task.region.constraints, space.task, title))


def _show(found: "Found", task: _Task, folder: Path, others: Sequence[str]) -> None:
    from rich.console import Console

    from manta_swarm.automl.search.report import conditions, table, words

    console = Console(highlight=False, markup=False)
    for line in conditions(found, task.origin.get("precision"), task.measured):
        console.print(line, soft_wrap=True)
    console.print(table(found, task.costs, task.region.space.task))
    for line in (*words(found, task.region.space.task), *others):
        console.print(line, soft_wrap=True)
    console.print(f"best: {found.best.architecture.text}", soft_wrap=True)
    console.print(f"written to {folder}: best.json, result.json, front.png", soft_wrap=True)
