import pytest
import torch
from torch import Tensor, nn

from manta_swarm.automl.models import gradients


def convolution(channels: int, out: int, dtype: torch.dtype = torch.float32) -> nn.Conv2d:
    made = nn.Conv2d(channels, out, 3, padding=1, dtype=dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    return made


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize(("shape", "out"), [((8, 4, 32, 64), 1), ((30, 12, 17, 33), 2), ((1, 3, 1, 17000), 1), ((64, 8, 64, 64), 1)])
def test_a_batch_is_convolved_as_by_torch_and_has_its_gradients(shape: tuple[int, ...], out: int) -> None:
    made, x = convolution(shape[1], out), batch(*shape)
    ours, theirs = gradients.convolved(x, made), made(x)
    assert "Narrow" in type(ours.grad_fn).__name__
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    pull = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    inputs = (x, *made.parameters())
    for found, expected in zip(torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(theirs, inputs, pull), strict=True):
        assert (found - expected).norm() < 1e-4 * expected.norm()


def test_gradients_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_LEAST_PIXELS", 1)
    monkeypatch.setattr(gradients, "_AT_A_TIME", 1)  # a sample at a time
    made, x = convolution(2, 2, torch.float64), batch(3, 2, 3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, *_: gradients.convolved(x, made), (x, *made.parameters()))


def test_where_nothing_is_learnt_or_little_is_there_it_is_torchs_own() -> None:
    made, x = convolution(4, 1), batch(8, 4, 32, 64)
    assert torch.equal(gradients.convolved(x.detach(), made), made(x))
    with torch.no_grad():
        assert torch.equal(gradients.convolved(x, made), made(x))
    small = batch(2, 4, 8, 8)
    assert torch.equal(gradients.convolved(small, made), made(small))
