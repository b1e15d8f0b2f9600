"""A real peer with two worker processes in a real run: one is killed, all are ended by a pause, and nothing is lost or left."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.peer.cli import main
from tests.command import typed
from tests.network.processes import Programs, are_gone, processes_of, small_run

pytestmark = pytest.mark.swarm

FEW = {"target_batch": 32, "max_claim_samples": 32, "weight_cap": 32}  # samples: a microbatch for each worker in a round


def workers_of(programs: Programs, name: str) -> dict[int, psutil.Process]:
    """Return a peer's worker processes, by process id."""
    peer = psutil.Process(programs.status(name)["pid"])
    return {child.pid: child for child in peer.children() if "manta_swarm.peer.workers.worker_process" in child.cmdline()}


def command(*arguments: str | Path) -> str:
    """Return what ``manta-peer ARGUMENTS`` prints."""
    ended = typed(main, *arguments)
    assert (ended.exit_code, ended.errors) == (0, "")
    return ended.output


def test_a_peer_goes_on_when_a_worker_is_killed_and_after_a_pause_and_loses_no_sample(tmp_path: Path) -> None:
    with Programs(tmp_path, small_run(rounds=10_000, first_open_s=1.0, min_open_s=1.0, **FEW)) as programs:
        programs.start_aggregator()
        programs.start_peer("peer", "cohort-0", "--workers", "2")
        programs.wait_until(lambda: programs.status("peer").get("workers") == 2, "both workers are there")
        programs.wait_for_round(2)
        before = workers_of(programs, "peer")
        assert len(before) == 2
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        programs.wait_until(lambda: "is done again" in programs.log("peer"), "the person is told")
        programs.wait_until(lambda: len(workers_of(programs, "peer")) == 2, "a new worker is started")
        programs.wait_until(lambda: programs.status("peer")["workers"] == 2, "a new worker is there")
        after = workers_of(programs, "peer")
        assert victim not in after
        assert set(before) - {victim} < set(after)
        programs.wait_for_round(programs.status("aggregator")["round"] + 2)

        assert command("pause", "--dir", tmp_path / "peer").startswith("paused")
        assert are_gone(list(after.values()))
        assert (programs.status("peer")["paused"], programs.status("peer")["workers"]) == (True, 0)
        assert command("resume", "--dir", tmp_path / "peer") == "resumed\n"
        programs.wait_until(lambda: programs.status("peer")["workers"] == 2, "the workers are back")
        programs.wait_for_round(programs.status("aggregator")["round"] + 2)

        running = [each for each in processes_of(tmp_path / "peer") if each.pid != os.getpid()]
        programs.interrupt("peer")
        assert programs.wait_for_end("peer") == 0
        status = programs.status("peer")
        assert (status["samples_lost"], status["promises_broken"], status["dropped"]) == (0, 0, {})
        assert are_gone(running)
        assert "Traceback" not in programs.log("peer")
    verified = verify_directory(tmp_path / "aggregator")
    assert verified.rounds >= 6
