"""A program that trains on and looks at all of a set of shards, with so many bytes of memory besides what its libraries have taken."""

import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch

from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.microbatches import Microbatch, Worker


def main() -> None:
    """Print how many samples were seen, and whether all of them are too large to be kept."""
    torch.set_num_threads(1)
    dataset = ShardedImages("shards-noise", open_shards(Path(sys.argv[1]) / "noise"), kept_bytes=16 << 20)
    space = space_named("classifier-base-3x2")
    worker, supernet, architecture = Worker(space.name, dataset), build(space), space.smallest()
    supernet.initialise(torch.Generator().manual_seed(0))
    worker.load(supernet.flat_weights_N)
    allowed = psutil.Process().memory_info().data + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    for index in range(2):
        result = worker.train(Microbatch(0, bytes(32), 0, bytes(32), index, replace(architecture, resolution=224), 4))
        assert result.gradient.isfinite().all()
    seen = sum(len(dataset.training_batch(range(start, start + 8), 0, 224).inputs) for start in range(0, dataset.num_train, 8))
    seen += sum(len(batch.inputs) for batch in dataset.held_out_batches(224, 8))
    print("seen", seen)
    try:
        _ = [np.array(dataset.shards.sample(place)) for place in range(dataset.num_train)]
    except MemoryError:
        print("too large to be kept")


if __name__ == "__main__":
    main()
