"""Channel sorting: puts the channels that matter most first, so that a smaller width, which is a prefix, keeps them: the expanded channels
of each layer, and where a unit has a choice of widths, those that it hands on.

Part of the exact update: sums are of doubles in the order of the index, the sort is stable, and moments move along with their weights. The
largest network computes what it did before, but for the order of its sums.

Shapes: N all weights, O channels out, E expanded channels, C channels in, W channels that a unit hands on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import SCALE_OF_UNIT, Elastic
from manta_swarm.automl.spaces.space import space_named

Span = tuple[int, int]  # start and stop in the flat vector
Columns = tuple[Span, int]  # and how many rows there are


@dataclass(frozen=True, slots=True)
class _Group:
    """Where in the flat vector the expanded channels of one layer are."""

    channels: int
    blocks: int  # they stay in theirs; see ``LayerShape``
    rows: tuple[Span, ...]  # (E, ...)
    columns: tuple[Columns, ...]  # (O, E) or (S, E)
    project: Span  # (O, E)


@dataclass(frozen=True, slots=True)
class _Handed:
    """Where in the flat vector the channels are that one unit hands on."""

    channels: int
    rows: tuple[Span, ...]  # (W, ...), or (W times as many, ...) where each channel has several filters of its own
    columns: tuple[Columns, ...]  # (..., W), or (..., W times as many)
    scales: tuple[Span, ...]  # (W,) of the normalisation that ends each layer


@cache
def _groups(supernet_name: str) -> tuple[tuple[_Group, ...], tuple[_Handed, ...]]:
    supernet = build(space_named(supernet_name))
    slices, groups, handed = supernet.slices(), [], []

    def rows_of(names: Iterable[str]) -> tuple[Span, ...]:
        return tuple(slices[name] for name in names)

    def columns_of(names: Iterable[str]) -> tuple[Columns, ...]:
        return tuple((slices[name], len(supernet.get_parameter(name))) for name in names)

    for name, layer in supernet.named_modules():
        if isinstance(layer, Elastic):
            rows, columns = ([f"{name}.{part}" for part in parts] for parts in layer.expanded_parts())
            project = slices[f"{name}.project"]
            groups.append(_Group(layer.project.shape[1], layer.shape.blocks, rows_of(rows), columns_of(columns), project))
    for unit, choices in enumerate(supernet.space.units):
        if choices.widths:
            rows, columns = supernet.handed_parts(unit)
            scales = [name for name in rows if name.endswith(SCALE_OF_UNIT)]
            handed.append(_Handed(choices.width, rows_of(rows), columns_of(columns), rows_of(scales)))
    return tuple(groups), tuple(handed)


def sort_channels(parameters_N: Tensor, moments: Sequence[Tensor], supernet_name: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the parameters and the moments with each layer's expanded channels in falling order of importance, and each unit's channels.

    An expanded channel's importance is the sum of the magnitudes of its projecting weights (arXiv:1908.09791, section 3.3); that of a
    channel that a unit hands on the sum of the magnitudes of what the unit's last normalisations scale it by (arXiv:1708.06519).
    """
    vectors = [vector.clone() for vector in (parameters_N, *moments)]
    groups, handed = _groups(supernet_name)
    for group in groups:
        order = torch.from_numpy(_order(parameters_N[slice(*group.project)].view(-1, group.channels), group.blocks))
        _reorder(vectors, order, group.rows, group.columns)
    for each in handed:
        scales_LW = torch.stack([parameters_N[slice(*span)] for span in each.scales])
        _reorder(vectors, torch.from_numpy(_order(scales_LW, 1)), each.rows, each.columns)
    return vectors[0], tuple(vectors[1:])


def _reorder(vectors: Sequence[Tensor], order: Tensor, rows: Sequence[Span], columns: Sequence[Columns]) -> None:
    """Put rows and columns in order; where there are several for each channel, they stay together."""
    for vector in vectors:
        for span in rows:
            of_channels = vector[slice(*span)].view(len(order), -1)
            of_channels.copy_(of_channels[order])
        for span, count in columns:
            of_channels = vector[slice(*span)].view(count, len(order), -1)
            of_channels.copy_(of_channels[:, order])


def _order(weights_OE: Tensor, blocks: int) -> npt.NDArray[np.int64]:
    """Return the channels of each block by falling importance, the magnitudes of a column; equal ones in the order they have."""
    importance_E = np.zeros(weights_OE.shape[1])
    for row_E in weights_OE.numpy():  # one row after the other: a reduction would add in an order that differs between machines
        importance_E = importance_E + np.abs(row_E.astype(np.float64))
    in_blocks = importance_E.reshape(blocks, -1)
    places = np.argsort(-in_blocks, axis=1, kind="stable").astype(np.int64)
    return (places + in_blocks.shape[1] * np.arange(blocks)[:, None]).ravel()
