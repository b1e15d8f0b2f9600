"""A set larger than the memory that its program may take, trained on at 224 pixels. The limit is the system's, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manta_swarm.automl.data.shards.writing import shard_images

_DISTINCT, _COPIES, _SIDES = 10, 16, (600, 800)
_ALLOWED_BYTES = 208 << 20  # on top of what the libraries take; the pictures have 230 MB, of which 16 MiB are kept

_PROGRAM = """
import resource, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, psutil, torch
from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.models.networks import build

torch.set_num_threads(1)
dataset = ShardedImages("shards-noise", open_shards(Path(sys.argv[1]) / "noise"), kept_bytes=16 << 20)
space = space_named("classifier-base-3x2")
worker = Worker(space.name, dataset)
supernet = build(space)
supernet.initialise(torch.Generator().manual_seed(0))
worker.load(supernet.flat_weights_N)
allowed = psutil.Process().memory_info().data + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
architecture = space.smallest()

for index in range(2):
    result = worker.train(Microbatch(0, bytes(32), 0, bytes(32), index, replace(architecture, resolution=224), 4))
    assert result.gradient.isfinite().all()
seen = sum(len(dataset.training_batch(range(start, start + 8), 0, 224).inputs) for start in range(0, dataset.num_train, 8))
seen += sum(len(batch.inputs) for batch in dataset.held_out_batches(224, 8))
print("seen", seen)
try:
    kept = [np.array(dataset.shards.sample(place)) for place in range(dataset.num_train)]
except MemoryError:
    print("too large to be kept")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound a process's memory")
def test_a_set_larger_than_the_memory_is_trained_on_at_224_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(_DISTINCT):
        folder = tmp_path / "pictures" / f"class-{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(_SIDES[::-1])
        picture.save(first := folder / f"{number}-0.jpg")
        for copy in range(1, _COPIES):
            os.link(first, folder / f"{number}-{copy}.jpg")
    list_ = shard_images(tmp_path / "pictures", tmp_path / "noise", lambda *_: None, shard_bytes=1 << 20)
    assert len(list_.shards) > 2
    assert _DISTINCT * _COPIES * 3 * _SIDES[0] * _SIDES[1] > _ALLOWED_BYTES
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), str(_ALLOWED_BYTES)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert found.stdout.split("\n")[:2] == [f"seen {_DISTINCT * _COPIES}", "too large to be kept"], found.stderr
