import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.models.gradients import of_length_one
from manta_swarm.automl.models.stereo import FineMatch, correlate_groups, warped_likeness
from manta_swarm.automl.spaces.shapes import MatchShape, match_shape
from manta_swarm.automl.spaces.space import STEREO_TINY

SHAPE = match_shape(STEREO_TINY)


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
