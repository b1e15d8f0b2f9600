"""A home of its own for each test: no test reads or writes what belongs to the person who runs it. And a new log in a new directory.

Imports hivemind by the only door, which silences what hivemind's own code warns of: in tests every warning is an error.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import manta_swarm.network.node  # noqa: F401
from manta_swarm.aggregator.log.log import Log
from tests.aggregator.at_work import world
from tests.aggregator.service import service
from tests.aggregator.small_run import create, signed_manifest
from tests.command import environment, home

__all__ = ["environment", "home", "service", "world"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


@pytest.fixture
def log(directory: Path) -> Iterator[Log]:
    with create(directory, signed_manifest()) as log:
        yield log
