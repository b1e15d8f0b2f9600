"""A set larger than the memory that its program may take, trained on at 224 pixels. The limit is the system's, in a process of its own."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manta_swarm.automl.data.shards.writing import shard_images
from tests import forked

_DISTINCT, _COPIES, _SIDES = 10, 16, (600, 800)
_ALLOWED_BYTES = 208 << 20  # on top of what the libraries take; the pictures have 230 MB, of which 16 MiB are kept


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
    found = forked.run("tests.automl.data.little_memory", tmp_path, str(_ALLOWED_BYTES))
    assert found.stdout.split("\n")[:2] == [f"seen {_DISTINCT * _COPIES}", "too large to be kept"], found.stderr
