import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from manta_swarm.automl.models.stereo import correlate
from manta_swarm.automl.spaces.shapes import correlation_macs


def views(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def naive(left_BCHW: Tensor, right_BCHW: Tensor, num_disparities: int) -> Tensor:
    batch, _, height, width = left_BCHW.shape
    out_BDHW = torch.zeros(batch, num_disparities, height, width, dtype=left_BCHW.dtype)
    for disparity in range(min(num_disparities, width)):
        matched = left_BCHW[..., disparity:] * right_BCHW[..., : width - disparity]
        out_BDHW[:, disparity, :, disparity:] = matched.mean(1)
    return out_BDHW


@pytest.mark.parametrize("num_disparities", [1, 5, 9, 12])  # 12: more than the views are wide
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_equals_a_loop_over_the_disparities(num_disparities: int, layout: torch.memory_format) -> None:
    left, right = (view.to(memory_format=layout) for view in views(3, 7, 4, 9))
    correlation = correlate(left, right, num_disparities)
    torch.testing.assert_close(correlation, naive(left, right, num_disparities))
    assert correlation.is_contiguous(memory_format=torch.channels_last)


def test_its_gradients_are_those_of_finite_differences() -> None:
    left, right = (view.double().requires_grad_() for view in views(2, 3, 2, 5))
    assert torch.autograd.gradcheck(lambda left, right: correlate(left, right, 3), (left, right))


def test_the_best_match_of_a_shifted_texture_is_its_true_shift() -> None:
    texture, _ = views(1, 32, 6, 40)
    shift = 5
    left, right = texture[..., :-shift], texture[..., shift:]  # what is at x on the left is at x - 5 on the right
    assert (correlate(left, right, 8).argmax(1)[..., shift:] == shift).all()


def test_torch_counts_the_macs_that_we_state() -> None:
    left, right = views(2, 7, 4, 9)
    with FlopCounterMode(display=False) as counter:
        correlate(left, right, 5)
    assert counter.get_total_flops() == 2 * 2 * correlation_macs(7, 4, 9)
