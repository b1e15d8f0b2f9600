"""One side of ``benchmarks/supernet.py --against``: trains microbatches as a peer does, with the code that PYTHONPATH names.

    PYTHONPATH=CHECKOUT .venv/bin/python benchmarks/supernet_microbatches.py SUPERNET RESOLUTION SAMPLES THREADS microbatches

Prints the milliseconds of a microbatch, the milliseconds of all cores, and the MiB of the process at their most. Also runs with code from
before the modules of automl had the names that they have now.
"""

import argparse
import importlib
import importlib.util
import random
import resource
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

_SIDE, _IMAGES = 160, 256  # of the noise that the classifier is trained on; stereo pairs are synthetic ones
_RANDOM = 2  # architectures besides the largest and the smallest


def first_of(*names: str) -> Any:
    """Return the first of these modules that there is."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise SystemExit(f"there is none of {', '.join(names)}: is PYTHONPATH a checkout of this project?")


def data_for(space: Any) -> Any:
    """Return what the microbatches are drawn from."""
    if space.task == "stereo":
        return first_of("manta_swarm.automl.data.catalog").load_dataset("layers", None)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (_IMAGES, space.image_channels, _SIDE, _SIDE), dtype=np.uint8)
    labels = generator.integers(0, space.num_classes, _IMAGES)
    data = first_of("manta_swarm.automl.data.images")
    return data.ImageDataset("noise", 255, space.num_classes, images, labels, images[:8], labels[:8], flips=True)


def main(name: str, resolution: int, samples: int, threads: int, num_microbatches: int) -> None:
    """Train microbatches and print what they took."""
    microbatches = first_of("manta_swarm.automl.training.microbatches", "manta_swarm.automl.training")
    space = first_of("manta_swarm.automl.spaces.space", "automl.space").space_named(name)
    torch.set_num_threads(threads)
    worker = microbatches.Worker(name, data_for(space))
    supernet = first_of("manta_swarm.automl.models.networks", "automl.networks").build(space)
    supernet.initialise(torch.Generator().manual_seed(0))
    worker.load(supernet.flat_weights_N)
    chosen = [space.largest(), space.smallest(), *(space.sample(random.Random(f"microbatch:{index}")) for index in range(_RANDOM))]
    asked = [replace(architecture, resolution=resolution) for architecture in chosen]

    def train(index: int) -> None:
        worker.train(microbatches.Microbatch(1, b"base" * 8, 0, b"key!" * 8, index, asked[index % len(asked)], samples))

    for index in range(len(asked)):  # warms up
        train(index)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for index in range(len(asked), len(asked) + num_microbatches):
        train(index)
    took_ms, of_cores_ms = (1000 * seconds / num_microbatches for seconds in (time.perf_counter() - started_s, time.process_time() - cpu_s))
    print(took_ms, of_cores_ms, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def import_only_from_path() -> None:
    """Have nothing but PYTHONPATH say where the project is: an editable install would give older code the modules that it lacks."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "__module__", "").startswith("__editable__")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="SUPERNET")
    for number in ("resolution", "samples", "threads", "num_microbatches"):
        parser.add_argument(number, type=int, metavar="MICROBATCHES" if number == "num_microbatches" else number.upper())
    given = vars(parser.parse_args())
    import_only_from_path()
    memory = importlib.util.find_spec("manta_swarm.automl.environment") and importlib.import_module("manta_swarm.automl.environment")
    if memory:
        memory.keep_freed_memory()  # as the programs that train do
    main(**given)
