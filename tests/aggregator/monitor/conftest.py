"""A real run of three rounds, made once: reading it changes nothing in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manta_swarm.aggregator.follow.opening import OpenRun
from manta_swarm.aggregator.status import unix_ms
from tests.aggregator.monitor.asgi import Shown, live_of, open_round, times_of, write_live
from tests.aggregator.real_run import PEERS, commit, made_together, opened, play


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, OpenRun]]:
    """Two rounds of three peers alone, and one of a cohort of all three; the aggregator has it open."""
    directory = tmp_path_factory.mktemp("played") / "run"
    run = opened(directory)
    with run.log:
        play(run, 2)
        commit(run, [made_together(run.log.ledger, PEERS)])
        yield directory, run


@pytest.fixture
def shown(played: tuple[Path, OpenRun]) -> Shown:
    """The run, read a moment after the aggregator said something."""
    now = unix_ms()
    keys = [peer.public_key for peer in PEERS]
    open_ = open_round(4, keys, {keys[0]: "good", keys[1]: "header"}, left_ms=600_000)
    times = tuple(times_of(round_, now - 1_200 * (4 - round_)) for round_ in (1, 2, 3))
    write_live(played[0], live_of(open=open_, times=times, heard={key.hex(): now - 100 for key in keys}))
    return Shown(played[0])
