"""Small files of the formats that data sets come in, written by other means than those that read them."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from manta_swarm.automl.data.views import Pair

Array = npt.NDArray[np.generic]


def write_picture(path: Path, levels: Array) -> Path:
    """Write (H, W) or (H, W, 3) levels, of 8 or (PNG, grey) 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(levels).save(path)
    return path


def write_classes(folder: Path, counts: Mapping[str, int], *shape: int, first: int = 0) -> Path:
    """Write so many pictures of each class, each of other noise, and return the folder."""
    for label, (name, count) in enumerate(counts.items()):
        for number in range(count):
            write_picture(folder / name / f"{number:02}.png", noise(*shape, seed=first + 100 * label + number))
    return folder


def write_pfm(path: Path, values: npt.NDArray[np.float32], *, big_endian: bool = False) -> Path:
    """Write (H, W) values as a grey PFM file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"Pf\n{values.shape[1]} {values.shape[0]}\n{1.0 if big_endian else -1.0}\n".encode()
    rows = [struct.pack(f"{'>' if big_endian else '<'}{len(row)}f", *row.tolist()) for row in values[::-1]]
    path.write_bytes(head + b"".join(rows))
    return path


def write_idx(path: Path, values: npt.NDArray[np.uint8]) -> Path:
    """Write an array as a file of the MNIST format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes())
    return path


def noise(*shape: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return random levels."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pair(rows: int = 40, columns: int = 90, seed: int = 0) -> Pair:
    """Noise, with disparities that tell where a pixel was: a tenth of them unknown."""
    disparity = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    disparity[np.random.default_rng(seed).random((rows, columns)) < 0.1] = -1
    return Pair(noise(rows, columns, 3, seed=seed), noise(rows, columns, 3, seed=seed + 1), disparity)


def cut(path: Path, kept: float = 0.6) -> None:
    """Leave only the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])


def nothing(_done: int, _total: int) -> None:
    """Listen to what is being done, and do nothing."""
