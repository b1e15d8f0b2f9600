import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.models import norms
from manta_swarm.automl.models.layers import BATCH_NORM_EPSILON, ElasticLayer
from manta_swarm.automl.spaces.shapes import LayerShape
from manta_swarm.automl.spaces.units import Layer

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs(batch: int, channels: int, expanded: int, out: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> Inputs:
    """Return a batch, and the weights of an expansion, its normalisation and a projection, the last ones of a part of larger weights."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    x = drawn(batch, channels, height, width) + 3 * drawn(channels, 1, 1)
    project = drawn(out, expanded + 3, 1, 1).requires_grad_()[:, :expanded]
    each = (drawn(expanded, channels, 1, 1), drawn(expanded), drawn(expanded))
    return (x.contiguous(memory_format=torch.channels_last).requires_grad_(), *(one.requires_grad_() for one in each), project)  # type: ignore[return-value]


def by_torch(x: Tensor, expand: Tensor, weight: Tensor, bias: Tensor, project: Tensor) -> Tensor:
    normal = F.batch_norm(F.conv2d(x, expand), None, None, weight, bias, training=True, eps=BATCH_NORM_EPSILON)
    return F.conv2d(F.relu(normal), project)


@pytest.mark.parametrize("shape", [(16, 16, 64, 16, 32, 64), (3, 8, 32, 24, 33, 65), (2, 4, 600, 5, 16, 16)])
def test_a_batch_is_expanded_normalised_and_projected_as_by_torch_and_has_its_gradients(shape: tuple[int, ...]) -> None:
    ours, exact = inputs(*shape), inputs(*shape, dtype=torch.float64)
    with torch.no_grad():
        for one, other in zip(exact, ours, strict=True):
            one.copy_(other)
    found, expected = norms.projected(*ours, BATCH_NORM_EPSILON), by_torch(*exact)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))  # in rows
    gradients = zip(torch.autograd.grad(found, ours, pull), torch.autograd.grad(expected, exact, pull.double()), strict=True)
    assert all((of_ours - of_exact).norm() < 1e-5 * of_exact.norm() for of_ours, of_exact in gradients)


def test_gradients_are_those_of_finite_differences() -> None:
    some = inputs(2, 2, 5, 3, 4, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *given: norms.projected(*given, BATCH_NORM_EPSILON), some)


def test_many_more_pixels_than_are_taken_at_a_time_give_what_all_at_once_do(monkeypatch: pytest.MonkeyPatch) -> None:
    some = inputs(4, 8, 32, 8, 16, 33)
    in_parts = norms.projected(*some, BATCH_NORM_EPSILON)
    monkeypatch.setattr(norms, "_CACHED", 1 << 10)
    in_more = norms.projected(*some, BATCH_NORM_EPSILON)
    pull = torch.randn(in_parts.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(in_more, in_parts, rtol=1e-4, atol=1e-4)
    for one, other in zip(torch.autograd.grad(in_more, some, pull), torch.autograd.grad(in_parts, some, pull), strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_it_is_for_large_batches_of_which_something_is_learnt() -> None:
    x = inputs(16, 4, 8, 8, 32, 64)[0]
    assert norms.can_project(x, 128)
    assert not norms.can_project(x, 127)
    assert not norms.can_project(x.detach(), 128)
    assert not norms.can_project(x.detach().contiguous().requires_grad_(), 128)
    with torch.no_grad():
        assert not norms.can_project(x, 128)
    with torch.autocast("cpu", torch.bfloat16):
        assert not norms.can_project(x, 128)


def test_an_elastic_layer_takes_it_in_training_alone() -> None:
    shape = LayerShape(0, 1, 16, 16, 16, 1, 1)
    layer = ElasticLayer(shape, (3,), (4,))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    x = inputs(32, 16, 64, 16, 32, 64)[0]

    def is_taken() -> bool:
        seen, waiting = set(), [layer(x, shape, Layer(3, 4)).grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [further for further, _ in node.next_functions]
        return any("Projected" in type(node).__name__ for node in seen)

    assert is_taken()
    layer.expand_norm.momentum = 0.1  # a calibration
    assert not is_taken()
    layer.expand_norm.momentum = None
    assert not layer.eval().training
    assert not is_taken()
