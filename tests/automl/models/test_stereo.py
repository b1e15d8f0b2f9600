import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from manta_swarm.automl.evaluation.held_out import recalibrate
from manta_swarm.automl.models.gradients import of_length_one
from manta_swarm.automl.models.layers import ElasticBatchNorm
from manta_swarm.automl.models.stereo import FineMatch, PlainStereo, Stereo, correlate_groups, warped_likeness
from manta_swarm.automl.spaces.shapes import (
    MatchShape,
    decoder_widths,
    fixed_macs,
    fixed_num_weights,
    match_shape,
    unit_sides,
)
from manta_swarm.automl.spaces.space import STEREO_BASE, STEREO_TINY, Architecture, SearchSpace
from manta_swarm.automl.training.microbatches import stereo_loss
from tests.automl.conftest import in_general_position
from tests.automl.kernels import STEREO_KERNELS
from tests.automl.models.test_supernet import assert_active_slices_alone_have_gradients, gradient

SPACE = STEREO_TINY
HEIGHT = SPACE.resolutions[-1]
WIDTH = HEIGHT * SPACE.aspect
CASES = [
    pytest.param(space, each, id=f"{space.name}-{each.id[:6]}")
    for space in (SPACE, STEREO_KERNELS)
    for each in (space.largest(), space.smallest(), *(space.sample(random.Random(index)) for index in range(3)))
]

SHAPE = match_shape(STEREO_TINY)


@pytest.fixture
def stereo(stereo: Stereo) -> Stereo:
    """The tiny stereo supernet in general position, its running statistics too."""
    generator = torch.Generator().manual_seed(1)
    for module in stereo.modules():
        if isinstance(module, ElasticBatchNorm):
            module.running_mean.normal_(0.0, 0.1, generator=generator)
            module.running_variance.uniform_(0.5, 2.0, generator=generator)
    return stereo


def pairs(batch: int, seed: int = 2) -> Tensor:
    return torch.rand(batch, 6, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_the_match_at_a_quarter_is_followed_by_six_predictions_up_to_the_full_resolution(stereo: Stereo) -> None:
    for training in (True, False):
        predictions = stereo.train(training)(pairs(2), SPACE.smallest())
        expected = [(2, HEIGHT // scale, WIDTH // scale) for scale in (4, 32, 16, 8, 4, 2, 1)]
        assert [prediction.shape for prediction in predictions] == expected


def test_before_any_training_the_first_step_starts_from_the_match() -> None:
    stereo = Stereo(SPACE)
    stereo.initialise(torch.Generator().manual_seed(3))
    match_BHW, first_BHW, *_ = stereo.train()(pairs(2), SPACE.largest())
    start_BHW = F.avg_pool2d(match_BHW[:, None], 16)
    assert (first_BHW - F.interpolate(start_BHW, scale_factor=2.0, mode="bilinear")[:, 0]).abs().max() < 0.5 * start_BHW.mean()


def test_a_view_shifted_to_the_left_is_matched_at_its_shift_before_any_training() -> None:
    stereo = Stereo(SPACE)
    stereo.initialise(torch.Generator().manual_seed(3))
    shift = 12
    scene = torch.rand(1, 3, HEIGHT, WIDTH + shift, generator=torch.Generator().manual_seed(0))
    match_BHW, *_ = stereo.train()(torch.cat([scene[..., :-shift], scene[..., shift:]], 1), SPACE.smallest())
    assert (match_BHW[:, 2:-2, 2 * SPACE.num_disparities : -2] - shift).abs().median() < 2.0


@pytest.mark.parametrize(("space", "architecture"), CASES)
def test_gradients_are_zero_outside_the_active_slices_and_only_there(space: SearchSpace, architecture: Architecture) -> None:
    stereo = in_general_position(Stereo(space))
    torch.autograd.backward(stereo_loss(stereo.train()(pairs(2), architecture), torch.full((2, HEIGHT, WIDTH), 9.0)))
    assert all(gradient(parameter).any() for parameter in stereo.fixed.parameters())
    assert_active_slices_alone_have_gradients(stereo, architecture)


def test_both_views_share_the_weights_and_the_statistics_of_the_first_units(stereo: Stereo) -> None:
    """Two equal views correlate best with themselves; a weight or a statistic of one view alone would break the symmetry."""
    seen: list[Tensor] = []
    norms = [module for name, module in stereo.named_modules() if isinstance(module, ElasticBatchNorm) and name.startswith("units.2")]
    for norm in norms:
        norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    left_B3HW = pairs(2)[:, :3]
    stereo.train()(torch.cat([left_B3HW, left_B3HW], 1), SPACE.largest())
    assert len(seen) == len(norms)
    for both in seen:
        assert torch.equal(both[:2], both[2:])


def test_a_view_shifted_to_the_left_is_seen_in_the_correlation_at_its_shift(stereo: Stereo) -> None:
    seen: list[Tensor] = []
    stereo.fixed.correlation_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    shift = 3
    scene = torch.rand(1, 3, HEIGHT, WIDTH + 8 * shift, generator=torch.Generator().manual_seed(0))
    stereo.train()(torch.cat([scene[..., : -8 * shift], scene[..., 8 * shift :]], 1), SPACE.smallest())
    away_from_the_edges = seen[0][..., 2:-2, shift + 2 : -2]
    assert (away_from_the_edges.argmax(1) == shift).float().mean() > 0.9


def test_recalibration_reaches_every_normalisation_and_leaves_the_weights(stereo: Stereo) -> None:
    weights_N = stereo.flat_weights_N.clone()
    architecture = SPACE.smallest()
    before = {name: module.running_mean.clone() for name, module in stereo.fixed.named_modules() if isinstance(module, ElasticBatchNorm)}
    recalibrate(stereo, architecture, [pairs(2, seed=seed) for seed in range(2)])
    for name, module in stereo.fixed.named_modules():
        if isinstance(module, ElasticBatchNorm):
            assert not torch.equal(module.running_mean, before[name]), name
    assert torch.equal(stereo.flat_weights_N, weights_N)
    assert not stereo.training
    with torch.no_grad():
        plain, expected = stereo.extract(architecture), stereo(pairs(2), architecture)
        assert torch.equal(plain(pairs(2)), expected[-1])
        for scale, of_supernet in zip(plain.scales(pairs(2)), expected, strict=True):
            assert torch.equal(scale, of_supernet)


def test_the_fixed_part_costs_what_torch_counts() -> None:
    plain = PlainStereo(SPACE, SPACE.smallest()).eval()
    sides = unit_sides(SPACE, HEIGHT)

    class Units:
        def run_unit(self, unit: int, x_BCHW: Tensor) -> Tensor:
            return torch.zeros(len(x_BCHW), SPACE.widths[unit], *sides[unit])

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        plain.fixed(pairs(2), Units())
    assert counter.get_total_flops() == 2 * 2 * fixed_macs(SPACE, HEIGHT)
    assert sum(parameter.numel() for parameter in plain.fixed.parameters()) == fixed_num_weights(SPACE)


def test_the_decoder_narrows_towards_the_full_resolution() -> None:
    for space in (STEREO_TINY, STEREO_BASE):
        widths = decoder_widths(space)
        assert len(widths) == 6
        assert all(coarse >= fine for coarse, fine in pairwise(widths))
        assert widths[-2:] == (8, 4)


def test_tiny_has_about_half_a_million_weights_and_base_about_thirteen_million(stereo: Stereo) -> None:
    assert 450_000 < stereo.num_weights < 550_000
    assert list(stereo.state_dict()) == [name for name, _ in stereo.named_parameters()]
    with torch.device("meta"):
        base = PlainStereo(STEREO_BASE, STEREO_BASE.largest())
    assert 12_500_000 < sum(parameter.numel() for parameter in base.parameters()) < 13_500_000


def views(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def shifted(channels: int, shift: int) -> tuple[Tensor, Tensor]:
    """Return two views of one texture: what is at x on the left is at x - shift on the right."""
    texture, _ = views(2, channels, 6, 40)
    return texture[..., : 40 - shift], texture[..., shift:]


def fine_match(shape: MatchShape) -> FineMatch:
    fine = FineMatch(shape, is_elastic=False)
    with torch.no_grad():
        for weight in (fine.weigh.weight, fine.score.weight):
            weight.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(1))
    fine.initialise()
    return fine


@pytest.mark.parametrize("num_disparities", [1, 5, 12])  # 12: more than the views are wide
def test_each_group_is_correlated_by_itself(num_disparities: int) -> None:
    left, right = views(3, 8, 4, 9)
    volume = correlate_groups(left, right, 2, num_disparities)
    expected = torch.zeros(3, num_disparities, 2, 4, 9)
    for disparity in range(min(num_disparities, 9)):
        for group in range(2):
            part = slice(4 * group, 4 * group + 4)
            here, there = left[:, part, :, disparity:], right[:, part, :, : 9 - disparity]
            expected[:, disparity, group, :, disparity:] = F.cosine_similarity(here, there, dim=1)
    torch.testing.assert_close(volume, expected.flatten(0, 1))
    assert volume.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shift", [0, 3, 9])
def test_with_its_first_weights_a_match_already_finds_a_shift_and_is_certain_of_it(shift: int) -> None:
    left, right = shifted(SHAPE.channels, shift)
    disparity_B1HW, certainty_B1HW = fine_match(SHAPE).eval()(left, right)
    seen = (..., slice(SHAPE.num_disparities, None))  # where no disparity lies outside of the right view
    assert (disparity_B1HW[seen] - shift).abs().median() < 0.5
    nothing = fine_match(SHAPE).eval()(left, torch.zeros_like(right))
    assert certainty_B1HW[seen].median() > 0.5 > 2 / SHAPE.num_disparities > nothing[1].max()


def test_a_match_is_a_mean_of_disparities_and_learns_by_it() -> None:
    left, right = shifted(SHAPE.channels, 4)
    left = left.clone().requires_grad_()
    fine = fine_match(SHAPE)
    disparity_B1HW, certainty_B1HW = fine(left, right)
    assert disparity_B1HW.min() >= 0
    assert disparity_B1HW.max() <= SHAPE.num_disparities - 1
    assert certainty_B1HW.max() <= 1
    torch.autograd.backward(disparity_B1HW.sum())
    assert all(parameter.grad is not None for parameter in fine.parameters())
    assert left.grad is not None
    assert left.grad.any()


def likeness_of(left: Tensor, right: Tensor, column_B1HW: Tensor, offsets: tuple[int, ...] = (0,)) -> Tensor:
    """Return what is at these columns of the right view, compared with the left one."""
    return warped_likeness(left, right, torch.arange(float(left.shape[3])) - column_B1HW, offsets)


def test_rows_are_sampled_as_torch_does() -> None:
    left, right = views(2, 3, 4, 9)
    column_B1HW = 14.0 * torch.rand(2, 1, 4, 9, generator=torch.Generator().manual_seed(1)) - 3.0  # some beyond both ends
    rows = torch.arange(4.0)[None, :, None].expand(2, 4, 9)
    offsets = (-2, -1, 0, 1, 3)
    expected = []
    for offset in offsets:
        grid_BHW2 = torch.stack([(column_B1HW.squeeze(1) - offset) / 4.0 - 1.0, rows / 1.5 - 1.0], 3)
        warped = F.grid_sample(right, grid_BHW2, padding_mode="border", align_corners=True)
        expected.append((left * warped).sum(1, keepdim=True))
    torch.testing.assert_close(likeness_of(left, right, column_B1HW, offsets), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)


def test_what_is_not_a_number_is_read_nowhere_and_stays_that() -> None:
    column_B1HW = torch.tensor([[[[1.5, float("nan"), float("inf"), float("-inf"), 1e30]]]])
    alike = likeness_of(torch.ones(1, 1, 1, 5), torch.arange(5.0).expand(1, 1, 1, 5), column_B1HW, (0, 1))
    expected = torch.tensor([[1.5, float("nan"), 4.0, 0.0, 4.0], [0.5, float("nan"), 4.0, 0.0, 4.0]])
    torch.testing.assert_close(alike[0, :, 0], expected, equal_nan=True)


def test_its_gradients_are_those_of_finite_differences() -> None:
    left, right = (view.double().requires_grad_() for view in views(1, 2, 2, 5))
    column_B1HW = torch.tensor([[[[-1.0, 0.3, 1.7, 3.9, 6.0]] * 2]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda left, right: likeness_of(left, right, column_B1HW, (-1, 0, 1)), (left, right))


def test_views_are_alike_at_the_disparity_that_they_have_and_less_beside_it() -> None:
    shift = 3
    left, right = (of_length_one(each, 1) for each in shifted(4, shift))
    likeness_BKHW = warped_likeness(left, right, torch.full((2, 1, 6, 40 - shift), float(shift)), (-1, 0, 1))[..., shift + 1 : -1]
    torch.testing.assert_close(likeness_BKHW[:, 1], torch.ones_like(likeness_BKHW[:, 1]))
    assert likeness_BKHW[:, [0, 2]].mean() < 0.3
    nearer = warped_likeness(left, right, torch.full((2, 1, 6, 40 - shift), shift - 1.0), (-1, 0, 1))[..., shift + 1 : -1]
    torch.testing.assert_close(nearer[:, 2], torch.ones_like(nearer[:, 2]))  # one pixel more is where it is


def test_no_gradient_flows_to_the_disparity_by_which_a_view_is_moved() -> None:
    left, right = (view.requires_grad_() for view in views(1, 2, 3, 7))
    disparity = torch.ones(1, 1, 3, 7, requires_grad=True)
    torch.autograd.backward(warped_likeness(left, right, disparity, (0,)).sum())
    assert disparity.grad is None
    assert left.grad is not None
    assert right.grad is not None
