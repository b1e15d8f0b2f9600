"""The folder of a real run replaced by an older copy: nobody goes on from it, everybody says so, and the whole folder goes on.

And the run handed over: stopped with a word to its peers, and gone on with elsewhere, at another address.
"""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.guard import EVIDENCE, PLACE
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.histories import Departure, Histories
from tests.network.processes import DEADLINE_S, LISTEN, Programs, read_json, small_run

pytestmark = [pytest.mark.swarm, pytest.mark.faults]

OTHER_HISTORY = 3  # the exit code
PEERS = ("one", "two")


def started(directory: Path) -> tuple[str, ...]:
    """Return how the aggregator is started where it may end before it listens."""
    where = ("--dir", str(directory / "aggregator"), "--listen", LISTEN, "--no-monitor")
    return ("-P", "-m", "manta_swarm.aggregator.cli", "start", str(directory / "run.toml"), *where)


def stopped(programs: Programs) -> None:
    """Stop the aggregator as Ctrl-C does."""
    programs.interrupt("aggregator")
    assert programs.wait_for_end("aggregator") == 0


def test_an_older_copy_of_a_run_signs_nothing_and_the_whole_one_goes_on(tmp_path: Path) -> None:
    directory, old, lost = (tmp_path / name for name in ("aggregator", "old", "lost"))
    again = started(tmp_path)
    with Programs(tmp_path, small_run(rounds=1000, first_open_s=1.0, min_open_s=0.5)) as programs:
        programs.start_aggregator()
        for name in PEERS:
            programs.start_peer(name)
        programs.wait_for_round(2)
        stopped(programs)
        shutil.copytree(directory, old)
        (old / PLACE).unlink()  # as a disk that was put back to an earlier moment: it cannot see by itself that it is a copy
        first = programs.start_aggregator()
        programs.wait_for_round(int(first["round"]) + 2)
        stopped(programs)
        signed = verify_directory(directory)

        directory.rename(lost)
        shutil.copytree(old, directory)
        kept = (directory / "tree-head.txt").read_bytes()
        programs.start_command("aggregator", *again)
        assert programs.wait_for_end("aggregator") == OTHER_HISTORY
        line = programs.log("aggregator").splitlines()[-1]
        assert line.startswith("manta-aggregator: ")
        assert "entries are missing, it is an older copy" in line
        assert (directory / "tree-head.txt").read_bytes() == kept  # nothing was signed beside what was signed before
        evidence = unpack(Histories, (directory / EVIDENCE).read_bytes(), max_bytes=2**20)
        assert evidence.check().departure is Departure.ROLLED_BACK
        assert evidence.check().held.size <= signed.size
        programs.wait_until(lambda: any("it is an older copy" in programs.log(name) for name in PEERS), "a peer says so")
        programs.start_command("aggregator", *again)
        assert programs.wait_for_end("aggregator") == OTHER_HISTORY  # and it stays so

        shutil.rmtree(directory)
        lost.rename(directory)
        programs.start_aggregator()
        programs.wait_for_round(signed.rounds + 2)
        for name in PEERS:
            programs.wait_until(lambda name=name: programs.status(name)["round"] >= signed.rounds + 1, f"{name} goes on")
            assert programs.status(name)["log_fault"] == ""
            assert "Traceback" not in programs.log(name)
        stopped(programs)
        assert verify_directory(directory).rounds >= signed.rounds + 2


def test_an_older_copy_gets_back_what_it_lacks_and_its_witness_sees_one_history(tmp_path: Path) -> None:
    directory, old, public = (tmp_path / name for name in ("aggregator", "old", "public"))
    at = f"/ip4/127.0.0.1/tcp/{free_port()}"
    with Programs(tmp_path, small_run(rounds=1000, first_open_s=1.0, min_open_s=0.5)) as programs:
        first = programs.start_aggregator()
        programs.start_peer("one", "cohort-0", "--listen", at)
        programs.start_peer("two", "cohort-1")
        watch = ("-P", "-m", "manta_swarm.aggregator.cli", "witness", "--of", first["addresses"][0], "--dir", str(tmp_path / "w"))
        programs.start_command("witness", *watch)
        programs.wait_for_round(2)
        programs.wait_until(lambda: "cosigned round=" in programs.log("witness"), "the witness cosigns")
        stopped(programs)
        shutil.copytree(directory, old)
        (old / PLACE).unlink()
        again = programs.start_aggregator()
        programs.wait_for_round(int(again["round"]) + 2)
        stopped(programs)
        signed = verify_directory(directory)
        assert typed("ledger", "export", public, "--dir", directory).returncode == 0
        known = f"{at}/p2p/{programs.status('one')['peer']}"

        shutil.rmtree(directory)
        old.rename(directory)
        programs.start_command("aggregator", *started(tmp_path))
        assert programs.wait_for_end("aggregator") == OTHER_HISTORY
        ended = typed("recover", public, "--dir", directory, "--initial-peers", known)
        assert (ended.returncode, f"{signed.size} entries, {signed.rounds} rounds now" in ended.stdout) == (0, True), ended
        assert f"state of round {signed.rounds} from peers" in ended.stdout
        programs.start_aggregator()
        programs.wait_for_round(signed.rounds + 2)
        programs.wait_until(lambda: f"cosigned round={signed.rounds + 1} " in programs.log("witness"), "the witness goes on")
        assert "Traceback" not in programs.log("witness")
        stopped(programs)
        programs.interrupt("witness")
        assert programs.wait_for_end("witness") == 0
        assert verify_directory(directory).rounds >= signed.rounds + 2
        assert typed("ledger", "export", public, "--dir", directory).returncode == 0  # one history
        shown = typed("ledger", "check-export", public)
        assert (shown.returncode, "cosigned" in shown.stdout) == (0, True), shown


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def typed(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Return how a command of the operator ended."""
    command = [sys.executable, "-P", "-m", "manta_swarm.aggregator.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_run_is_handed_over_and_goes_on_at_another_address(tmp_path: Path) -> None:
    given, there = tmp_path / "given", tmp_path / "there"
    at = f"/ip4/127.0.0.1/tcp/{free_port()}"
    with Programs(tmp_path, small_run(rounds=1000, first_open_s=1.0, min_open_s=0.5)) as programs:
        programs.start_aggregator()
        programs.start_peer("one", "cohort-0", "--listen", at)
        programs.start_peer("two", "cohort-1")
        programs.wait_for_round(2)
        programs.expect_end("aggregator")
        ended = typed("hand-over", given, "--dir", tmp_path / "aggregator")
        assert ended.returncode == 0, ended
        assert programs.wait_for_end("aggregator") == 0
        rounds = verify_directory(given).rounds
        for name in PEERS:
            word = "the operator stops the run's log for a while: the run is handed to another operator; it is waited for"
            programs.wait_until(lambda name=name, word=word: word in programs.log(name), f"{name} was told")
        again = typed("start", tmp_path / "run.toml", "--dir", tmp_path / "aggregator", "--listen", LISTEN)
        assert (again.returncode, "handed over" in again.stderr) == (2, True), again

        ended = typed("restore", given, "--dir", there)
        assert ended.returncode == 0, ended
        known = f"{at}/p2p/{programs.status('one')['peer']}"
        where = ("--listen", f"/ip4/127.0.0.1/tcp/{free_port()}", "--initial-peers", known)
        programs.start_command(
            "there", "-P", "-m", "manta_swarm.aggregator.cli", "start", str(there / "run.toml"), "--dir", str(there), *where
        )
        programs.wait_until(lambda: read_json(there / "status.json").get("round", 0) >= rounds + 2, "the run goes on there")
        assert "this folder was made from a backup: nothing is signed before a peer" in programs.log("there")
        for name in PEERS:
            programs.wait_until(lambda name=name: programs.status(name)["round"] >= rounds + 1, f"{name} goes on")
            assert programs.status(name)["log_fault"] == ""
            assert "Traceback" not in programs.log(name)
    assert verify_directory(there).rounds >= rounds + 2
