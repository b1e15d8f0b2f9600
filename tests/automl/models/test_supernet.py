import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.layers import ElasticLayer, ElasticSpatial, is_residual
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.shapes import layer_shapes
from manta_swarm.automl.spaces.space import BASE, STEREO_TINY, TINY, Architecture, SearchSpace
from tests.automl.conftest import in_general_position
from tests.automl.kernels import KERNELS, STEREO_KERNELS
from tests.automl.narrow import NARROW


def cases(space: SearchSpace, count: int) -> list[object]:
    """Return the ends of a space at 32 px and some in between, each with the space."""
    at_32 = space.restricted(resolutions=(32,))
    chosen = [at_32.largest(), at_32.smallest(), *(at_32.sample(random.Random(index)) for index in range(count))]
    return [pytest.param(space, each, id=f"{space.name}-{each.id[:6]}") for each in chosen]


every_case = pytest.mark.parametrize(("space", "architecture"), [*cases(KERNELS, 3), *cases(TINY, 3)])


def layer_of(supernet: Supernet, unit: int, index: int) -> ElasticLayer:
    return dict(supernet.named_modules())[f"units.{unit}.{index}"]  # type: ignore[return-value]


def reference_logits(supernet: Classifier, x: Tensor, architecture: Architecture) -> Tensor:
    """The subnet in plain torch.nn modules, its weights cut out by hand."""
    for unit, index, chosen in architecture.layers():
        layer = layer_of(supernet, unit, index)
        kernel = layer.spatial.weight.detach()
        for size, transform in zip(layer.spatial.kernels[1:], layer.spatial.transforms, strict=True):
            if chosen.kernel <= size:
                flat = kernel[:, :, 1:-1, 1:-1].reshape(*kernel.shape[:2], size * size)
                kernel = torch.einsum("oif,gf->oig", flat, transform).reshape(*kernel.shape[:2], size, size)
        width, hidden = kernel.shape[0], kernel.shape[0] * chosen.expansion
        convolutions = [
            (
                kernel,
                torch.nn.Conv2d(
                    x.shape[1],
                    width,
                    chosen.kernel,
                    2 if index == 0 else 1,
                    chosen.kernel // 2,
                    groups=width // kernel.shape[1] if unit + index else 1,
                    bias=False,
                ),
            ),
            (layer.expand[:hidden], torch.nn.Conv2d(width, hidden, 1, bias=False)),
            (layer.project[:, :hidden], torch.nn.Conv2d(hidden, TINY.widths[unit], 1, bias=False)),
        ]
        norms = [(layer.expand_norm, torch.nn.BatchNorm2d(hidden)), (layer.project_norm, torch.nn.BatchNorm2d(TINY.widths[unit]))]
        with torch.no_grad():
            for weight, convolution in convolutions:
                convolution.double().weight.copy_(weight)
            for elastic, norm in norms:
                norm.double().weight.copy_(elastic.weight[: norm.num_features])
                norm.bias.copy_(elastic.bias[: norm.num_features])
        (_, spatial), (_, expand), (_, project) = convolutions
        y = norms[1][1](project(F.relu(norms[0][1](expand(spatial(x))))))
        x = x + y if index else y
    return F.linear(x.mean((2, 3)), supernet.head_weight, supernet.head_bias)


@every_case
def test_a_subnet_computes_what_plain_modules_with_its_weights_compute(
    x_BCHW: Tensor, space: SearchSpace, architecture: Architecture
) -> None:
    supernet, x_BCHW = in_general_position(Classifier(space)).double(), x_BCHW.double()
    torch.testing.assert_close(supernet(x_BCHW, architecture), reference_logits(supernet, x_BCHW, architecture))


@every_case
def test_gradients_are_zero_outside_the_active_slices_and_only_there(
    x_BCHW: Tensor, space: SearchSpace, architecture: Architecture
) -> None:
    supernet = in_general_position(Classifier(space))
    F.cross_entropy(supernet(x_BCHW, architecture), torch.arange(4)).backward()
    assert_active_slices_alone_have_gradients(supernet, architecture)


def assert_active_slices_alone_have_gradients(supernet: Supernet, architecture: Architecture) -> None:
    active = {(unit, index): layer for unit, index, layer in architecture.layers()}
    for unit, choices in enumerate(supernet.space.units):
        for index in range(choices.depths[-1]):
            layer = layer_of(supernet, unit, index)
            if (unit, index) not in active:
                assert all(not gradient(parameter).any() for parameter in layer.parameters())
                continue
            chosen = active[unit, index]
            hidden = layer.shape.spatial * chosen.expansion
            for parameter, dim in ((layer.expand, 0), (layer.project, 1), (layer.expand_norm.weight, 0), (layer.expand_norm.bias, 0)):
                inside, outside = gradient(parameter).split([hidden, parameter.shape[dim] - hidden], dim)
                assert inside.any()
                assert not outside.any()
            assert gradient(layer.spatial.weight).any()
            largest, *smaller = layer.spatial.kernels
            margin = 0 if chosen.kernel == largest else 1
            inner = largest - 2 * margin
            assert not F.pad(torch.zeros(inner, inner), [margin] * 4, value=1.0).mul(gradient(layer.spatial.weight)).any()
            for transform, size in zip(layer.spatial.transforms, smaller, strict=True):
                assert bool(gradient(transform).any()) == (chosen.kernel <= size)


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("space", [TINY, BASE, STEREO_TINY, KERNELS, STEREO_KERNELS], ids=lambda space: space.name)
@torch.no_grad()
def test_at_the_start_nearly_all_of_a_kernel_is_in_the_centre_that_the_smallest_one_has(space: SearchSpace) -> None:
    supernet = build(space)
    supernet.initialise(torch.Generator().manual_seed(3))
    spatials = [module for module in supernet.modules() if isinstance(module, ElasticSpatial)]
    bounds = {5: 0.2, 7: 0.01}
    found = {kernel for spatial in spatials for kernel in spatial.kernels if kernel > 3}
    assert found == ({5} if space in (TINY, STEREO_TINY) else {5, 7})
    for kernel in found:
        large = torch.cat([spatial.weight_for(kernel).flatten(0, 1) for spatial in spatials if kernel in spatial.kernels])
        rest = large - F.pad(large[:, 1:-1, 1:-1], [1] * 4)
        assert 0.0 < float(rest.square().sum() / large.square().sum()) < bounds[kernel]
    # In all they are as large as those of a layer that has no other kernels (arXiv:1502.01852): their mean square is 2 / fan-in.
    squares = torch.cat([(spatial.weight.square().flatten(1).sum(1)) for spatial in spatials])
    assert abs(float(squares.mean()) - 2.0) < 0.2


@pytest.mark.parametrize("space", [TINY, KERNELS], ids=lambda space: space.name)
def test_identity_transforms_make_a_small_kernel_the_centre_of_the_large_one(space: SearchSpace) -> None:
    supernet = Classifier(space)
    supernet.initialise(torch.Generator().manual_seed(3))
    spatials = [module for module in supernet.modules() if isinstance(module, ElasticSpatial)]
    assert [spatial.kernels[::-1] for spatial in spatials] == [unit.kernels for unit in space.units for _ in range(unit.depths[-1])]
    for spatial in spatials:
        largest = spatial.kernels[0]
        for kernel in spatial.kernels:
            inside = slice((largest - kernel) // 2, (largest + kernel) // 2)
            assert torch.equal(spatial.weight_for(kernel), spatial.weight[:, :, inside, inside])


class Strides(TorchDispatchMode):
    """Records (kernel, stride) of every convolution that really runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.ops.aten.convolution.default:
            self.seen.append((args[1].shape[-1], args[3][0]))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("space", [TINY, KERNELS], ids=lambda space: space.name)
def test_the_first_convolution_of_each_unit_has_stride_two_and_all_others_stride_one(space: SearchSpace, x_BCHW: Tensor) -> None:
    supernet = in_general_position(Classifier(space))
    with torch.no_grad(), Strides() as strides:
        supernet(x_BCHW, space.largest())
    sides = [x_BCHW.shape[2] >> unit for unit in range(6)]
    expected = []
    for unit, maps in zip(space.units, pairwise(sides), strict=True):
        first, second = (min(unit.kernels[-1], 2 * side - 1) for side in maps)  # what of them lies on a map that is smaller
        expected += [(first, 2), (1, 1), (1, 1), (second, 1), (1, 1), (1, 1)]
    assert strides.seen == expected


def test_the_tiny_supernet_has_between_200_and_300_thousand_weights_in_one_vector(supernet: Classifier, x_BCHW: Tensor) -> None:
    assert 200_000 < supernet.num_weights < 300_000
    assert supernet.num_weights == sum(parameter.numel() for parameter in supernet.parameters())
    spans = sorted(supernet.slices().values())
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == supernet.num_weights
    assert list(supernet.state_dict()) == [name for name, _ in supernet.named_parameters()]
    before = supernet(x_BCHW, TINY.smallest())
    weights = supernet.flat_weights_N.clone()
    supernet.load(torch.zeros_like(weights))
    assert not supernet(x_BCHW, TINY.smallest()).any()
    supernet.load(weights)
    assert torch.equal(supernet(x_BCHW, TINY.smallest()), before)
    with pytest.raises(ValueError, match="weights"):
        supernet.load(weights[1:])


@pytest.mark.parametrize("space", [TINY, STEREO_TINY], ids=lambda space: space.name)
def test_the_first_weights_depend_on_the_seed_alone_and_leave_the_global_generator_alone(space: SearchSpace) -> None:
    before = torch.random.get_rng_state()
    vectors = []
    for seed in (1, 1, 2):
        supernet = build(space)
        supernet.initialise(torch.Generator().manual_seed(seed))
        vectors.append(supernet.flat_weights_N)
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])
    assert torch.isfinite(vectors[0]).all()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("space", [TINY, BASE, STEREO_TINY, NARROW, KERNELS], ids=lambda space: space.name)
def test_at_the_start_a_residual_layer_hands_on_what_it_reads_so_depth_makes_no_difference(space: SearchSpace) -> None:
    supernet = build(space)
    supernet.initialise(torch.Generator().manual_seed(3))
    shapes = list(layer_shapes(space))
    x_BCHW = torch.rand(4, shapes[0].channels_in, space.resolutions[0], space.resolutions[0])
    deep = space.largest()
    shallow = replace(deep, units=tuple(unit[: choices.depths[0]] for unit, choices in zip(deep.units, space.units, strict=True)))
    with torch.no_grad():
        assert torch.equal(supernet.run_unit(0, x_BCHW, deep), supernet.run_unit(0, x_BCHW, shallow))
    slices, residual = supernet.slices(), 0
    for shape in shapes:
        start, stop = slices[f"units.{shape.unit}.{shape.index}.project_norm.weight"]
        is_zero = is_residual(shape)
        residual += is_zero
        assert bool((supernet.flat_weights_N[start:stop] == (0 if is_zero else 1)).all())
    assert 0 < residual < len(shapes)
