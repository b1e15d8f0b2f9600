"""Which weights an architecture uses, against where the gradients of its training are zero."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.training.coverage import coverage
from tests.automl import kernels, narrow
from tests.automl.conftest import in_general_position

SUPERNETS = ("classifier-tiny", "stereo-tiny", "classifier-tiny-3x100", "classifier-base-3x10")
NARROW_ONES = ("classifier-narrow", "classifier-narrow-widened")
WITH_ALL_KERNELS = ("classifier-kernels", "stereo-kernels")
every_supernet = pytest.mark.parametrize("name", [*SUPERNETS, *NARROW_ONES, *WITH_ALL_KERNELS])


@pytest.fixture(autouse=True)
def _their_spaces_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow.register(monkeypatch)
    kernels.register(monkeypatch)


def architectures(space: SearchSpace, count: int) -> list[Architecture]:
    return [space.largest(), space.smallest(), *(space.sample(random.Random(f"coverage:{index}")) for index in range(count))]


def gradient_of(supernet: Supernet, architecture: Architecture, seed: int) -> Tensor:
    """Return the gradient of a random weighing of all outputs.

    The inputs are larger than in any run: at 32 px the last unit's maps are one pixel, and kernels there only ever see their centre.
    """
    space, generator = supernet.space, torch.Generator().manual_seed(seed)
    batch, side, channels = (1, 256, 6) if space.task == "stereo" else (2, 160, space.image_channels)
    inputs = torch.rand(batch, channels, side, side * space.aspect, generator=generator)
    supernet.train()
    supernet.flat_gradient_N.zero_()
    outputs = supernet(inputs, architecture)
    every = (outputs,) if isinstance(outputs, Tensor) else outputs
    torch.autograd.backward(every, [torch.randn(output.shape, generator=generator) for output in every])
    return supernet.flat_gradient_N.clone()


@torch.no_grad()
def open_gates(supernet: Supernet) -> None:
    """See to it that no gate has a ReLU that is silent for all samples, or weighs a channel by 0 or 1."""
    for part, weight in supernet.named_parameters():
        if part.endswith("squeeze_bias"):
            weight.add_(4.0)
        elif part.endswith("excite"):
            weight.mul_(0.1)


@pytest.mark.parametrize("name", ["classifier-tiny-3x100", *NARROW_ONES, *WITH_ALL_KERNELS])  # each layer that there is
def test_outside_of_its_coverage_an_architectures_gradient_is_zero_and_inside_it_is_not(name: str) -> None:
    space = space_named(name)
    supernet = in_general_position(build(space))
    open_gates(supernet)
    for architecture in architectures(space, 1):
        covered_N = torch.from_numpy(coverage(space, architecture).copy())
        gradients = [gradient_of(supernet, architecture, seed) for seed in range(2)]
        assert not any(gradient_N[~covered_N].any() for gradient_N in gradients)
        is_moved_N = torch.stack([gradient_N != 0.0 for gradient_N in gradients]).any(0)
        assert bool(is_moved_N[covered_N].all())


@every_supernet
def test_a_smaller_choice_covers_less_and_all_cover_what_every_architecture_has(name: str) -> None:
    space = space_named(name)
    slices = build(space).slices()
    largest, smallest, *others = (coverage(space, one) for one in architectures(space, 4))
    last_columns = {"head_weight" if space.head_width == 0 else "widening.widen.weight"} if space.units[-1].widths else set()
    for covered_N in others:
        for span in (slice(*span) for part, span in slices.items() if not part.startswith("units.") and part not in last_columns):
            assert covered_N[span].all()
        assert smallest.sum() < covered_N.sum() < len(covered_N)
    # The largest has every weight but the transforms of the kernels that it does not shrink to.
    outside = {part for part, span in slices.items() if not largest[slice(*span)].all()}
    assert outside == {part for part in slices if "transforms" in part}


def test_the_coverage_of_a_layer_made_by_hand_is_what_its_slices_say() -> None:
    space = space_named("classifier-kernels")
    slices = build(space).slices()
    covered_N = coverage(space, space.smallest())  # kernels of 3, expansions of 2 of 4, one layer a unit of 2
    unit, dead = "units.1.0.", "units.1.1."
    for part, (start, stop) in slices.items():
        if part.startswith(dead):
            assert not covered_N[start:stop].any()

    def of(part: str, *shape: int) -> np.ndarray:
        start, stop = slices[unit + part]
        return covered_N[start:stop].reshape(shape)

    assert np.array_equal(of("expand", 64, 16), np.arange(64)[:, None].repeat(16, 1) < 32)
    assert np.array_equal(of("project", 24, 64), np.arange(64)[None].repeat(24, 0) < 32)
    assert np.array_equal(of("expand_norm.bias", 64), np.arange(64) < 32)
    assert of("project_norm.weight", 24).all()
    centre_KK = np.zeros((7, 7), bool)
    centre_KK[1:6, 1:6] = True  # a kernel of 3 is made of the centre of 5 that all of the 5 x 5 make
    assert np.array_equal(of("spatial.weight", 16, 7, 7), np.broadcast_to(centre_KK, (16, 7, 7)))
    middle = [row * 5 + column for row in (1, 2, 3) for column in (1, 2, 3)]
    assert np.array_equal(of("spatial.transforms.0", 25, 25), np.isin(np.arange(25), middle)[:, None].repeat(25, 1))
    assert of("spatial.transforms.1", 9, 9).all()


def test_the_coverage_of_a_narrow_bottleneck_made_by_hand_is_what_its_slices_say() -> None:
    space = space_named("classifier-narrow")
    slices = build(space).slices()
    wide = replace(space.largest(), widths=(8, None, 16, 16, 24))
    covered_N = coverage(space, wide)

    def of(part: str, *shape: int) -> np.ndarray:
        start, stop = slices[part]
        return covered_N[start:stop].reshape(shape)

    # Unit 2 reads 8 of 16 channels, each of which has 3 filters: rows and columns in blocks of 3. A fourth of 8, or of 16, is 8.
    first = np.arange(48) < 24
    assert np.array_equal(of("units.1.0.spatial.weight", 48, 49), np.broadcast_to(first[:, None], (48, 49)))
    assert np.array_equal(of("units.1.0.project", 16, 48), np.broadcast_to(first, (16, 48)))
    assert np.array_equal(of("units.1.0.gate.squeeze", 8, 48), np.broadcast_to(first, (8, 48)))
    assert np.array_equal(of("units.1.0.gate.excite", 48, 8), np.broadcast_to(first[:, None], (48, 8)))
    # Unit 3 hands 16 of 24 channels on, in both layers, and reads as many in the second.
    assert np.array_equal(of("units.2.1.expand", 72, 24), (np.arange(72) < 48)[:, None] & (np.arange(24) < 16))
    assert np.array_equal(of("units.2.0.project_norm.weight", 24), np.arange(24) < 16)
    # Unit 5: 24 of 40 channels, a fourth of which is 8 of 16; 3 times as many are expanded.
    assert np.array_equal(of("units.4.1.gate.squeeze", 16, 120), (np.arange(16) < 8)[:, None] & (np.arange(120) < 72))
    assert np.array_equal(of("units.4.1.expand", 120, 40), (np.arange(120) < 72)[:, None] & (np.arange(40) < 24))
    assert np.array_equal(of("head_weight", 10, 40), np.broadcast_to(np.arange(40) < 24, (10, 40)))
    assert of("head_bias", 10).all()


def test_a_coverage_is_one_array_for_all_who_have_it_and_nobody_can_write_to_it() -> None:
    space = space_named("classifier-tiny")
    first = coverage(space, space.smallest())
    with pytest.raises(ValueError, match="read-only"):
        first[:] = True
    assert coverage(space, space.smallest()) is first
    before = first.copy()
    del first
    assert np.array_equal(coverage(space, space.smallest()), before)
