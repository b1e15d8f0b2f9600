"""A program whose terminal is gone goes on: nobody reads what it says any more, and that is all."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.settings.config import template
from tests.command import Home, environment, home
from tests.network.processes import LISTEN, read_json, small_run, wait_for

__all__ = ["environment", "home"]

pytestmark = pytest.mark.swarm


def test_an_aggregator_whose_output_nobody_reads_serves_its_run(home: Home, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(template(small_run()))
    where = ("--dir", tmp_path / "run", "--listen", LISTEN, "--no-monitor")
    process = home.start("manta_swarm.aggregator.cli", "start", tmp_path / "run.toml", *where)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None  # what is said later meets a closed pipe
    wait_for(lambda: bool(read_json(tmp_path / "run" / "status.json").get("addresses")), "it listens", detail=lambda: str(process.poll()))
    ended = home.interrupted(process)
    assert (ended.exit_code, ended.errors) == (0, "")
