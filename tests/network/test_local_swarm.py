"""manta-swarm with the real programs: it ends with a report, and however it ends, nothing is left.

Where its own process is not what is looked at, it is typed in the test's process, and its programs are forks.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from rich.console import Console

from manta_swarm.aggregator.local.cli import main
from manta_swarm.aggregator.local.settings import Options, make_settings
from manta_swarm.aggregator.local.swarm import LocalSwarm
from manta_swarm.aggregator.log.contents import COPIED, NOT_COPIED
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import TrustSection
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.runtime.signals import Told
from tests.command import Ended, typed
from tests.docs.verifiers import check_whole
from tests.network.processes import DEADLINE_S, ForkedChild, are_gone, processes_of, read_json, wait_for

pytestmark = pytest.mark.swarm

Seen = TypeVar("Seen")


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the programs of a swarm that is started in this process forked."""
    monkeypatch.setattr("manta_swarm.aggregator.local.swarm.Child", ForkedChild)


def _up(directory: Path, *arguments: str, meanwhile: Callable[[], Seen]) -> tuple[Ended, Seen]:
    """Return how ``manta-swarm up`` ended in this process, and what was done and seen beside it, in a thread."""
    with ThreadPoolExecutor(1) as beside:
        seen = beside.submit(meanwhile)
        ended = typed(main, "up", "--dir", directory, *arguments)
        if ended.exit_code and not seen.done():
            print(ended.output, ended.errors)
    return ended, seen.result()


@contextmanager
def _swarm(directory: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run ``manta-swarm up`` for real; it is killed at the latest when the test ends."""
    command = [sys.executable, "-P", "-m", "manta_swarm.aggregator.local.cli", "up", "--dir", str(directory), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for_a_round(directory: Path) -> list[psutil.Process]:
    """Return all processes of a swarm with its first round committed."""
    status = directory / "aggregator" / "status.json"
    wait_for(lambda: read_json(status).get("round", 0) >= 1, "round 1 is committed")
    found = processes_of(directory)
    assert len(found) >= 4  # an aggregator and a peer, each with a daemon
    return found


def _check_report(directory: Path, printed: str, rounds: int) -> dict[str, Any]:
    """Return the report of a swarm that came to its end; what it says is what its log says, and its peers."""
    report: dict[str, Any] = json.loads((directory / "report.json").read_text())
    counted: list[int] = []
    found = verify_directory(
        directory / "aggregator", on_round=lambda ledger: counted.append(sum(one.counted for one in ledger.table_at(ledger.round) or ()))
    )
    assert report["rounds_committed"] == found.rounds == len(counted) == rounds
    assert (report["ledger"]["root"], report["ledger"]["size"]) == (found.root.hex(), found.size)
    assert {peer["key"]: peer["credits"] for peer in report["peers"] if peer["credits"]} == {
        key.hex(): amount for key, amount in found.credits.items()
    }
    assert report["all_peers_agree"]
    assert {peer["state"] for peer in report["peers"] if peer["fate"] == "finished"} == {report["state"]}
    assert {check["name"]: check["passed"] for check in report["checks"]}["every inclusion promise was kept"]
    assert report["quality"]["metric"] == "accuracy"
    assert 0 <= report["quality"]["smallest"] <= 1
    assert found.root.hex() in printed
    assert str(directory) in printed
    check_whole(directory / "aggregator", directory / "export")
    assert {path.name for path in (directory / "aggregator").iterdir()} <= {
        *COPIED,
        *NOT_COPIED,
    }  # of each it is known whether a backup has it
    proof = read_json(directory / "aggregator" / "snapshots" / f"round-{rounds:08d}.json")
    assert (proof["ledger_size"], proof["ledger_root"]) == (found.size, found.root.hex())
    assert proof["tree_head"] == found.tree_head
    if "killed" not in {peer["fate"] for peer in report["peers"]}:  # who was killed did not say its last
        assert report["samples_counted"] == sum(peer["samples_counted"] for peer in report["peers"]) == sum(counted)
        assert report["samples_lost"] == sum(peer["samples_lost"] for peer in report["peers"])
    return report


@pytest.mark.usefixtures("forks")
def test_a_swarm_trains_to_the_end_and_reports_what_its_log_says(tmp_path: Path) -> None:
    directory, rounds = tmp_path / "swarm", 4  # of the four the last ones have a teacher
    how = ("--algorithm", "model-parallel", "--schedule", "shrinking", "--local-steps", "2")
    done = typed(main, "up", "--no-monitor", "--dir", directory, "--peers", "2", "--cohorts", "2", "--rounds", str(rounds), *how)
    assert done.exit_code == 0, done
    assert processes_of(directory) == []
    report = _check_report(directory, done.output, rounds)
    assert (report["algorithm"], report["schedule"]) == ("model-parallel", "shrinking")
    teachers = {read_json(directory / f"peer-{index}" / "status.json")["teacher"] for index in range(2)}
    assert len(teachers) == 1
    assert teachers != {""}


@pytest.mark.usefixtures("forks")
def test_a_killed_peer_is_said_and_is_no_failure(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"

    def kill() -> None:
        _wait_for_a_round(directory)
        wait_for(lambda: "pid" in read_json(directory / "peer-2" / "status.json"), "the last one says who it is")
        os.kill(read_json(directory / "peer-2" / "status.json")["pid"], signal.SIGKILL)

    arguments = ("--monitor", "127.0.0.1:0", "--peers", "3", "--cohorts", "2", "--rounds", "5")
    done, _ = _up(directory, *arguments, meanwhile=kill)
    assert done.exit_code == 0, done
    assert processes_of(directory) == []
    assert "peer-2 was killed; the others go on" in done.output
    report = _check_report(directory, done.output, 5)
    assert (report["algorithm"], report["schedule"]) == ("data-parallel", "sandwich")
    assert [peer["fate"] for peer in report["peers"]] == ["finished", "finished", "killed"]
    assert {read_json(directory / f"peer-{index}" / "status.json")["teacher"] for index in range(3)} == {""}


def test_a_swarm_of_one_cohort_in_local_steps_is_computed_again_and_nothing_shows_its_token(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"
    exchange = ("--cohorts", "1", "--local-steps", "2", "--codec", "topk-512-4")
    with _swarm(directory, "--no-monitor", "--peers", "2", "--rounds", "4", *exchange) as process:
        statuses = [directory / f"peer-{index}" / "status.json" for index in range(2)]
        wait_for(lambda: all("pid" in read_json(path) for path in statuses), "both peers say who they are")
        pids = [read_json(path)["pid"] for path in statuses]
        (token,) = {psutil.Process(pid).environ()["MANTA_COHORT_TOKEN"] for pid in pids}
        commands = [word for each in processes_of(directory) for word in each.cmdline()]
        printed, _ = process.communicate(timeout=2 * DEADLINE_S)
        assert process.returncode == 0, printed
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert commands
    assert not [word for word in commands if token in word]
    assert token not in printed
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert not [path for path in files if token.encode() in path.read_bytes() or bytes.fromhex(token) in path.read_bytes()]
    report = json.loads((directory / "report.json").read_text())
    assert (report["cohorts"], report["local_steps"], report["codec"]) == (1, 2, "topk-512-4")
    assert "1 cohort, 2 local steps a round, topk-512-4" in printed
    assert report["all_peers_agree"]
    names: list[str] = []
    verify_directory(
        directory / "aggregator", on_round=lambda ledger: names.extend(one.cohort for one in ledger.table_at(ledger.round) or ())
    )
    assert set(names) == {"cohort-0"}
    assert replay_directory(directory / "aggregator").rounds == 4
    check_whole(directory / "aggregator", directory / "export")


@pytest.mark.usefixtures("forks")
def test_a_stereo_swarm_agrees_on_every_bit_and_one_that_errs_too_much_fails_and_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"
    done = typed(main, "up", "--no-monitor", "--dir", directory, "--task", "stereo", "--peers", "2", "--rounds", "2", "--max-epe", "0")
    assert done.exit_code == 1, done
    assert "failed: the largest subnet errs by 0 px at most; the smallest subnet errs by 0 px at most" in done.output
    report = json.loads((directory / "report.json").read_text())
    assert (report["task"], report["dataset"], report["supernet"]) == ("stereo", "layers", "stereo-tiny")
    assert report["rounds_committed"] == 2
    assert report["all_peers_agree"]
    assert report["ledger"]["verified"]
    assert report["quality"]["metric"] == "epe"
    assert report["quality"]["baseline"] > 0


@pytest.mark.usefixtures("forks")
def test_a_swarm_that_is_told_to_stop_mid_run_leaves_nothing_running(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"

    def interrupt() -> list[psutil.Process]:
        processes = _wait_for_a_round(directory)
        os.kill(os.getpid(), signal.SIGINT)
        return processes

    arguments = ("--monitor", "127.0.0.1:0", "--peers", "1", "--cohorts", "1", "--rounds", "500")
    done, processes = _up(directory, *arguments, meanwhile=interrupt)
    assert done.exit_code == 128 + signal.SIGINT, done
    assert are_gone(processes)
    assert "nothing is left running" in done.errors
    assert "Traceback" not in done.output + done.errors
    assert verify_directory(directory / "aggregator").rounds >= 1


def test_a_swarm_that_is_told_to_stop_while_it_starts_leaves_nothing_running(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"
    with _swarm(directory, "--monitor", "127.0.0.1:0", "--peers", "2", "--rounds", "500") as process:
        wait_for((directory / "peer-1.log").exists, "the second peer is started")
        processes = [each for each in processes_of(directory) if each.pid != process.pid]
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM, printed
    assert are_gone(processes)
    assert processes_of(directory) == []
    assert "nothing is left running" in printed
    assert "Traceback" not in printed


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
def test_a_swarm_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"
    with _swarm(directory, "--no-monitor", "--peers", "1", "--cohorts", "1", "--rounds", "500") as process:
        processes = _wait_for_a_round(directory)
        assert len(processes) >= 5  # itself, too
        process.kill()
    wait_for(lambda: are_gone(processes), "every process of the swarm is gone")
    assert verify_directory(directory / "aggregator").rounds >= 1


@pytest.mark.usefixtures("forks")
def test_a_killed_aggregator_ends_the_swarm_with_its_last_lines(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"

    def kill() -> list[psutil.Process]:
        processes = _wait_for_a_round(directory)
        os.kill(read_json(directory / "aggregator" / "status.json")["pid"], signal.SIGKILL)
        return processes

    done, processes = _up(directory, "--no-monitor", "--peers", "1", "--cohorts", "1", "--rounds", "500", meanwhile=kill)
    assert done.exit_code == 1, done
    assert "aggregator was ended by SIGKILL; its last lines:" in done.errors
    assert "round committed round=1" in done.errors
    wait_for(lambda: are_gone(processes), "every process of the swarm is gone")


@pytest.mark.usefixtures("forks")
def test_a_swarm_whose_contributions_are_audited_ends_once_all_is_paid(tmp_path: Path) -> None:
    settings = make_settings(Options(directory=tmp_path / "swarm", peers=2, cohorts=2, rounds=3, no_monitor=True))
    trust = TrustSection(mode="audited", audit_percent=100, newcomer_percent=100, kept_rounds=1, pending_rounds=8, settle_s=120)
    own = settings.run.aggregator.model_copy(update={"audit_share": 1.0})
    audited = settings.run.model_copy(update={"trust": trust, "aggregator": own})
    report = LocalSwarm(replace(settings, run=audited), Console(file=io.StringIO()), Told()).run()
    assert report.succeeded, report
    ledgers: list[Ledger] = []
    verify_directory(tmp_path / "swarm" / "aggregator", on_round=ledgers.append)
    assert ledgers[-1].settled
    assert ledgers[-1].reputation.good
    assert not ledgers[-1].reputation.faults
