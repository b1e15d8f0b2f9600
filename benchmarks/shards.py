"""What a set in shards costs: memory and time of microbatches at 224 pixels, for sets of more and more samples.

    python benchmarks/shards.py                     # 1,000, 4,000 and 16,000 pictures of 500 x 375: 0.5 to 8.4 GiB
    python benchmarks/shards.py --samples 200000    # as many as there is room for (about 20 kB each)
    python benchmarks/shards.py --travel 1024       # instead: so many MiB in shards of 64 MiB from two nodes to a third, on loopback

Few distinct pictures (noise, as JPEG) under many names. Each set is read by a process of its own, whose peak stands beside that
of one that has only opened the set. Times are of ``training_batch`` alone, on as many threads as --threads says.
"""

import argparse
import asyncio
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import results
from PIL import Image

_DISTINCT = 20
_SIDES = (375, 500)
_MICROBATCH = 32
_SHARD_MIB = 64


def main() -> None:
    """Measure and print."""
    parser = results.parser(__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[1000, 4000, 16000])
    parser.add_argument("--microbatches", type=int, default=100, help=f"of {_MICROBATCH} samples")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--travel", type=int, metavar="MIB", help="measure how fast shards travel")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        _read(arguments.read, arguments.microbatches, arguments.threads)
        return
    if arguments.travel is not None:
        with tempfile.TemporaryDirectory(prefix="manta-shards-") as folder:
            asyncio.run(_travel(Path(folder), arguments.travel))
        results.write(arguments)
        return
    print(f"{'samples':>9} {'decoded':>9} {'shards':>8} {'made':>9} {'opened':>9} {'peak':>9} {'a microbatch':>9}")
    for samples in arguments.samples:
        with tempfile.TemporaryDirectory(prefix="manta-shards-") as folder:
            _measure(Path(folder), samples, arguments.microbatches, arguments.threads)
    results.write(arguments)


def _measure(folder: Path, samples: int, microbatches: int, threads: int) -> None:
    import torch

    from manta_swarm.automl.data.shards.writing import shard_images

    torch.set_num_threads(threads)
    _write(folder / "own", samples)
    begin = time.monotonic()
    list_ = shard_images(folder / "own", folder / "noise", lambda *_: None)
    made_s = time.monotonic() - begin
    command = [sys.executable, __file__, "--read", str(folder), "--threads", str(threads)]
    opened, read = (
        subprocess.run([*command, "--microbatches", str(count)], capture_output=True, text=True, check=True).stdout.split()
        for count in (0, microbatches)
    )
    decoded_gib = samples * 3 * _SIDES[0] * _SIDES[1] / 2**30
    results.say(
        f"{samples:9,} {decoded_gib:5.1f} GiB {len(list_.shards):8} {made_s:7.1f} s {opened[0]:>5} MiB {read[0]:>5} MiB {read[1]:>6} ms",
        samples=samples,
        shards=len(list_.shards),
        made_s=made_s,
        opened_mib=int(opened[0]),
        read_mib=int(read[0]),
        microbatch_ms=int(read[1]),
    )


def _write(folder: Path, samples: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(_DISTINCT):
        own = folder / f"class-{number % 10}"
        own.mkdir(parents=True, exist_ok=True)
        first = own / f"{number}-0.jpg"
        Image.fromarray(rng.integers(0, 256, (38, 50, 3), dtype=np.uint8)).resize(_SIDES[::-1]).save(first)
        for copy in range(1, samples // _DISTINCT):
            os.link(first, own / f"{number}-{copy}.jpg")


def _read(folder: Path, microbatches: int, threads: int) -> None:
    import torch

    from manta_swarm.automl.data.catalog import load_dataset

    torch.set_num_threads(threads)
    dataset = load_dataset("shards-noise", folder)
    rng = np.random.default_rng(1)
    begin = time.monotonic()
    for microbatch in range(microbatches):
        dataset.training_batch(rng.integers(0, dataset.num_train, _MICROBATCH).tolist(), microbatch, 224)
    microbatch_ms = (time.monotonic() - begin) / max(microbatches, 1) * 1000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, f"{microbatch_ms:.0f}")


async def _travel(folder: Path, size_mib: int) -> None:
    """Time files on their way, against the same bytes copied and hashed by one process."""
    from manta_swarm.network.blobs import Blob, BlobStore
    from manta_swarm.network.fetching import fetch_file
    from manta_swarm.network.file_blobs import FileBlob, FileName
    from manta_swarm.network.node import Node
    from manta_swarm.protocol.manifest import PIECE_BYTES
    from manta_swarm.runtime.disk import load_identity, make_directory

    sizes = [min(_SHARD_MIB, size_mib - start) << 20 for start in range(0, size_mib, _SHARD_MIB)]
    nodes: list[Node] = []
    for name in ("one", "other", "third"):
        make_directory(folder / name)
        path = folder / name / "identity.key"
        met = await nodes[0].addresses() if nodes else []
        nodes.append(await Node.start(load_identity(path), path, listen=["/ip4/127.0.0.1/tcp/0"], initial_peers=met))
    blob_stores, names, rng = [BlobStore(max_bytes=0) for _ in nodes[:2]], list[FileName](), np.random.default_rng(0)
    for number, size in enumerate(sizes):
        data = rng.bytes(size)
        file_name = FileName(folder / "third" / str(number), Blob.cut(data, PIECE_BYTES).root, size, PIECE_BYTES)
        names.append(file_name)
        for blob_store, where in zip(blob_stores, ("one", "other"), strict=True):
            name_there = replace(file_name, path=folder / where / str(number))
            name_there.path.write_bytes(data)
            blob_store.lend(file_name.root, FileBlob(name_there))
    for blob_store, node in zip(blob_stores, nodes, strict=False):
        await blob_store.serve(node)
    print(f"{'sources':>8} {'time':>8} {'rate':>11}")
    for count in (1, 2):
        begin = time.monotonic()
        for wanted in names:
            await fetch_file(nodes[2], wanted, [node.key for node in nodes[:count]], deadline_s=600)
        took_s = time.monotonic() - begin
        results.say(f"{count:8} {took_s:6.1f} s {size_mib / took_s:5.0f} MiB/s", sources=count, mib=size_mib, seconds=took_s)
        for wanted in names:
            wanted.path.unlink()
    begin = time.monotonic()
    for number in range(len(names)):
        data = (folder / "one" / str(number)).read_bytes()
        hashlib.sha256(data)
        with (folder / "third" / str(number)).open("wb") as file:
            file.write(data)
            os.fsync(file.fileno())
    took_s = time.monotonic() - begin
    results.say(f"{'copied':>8} {took_s:6.1f} s {size_mib / took_s:5.0f} MiB/s", sources=0, mib=size_mib, seconds=took_s)
    for node in nodes:
        await node.close()


if __name__ == "__main__":
    main()
