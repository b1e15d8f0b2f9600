"""A microbatch on a GPU that is only imagined: shapes and places of everything, and that nothing waits for it before all is told it.

No GPU computes. What is on the CPU and on the GPU in one operation fails here as it would there, and so does what asks for a value.
"""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from manta_swarm.automl.data.dataset import Batch
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, Architecture, SearchSpace
from manta_swarm.automl.training.microbatches import Worker
from tests.automl.narrow import WIDENED, register

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built for the CPU")

GPU = torch.device("cuda:0")
_B = 4


class NoData:
    """Workers here are given batches."""

    num_train = 1

    def training_batch(self, *_: object) -> Batch:
        raise NotImplementedError


class Crossings(TorchDispatchMode):
    """Notes which operations have to do with two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        devices = {each.device.type for each in tree_leaves((args, kwargs, made)) if isinstance(each, Tensor)}
        if len(devices) > 1:
            self.found.append(str(func))
        return made


def batch_of(space: SearchSpace, side: int) -> Batch:
    """Return inputs and targets on the CPU, as microbatches have them."""
    if space.task == "stereo":
        return Batch(torch.zeros(_B, 6, side, 2 * side), torch.zeros(_B, side, 2 * side))
    return Batch(torch.zeros(_B, space.image_channels, side, side), torch.zeros(_B, dtype=torch.int64))


def asked(space: SearchSpace) -> Architecture:
    """Return an architecture with layers of every kind."""
    return space.sample(random.Random("imagined"))


def move(supernet: Supernet) -> None:
    """Put all of a supernet on the GPU; torch's own ``to`` cannot, where that is only imagined."""
    for module in supernet.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = None if parameter is None else nn.Parameter(torch.zeros(parameter.shape, device=GPU))
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.zeros(buffer.shape, dtype=buffer.dtype, device=GPU)
    supernet._flatten(GPU)


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> FakeTensorMode:
    """Return in what the GPU is imagined."""
    monkeypatch.setattr(torch.autograd, "backward", lambda loss: None)  # torch's own needs a GPU that is there
    return FakeTensorMode()


def worker_there(space: SearchSpace, imagined: FakeTensorMode, monkeypatch: pytest.MonkeyPatch, *, is_taught: bool = True) -> Worker:
    """Return a worker whose networks are on the GPU."""
    worker = Worker(space.name, NoData())
    networks = [worker._supernet]
    if is_taught:
        worker.teach(torch.zeros(worker.num_weights))
        assert worker._teacher is not None
        networks.append(worker._teacher)
    monkeypatch.setattr(nn.Module, "to", lambda self, device: self)
    with imagined:
        for network in networks:
            move(network)
    worker._device = GPU
    return worker


@pytest.mark.parametrize(("space", "is_taught"), [(TINY, False), (WIDENED, True), (STEREO_TINY, True)])
def test_a_microbatch_goes_to_the_gpu_in_two_copies_and_nothing_comes_back_before_it_is_fetched(
    space: SearchSpace, is_taught: bool, imagined: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    worker = worker_there(space, imagined, monkeypatch, is_taught=is_taught)
    architecture = asked(space)
    with imagined:
        batch = batch_of(space, architecture.resolution)
        with Crossings() as crossings:
            loss = worker.backward(batch, architecture)
    assert crossings.found == ["aten._to_copy.default"] * 2  # inputs and targets
    assert (loss.device, loss.dtype, loss.shape) == (GPU, torch.float32, ())


def test_a_batch_that_is_there_is_not_copied_so_that_it_can_be_recorded(imagined: FakeTensorMode, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_there(TINY, imagined, monkeypatch, is_taught=False)
    with imagined:
        batch = batch_of(TINY, TINY.resolutions[-1])
        there = Batch(batch.inputs.to(GPU), batch.targets.to(GPU))
        with Crossings() as crossings:
            worker.backward(there, TINY.smallest())
    assert not crossings.found


@pytest.mark.parametrize("space", [TINY, WIDENED, STEREO_TINY], ids=lambda space: space.name)
def test_the_way_back_asks_for_no_value_either(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors here have no values, so whatever asks for one raises; the imagined GPU has no way back."""
    register(monkeypatch)
    worker = Worker(space.name, NoData(), "meta")
    worker.teach(torch.zeros(worker.num_weights))
    architecture = asked(space)
    assert worker.backward(batch_of(space, architecture.resolution), architecture).shape == ()
    assert worker._supernet.flat_gradient_N.is_meta
