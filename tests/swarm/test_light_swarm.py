"""Light contributors in a real swarm: their keys have credit in the log, and they go on when their gateway is killed and started again."""

import socket
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from aggregator.verify import verify_directory
from tests.swarm.processes import Programs, small_run

pytestmark = pytest.mark.swarm

LIGHTS = ("light-1", "light-2")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_light_contributors_earn_through_a_gateway_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    address = f"127.0.0.1:{_free_port()}"
    with Programs(tmp_path, small_run(rounds=10_000, first_open_s=4.0, min_open_s=3.0, max_open_s=6.0)) as programs:
        run = programs.start_aggregator()["run"]
        programs.start_peer("gateway", "cohort-0", "--gateway", address)
        for name in LIGHTS:
            arguments = ("join", "--light", "--gateway", f"http://{address}/", "--run", run, "--dir", str(tmp_path / name))
            programs.start_command(name, "-P", "-m", "peer.cli", *arguments)

        def all_have(more_than: dict[str, int]) -> bool:
            return all(programs.status(name).get("taken", 0) > more_than[name] for name in LIGHTS)

        programs.wait_until(lambda: all_have(dict.fromkeys(LIGHTS, 0)), "the log has work of each light contributor")
        programs.kill("gateway")
        programs.wait_until(lambda: all(programs.status(name)["waiting_for"] for name in LIGHTS), "they wait for their gateway")
        before = {name: int(programs.status(name)["taken"]) for name in LIGHTS}
        programs.start_peer("gateway", "cohort-0", "--gateway", address)
        programs.wait_until(lambda: all_have(before), "they go on")
        taken = {name: programs.status(name) for name in LIGHTS}
        last = max(int(status["round"]) for status in taken.values())
        programs.wait_for_round(last)
        for name in LIGHTS:
            programs.interrupt(name)
            assert programs.wait_for_end(name) == 0
            assert "left the run" in programs.log(name)
    found = verify_directory(tmp_path / "aggregator")
    for name in LIGHTS:
        assert found.credits[bytes.fromhex(str(taken[name]["key"]))] > 0
