"""Channel sorting: puts the expanded channels that matter most first, so that a smaller width, which is a prefix, keeps them.

Part of the exact update: sums are of doubles in the order of the index, the sort is stable, and moments move along with their weights. The
largest network computes what it did before, but for the order of its sums.

Shapes: N all weights, O channels out, E expanded channels, C channels in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from automl.models.networks import build
from automl.models.searchable import Elastic
from automl.spaces.space import space_named

Span = tuple[int, int]  # start and stop in the flat vector


@dataclass(frozen=True, slots=True)
class _Group:
    """Where in the flat vector the expanded channels of one layer are."""

    channels: int
    blocks: int  # they stay in theirs; see ``LayerShape``
    rows: tuple[Span, ...]  # (E, ...)
    columns: tuple[Span, ...]  # (O, E) or (S, E)
    project: Span  # (O, E)


@cache
def _groups(supernet_name: str) -> tuple[_Group, ...]:
    supernet = build(space_named(supernet_name))
    slices, groups = supernet.slices(), []
    for name, layer in supernet.named_modules():
        if isinstance(layer, Elastic):
            rows, columns = (tuple(slices[f"{name}.{part}"] for part in parts) for parts in layer.expanded_parts())
            groups.append(_Group(layer.project.shape[1], layer.shape.blocks, rows, columns, slices[f"{name}.project"]))
    return tuple(groups)


def sort_channels(parameters_N: Tensor, moments: Sequence[Tensor], supernet_name: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the parameters and the moments with each layer's expanded channels in falling order of importance.

    A channel's importance is the sum of the magnitudes of its projecting weights (arXiv:1908.09791, section 3.3).
    """
    vectors = [vector.clone() for vector in (parameters_N, *moments)]
    for group in _groups(supernet_name):
        order = torch.from_numpy(_order(parameters_N[slice(*group.project)].view(-1, group.channels), group.blocks))
        for vector in vectors:
            for span in group.rows:
                rows = vector[slice(*span)].view(group.channels, -1)
                rows.copy_(rows[order])
            for span in group.columns:
                columns = vector[slice(*span)].view(-1, group.channels)
                columns.copy_(columns[:, order])
    return vectors[0], tuple(vectors[1:])


def _order(project_OE: Tensor, blocks: int) -> npt.NDArray[np.int64]:
    """Return the channels of each block by falling importance, equal ones in the order they have."""
    importance_E = np.zeros(project_OE.shape[1])
    for row_E in project_OE.numpy():  # one row after the other: a reduction would add in an order that differs between machines
        importance_E = importance_E + np.abs(row_E.astype(np.float64))
    in_blocks = importance_E.reshape(blocks, -1)
    places = np.argsort(-in_blocks, axis=1, kind="stable").astype(np.int64)
    return (places + in_blocks.shape[1] * np.arange(blocks)[:, None]).ravel()
