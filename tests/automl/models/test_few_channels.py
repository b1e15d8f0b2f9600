import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.models import norms
from manta_swarm.automl.models.layers import BATCH_NORM_EPSILON, ElasticBatchNorm

SHAPES = [(8, 4, 16, 32), (2, 1, 4, 8), (4, 7, 2, 2), (2, 3, 8, 4)]


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=dtype) * torch.arange(1, shape[1] + 1)[:, None, None] + 3.0
    weight, bias = (torch.randn(shape[1], generator=generator, dtype=dtype).requires_grad_() for _ in range(2))
    return x.contiguous(memory_format=torch.channels_last).requires_grad_(), weight, bias


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_is_normalised_as_by_torch_and_has_its_gradients(shape: tuple[int, ...]) -> None:
    inputs = batch(*shape)
    assert norms.can_normalise(inputs[0])
    ours = norms.normalised(*inputs, BATCH_NORM_EPSILON)
    x, weight, bias = inputs
    theirs = F.batch_norm(x, None, None, weight, bias, training=True, eps=BATCH_NORM_EPSILON)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    pull = torch.randn(shape, generator=torch.Generator().manual_seed(1))  # in rows
    for found, expected in zip(torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(theirs, inputs, pull), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_gradients_are_those_of_finite_differences() -> None:
    inputs = batch(2, 3, 4, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *inputs: norms.normalised(*inputs, BATCH_NORM_EPSILON), inputs)


def test_a_channel_of_one_value_is_its_bias() -> None:
    x = torch.full((2, 2, 4, 8), 3.0).contiguous(memory_format=torch.channels_last)
    y = norms.normalised(x, torch.ones(2), torch.tensor([1.0, -2.0]), BATCH_NORM_EPSILON)
    torch.testing.assert_close(y, torch.tensor([1.0, -2.0])[:, None, None].expand_as(x), rtol=1e-4, atol=1e-3)


def test_it_is_for_few_channels_last_whose_pixels_are_in_groups() -> None:
    x = batch(2, 4, 4, 8)[0].detach()
    assert not norms.can_normalise(x.contiguous())
    assert not norms.can_normalise(x[..., :3].contiguous(memory_format=torch.channels_last))
    assert not norms.can_normalise(x.repeat(1, 2, 1, 1).contiguous(memory_format=torch.channels_last))
    with torch.autocast("cpu", torch.bfloat16):
        assert not norms.can_normalise(x)


def test_an_elastic_normalisation_of_few_channels_takes_it_in_training_alone() -> None:
    norm = ElasticBatchNorm(4)
    with torch.no_grad():
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    x = batch(2, 4, 4, 8)[0]
    assert "FewChannels" in type(norm.train()(x).grad_fn).__name__
    assert "FewChannels" not in type(norm.eval()(x).grad_fn).__name__
    norm.train().momentum = 0.1  # a calibration
    assert "FewChannels" not in type(norm(x).grad_fn).__name__
