"""Synthetic stereo pairs as two sites have them, each a view: in memory, or in files."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from manta_swarm.automl.data.layered import layers
from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.views import LEFT, RIGHT, UNKNOWN, Pair, StereoDataset
from tests.automl.data.files import write_pfm, write_picture


def few_pairs(count: int = 40) -> StereoDataset:
    """Return some of the synthetic pairs, with names."""
    both = layers()
    names = tuple(f"scene{index:02}" for index in range(count + 2))
    return StereoDataset("stereo-few", both.train[:count], both.held_out[:2], scenes=names)


def at_site(both: StereoDataset, view: str) -> StereoDataset:
    """Return a data set without what the site of a view does not have."""

    def make(pair: Pair) -> Pair:
        black = np.zeros_like(pair.left)
        if view == LEFT:
            return Pair(pair.left, black, pair.disparity)
        return Pair(black, pair.right, np.full_like(pair.disparity, UNKNOWN))

    train, held_out = (LazyPairs(lambda index, of=of: make(of[index]), len(of)) for of in (both.train, both.held_out))  # type: ignore[misc]
    return replace(both, train=train, held_out=held_out)


def write_scenes(root: Path, count: int) -> None:
    """Write pairs as a folder "scenes" in root/both, and what each site has of them in root/left and root/right."""
    for index in range(count):
        pair, name = layers().train[index], f"scene{index:02}"
        for place in (LEFT, "both"):
            write_picture(root / place / "scenes" / "left" / f"{name}.png", pair.left)
            write_pfm(root / place / "scenes" / "disparity" / f"{name}.pfm", pair.disparity)
        for place in (RIGHT, "both"):
            write_picture(root / place / "scenes" / "right" / f"{name}.png", pair.right)
