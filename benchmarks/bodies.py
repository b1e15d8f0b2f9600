"""What coding and averaging cost: a body coded, parsed, its norm, added to a sum, decoded, and the mean taken. One thread.

    .venv/bin/python benchmarks/bodies.py [--codecs int16 topk-256-4] [--counts 226000 2900000 13000000] [--repeats 7]

Prints bytes a value, how many times fewer that is than two a value (fp16), and the median milliseconds of CPU of each step.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.mean import Sum
from manta_swarm.codec.residuals import left_over

_FLOOR = -30
_WEIGHT = 65535
_CODECS = ("int16", "int8", "topk-512-4", "topk-512-3", "topk-256-4", "topk-64-2")
_STEPS = ("encode", "parse", "norm", "add", "values", "left", "mean")


def vector(count: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Return values as a gradient has them: around 0.001, of different sizes in each chunk."""
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.integers(-4, 5, -(-count // 4096))).repeat(4096)[:count]
    return (1e-3 * sizes * rng.standard_normal(count)).astype(np.float32)


def measured(codec: str, count: int, repeats: int) -> tuple[int, list[float]]:
    """Return the bytes of a body, and the median milliseconds of CPU of each step."""
    values, sums = vector(count), Sum(count, _FLOOR)
    data = encode(codec, values, _FLOOR)
    times: list[list[float]] = []
    for _ in range(repeats):
        body = parse(codec, data, count)  # a new one each time: a body keeps its norm
        steps: tuple[Callable[[], object], ...] = (
            lambda: encode(codec, values, _FLOOR),
            lambda: parse(codec, data, count),
            partial(getattr, body, "norm_square"),
            partial(sums.add, body, 0, _WEIGHT),
            partial(body.values, _FLOOR),
            partial(left_over, values, body, _FLOOR),
            lambda: sums.mean(_WEIGHT),
        )
        times.append([timed(step) for step in steps])
    return len(data), [statistics.median(taken) for taken in zip(*times, strict=True)]


def timed(step: Callable[[], object]) -> float:
    """Return the milliseconds of this thread's CPU that a call takes: other programs on the machine change little of that."""
    started_s = time.thread_time()
    step()
    return 1000 * (time.thread_time() - started_s)


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--codecs", nargs="+", default=_CODECS, metavar="NAME")
    parser.add_argument("--counts", type=int, nargs="+", default=[226_000, 2_900_000, 13_000_000], metavar="N")
    parser.add_argument("--repeats", type=int, default=7, metavar="N")
    arguments = parser.parse_args()
    print(f"milliseconds of CPU, median of {arguments.repeats}")
    print(f"{'codec':<12}{'values':>12}{'bytes a value':>15}{'fp16 / it':>11}" + "".join(f"{name:>8}" for name in _STEPS))
    for codec in arguments.codecs:
        for count in arguments.counts:
            num_bytes, figures = measured(codec, count, arguments.repeats)
            line = f"{codec:<12}{count:>12,}{num_bytes / count:>15.4f}{2 * count / num_bytes:>11.1f}"
            line += "".join(f"{figure:>8.1f}" for figure in figures)
            steps_ms = dict(zip(_STEPS, figures, strict=True))
            results.say(line, codec=codec, values=count, body_bytes=num_bytes, cpu_ms=steps_ms)
    results.write(arguments)


if __name__ == "__main__":
    main()
