"""No example of hypothesis has a deadline: a busy machine is no failure."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("manta", deadline=None)
settings.load_profile("manta")


@pytest.fixture
def _flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    yield
    torch.set_flush_denormal(False)
