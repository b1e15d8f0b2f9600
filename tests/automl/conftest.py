"""One thread for the whole folder, so that no test depends on the machine's cores; the digits, and some weights to work with."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from automl.classifier import Supernet
from automl.data.digits import load
from automl.data.images import ImageDataset
from automl.space import TINY


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits() -> ImageDataset:
    return load("digits")


@pytest.fixture
def supernet() -> Supernet:
    """A supernet in general position: random transforms, scales and shifts."""
    supernet = Supernet(TINY)
    generator = torch.Generator().manual_seed(1)
    supernet.initialise(generator)
    supernet.flat_weights_N.add_(torch.empty(supernet.num_weights).normal_(0.0, 0.05, generator=generator))
    return supernet


@pytest.fixture
def x_BCHW() -> Tensor:
    return torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(2))
