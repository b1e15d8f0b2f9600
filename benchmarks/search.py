"""What a search's choice is worth on images that no search saw: beside the smallest subnet, and random ones within the same limit.

For each snapshot (give one for every seed of a training) a search within a MACs limit, then the test half of the held-out data: the loss
and the share of wrong classes of

  choice      the cheapest subnet within one standard error of the lowest loss: what ``manta-search find`` takes
  lowest      the lowest loss on the search half
  accurate    the highest accuracy on the search half, of equal ones the cheapest: what version 0.1.0 took
  smallest    the smallest subnet of all
  random      the median over random subnets within the limit

and by how much the smallest and the random median are worse than the choice, with intervals over the images.

Run it from the repository: ``.venv/bin/python benchmarks/search.py --help``.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import SEARCH, TEST, Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.evaluation.held_out import check_fit
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.constraints import Constraint, Macs, Region
from manta_swarm.automl.search.evaluators import LocalEvaluator
from manta_swarm.automl.search.evolution import Effort
from manta_swarm.automl.search.journal import Journal
from manta_swarm.automl.search.resampling import Comparison
from manta_swarm.automl.search.search import Found, Strategy, search
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.snapshot import open_snapshot
from manta_swarm.protocol.errors import MantaError


class Quiet:
    """Hears how far a search is, and says what begins."""

    def begin(self, what: str, total: int) -> None:
        print(f"{what}, {total} at most", file=sys.stderr, flush=True)

    def measured(self, measured: Measured) -> None:
        pass


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What one search came to."""

    name: str
    time_s: float
    macs_m: float  # of the choice
    found: Found
    others: dict[str, Measured]  # on the test half


def few(dataset: Dataset, held_out: int | None) -> Dataset:
    """Return the data set with its first held-out images only."""
    if held_out is None or not isinstance(dataset, ImageDataset):
        return dataset
    return dataclasses.replace(
        dataset, held_out_images=dataset.held_out_images[:held_out], held_out_labels=dataset.held_out_labels[:held_out]
    )


def searched(snapshot: Path, dataset: Dataset, arguments: argparse.Namespace) -> Row:
    supernet = open_snapshot(snapshot).supernet
    check_fit(dataset, supernet.space)
    cost = Macs(supernet.space)
    region = Region(supernet.space, [Constraint(cost, limit_of(supernet.space, arguments.macs))])
    effort = Effort(arguments.population, arguments.generations)
    strategy = Strategy(effort, arguments.seed, arguments.predictor, arguments.samples, arguments.random)
    evaluator, journal, start_s = LocalEvaluator(supernet, dataset), Journal(), time.monotonic()
    found = search(region, [cost], evaluator, strategy, journal, Quiet())
    time_s = time.monotonic() - start_s
    picked = {"lowest": found.front[-1].architecture, "accurate": most_accurate(found, journal)}
    others = dict(zip(picked, evaluator.measure(list(picked.values()), TEST), strict=True))
    return Row(str(snapshot), time_s, macs(found.best.architecture, supernet.space) / 1e6, found, others)


def limit_of(space: SearchSpace, typed: float | None) -> float:
    smallest, largest = macs(space.smallest(), space), macs(space.largest(), space)
    return typed or smallest + (largest - smallest) / 3


def most_accurate(found: Found, journal: Journal) -> Architecture:
    def merit(place: int) -> tuple[float, float]:
        quality = journal.quality(SEARCH, found.points[place].architecture)
        assert quality is not None
        return (-quality["accuracy"], found.points[place].costs[0])

    return found.points[min(range(len(found.points)), key=merit)].architecture


def report(rows: list[Row], name: str) -> str:
    words = [f"{name}: {rows[0].found.unseen.samples} images of the test half, {len(rows[0].found.points)} subnets measured in each search"]
    for row in rows:
        words += ["", f"{row.name}: {row.time_s:.0f} s, the choice has {row.macs_m:.2f} M MACs"]
        word, rehearsal = row.found.unseen, row.found.rehearsal
        assert word.errors is not None
        if rehearsal is not None:
            words.append(f"  halves: loss {rehearsal.chosen_on:.4f} where chosen, {rehearsal.elsewhere:.4f} elsewhere")
        errors = [f"{kind} {100 * (1 - measured.quality['accuracy']):.2f}" for kind, measured in row.others.items()]
        losses = [f"{kind} {measured.loss:.4f}" for kind, measured in row.others.items()]
        words.append(f"  loss    {line(word.loss, 1.0)}; {'; '.join(losses)}")
        words.append(f"  wrong % {line(word.errors, 100.0)}; {'; '.join(errors)}")
    return "\n".join([*words, "", *summary(rows)])


def line(compared: Comparison, scale: float) -> str:
    assert compared.random_behind is not None
    assert compared.random_median is not None
    digits = 4 if scale == 1.0 else 2
    texts = [f"choice {compared.choice.value * scale:.{digits}f}"]
    for kind, value, behind in (
        ("smallest", compared.smallest, compared.behind),
        ("random", compared.random_median, compared.random_behind),
    ):
        ends = f"{behind.low * scale:+.{digits}f} to {behind.high * scale:+.{digits}f}"
        texts.append(f"{kind} {value * scale:.{digits}f} ({behind.value * scale:+.{digits}f}: {ends})")
    return "; ".join(texts)


def summary(rows: list[Row]) -> list[str]:
    """Return means over the searches, and how far they differ: the standard error over the seeds."""
    lines = []
    for kind in ("loss", "errors"):
        compared: list[Comparison] = [getattr(row.found.unseen, kind) for row in rows]
        scale, unit = (1.0, "nats") if kind == "loss" else (100.0, "points of accuracy")
        for other in ("smallest", "random median"):
            behind = [each.behind if other == "smallest" else each.random_behind for each in compared]
            values = [interval.value * scale for interval in behind if interval is not None]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            clear = sum(interval.low > 0 for interval in behind if interval is not None)
            worse = sum(interval.high < 0 for interval in behind if interval is not None)
            lines.append(
                f"{other} behind the choice by {statistics.mean(values):.4f} +- {error:.4f} {unit} (mean, standard error over "
                f"{len(values)} seeds); the interval lies above zero in {clear}, below in {worse}"
            )
    return lines


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--snapshots", type=Path, nargs="+", required=True, help=".safetensors files, of one training each")
    parser.add_argument("--data", default="digits", help="labelled images to measure on (default: %(default)s)")
    parser.add_argument("--data-root", type=Path, help="where data sets lie that no library brings along")
    parser.add_argument("--held-out", type=int, help="use the first so many held-out images only (default: all)")
    parser.add_argument("--macs", type=float, help="the limit (default: a third of the way from the smallest to the largest)")
    parser.add_argument("--population", type=int, default=20, help="of a generation (default: %(default)s)")
    parser.add_argument("--generations", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--predictor", action="store_true", help="evolve on a predictor's word")
    parser.add_argument("--samples", type=int, default=100, help="that a predictor is fitted to (default: %(default)s)")
    parser.add_argument("--random", type=int, default=50, help="random architectures (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of every search (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of torch (default: all cores)")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    try:
        dataset = few(load_dataset(arguments.data, arguments.data_root), arguments.held_out)
        rows = [searched(snapshot, dataset, arguments) for snapshot in arguments.snapshots]
    except MantaError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(report(rows, arguments.data))
    for row in rows:
        unseen = {"loss": row.found.unseen.loss, "errors": row.found.unseen.errors}
        results.keep(snapshot=row.name, seconds=row.time_s, macs_m=row.macs_m, unseen=unseen)
    results.write(arguments)


if __name__ == "__main__":
    main()
