"""What a volunteer types beside a real peer in a real run: doctor, about, limits, status, leave; and the run's newest state."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.update import state_digest
from manta_swarm.peer.cli import main
from manta_swarm.peer.commands.specialise import newest_state
from manta_swarm.peer.config import load_config
from tests.command import typed
from tests.network.processes import LITTLE_WORK, Programs, small_run

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # hivemind's way to find its daemon
]


def command(*arguments: str | Path, exit_code: int = 0) -> str:
    """Return what ``manta-peer ARGUMENTS`` prints."""
    ended = typed(main, *arguments)
    assert (ended.exit_code, ended.errors) == (exit_code, "")
    return ended.output


def test_a_peer_is_limited_looked_at_and_left_from_another_terminal(tmp_path: Path) -> None:
    with Programs(tmp_path, small_run(rounds=10_000, first_open_s=1.0, min_open_s=1.0, max_open_s=4.0, **LITTLE_WORK)) as programs:
        address = programs.start_aggregator()["addresses"][0]
        programs.start_peer("peer", "cohort-0", "--duty", "50%")
        programs.wait_for_round(1)
        peer = ("--dir", tmp_path / "peer")
        assert command("limits", *peer) == "duty 50%, cpu-threads 1\n"
        assert command("limits", *peer, "--max-upload", "1MB", "--schedule", "00:00-24:00") == (
            "duty 50%, cpu-threads 1, max-upload 1MB, schedule 00:00-24:00\n"
        )
        assert "limits: duty 50%, cpu-threads 1, max-upload 1MB" in command("status", *peer)
        programs.wait_for_round(programs.status("aggregator")["round"] + 2)

        there = ("--initial-peers", address)
        found = command("doctor", *there, "--dir", tmp_path / "doctor", "--gpus", "none")
        for words in ("answers within", "clock: the log's", "digits is here, and is the run's", "others on this network can call"):
            assert words in found
        assert "BAD" not in found
        assert "205,696 weights" in command("about", *there, "--dir", tmp_path / "doctor")
        assert not (tmp_path / "doctor").exists()

        path = asyncio.run(newest_state(load_config({"dir": tmp_path / "doctor", "initial_peers": (address,)}), tmp_path))
        state, metadata = load_snapshot(path)
        assert state_digest(state).hex() == metadata["state"]
        assert state.round >= 1

        programs.expect_end("peer")
        assert "handed in" in command("leave", *peer)
        assert programs.wait_for_end("peer") == 0
        assert programs.status("peer")["samples_lost"] == 0
        programs.interrupt("aggregator")
        programs.wait_for_end("aggregator")
    gone = command("doctor", *there, "--dir", tmp_path / "doctor", "--gpus", "none", exit_code=1)
    assert "does not answer" in gone
