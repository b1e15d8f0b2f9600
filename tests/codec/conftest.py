"""What the tests of codec share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    yield
    torch.set_flush_denormal(False)
