"""Strangers who hold all connections of an HTTP server: light contributors are served all the same, and the page is."""

import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from tests.network.processes import Programs, small_run

pytestmark = pytest.mark.swarm

ROOT = Path(__file__).parents[2]
ANSWERS = 50  # of a page that is under attack


def _attack(programs: Programs, url: str) -> None:
    """Start the strangers; return when they are at it."""
    aggregator = programs.status("aggregator")
    where = (aggregator["addresses"][0], aggregator["run"], url.removeprefix("http://").rstrip("/"))
    programs.start_command("strangers", "-m", "tests.faults.strangers", "silent_http", *where, environment={"PYTHONPATH": str(ROOT)})
    programs.wait_until(lambda: "attacks" in programs.log("strangers"), "strangers hold all connections")


def _join(programs: Programs, name: str) -> None:
    aggregator = programs.status("aggregator")
    where = ("--gateway", aggregator["gateway"], "--run", aggregator["run"], "--dir", str(programs.directory / name))
    programs.start_command(name, "-P", "-m", "manta_swarm.peer.cli", "join", "--light", *where)


def test_light_contributors_go_on_and_new_ones_come_while_strangers_hold_all_connections_of_their_gateway(tmp_path: Path) -> None:
    with Programs(tmp_path, small_run(rounds=10_000, first_open_s=4.0, min_open_s=3.0, max_open_s=6.0)) as programs:
        programs.start_aggregator("--gateway", "127.0.0.1:0")
        programs.wait_until(lambda: bool(programs.status("aggregator")["gateway"]), "its gateway answers")
        _join(programs, "light-1")
        programs.wait_until(lambda: programs.status("light-1").get("taken", 0) > 0, "the log has work of the light contributor")
        _attack(programs, programs.status("aggregator")["gateway"])
        taken = programs.status("light-1")["taken"]
        _join(programs, "light-2")
        programs.wait_until(lambda: programs.status("light-1")["taken"] > taken + 1, "it goes on being counted")
        programs.wait_until(lambda: programs.status("light-2").get("taken", 0) > 1, "a new one is counted")


def test_the_page_is_shown_while_strangers_hold_all_connections_that_they_can(tmp_path: Path) -> None:
    with Programs(tmp_path, small_run()) as programs:
        programs.start_aggregator("--monitor", "127.0.0.1:0")
        programs.wait_until(lambda: bool(programs.status("aggregator")["monitor"]), "the monitor answers")
        url = programs.status("aggregator")["monitor"].partition("#")[0]
        _attack(programs, url)
        for _ in range(ANSWERS):
            with urllib.request.urlopen(f"{url}api/run", timeout=20) as answer:
                assert answer.status == 200
