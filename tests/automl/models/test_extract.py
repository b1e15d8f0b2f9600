import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from manta_swarm.automl.evaluation.held_out import recalibrate
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.layers import ElasticBatchNorm
from manta_swarm.automl.models.networks import plain_network
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.cost import macs, num_weights
from manta_swarm.automl.spaces.space import BASE, STEREO_TINY, TINY, Architecture, SearchSpace, noted_widths
from manta_swarm.automl.spaces.units import Layer
from tests.automl.kernels import KERNELS, STEREO_KERNELS
from tests.automl.narrow import NARROW, WIDENED


def some(space: SearchSpace, count: int = 12) -> list[Architecture]:
    """Return the largest, the smallest, then such that any two choices are smallest and largest in every combination, and random ones."""
    found = [space.largest()]
    for resolution, depth, kernel in product((0, -1), repeat=3):
        layers = ((Layer(unit.kernels[kernel], unit.expansions[resolution ^ depth]),) * unit.depths[depth] for unit in space.units)
        widths = noted_widths(unit.chosen_widths()[resolution ^ kernel] for unit in space.units)
        found.append(Architecture(space.resolutions[resolution], tuple(layers), widths))
    return [*found, *(space.sample(random.Random(f"extract:{index}")) for index in range(3))][:count]


def inputs(space: SearchSpace, architecture: Architecture, batch: int) -> Tensor:
    channels = space.image_channels * (2 if space.task == "stereo" else 1)
    shape = (batch, channels, architecture.resolution, architecture.resolution * space.aspect)
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
@pytest.mark.parametrize("which", ["supernet", "kernels", "base", "stereo", "stereo_kernels", "narrow", "widened"])
def test_the_extracted_network_computes_the_same_bits_as_the_supernet_with_the_macs_and_weights_that_are_counted(
    which: str, request: pytest.FixtureRequest
) -> None:
    supernet: Supernet = request.getfixturevalue(which)
    space = supernet.space
    for architecture in some(space, 10 if which in ("kernels", "stereo_kernels", "widened") else 3):
        x_BCHW = inputs(space, architecture, 3)
        recalibrate(supernet, architecture, [x_BCHW])
        expected = supernet(x_BCHW, architecture)
        expected = expected if isinstance(expected, Tensor) else expected[-1]
        plain = supernet.extract(architecture)
        with FlopCounterMode(display=False) as counter:
            found = plain(x_BCHW)
        assert torch.equal(found, expected), architecture.text
        assert counter.get_total_flops() == 2 * 3 * macs(architecture, space)
        assert sum(parameter.numel() for parameter in plain.parameters()) == num_weights(architecture, space)


@torch.no_grad()
def test_at_the_largest_widths_it_is_the_network_of_a_space_without_a_choice_whose_weights_lie_in_the_same_order(
    narrow: Classifier, fixed: Classifier
) -> None:
    assert narrow.slices() == fixed.slices()
    fixed.load(narrow.flat_weights_N)
    for architecture in some(fixed.space, 5):
        x_BCHW = inputs(fixed.space, architecture, 3)
        widest = replace(architecture, widths=narrow.space.largest().widths)
        narrow.space.check(widest)
        assert torch.equal(narrow(x_BCHW, widest), fixed(x_BCHW, architecture))
        assert macs(widest, narrow.space) == macs(architecture, fixed.space)
        assert num_weights(widest, narrow.space) == num_weights(architecture, fixed.space)


@pytest.mark.parametrize("space", [TINY, BASE, STEREO_TINY, NARROW, WIDENED, KERNELS, STEREO_KERNELS], ids=lambda space: space.name)
def test_macs_grow_with_every_gene(space: SearchSpace) -> None:
    rng = random.Random("monotone")
    for _ in range(30):
        start = space.sample(rng)
        for larger in larger_by_one_choice(start, space):
            assert macs(larger, space) > macs(start, space)
            assert num_weights(larger, space) > num_weights(start, space) or larger.resolution > start.resolution


def larger_by_one_choice(architecture: Architecture, space: SearchSpace) -> Iterable[Architecture]:
    for resolution in space.resolutions:
        if resolution > architecture.resolution:
            yield replace(architecture, resolution=resolution)
    for unit, choices in enumerate(space.units):
        width = architecture.width(unit)
        for wider in choices.widths:
            if width is not None and wider > width:
                yield replace(architecture, widths=(*architecture.widths[:unit], wider, *architecture.widths[unit + 1 :]))
    for unit, index, layer in architecture.layers():
        choices = space.units[unit]
        others = [Layer(kernel, layer.expansion) for kernel in choices.kernels if kernel > layer.kernel]
        others += [Layer(layer.kernel, expansion) for expansion in choices.expansions if expansion > layer.expansion]
        for other in others:
            yield with_unit(architecture, unit, (*architecture.units[unit][:index], other, *architecture.units[unit][index + 1 :]))
    for unit, layers in enumerate(architecture.units):
        if len(layers) < space.units[unit].depths[-1]:
            yield with_unit(architecture, unit, (*layers, space.units[unit].smallest_layer))


def with_unit(architecture: Architecture, unit: int, layers: tuple[Layer, ...]) -> Architecture:
    return replace(architecture, units=(*architecture.units[:unit], layers, *architecture.units[unit + 1 :]))


@torch.no_grad()
@pytest.mark.parametrize("which", ["supernet", "stereo"])
def test_an_extracted_network_has_weights_and_statistics_of_its_own(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Supernet = request.getfixturevalue(which)
    architecture = supernet.space.sample(random.Random(1))
    x_BCHW = inputs(supernet.space, architecture, 4)
    recalibrate(supernet, architecture, [x_BCHW])
    plain = supernet.extract(architecture)
    before = plain(x_BCHW)
    supernet.load(torch.zeros(supernet.num_weights))
    for module in supernet.modules():
        if isinstance(module, ElasticBatchNorm):
            module.running_mean.fill_(9.0)
    assert torch.equal(plain(x_BCHW), before)
    again = plain_network(supernet.space, architecture).eval()
    again.load_state_dict(plain.state_dict())
    assert torch.equal(again(x_BCHW), before)
    assert not any(module.training for module in plain.modules())


@torch.no_grad()
@pytest.mark.parametrize("which", ["supernet", "kernels", "base", "stereo", "narrow", "widened"])
def test_the_largest_architecture_uses_every_weight_but_the_kernels_transforms(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Supernet = request.getfixturevalue(which)
    whole = supernet.extract(supernet.space.largest())
    transforms = sum(parameter.numel() for name, parameter in supernet.named_parameters() if ".transforms." in name)
    assert sum(parameter.numel() for parameter in whole.parameters()) == supernet.num_weights - transforms
    names = dict(whole.named_parameters())
    for name, parameter in supernet.named_parameters():
        if name.endswith((".spatial.weight", "norm.weight", "norm.bias")):
            assert torch.equal(names[name], parameter)
        elif name.endswith((".expand", ".project", ".squeeze", ".excite")):
            assert torch.equal(names[f"{name}.weight"], parameter)
        elif name.endswith(("squeeze_bias", "excite_bias")):
            assert torch.equal(names[name.replace("_bias", ".bias")], parameter)
