"""What elasticity costs: a training step of the supernet against one of the plain network extracted from it, same architecture.

    .venv/bin/python benchmarks/supernet.py [--supernet classifier-base] [--resolution 128] [--batch 16] [--threads 2] [--steps 20]

A step is: zero the gradients, forward, loss, backward. The two take turns, so that a machine that gets slower does so for both. Prints,
for the largest and five random architectures at one resolution, the median milliseconds of all cores of each and their ratio, and the
median of the ratios; --threads 1 where the machine has other work: threads that wait for each other count as at work. Where there is a
CUDA GPU: images a second of the base classifier in bfloat16, and the share of the GPU's matrix rate, which is measured too.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import results
import torch
from torch import Tensor, nn

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.stereo import PlainStereo
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import BASE, Architecture, SearchSpace, space_named
from manta_swarm.automl.training.microbatches import classification_loss, stereo_loss

_NUM_RANDOM = 5
_WARM_UP = 3
_GPU_BATCH = 256
_GPU_STEPS = 30
_MATRIX = 8192  # side of the matrices whose product shows the GPU's rate


def batch_of(space: SearchSpace, resolution: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets."""
    generator = torch.Generator().manual_seed(0)
    if space.task == "stereo":
        inputs = torch.rand(batch, 6, resolution, resolution * space.aspect, generator=generator)
        targets = 20 * torch.rand(batch, resolution, resolution * space.aspect, generator=generator)
    else:
        inputs = torch.rand(batch, space.image_channels, resolution, resolution, generator=generator)
        targets = torch.randint(space.num_classes, (batch,), generator=generator)
    return inputs.contiguous(memory_format=torch.channels_last), targets


def loss_of(outputs: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Return the task's loss, without a teacher."""
    return classification_loss(outputs, targets) if isinstance(outputs, Tensor) else stereo_loss(outputs, targets)


def plain_outputs(network: nn.Module, inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Return what training needs of a plain network: logits, or the disparities of all scales."""
    if isinstance(network, PlainStereo):
        return network.scales(inputs)
    logits: Tensor = network(inputs)
    return logits


def compared(space: SearchSpace, architecture: Architecture, batch: int, steps: int) -> tuple[float, float]:
    """Return the median milliseconds of all cores of an elastic and of a plain step."""
    supernet = build(space)
    supernet.initialise(torch.Generator().manual_seed(0))
    plain = supernet.extract(architecture).requires_grad_(True)
    inputs, targets = batch_of(space, architecture.resolution, batch)
    supernet.train()
    plain.train()

    def elastic_step() -> None:
        supernet.flat_gradient_N.zero_()
        loss_of(supernet(inputs, architecture), targets).backward()

    def plain_step() -> None:
        plain.zero_grad(set_to_none=True)
        loss_of(plain_outputs(plain, inputs), targets).backward()

    times: tuple[list[float], list[float]] = ([], [])
    for step in range(_WARM_UP + steps):
        for one, taken in zip((elastic_step, plain_step), times, strict=True):
            milliseconds = timed(one)
            if step >= _WARM_UP:
                taken.append(milliseconds)
    return statistics.median(times[0]), statistics.median(times[1])


def timed(step: Callable[[], None]) -> float:
    """Return the milliseconds of all cores of a call."""
    started_s = time.process_time()
    step()
    return 1000 * (time.process_time() - started_s)


def on_gpu() -> None:
    """Print the base classifier's images a second in bfloat16, and its share of the matrix rate."""
    device = torch.device("cuda")
    supernet = build(BASE, device)
    supernet.initialise(torch.Generator(device).manual_seed(0))
    supernet.train()
    architecture = BASE.largest()
    inputs, targets = (each.to(device) for each in batch_of(BASE, architecture.resolution, _GPU_BATCH))
    inputs = inputs.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        supernet.flat_gradient_N.zero_()
        with torch.autocast("cuda", torch.bfloat16):
            loss = classification_loss(supernet(inputs, architecture), targets)
        loss.backward()

    seconds = gpu_seconds(step)
    one, other = (torch.rand(_MATRIX, _MATRIX, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * _MATRIX**3 / gpu_seconds(lambda: multiply(one, other))
    used = 3 * 2 * macs(architecture, BASE) * _GPU_BATCH / seconds  # forward, and twice that backward
    results.say(
        f"{torch.cuda.get_device_name(0)}: {BASE.name} largest, bf16, batch {_GPU_BATCH}: {_GPU_BATCH / seconds:,.0f} images/s, "
        f"{100 * used / rate:.1f} % of the measured {rate / 1e12:.0f} TFLOP/s",
        images_a_second=_GPU_BATCH / seconds,
        share=used / rate,
    )


def multiply(one: Tensor, other: Tensor) -> None:
    """Multiply two matrices, and forget the product."""
    torch.matmul(one, other)


def gpu_seconds(step: Callable[[], None]) -> float:
    """Return the median seconds of a call on the GPU."""
    times = []
    for index in range(_WARM_UP + _GPU_STEPS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        if index >= _WARM_UP:
            times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times)


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--supernet", default=BASE.name, metavar="NAME")
    parser.add_argument("--resolution", type=int, metavar="PX", help="one of the space's  [default: the smallest]")
    parser.add_argument("--batch", type=int, default=16, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--steps", type=int, default=20, metavar="N")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    space = space_named(arguments.supernet)
    resolution = arguments.resolution or space.resolutions[0]
    if resolution not in space.resolutions:
        parser.error(f"{space.name} has the resolutions {', '.join(map(str, space.resolutions))}, not {resolution}")
    print(f"{space.name} at {resolution} px, batch {arguments.batch}, {arguments.threads} threads, median of {arguments.steps} steps")
    sampled = [space.sample(random.Random(f"step:{index}")) for index in range(_NUM_RANDOM)]
    ratios = []
    for name, architecture in [("largest", space.largest()), *((f"random {index + 1}", one) for index, one in enumerate(sampled))]:
        elastic, plain = compared(space, replace(architecture, resolution=resolution), arguments.batch, arguments.steps)
        ratios.append(elastic / plain)
        line = f"  {name:<9} elastic {elastic:8.2f} ms  plain {plain:8.2f} ms  ratio {ratios[-1]:.3f}"
        results.say(line, architecture=name, elastic_ms=elastic, plain_ms=plain)
    print(f"median ratio {statistics.median(ratios):.3f}")
    if torch.cuda.is_available():
        on_gpu()
    results.write(arguments)


if __name__ == "__main__":
    main()
