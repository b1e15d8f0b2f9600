"""A labelled set in parts, as owners who see different classes would have it: each part's share of a class is drawn (Dirichlet).

For trying out private data on one computer, and for benchmarks (arXiv 1909.06335, section 3: identicalness by the concentration).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from manta_swarm.automl.data.images import ImageDataset, Indices
from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.protocol.errors import UserError

_TRIES = 1000
_WHITE = 255


def dirichlet_split(labels_N: Indices, num_parts: int, alpha: float, seed: int, least: int = 1) -> list[Indices]:
    """Return the samples of each part, sorted; together they are all samples, each once.

    Args:
        labels_N: of the samples.
        num_parts: at least one.
        alpha: concentration, above 0: 0.1 gives most parts a class or two, 100 all of them about the same.
        seed: of the shares, and of who gets which samples.
        least: samples that each part has to have; shares are drawn again until it has.

    Raises:
        UserError: that does not come about.
    """
    if num_parts < 1 or alpha <= 0 or least * num_parts > len(labels_N):
        raise UserError(f"{len(labels_N)} samples cannot be split into {num_parts} parts of at least {least}: ask for fewer parts")
    rng = np.random.default_rng(seed)
    for _ in range(_TRIES):
        parts: list[list[Indices]] = [[] for _ in range(num_parts)]
        for label in np.unique(labels_N):
            members = rng.permutation(np.flatnonzero(labels_N == label))
            cuts = (np.cumsum(rng.dirichlet([alpha] * num_parts))[:-1] * len(members)).astype(np.int64)
            for part, some in zip(parts, np.split(members, cuts), strict=True):
                part.append(some)
        split = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, split)) >= least:
            return split
    raise UserError(f"no split into {num_parts} parts of at least {least} samples came about: ask for fewer parts, or a larger alpha")


def part_of(dataset: ImageDataset, train: Indices, held_out: Indices) -> ImageDataset:
    """Return the set that has only some of another one's training images; what it holds out are also some of these."""
    images, labels = dataset.train_images, dataset.train_labels
    return replace(
        dataset,
        train_images=images[train],
        train_labels=labels[train],
        held_out_images=images[held_out],
        held_out_labels=labels[held_out],
    )


def write_class_folders(dataset: ImageDataset, chosen: Sequence[int], folder: Path) -> None:
    """Write some training images as PNG files, a folder for each of their classes; the folder is new.

    Raises:
        UserError: a name that is no folder's, or the disk refuses.
    """
    try:
        for index in chosen:
            own = folder / dataset.class_names[dataset.train_labels[index]]
            own.mkdir(parents=True, exist_ok=True)
            _image(dataset.train_images[index], dataset.white).save(own / f"{index:07}.png")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another place with --out") from error


def _image(planes_CHW: Pixels, white: int) -> Image.Image:
    levels = (planes_CHW.astype(np.int64) * _WHITE + white // 2) // white
    pixels = levels.astype(np.uint8)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
