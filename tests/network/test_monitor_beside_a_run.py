"""The monitor beside a real run: it shows what happens, and whatever happens to it, the run does not notice."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.protocol.closing import LATE_BODY
from tests.network.processes import Programs, small_run

pytestmark = pytest.mark.swarm
ROUNDS = 10_000  # more than this takes


def asked(url: str, target: str) -> Any:
    """Return what the monitor answers; None while it does not."""
    try:
        with urllib.request.urlopen(url + target, timeout=5) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, OSError):
        return None


def child_of(pid: int, program: str) -> psutil.Process | None:
    """Return the child of a process that runs a program."""
    for child in psutil.Process(pid).children():
        if program in " ".join(child.cmdline()):
            return child
    return None


def test_a_monitor_that_is_killed_or_stands_still_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    short = {"first_open_s": 1.0, "min_open_s": 1.0, "max_open_s": 2.0, "target_batch": 32, "max_claim_samples": 32, "weight_cap": 32}
    config = small_run(rounds=ROUNDS, **short).model_copy(update={"monitor": MonitorSection(evaluate_share=0.0)})
    with Programs(tmp_path, config) as programs:
        status = programs.start_aggregator("--monitor", "127.0.0.1:0")
        url, pid = status["monitor"], status["pid"]
        programs.start_peer("peer-0", "cohort-0")
        watch = ("-P", "-m", "manta_swarm.aggregator.cli", "witness", "--of", status["addresses"][0], "--dir", str(tmp_path / "witness"))
        programs.start_command("watching", *watch)

        def shows(round_: int) -> Callable[[], bool]:
            def is_so() -> bool:
                now = asked(url, "api/now")
                return now is not None and now["round"] >= round_ and now["peers"]["counted"] == 1

            return is_so

        def round_now() -> int:
            return int(programs.status("aggregator")["round"])

        programs.wait_until(shows(2), "the monitor shows the second round")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            monitor = child_of(pid, "manta_swarm.aggregator.monitor.program")
            assert monitor is not None
            assert monitor.nice() > psutil.Process(pid).nice()
            os.kill(monitor.pid, number)
            struck_at = round_now()
            programs.wait_until(lambda at=struck_at: round_now() >= at + 3, "the run goes on")  # type: ignore[misc]
            programs.wait_until(lambda old=monitor: not old.is_running(), "the old monitor is gone")  # type: ignore[misc]
            programs.wait_until(shows(struck_at + 3), "another monitor shows it")
        programs.wait_until(lambda: bool((asked(url, "api/peers") or {}).get("peers")), "the monitor shows who takes part")
        name = programs.status("peer-0")["peer"]
        programs.wait_until(lambda: bool((asked(url, f"api/peers/{name}") or {}).get("claims_list")), "and what it claims")
        programs.wait_until(lambda: (asked(url, "api/now") or {}).get("alarms") == [], "nothing is amiss")
        programs.wait_until(lambda: bool((asked(url, "api/ledger/heads") or {}).get("witnesses")), "a witness has cosigned")
        assert set(programs.status("aggregator")["refused"]) <= {LATE_BODY}  # the rounds are short
        programs.interrupt("peer-0")
        programs.interrupt("watching")
        assert programs.wait_for_end("watching") == 0
        programs.interrupt("aggregator")
        programs.wait_for_end("peer-0")
        programs.wait_for_end("aggregator")
        assert asked(url, "api/now") is None
    assert verify_directory(tmp_path / "aggregator").rounds >= 8
