"""One thread for the whole folder, so that no test depends on the machine's cores; the digits, and some weights to work with."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from manta_swarm.automl.data.catalog import digits as load_digits
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces import space as spaces
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, space_named
from tests.automl import kernels as every_kernel
from tests.automl.kernels import KERNELS, STEREO_KERNELS
from tests.automl.narrow import FIXED, NARROW, WIDENED, register
from tests.automl.small import SMALL

Net = TypeVar("Net", bound=Supernet)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits() -> ImageDataset:
    return load_digits()


@pytest.fixture(scope="session")
def few(digits: ImageDataset) -> ImageDataset:
    """So few digits that a round takes no time, and measuring little."""
    train = {"train_images": digits.train_images[:64], "train_labels": digits.train_labels[:64]}
    return replace(digits, **train, held_out_images=digits.held_out_images[:70], held_out_labels=digits.held_out_labels[:70])


@pytest.fixture(scope="module")
def small_known() -> Iterator[None]:
    """Make the small classifier known by its name."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(spaces._SPACES, SMALL.name, SMALL)
        yield


@pytest.fixture
def small(small_known: None) -> Classifier:
    """The small classifier in general position."""
    return in_general_position(Classifier(SMALL))


@pytest.fixture
def few_by_name(few: ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the digits are loaded by their name they are these."""
    monkeypatch.setattr("manta_swarm.automl.data.catalog.digits", lambda: few)


def in_general_position(supernet: Net) -> Net:
    """Return it with random transforms, scales and shifts."""
    generator = torch.Generator().manual_seed(1)
    supernet.initialise(generator)
    supernet.flat_weights_N.add_(torch.empty(supernet.num_weights).normal_(0.0, 0.05, generator=generator))
    return supernet


@pytest.fixture
def supernet() -> Classifier:
    """The tiny classifier in general position."""
    return in_general_position(Classifier(TINY))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Classifier:
    """The tiny classifier with three kernels to choose from in every unit, in general position."""
    every_kernel.register(monkeypatch)
    return in_general_position(Classifier(KERNELS))


@pytest.fixture
def base() -> Classifier:
    """The base classifier of 10 classes in general position."""
    return in_general_position(Classifier(space_named("classifier-base-3x10")))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Classifier:
    """A small classifier whose units have widths to choose from, in general position."""
    register(monkeypatch)
    return in_general_position(Classifier(NARROW))


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> Classifier:
    """The same where each unit has the largest of these widths, and no choice."""
    register(monkeypatch)
    return in_general_position(Classifier(FIXED))


@pytest.fixture
def widened(monkeypatch: pytest.MonkeyPatch) -> Classifier:
    """The same with a wide head."""
    register(monkeypatch)
    return in_general_position(Classifier(WIDENED))


@pytest.fixture
def stereo() -> Stereo:
    """The tiny stereo supernet in general position."""
    return in_general_position(Stereo(STEREO_TINY))


@pytest.fixture
def stereo_kernels(monkeypatch: pytest.MonkeyPatch) -> Stereo:
    """The tiny stereo supernet with three kernels to choose from in every unit, in general position."""
    every_kernel.register(monkeypatch)
    return in_general_position(Stereo(STEREO_KERNELS))


@pytest.fixture
def x_BCHW() -> Tensor:
    return torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(2))
