from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.models.supernet import Elastic, Supernet
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.update import sort_channels


def sorted_copy(supernet: Supernet) -> Supernet:
    copy = type(supernet)(supernet.space)  # type: ignore[call-arg]
    copy.load(sort_channels(supernet.flat_weights_N, (), supernet.space.name)[0])
    return copy


def layers(supernet: Supernet) -> list[Elastic]:
    return [module for module in supernet.modules() if isinstance(module, Elastic)]


@torch.no_grad()
@pytest.mark.parametrize(("which", "views"), [("supernet", "stereo"), ("kernels", "stereo_kernels")])
def test_the_largest_network_computes_what_it_did_before(which: str, views: str, request: pytest.FixtureRequest, x_BCHW: Tensor) -> None:
    supernet: Classifier = request.getfixturevalue(which)
    stereo: Stereo = request.getfixturevalue(views)
    before, after = (
        supernet.double()(x_BCHW.double(), supernet.space.largest()),
        sorted_copy(supernet.float()).double()(x_BCHW.double(), supernet.space.largest()),
    )
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)
    pair = torch.rand(2, 6, 64, 128, generator=torch.Generator().manual_seed(3))
    expected, found = stereo(pair, stereo.space.largest()), sorted_copy(stereo)(pair, stereo.space.largest())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_the_largest_network_of_bottlenecks_computes_what_it_did_before_and_the_smallest_does_not(base: Classifier) -> None:
    x_BCHW = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(3)).double()
    after = sorted_copy(base).double()
    base.double()
    torch.testing.assert_close(after(x_BCHW, base.space.largest()), base(x_BCHW, base.space.largest()), rtol=1e-6, atol=1e-6)
    smallest = base.space.smallest()
    assert not torch.allclose(after(x_BCHW, smallest), base(x_BCHW, smallest), rtol=1e-3, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("which", ["supernet", "kernels", "fixed"])
def test_a_smaller_width_keeps_the_channels_whose_projecting_weights_are_largest(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Classifier = request.getfixturevalue(which)
    for layer, after in zip(layers(supernet), layers(sorted_copy(supernet)), strict=True):
        importance = np.abs(layer.project.numpy().astype(np.float64)).sum(axis=(0, 2, 3))
        blocks = np.split(np.arange(importance.size), layer.shape.blocks)  # of the filters of one channel in: they stay together
        order = np.concatenate([block[np.argsort(-importance[block], kind="stable")] for block in blocks])
        rows, columns = layer.expanded_parts()
        for name in rows:
            assert np.array_equal(after.get_parameter(name).numpy(), layer.get_parameter(name).numpy()[order])
        for name in columns:
            assert np.array_equal(after.get_parameter(name).numpy(), layer.get_parameter(name).numpy()[:, order])
        for parts, dim in ((rows, 0), (columns, 1)):
            assert all(layer.get_parameter(name).shape[dim] == importance.size for name in parts)


@torch.no_grad()
@pytest.mark.parametrize("which", ["narrow", "widened"])
def test_where_units_choose_their_width_the_largest_network_computes_what_it_did_before(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Classifier = request.getfixturevalue(which)
    x_BCHW = torch.rand(4, 1, 48, 48, generator=torch.Generator().manual_seed(3)).double()
    after = sorted_copy(supernet).double()
    supernet.double()
    space = supernet.space
    torch.testing.assert_close(after(x_BCHW, space.largest()), supernet(x_BCHW, space.largest()), rtol=1e-6, atol=1e-6)
    narrowed = replace(space.largest(), widths=space.smallest().widths)
    assert not torch.allclose(after(x_BCHW, narrowed), supernet(x_BCHW, narrowed), rtol=1e-3, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("which", ["narrow", "base"])
def test_a_narrower_unit_keeps_the_channels_that_its_normalisations_scale_most(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Classifier = request.getfixturevalue(which)
    after = sorted_copy(supernet)
    for unit, choices in enumerate(supernet.space.units):
        before_L, after_L = ([layer for layer in layers(each) if layer.shape.unit == unit] for each in (supernet, after))
        importance = sum(np.abs(layer.project_norm.weight.numpy().astype(np.float64)) for layer in before_L)
        order = np.argsort(-importance, kind="stable") if choices.widths else np.arange(choices.width)
        assert (order != np.arange(choices.width)).any() == bool(choices.widths)
        for one, other in zip(before_L, after_L, strict=True):
            assert np.array_equal(other.project_norm.weight.numpy(), one.project_norm.weight.numpy()[order])
            assert np.array_equal(other.project_norm.bias.numpy(), one.project_norm.bias.numpy()[order])


@torch.no_grad()
@pytest.mark.parametrize("which", ["narrow", "widened"])
def test_moments_move_along_with_channels_that_units_hand_on(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Classifier = request.getfixturevalue(which)
    places_N = torch.arange(supernet.num_weights, dtype=torch.float32)
    weights_N, (moved_N,) = sort_channels(supernet.flat_weights_N, (places_N,), supernet.space.name)
    assert torch.equal(weights_N, supernet.flat_weights_N[moved_N.long()])
    assert torch.equal(moved_N.sort().values, places_N)
    fixed = ("head_bias", "widening.norm.weight", "widening.norm.bias", *(("head_weight",) if supernet.widening else ()))
    stays = [span for name, span in supernet.slices().items() if name in fixed or "transforms" in name]
    assert all(torch.equal(moved_N[start:stop], places_N[start:stop]) for start, stop in stays)
    moves = [
        "units.0.0.project",
        "units.1.0.spatial.weight",
        "units.2.1.expand",
        "widening.widen.weight" if supernet.widening else "head_weight",
    ]
    assert all(not torch.equal(moved_N[slice(*supernet.slices()[name])], places_N[slice(*supernet.slices()[name])]) for name in moves)


@torch.no_grad()
@pytest.mark.parametrize("which", ["supernet", "kernels"])
def test_moments_move_along_with_their_weights_and_what_has_no_channels_stays(which: str, request: pytest.FixtureRequest) -> None:
    supernet: Classifier = request.getfixturevalue(which)
    places_N = torch.arange(supernet.num_weights, dtype=torch.float32)  # exact below 2^24: a vector that shows where each weight went
    weights_N, (moved_N, twice_N) = sort_channels(supernet.flat_weights_N, (places_N, 2 * places_N), supernet.space.name)
    assert torch.equal(weights_N, supernet.flat_weights_N[moved_N.long()])
    assert torch.equal(twice_N, 2 * moved_N)
    assert torch.equal(moved_N.sort().values, places_N)
    stays = [span for name, span in supernet.slices().items() if not ("expand" in name or name.endswith("project"))]
    assert all(torch.equal(moved_N[start:stop], places_N[start:stop]) for start, stop in stays)


@torch.no_grad()
def test_channels_of_equal_importance_keep_their_order() -> None:
    supernet = Classifier(TINY)
    places_N = torch.arange(supernet.num_weights, dtype=torch.float32)
    _, (moved_N,) = sort_channels(supernet.flat_weights_N, (places_N,), "classifier-tiny")  # all weights are zero
    assert torch.equal(moved_N, places_N)


@torch.no_grad()
def test_what_was_given_is_left_alone(supernet: Classifier) -> None:
    before = supernet.flat_weights_N.clone()
    sort_channels(supernet.flat_weights_N, (), "classifier-tiny")
    assert torch.equal(supernet.flat_weights_N, before)
