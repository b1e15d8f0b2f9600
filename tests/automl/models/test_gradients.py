import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.models import gradients
from manta_swarm.automl.models.gradients import doubled, joined, of_length_one, split

LAST = torch.channels_last


def random(*shape: int, seed: int = 0) -> Tensor:
    drawn: Tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).contiguous(memory_format=LAST)
    return drawn.requires_grad_()


def gradients_of(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    pull = [torch.randn(each.shape, generator=torch.Generator().manual_seed(1)) for each in outputs]
    return list(torch.autograd.grad(outputs, inputs, pull))


def test_parts_of_a_batch_have_the_gradient_of_slices_in_the_layout_of_the_batch() -> None:
    x = random(4, 3, 2, 5)
    parts = list(split(x, 3))
    expected = [x[:3], x[3:]]
    assert all(map(torch.equal, parts, expected))
    (gradient,) = gradients_of(parts, [x])
    assert torch.equal(gradient, gradients_of(expected, [x])[0])
    assert gradient.is_contiguous(memory_format=LAST)
    (of_one,) = torch.autograd.grad(split(x, 2)[0].sum(), x)
    assert of_one[:2].eq(1).all()
    assert not of_one[2:].any()


def test_joined_parts_have_the_gradient_of_a_concatenation_each_in_its_own_memory() -> None:
    parts = [random(2, channels, 4, 6, seed=channels) for channels in (4, 3, 1)]
    parts.append(random(2, 2, 4, 6, seed=9).detach().contiguous().requires_grad_())
    whole = joined(parts)
    assert torch.equal(whole, torch.cat(parts, 1))
    assert whole.stride() == whole.contiguous(memory_format=LAST).stride() == (240, 1, 60, 10)
    found = gradients_of([whole], parts)
    for gradient, expected in zip(found, gradients_of([torch.cat(parts, 1)], parts), strict=True):
        assert torch.equal(gradient, expected)
        assert gradient.is_contiguous(memory_format=LAST)
    parts[1].requires_grad_(False)
    torch.autograd.backward(joined(parts).sum())
    assert parts[1].grad is None
    assert parts[0].grad is not None


@pytest.mark.parametrize("dim", [1, 3])
def test_vectors_of_length_one_are_torchs_with_their_gradient(dim: int) -> None:
    x = random(2, 3, 4, 5)
    with torch.no_grad():
        x[0, :, 1, 2] = 0.0  # has no direction
    assert torch.equal(of_length_one(x, dim), F.normalize(x, dim=dim))
    ours, theirs = (gradients_of([of(x)], [x])[0] for of in (lambda x: of_length_one(x, dim), lambda x: F.normalize(x, dim=dim)))
    torch.testing.assert_close(ours, theirs)


def test_where_nothing_is_learnt_and_under_autocast_all_is_torchs_own() -> None:
    x = random(4, 3, 2, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert "OfLengthOne" not in type(of_length_one(x, 1).grad_fn).__name__
    assert "OfLengthOne" in type(of_length_one(x, 1).grad_fn).__name__
    with torch.no_grad():
        assert split(x, 2)[0].grad_fn is None
    assert torch.equal(joined([x.detach(), x.detach()]), torch.cat([x, x], 1))


@pytest.mark.parametrize("shape", [(2, 1, 4, 8), (3, 1, 5, 2), (2, 1, 1, 1)])
def test_a_map_is_doubled_as_by_torch_and_its_gradient_is_that_of_finite_differences(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "_LEAST_DOUBLED", 1)
    x = random(*shape)
    assert "Doubled" in type(doubled(x).grad_fn).__name__
    expected = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
    assert torch.equal(doubled(x), expected)
    assert torch.equal(doubled(x.detach()), expected)
    assert torch.autograd.gradcheck(doubled, x.detach().double().requires_grad_())
