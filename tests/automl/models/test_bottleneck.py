"""The base classifier's layers, against plain modules whose weights are cut out by hand."""

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.models.bottleneck import ElasticBottleneck, ElasticGate
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.layers import ElasticBatchNorm, first, first_of_blocks
from manta_swarm.automl.spaces.space import Architecture, space_named
from tests.automl.models.test_supernet import Strides, gradient

SPACE = space_named("classifier-base-3x10")
ARCHITECTURES = [SPACE.largest(), SPACE.smallest(), *(SPACE.sample(random.Random(index)) for index in range(3))]


@pytest.fixture
def images_BCHW() -> Tensor:
    return torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(2))


def layer_of(supernet: Classifier, unit: int, index: int) -> ElasticBottleneck:
    layer = supernet.get_submodule(f"units.{unit}.{index}")
    assert isinstance(layer, ElasticBottleneck)
    return layer


def normalised(x: Tensor, norm: ElasticBatchNorm, used: Tensor) -> Tensor:
    deviation = x - x.mean((0, 2, 3), keepdim=True)
    y = deviation / (deviation.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    return y * norm.weight[used][:, None, None] + norm.bias[used][:, None, None]


def hard_swish(x: Tensor) -> Tensor:
    return x * (x + 3).clamp(0, 6) / 6


def spatial(x: Tensor, kernels: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    return F.conv2d(x, kernels, None, stride, kernels.shape[-1] // 2, groups=groups)


def reference_logits(supernet: Classifier, x: Tensor, architecture: Architecture) -> Tensor:
    """The subnet by its definition: every active channel looked up by its number."""
    for unit, index, chosen in architecture.layers():
        layer, act = layer_of(supernet, unit, index), hard_swish if unit >= 3 else torch.relu
        channels, (kernels, hidden) = x.shape[1], (layer.spatial.weight.detach(), layer.project.shape[1])
        for size, transform in zip((5, 3)[2 - len(layer.spatial.transforms) :], layer.spatial.transforms, strict=True):
            if chosen.kernel <= size:
                flat = kernels[:, :, 1:-1, 1:-1].reshape(hidden, -1, size * size)
                kernels = torch.einsum("oif,gf->oig", flat, transform).reshape(hidden, -1, size, size)
        if index == 0 and unit > 0:  # each channel in has filters of its own, of which the first ones are used
            of_each = hidden // layer.shape.channels_in
            used = torch.tensor([channel * of_each + number for channel in range(channels) for number in range(chosen.expansion)])
            y = torch.cat([spatial(x[:, [use // of_each]], kernels[use : use + 1], stride=2) for use in used.tolist()], 1)
        elif index == 0:
            used = torch.arange(16 * chosen.expansion)
            y = spatial(x, kernels[used], stride=2)
        else:
            used = torch.arange(channels * chosen.expansion)
            y = act(normalised(F.conv2d(x, layer.expand[used][:, :channels]), layer.expand_norm, used))
            y = spatial(y, kernels[used], groups=len(used))
        y = act(normalised(y, layer.spatial_norm, used))
        assert (layer.gate is not None) == (unit >= 2)
        if layer.gate is not None:
            count = {32: 8, 40: 16, 24: 8, 16: 8, 80: 24, 96: 24, 112: 32, 128: 32, 144: 40, 160: 40}[channels]  # a fourth, in steps of 8
            squeezed = torch.relu(y.mean((2, 3)) @ layer.gate.squeeze[:count, used, 0, 0].T + layer.gate.squeeze_bias[:count])
            excited = squeezed @ layer.gate.excite[used, :count, 0, 0].T + layer.gate.excite_bias[used]
            y = y * ((excited + 3).clamp(0, 6) / 6)[:, :, None, None]
        width = SPACE.widths_of(architecture)[unit]
        y = normalised(F.conv2d(y, layer.project[:width, used]), layer.project_norm, torch.arange(width))
        x = x + y if index else y
    assert supernet.widening is not None
    norm = supernet.widening.norm
    assert isinstance(norm, ElasticBatchNorm)
    x = hard_swish(normalised(F.conv2d(x, supernet.widening.widen.weight[:, : x.shape[1]]), norm, torch.arange(SPACE.head_width)))
    return F.linear(x.mean((2, 3)), supernet.head_weight, supernet.head_bias)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.id[:6])
def test_a_subnet_of_bottlenecks_computes_what_its_definition_says(
    base: Classifier, images_BCHW: Tensor, architecture: Architecture
) -> None:
    base, images_BCHW = base.double(), images_BCHW.double()
    torch.testing.assert_close(base(images_BCHW, architecture), reference_logits(base, images_BCHW, architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES[1:3], ids=lambda a: a.id[:6])
def test_gradients_of_bottlenecks_are_zero_outside_the_active_slices_and_only_there(
    base: Classifier, images_BCHW: Tensor, architecture: Architecture
) -> None:
    F.cross_entropy(base(images_BCHW, architecture), torch.arange(4)).backward()
    active = {(unit, index): layer for unit, index, layer in architecture.layers()}
    for unit, choices in enumerate(SPACE.units):
        for index in range(choices.depths[-1]):
            layer = layer_of(base, unit, index)
            if (unit, index) not in active:
                assert all(not gradient(parameter).any() for parameter in layer.parameters())
                continue
            widest = layer.project.shape[1]
            width = SPACE.widths_of(architecture)[unit if index else unit - 1] if unit + index else 16
            is_used = torch.zeros(layer.shape.blocks, widest // layer.shape.blocks, dtype=torch.bool)
            if layer.shape.blocks > 1:
                is_used[:width, : active[unit, index].expansion] = True
            else:
                is_used[:, : width * active[unit, index].expansion] = True
            is_used = is_used.flatten()
            for names, dim in zip(layer.expanded_parts(), (0, 1), strict=True):
                for name in names:
                    moved = gradient(layer.get_parameter(name)).movedim(dim, 0).reshape(widest, -1)
                    assert moved[is_used].any(), name
                    assert not moved[~is_used].any(), name


def test_the_first_convolution_of_each_unit_has_stride_two_and_all_others_stride_one(base: Classifier, images_BCHW: Tensor) -> None:
    with torch.no_grad(), Strides() as strides:
        base(images_BCHW, SPACE.largest())
    gate = [(1, 1), (1, 1)]
    expected = []
    for number, (depth, kernel) in enumerate(((2, 5), (3, 7), (4, 7), (6, 7), (4, 7))):
        squeeze = gate if number >= 2 else []
        on_map = min(kernel, 2 * (images_BCHW.shape[2] >> number + 1) - 1)  # what of it lies on a map that is smaller
        expected += [(kernel, 2), *squeeze, (1, 1)] + [(1, 1), (on_map, 1), *squeeze, (1, 1)] * (depth - 1)
    assert strides.seen == [*expected, (1, 1)]


def test_a_smaller_part_has_the_first_ones_of_each_block() -> None:
    weight = torch.arange(12)
    assert first_of_blocks(weight, 6, 3).tolist() == [0, 1, 4, 5, 8, 9]
    assert first_of_blocks(weight, 6, 1).tolist() == [0, 1, 2, 3, 4, 5]
    assert first_of_blocks(weight.view(2, 6), 4, 2, dim=1).tolist() == [[0, 1, 3, 4], [6, 7, 9, 10]]


def test_a_smaller_part_of_the_first_blocks_leaves_the_last_blocks_out() -> None:
    weight = torch.arange(12)
    assert first_of_blocks(weight, 4, 3, active=2).tolist() == [0, 1, 4, 5]
    assert first_of_blocks(weight, 8, 3, active=2).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert first_of_blocks(weight.view(2, 6), 2, 2, dim=1, active=1).tolist() == [[0, 1], [6, 7]]


def test_the_first_weights_are_taken_where_they_lie() -> None:
    weight = torch.arange(12)
    for part in (first(weight, 8), first(weight, 12), first_of_blocks(weight, 8, 3, active=2), first_of_blocks(weight, 12, 3)):
        assert part.data_ptr() == weight.data_ptr()


def test_at_the_start_a_gate_weighs_all_channels_alike() -> None:
    supernet = Classifier(SPACE)
    supernet.initialise(torch.Generator().manual_seed(3))
    gates = [module for module in supernet.modules() if isinstance(module, ElasticGate)]
    assert len(gates) == 4 + 6 + 4
    x_BEHW = torch.rand(2, gates[0].excite.shape[0], 3, 3)
    first_squeezing = layer_of(supernet, 2, 0).shape
    with torch.no_grad():
        assert torch.equal(gates[0](x_BEHW, first_squeezing), x_BEHW / 2)
        assert gates[0].squeeze.any()
