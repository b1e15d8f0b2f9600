"""What coding and averaging cost: a body coded, parsed, its norm, added to a sum, decoded, and the mean taken. One thread.

    .venv/bin/python benchmarks/bodies.py [--codec int16] [--counts 226000 2900000 13000000] [--repeats 7]

Prints the median milliseconds of each step for vectors of so many values.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from exact.coding import CODECS, encode, parse
from exact.mean import Sum

_FLOOR = -30
_WEIGHT = 65535
_STEPS = ("encode", "parse", "norm", "add", "values", "mean")


def vector(count: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Return values as a gradient has them: around 0.001, of different sizes in each chunk."""
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.integers(-4, 5, -(-count // 4096))).repeat(4096)[:count]
    return (1e-3 * sizes * rng.standard_normal(count)).astype(np.float32)


def measured(codec: str, count: int, repeats: int) -> list[float]:
    """Return the median milliseconds of each step."""
    values, sums = vector(count), Sum(count, _FLOOR)
    data = encode(codec, values, _FLOOR)
    times: list[list[float]] = []
    for _ in range(repeats):
        body = parse(codec, data, count)  # a new one each time: a body keeps its norm
        steps: tuple[Callable[[], object], ...] = (
            lambda: encode(codec, values, _FLOOR),
            lambda: parse(codec, data, count),
            lambda body=body: body.norm_square,
            lambda body=body: sums.add(body, 0, _WEIGHT),
            lambda body=body: body.values(_FLOOR),
            lambda: sums.mean(_WEIGHT),
        )
        times.append([timed(step) for step in steps])
    return [statistics.median(taken) for taken in zip(*times, strict=True)]


def timed(step: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    started_s = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - started_s)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", choices=sorted(CODECS), default="int16")
    parser.add_argument("--counts", type=int, nargs="+", default=[226_000, 2_900_000, 13_000_000], metavar="N")
    parser.add_argument("--repeats", type=int, default=7, metavar="N")
    arguments = parser.parse_args()
    print(f"{arguments.codec}, milliseconds, median of {arguments.repeats}")
    print(" " * 12 + "".join(f"{name:>9}" for name in _STEPS))
    for count in arguments.counts:
        figures = measured(arguments.codec, count, arguments.repeats)
        print(f"{count:>12,}" + "".join(f"{figure:9.2f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
