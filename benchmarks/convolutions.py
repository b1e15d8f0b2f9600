"""What a training step takes for operations that this project computes in another way than torch: forward and backward, one thread.

    .venv/bin/python benchmarks/convolutions.py [--repeats 20]

Expansion, normalisation, ReLU and projection in layers of `stereo-tiny` (microbatches of 16) and of `stereo-base` (microbatches of 1); the
convolution to one channel that weighs the disparities of `stereo-tiny`; maps at twice their size. Both ways take turns. Prints the median
milliseconds of the processor of each, and their ratio.
"""

import statistics
import time
from collections.abc import Callable

import results
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manta_swarm.automl.environment import keep_freed_memory
from manta_swarm.automl.models.gradients import convolved, doubled
from manta_swarm.automl.models.layers import BATCH_NORM_EPSILON
from manta_swarm.automl.models.norms import projected

_WARM_UP = 3
_EXPANSIONS = ((32, 16, 64, 32, 64), (2, 32, 96, 160, 320), (2, 32, 192, 160, 320))  # batch, channels, expanded ones, height, width
_MAPS = ((8, 1, 32, 64), (8, 1, 16, 32))


def drawn(*shape: int) -> Tensor:
    """Return random values that want a gradient, in the memory layout of the networks."""
    values = torch.randn(shape)
    return (values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values).requires_grad_()


def compare(name: str, theirs: Callable[[], Tensor], ours: Callable[[], Tensor], inputs: list[Tensor], repeats: int) -> None:
    """Print what forward and backward take in both ways."""
    pull = drawn(*theirs().shape).detach()
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(_WARM_UP + repeats):
        for way, taken in zip((theirs, ours), times, strict=True):
            started_s = time.process_time()
            torch.autograd.grad(way(), inputs, pull)
            if repeat >= _WARM_UP:
                taken.append(1000 * (time.process_time() - started_s))
    there, here = map(statistics.median, times)
    line = f"{name:<48} torch {there:8.2f} ms  here {here:8.2f} ms  ratio {there / here:.2f}"
    results.say(line, operation=name, torch_ms=there, here_ms=here)


def compare_expansion(batch: int, channels: int, expanded: int, height: int, width: int, repeats: int) -> None:
    """Compare what the 1 x 1 convolutions of a layer take."""
    x, expand, project = drawn(batch, channels, height, width), drawn(expanded, channels, 1, 1), drawn(channels, expanded, 1, 1)
    weight, bias = drawn(expanded), drawn(expanded)

    def theirs() -> Tensor:
        y = F.batch_norm(F.conv2d(x, expand), None, None, weight, bias, training=True, eps=BATCH_NORM_EPSILON)
        return F.conv2d(F.relu(y, inplace=True), project)

    name = f"{channels} channels to {expanded} and back, {batch} x {height} x {width}"
    inputs = [x, expand, weight, bias, project]
    compare(name, theirs, lambda: projected(x, expand, weight, bias, project, BATCH_NORM_EPSILON), inputs, repeats)


def compare_doubling(x: Tensor, repeats: int) -> None:
    """Compare what a map at twice its size takes."""
    name = f"{' x '.join(map(str, x.shape))} doubled"
    compare(name, lambda: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False), lambda: doubled(x), [x], repeats)


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=20, metavar="N")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    torch.set_num_threads(1)
    keep_freed_memory()
    for shape in _EXPANSIONS:
        compare_expansion(*shape, repeats)
    score, hidden = nn.Conv2d(8, 1, 3, padding=1), drawn(128, 8, 16, 32)
    inputs = [hidden, *score.parameters()]
    compare("8 channels to 1, 128 x 16 x 32", lambda: score(hidden), lambda: convolved(hidden, score), inputs, repeats)
    for shape_BCHW in _MAPS:
        compare_doubling(drawn(*shape_BCHW), repeats)
    results.write(arguments)


if __name__ == "__main__":
    main()
