"""manta-search find: the best subnet of a snapshot that keeps limits on latency, MACs or weights."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from automl.commands import MAX_THREADS, check_data, check_device, clear_errors, described, loading
from automl.commands.doors import AskedRun, Doors
from automl.latency.table import LatencyTable
from automl.precisions import FP32, PRECISIONS, check_precision
from automl.search.evolution import MIN_SAMPLES
from automl.spaces.space import SearchSpace
from automl.threads import wait_asleep
from protocol.errors import UserError

OPTIONS = {"latency": "--latency-ms", "macs": "--macs", "weights": "--weights"}
JOURNAL = "search.jsonl"  # in the folder of a search
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)([kKMG]?)")
_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class Wishes:
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
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A .safetensors file.")
@click.option("--peers", metavar="ADDRESS", help="Instead: the newest state of the run there, measured by its members.")
@click.option("--run", metavar="ID", help="With --peers: the run's id; refuse any other run.")
@click.option("--invitation", metavar="FILE|TEXT", help="With --peers: what its operator gave you, where a run takes invited peers only.")
@click.option("--latency-ms", metavar="X", help="At most so many milliseconds, by --latency-table.")
@click.option("--macs", metavar="M", help="At most so many multiply-accumulates, like 2.5M or 300k.")
@click.option("--weights", metavar="W", help="At most so many weights, like 80k.")
@click.option("--latency-table", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Made by manta-search profile.")
@click.option("--data", metavar="NAME", help="Data set that subnets are measured on.  [default: what the snapshot was trained on]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie that no library brings along.")
@click.option(
    "--population",
    type=click.IntRange(2, 10_000),
    default=40,
    show_default=True,
    metavar="N",
    help="Of one generation; of a predictor's best.",
)
@click.option("--generations", type=click.IntRange(1, 10_000), default=15, show_default=True, metavar="N", help="The first one is random.")
@click.option("--predictor/--no-predictor", default=None, help="Predict accuracies, measure the best.  [default: in large spaces]")
@click.option(
    "--samples",
    type=click.IntRange(MIN_SAMPLES, 100_000),
    default=256,
    show_default=True,
    metavar="N",
    help="Measured to fit the predictor to.",
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
@click.option(
    "--warm-start",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="An earlier search's folder, whose best come first.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Results.  [default: named by the limits]")
@click.option("--workers", type=click.IntRange(0, 1024), default=0, show_default=True, metavar="N", help="Processes; 0 or 1: this one.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU.")
@click.option("--precision", type=click.Choice(PRECISIONS), default=FP32, show_default=True, help="What a GPU measures in.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="CPU threads of this process.  [default: all cores]")
def find(**options: Any) -> None:
    """Find the best subnet of a snapshot within limits. Nothing is trained. The same command goes on after a break.

    With --peers the members of a run measure its newest state, as far as they let others ask them; no data are needed here.

    Half of the held-out data chooses: the cheapest subnet within one standard error of the lowest loss. The other half says how good that
    is, beside the smallest subnet and random ones within the limits. The folder gets best.json (for export), result.json, front.png and
    the journal search.jsonl.
    """
    wait_asleep()
    with clear_errors():
        wishes = Wishes(**options)
        limits = _limits({"latency": wishes.latency_ms, "macs": wishes.macs, "weights": wishes.weights})
        check_device(wishes.device)
        check_precision(wishes.precision, wishes.device)
        if wishes.warm_start is not None and not (wishes.warm_start / JOURNAL).is_file():
            raise UserError(f"{wishes.warm_start} has no {JOURNAL}: give --warm-start the folder of a search")
        if wishes.latency_table is None and "latency" in limits:
            raise UserError("--latency-ms needs --latency-table FILE; measure it on the device with: manta-search profile --out FILE")
        folder = wishes.out or _folder(wishes, limits)
        with _measured_by(wishes, folder) as (snapshot, members):
            space, metadata = described(snapshot)
            if members is None:
                check_data(metadata, wishes.data, wishes.data_root)
            table = None if wishes.latency_table is None else _table(wishes.latency_table, space)
            with loading():
                from automl.jobs import find as job
            job.find(replace(wishes, snapshot=snapshot), folder, limits, table, members)


def _folder(wishes: Wishes, limits: Mapping[str, float]) -> Path:
    stem = "run" if wishes.snapshot is None else wishes.snapshot.stem
    return Path("-".join([stem, *(f"{name}-{limit:.12g}" for name, limit in limits.items())]))


@contextlib.contextmanager
def _measured_by(wishes: Wishes, folder: Path) -> Iterator[tuple[Path, AskedRun | None]]:
    """Yield the snapshot to search in, and the run whose members measure it; None: it is measured here."""
    if (wishes.snapshot is None) == (wishes.peers is None):
        raise UserError("give --snapshot FILE, to measure here, or --peers ADDRESS, to have a run's members measure")
    if wishes.snapshot is not None:
        for name, value in (("--run", wishes.run), ("--invitation", wishes.invitation)):
            if value is not None:
                raise UserError(f"{name} is for --peers ADDRESS: leave it out")
        yield wishes.snapshot, None
        return
    assert wishes.peers is not None
    if wishes.data is not None or wishes.data_root is not None or wishes.workers or wishes.device != "cpu":
        raise UserError("with --peers nothing is measured here: leave out --data, --data-root, --workers and --device")
    doors = click.get_current_context().find_object(Doors)
    if doors is None:
        raise UserError("this program has no network: type manta-search find --peers ADDRESS")
    doors.check(wishes.peers, wishes.run, wishes.invitation)
    with loading():  # now, while there is nothing to clean up
        import automl.jobs.find  # noqa: F401
    with doors.members(wishes.peers, wishes.run, wishes.invitation, folder) as members:
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
