"""The search against random choice: the best subnet within a MACs limit, and the time that it took, from the same snapshot.

Three ways, each measured by the same processes on the half of the held-out data that a search selects on: evolution, evolution on a
predictor, and random architectures of the same region. The winner of each is then measured on the other half as well, which nobody
selected on: with few held-out samples the first figure flatters whoever tried most.

Run it from the repository: ``.venv/bin/python benchmarks/search.py --help``.
"""

import argparse
import functools
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from automl.data.dataset import SEARCH, TEST
from automl.evaluation.held_out import Quality, metric_of, score
from automl.jobs.find import made_evaluator
from automl.opening import opened_snapshot
from automl.search.constraints import Constraint, Cost, Region
from automl.search.evaluators import Evaluator
from automl.search.evolution import Effort
from automl.search.journal import Journal
from automl.search.processes import ProcessEvaluator
from automl.search.search import Strategy, search
from automl.spaces.cost import macs
from automl.spaces.space import Architecture, SearchSpace
from protocol.errors import MantaError


@dataclass(frozen=True, slots=True)
class Row:
    """One way to search, and what it came to."""

    name: str
    measured: int
    time_s: float
    best: Architecture
    search_quality: Quality
    test_quality: Quality


class Quiet:
    """Counts what is measured, and says so once in a while."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.count = 0

    def begin(self, what: str, total: int) -> None:
        print(f"{self._name}: {what}, {total} at most", file=sys.stderr, flush=True)

    def measured(self, quality: Quality) -> None:
        self.count += 1


def searched(name: str, region: Region, cost: Cost, evaluator: Evaluator, strategy: Strategy) -> Row:
    start_s = time.monotonic()
    found = search(region, cost, evaluator, strategy, Journal(), Quiet(name))
    best = found.best
    return Row(name, len(found.points), time.monotonic() - start_s, best.architecture, best.search_quality, best.test_quality)


def drawn(name: str, region: Region, evaluator: Evaluator, count: int, seed: int) -> Row:
    start_s = time.monotonic()
    Quiet(name).begin("measuring", count)
    architectures = region.sample_new(count, random.Random(f"{seed}:benchmark"))
    qualities = list(evaluator.qualities(architectures, SEARCH))
    index = max(range(len(qualities)), key=lambda each: score(qualities[each]))
    (test_quality,) = evaluator.qualities([architectures[index]], TEST)
    return Row(name, len(architectures), time.monotonic() - start_s, architectures[index], qualities[index], test_quality)


def report(rows: list[Row], space: SearchSpace, limit: float) -> str:
    metric = metric_of(space.task)
    lines = [f"{space.name}, at most {limit / 1e6:.2f} M MACs", ""]
    lines += [f"{'':<12}{'measured':>10}{'seconds':>10}{'M MACs':>9}{metric + ' search':>18}{metric + ' test':>18}"]
    for row in rows:
        figures = f"{row.search_quality[metric]:>18.4f}{row.test_quality[metric]:>18.4f}"
        lines += [f"{row.name:<12}{row.measured:>10}{row.time_s:>10.1f}{macs(row.best, space) / 1e6:>9.2f}{figures}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", type=Path, required=True, help="a .safetensors file")
    parser.add_argument("--data", default="digits", help="data set to measure on (default: %(default)s)")
    parser.add_argument("--data-root", type=Path, help="where data sets lie that no library brings along")
    parser.add_argument("--macs", type=float, help="the limit (default: a third of the way from the smallest to the largest)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--population", type=int, default=40, help="of a generation (default: %(default)s)")
    parser.add_argument("--generations", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--samples", type=int, default=256, help="that a predictor is fitted to (default: %(default)s)")
    parser.add_argument("--random", type=int, default=200, help="random architectures (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    arguments = parser.parse_args()
    try:
        space = opened_snapshot(arguments.snapshot)[0].space
        smallest, largest = macs(space.smallest(), space), macs(space.largest(), space)
        limit = arguments.macs or smallest + (largest - smallest) / 3
        cost = Cost("macs", "--macs", functools.partial(macs, space=space))
        region = Region(space, [Constraint(cost, limit)])
        effort = Effort(arguments.population, arguments.generations)
        direct, predicted = (Strategy(effort, arguments.seed, has, arguments.samples) for has in (False, True))
        make = functools.partial(made_evaluator, arguments.snapshot, arguments.data, arguments.data_root, "cpu")
        with ProcessEvaluator(make, arguments.workers) as evaluator:
            list(evaluator.qualities([space.smallest()] * arguments.workers, SEARCH))  # so that nobody's time has the loading in it
            rows = [
                searched("evolution", region, cost, evaluator, direct),
                searched("predictor", region, cost, evaluator, predicted),
                drawn("random", region, evaluator, arguments.random, arguments.seed),
            ]
    except MantaError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(report(rows, space, limit))


if __name__ == "__main__":
    main()
