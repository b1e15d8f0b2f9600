"""What a peer gets out of a GPU: microbatches a second of worker processes on it, and how far its gradients are from the CPU's.

    .venv/bin/python benchmarks/gpu.py [--supernet classifier-tiny] [--microbatches 48] [--samples 128] [--devices cuda:0,cpu] [--px 224]
        [--trained 0]

Each worker pool (one worker on each device named, one on the first GPU that replays recorded microbatches, and two there) trains the same
microbatches, the largest, the smallest and random architectures in turn, as a peer does: data and copies included. The tiny classifiers
learn digits, the other ones noise of --px pixels, stereo the layers. Prints samples a second of each worker pool, and how long a pause
takes until the GPU's memory is free; where a worker makes its samples, and how much of a second a microbatch spends in that (on the CPU and
on the GPU), in the network, eager and, in fp32, replayed, and in copies. Then, for each precision (fp32 is what swarms use) and
architecture: the relative difference of a microbatch's gradient on the GPU and on the CPU, and whether the GPU gives the same bits twice;
with --trained after so many steps on the CPU.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

import numpy as np
import results
import torch
from torch import Tensor
from workers import architectures_of, timed

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.devices import CudaGraphs
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.precisions import PRECISIONS
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker, fetch
from manta_swarm.peer.workers.devices import Device
from manta_swarm.peer.workers.processes import ProcessPool, WorkerData
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices

_IMAGES = 512  # of noise
_RATE = 0.05
_KEY, _BASE = b"k" * 32, b"b" * 32


def dataset_for(space: SearchSpace, px: int) -> Dataset:
    """Return data that the supernet fits."""
    if space.task == "stereo":
        return load_dataset("layers")
    found = load_dataset("digits")
    if space.image_channels == 1:
        return found
    numbers = np.random.default_rng(0)
    images = numbers.integers(0, 256, (_IMAGES, space.image_channels, px, px), np.uint8)
    labels = numbers.integers(0, space.num_classes, _IMAGES)
    return ImageDataset("noise", 255, space.num_classes, images, labels, images[:2], labels[:2])


async def rates(
    space: SearchSpace,
    data: Dataset,
    devices: Sequence[Device],
    asked: Sequence[Architecture],
    microbatches: int,
    samples: int,
    *,
    records: bool,
) -> str:
    """Return the samples a second of a worker pool, and what a pause takes where it is on a GPU."""
    weights = weights_of(space)
    pool = ProcessPool(space.name, WorkerData.of(data, None), devices, cuda_graphs=records)
    try:
        await pool.start()
        while len(pool.present()) < len(devices):
            await pool.changes.next()
        await pool.load(weights, None)
        await timed(pool, asked, 2 * len(asked) * len(devices), samples, 0)  # warms up
        taken = [(await timed(pool, asked, microbatches, samples, 0))[0].seconds for _ in range(3)]
        line = f"{microbatches * samples / statistics.median(taken):,.0f} samples/s"
        if devices[0].name == "cpu":
            return line
        held = free_bytes(devices[0].name)
        started_s = time.perf_counter()
        await pool.pause()
        took_s = time.perf_counter() - started_s
        return f"{line}; a pause gave {(free_bytes(devices[0].name) - held) / 1e9:.1f} GB back in {took_s:.2f} s"
    finally:
        await pool.close()


def free_bytes(device: str) -> int:
    """Return how much of a GPU's memory nobody has."""
    return int(torch.cuda.mem_get_info(device)[0])


def weights_of(space: SearchSpace) -> Tensor:
    """Return weights to begin with."""
    supernet = build(space)
    supernet.initialise(torch.Generator().manual_seed(0))
    return supernet.flat_weights_N


def microbatch_of(architecture: Architecture, samples: int) -> Microbatch:
    """Return a microbatch of an architecture."""
    return Microbatch(1, _BASE, 0, _KEY, 0, architecture, samples)


def parts(worker: Worker, dataset: Dataset, microbatch: Microbatch, made_on: str) -> str:
    """Return where a microbatch's time goes, with its samples made on the device ``made_on``."""
    identity = (microbatch.run_seed, microbatch.base, microbatch.step, microbatch.key, microbatch.index)
    indices = sample_indices(*identity, dataset.num_train, microbatch.samples)
    times: list[tuple[float, float, float]] = []
    for _ in range(8):
        begun = time.perf_counter()
        batch = dataset.training_batch(indices, microbatch_seed(*identity), microbatch.architecture.resolution, device=made_on)
        torch.cuda.synchronize()
        made = time.perf_counter()
        loss = worker.backward(batch, microbatch.architecture)
        torch.cuda.synchronize()
        computed = time.perf_counter()
        fetch(worker._supernet.flat_gradient_N, loss, microbatch.samples)
        times.append((made - begun, computed - made, time.perf_counter() - computed))
    data, device, fetching = (1000 * statistics.median(each[part] for each in times[3:]) for part in range(3))
    return f"samples on {made_on} {data:.1f} ms, device {device:.1f} ms, copies {fetching:.1f} ms"


def compare(here: MicrobatchResult, there: MicrobatchResult) -> str:
    """Return how far a result is from another one."""
    far = float((here.gradient - there.gradient).norm() / there.gradient.norm())
    return f"gradient {far:.1e}, loss {abs(here.loss - there.loss):.1e}"


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--supernet", default="classifier-tiny", metavar="NAME")
    parser.add_argument("--microbatches", type=int, default=48, metavar="N")
    parser.add_argument("--samples", type=int, default=128, metavar="N", help="of a microbatch")
    parser.add_argument("--devices", default="cuda:0,cpu", metavar="NAMES")
    parser.add_argument("--trained", type=int, default=0, metavar="N", help="steps before the comparison")
    parser.add_argument("--px", type=int, default=224, metavar="N", help="side of the images of noise")
    arguments = parser.parse_args()
    names = arguments.devices.split(",")
    if not torch.cuda.is_available() or not names[0].startswith("cuda"):
        parser.error("the first of --devices is to be a GPU that is there")
    try:
        space = space_named(arguments.supernet)
    except UserError as error:
        parser.error(str(error))
    dataset, asked, threads = dataset_for(space, arguments.px), architectures_of(space), torch.get_num_threads()
    print(
        f"{space.name}, {build(space, 'meta').num_weights:,} weights, microbatches of {arguments.samples}, "
        f"{torch.cuda.get_device_name(names[0])}"
    )
    pools = [([Device(name, threads)], False) for name in names]
    pools += [([Device(names[0], threads)], True), ([Device(names[0], max(1, threads // 2))] * 2, False)]
    for devices, records in pools:
        line = asyncio.run(rates(space, dataset, devices, asked, arguments.microbatches, arguments.samples, records=records))
        pool = " + ".join(each.name for each in devices) + (", replayed" if records else "")
        results.say(f"  {pool:<20} {line}", pool=pool, rates=line)
    here, weights = Worker(space.name, dataset), weights_of(space)
    here.load(weights)
    for index in range(arguments.trained):
        microbatch = Microbatch(2, _BASE, 0, _KEY, index, asked[index % len(asked)], arguments.samples)
        weights -= _RATE * here.train(microbatch).gradient
        here.load(weights)
    for precision in PRECISIONS:
        there = Worker(space.name, dataset, names[0], precision=precision)
        there.load(weights)
        there.warm_up()
        print(f"  {precision}: its samples are made on {there.makes_samples}")
        for made_on in ("cpu", names[0]):
            line = parts(there, dataset, microbatch_of(asked[0], arguments.samples), made_on)
            results.say(f"  {precision}: largest, a microbatch: {line}", precision=precision, architecture="largest", parts=line)
        differences(there, here, asked, arguments.samples, precision)
    replaying = Worker(space.name, dataset, names[0], recorder=CudaGraphs())
    replaying.load(weights)
    for name, architecture in zip(("largest", "smallest"), asked, strict=False):
        line = parts(replaying, dataset, microbatch_of(architecture, arguments.samples), names[0])
        results.say(f"  fp32, replayed: {name}, a microbatch: {line}", precision="fp32, replayed", architecture=name, parts=line)
    results.write(arguments)


def differences(there: Worker, here: Worker, asked: Sequence[Architecture], samples: int, precision: str) -> None:
    """Print how far the microbatches of a GPU are from the CPU's."""
    for name, architecture in zip(("largest", "smallest", "random 1", "random 2"), asked, strict=True):
        microbatch = microbatch_of(architecture, samples)
        result, again = there.train(microbatch), there.train(microbatch)
        same = "the same bits twice" if torch.equal(result.gradient, again.gradient) else "other bits the second time"
        line = f"{compare(result, here.train(microbatch))}; {same}"
        results.say(f"    {name:<9} GPU against CPU: {line}", precision=precision, architecture=name, against_cpu=line)


if __name__ == "__main__":
    main()
