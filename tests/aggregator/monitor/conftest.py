"""A real run of three rounds, made once: reading it changes nothing in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manta_swarm.aggregator.states.opening import OpenedRun
from tests.aggregator.monitor.asgi import Shown, shown_now
from tests.aggregator.real_run import PEERS, commit, made_together, opened, play


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, OpenedRun]]:
    """Two rounds of three peers alone, and one of a cohort of all three; the aggregator has it open."""
    directory = tmp_path_factory.mktemp("played") / "run"
    run = opened(directory)
    with run.log:
        play(run, 2)
        commit(run, [made_together(run.log.ledger, PEERS)])
        yield directory, run


@pytest.fixture(scope="module")
def shown(played: tuple[Path, OpenedRun]) -> Shown:
    """The run, read a moment after the aggregator said something."""
    return shown_now(played[0])
