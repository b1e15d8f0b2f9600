"""The faster gradient of depthwise kernels: the same values as torch's own, to rounding, for every shape that it is used for."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.models import gradients
from manta_swarm.automl.models.gradients import convolve


@pytest.fixture(autouse=True)
def for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use it for small ones, too."""
    monkeypatch.setattr(gradients, "_LEAST", 0)


def drawn(channels: int, height: int, width: int, kernel: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return random inputs and weights."""
    generator = torch.Generator().manual_seed(height * 100 + kernel)
    x_BCHW = torch.randn(3, channels, height, width, generator=generator, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return x_BCHW.requires_grad_(), torch.randn(channels, 1, kernel, kernel, generator=generator, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("kernel", [5, 7, 9])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (2, 9), (4, 4), (5, 3), (7, 7), (12, 24)])
def test_gradients_are_torchs(kernel: int, height: int, width: int) -> None:
    """Whatever the image is smaller or larger than the kernel."""
    x_BCHW, weight = drawn(32, height, width, kernel)
    expected = F.conv2d(x_BCHW, weight, padding=kernel // 2, groups=32)
    found = convolve(x_BCHW, weight, 1, 32)
    assert torch.equal(found, expected)
    assert found.grad_fn is not None
    assert found.grad_fn.name() == ("ConvolutionBackward0" if kernel // 2 >= min(height, width) else "_DepthwiseBackward")
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    for ours, theirs in zip(*(torch.autograd.grad(each, (x_BCHW, weight), pull) for each in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (2, 2), (2, 4), (3, 3), (4, 2)])
def test_what_never_lies_on_a_map_is_left_out_and_makes_no_difference(kernel: int, stride: int, height: int, width: int) -> None:
    """No bit of the output differs, and the gradient of the weights that were left out is 0, as it is with torch's own."""
    x_BCHW, weight = drawn(24, height, width, kernel)
    expected = F.conv2d(x_BCHW, weight, stride=stride, padding=kernel // 2, groups=24)
    found = convolve(x_BCHW, weight, stride, 24)
    assert torch.equal(found, expected)
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    for ours, theirs in zip(*(torch.autograd.grad(each, (x_BCHW, weight), pull) for each in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert torch.equal(ours == 0.0, theirs == 0.0)
    assert gradients._seen(weight, x_BCHW).shape[2] == min(kernel, 2 * height - 1)


def test_gradients_are_those_of_differences() -> None:
    """The gradients are compared, in double precision, with finite differences by input and by weight."""
    x_BCHW, weight = drawn(2, 4, 5, 7, torch.float64)
    assert torch.autograd.gradcheck(lambda x, w: convolve(x, w, 1, 2), (x_BCHW, weight))


def test_only_what_is_needed_has_a_gradient() -> None:
    """No gradient is computed of an input that needs none, as images need none, nor of weights that are not learnt."""
    x_BCHW, weight = drawn(8, 6, 6, 5)
    (of_weight,) = torch.autograd.grad(convolve(x_BCHW.detach(), weight, 1, 8).sum(), weight)
    (of_x,) = torch.autograd.grad(convolve(x_BCHW, weight.detach(), 1, 8).sum(), x_BCHW)
    assert of_weight.shape == weight.shape
    assert of_x.shape == x_BCHW.shape


@pytest.mark.parametrize(("stride", "groups", "kernel"), [(2, 8, 5), (1, 8, 3), (1, 1, 5)])
def test_other_convolutions_are_torchs_own(stride: int, groups: int, kernel: int) -> None:
    """Torch's own convolution is used where nothing is gained by another one."""
    x_BCHW = torch.ones(1, 8, 6, 6, requires_grad=True)
    found = convolve(x_BCHW, torch.ones(8, 8 // groups, kernel, kernel), stride, groups)
    assert found.grad_fn is not None
    assert found.grad_fn.name() == "ConvolutionBackward0"


def test_autocast_has_torchs_own() -> None:
    """Torch's own convolution rounds the inputs of both passes alike."""
    x_BCHW, weight = drawn(32, 8, 8, 7)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolve(x_BCHW, weight, 1, 32)
    assert found.dtype == torch.bfloat16
    of_x, of_weight = torch.autograd.grad(found.float().sum(), (x_BCHW, weight))
    assert of_x.dtype == of_weight.dtype == torch.float32
