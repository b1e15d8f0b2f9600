"""What the gradient of a depthwise convolution's weights costs: by torch alone, and three columns at a time (``automl.models.gradients``).

    .venv/bin/python benchmarks/depthwise.py [--batch 16] [--threads 1] [--times 9]

Prints, for shapes of ``classifier-base``, the median milliseconds of all cores of the convolution, and of both its gradients either way.
The two take turns.
"""

import statistics
import time
from collections.abc import Callable

import results
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.environment import keep_freed_memory
from manta_swarm.automl.models.gradients import convolve

_SHAPES = ((144, 32, 7), (144, 32, 5), (240, 16, 7), (240, 16, 5), (480, 8, 7), (480, 8, 5), (960, 4, 7), (960, 4, 5), (960, 7, 7))


def milliseconds(work: Callable[[], object]) -> float:
    """Return the milliseconds of all cores of a call."""
    started_s = time.process_time()
    work()
    return 1000 * (time.process_time() - started_s)


def compared(channels: int, side: int, kernel: int, batch: int, times: int) -> tuple[float, float, float]:
    """Return the medians of the convolution, of its gradients by torch, and of those by this project."""
    x_BCHW = torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(channels, 1, kernel, kernel, requires_grad=True)
    pull = torch.randn(x_BCHW.shape).contiguous(memory_format=torch.channels_last)

    def plain() -> Tensor:
        return F.conv2d(x_BCHW, weight, padding=kernel // 2, groups=channels)

    def backward(made: Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(made, (x_BCHW, weight), pull)

    taken: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(times + 1):
        for into, work in zip(taken, (plain, backward(plain()), backward(convolve(x_BCHW, weight, 1, channels))), strict=True):
            into.append(milliseconds(work))
    forward, by_torch, here = (statistics.median(each[1:]) for each in taken)  # the first ones warm up
    return forward, by_torch, here


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--batch", type=int, default=16, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--times", type=int, default=9, metavar="N")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    keep_freed_memory()  # as the programs that train do
    print(f"batches of {arguments.batch}, {arguments.threads} threads, median of {arguments.times}")
    for channels, side, kernel in _SHAPES:
        forward, by_torch, here = compared(channels, side, kernel, arguments.batch, arguments.times)
        results.say(
            f"  {channels:3} channels of {side:2} x {side:2}, {kernel} x {kernel}: forward {forward:6.1f} ms  "
            f"gradients by torch {by_torch:6.1f}  here {here:6.1f}  ratio {by_torch / here:5.2f}",
            channels=channels,
            side=side,
            kernel=kernel,
            forward_ms=forward,
            torch_gradients_ms=by_torch,
            here_gradients_ms=here,
        )
    results.write(arguments)


if __name__ == "__main__":
    main()
