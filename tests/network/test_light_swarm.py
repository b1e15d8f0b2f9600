"""Light contributors in a real swarm: their keys have credit in the log, and they go on when their gateway is killed and started again."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.peer.cli import main as peer_main
from tests.command import typed
from tests.network.processes import Programs, are_gone, processes_of, read_json, small_run, wait_for

pytestmark = pytest.mark.swarm

LIGHTS = ("light-1", "light-2")
REST = ("--duty", "25%")  # there is little to see in how much they compute


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_light_contributors_earn_through_a_gateway_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    address = f"127.0.0.1:{_free_port()}"
    with Programs(tmp_path, small_run(rounds=10_000, first_open_s=4.0, min_open_s=3.0, max_open_s=6.0)) as programs:
        run = programs.start_aggregator()["run"]
        programs.start_peer("gateway", "cohort-0", "--gateway", address, *REST)
        for name in LIGHTS:
            arguments = ("join", "--light", "--gateway", f"http://{address}/", "--run", run, "--dir", str(tmp_path / name))
            programs.start_command(name, "-P", "-m", "manta_swarm.peer.cli", *arguments, *REST)

        def all_have(more_than: dict[str, int]) -> bool:
            return all(programs.status(name).get("taken", 0) > more_than[name] for name in LIGHTS)

        programs.wait_until(lambda: all_have(dict.fromkeys(LIGHTS, 0)), "the log has work of each light contributor")
        programs.kill("gateway")
        programs.wait_until(lambda: all(programs.status(name)["waiting_for"] for name in LIGHTS), "they wait for their gateway")
        before = {name: int(programs.status(name)["taken"]) for name in LIGHTS}
        programs.start_peer("gateway", "cohort-0", "--gateway", address, *REST)
        programs.wait_until(lambda: all_have(before), "they go on")
        programs.wait_until(lambda: all(programs.status(name)["credit"] for name in LIGHTS), "they know what they earned")
        taken = {name: programs.status(name) for name in LIGHTS}
        last = max(int(status["round"]) for status in taken.values())
        programs.wait_for_round(last)
        for name in LIGHTS:
            programs.interrupt(name)
            assert programs.wait_for_end(name) == 0
            assert "left the run" in programs.log(name)
    found = verify_directory(tmp_path / "aggregator")
    for name in LIGHTS:
        credit = found.credits[bytes.fromhex(str(taken[name]["key"]))]
        shown = typed(peer_main, "credits", "--dir", tmp_path / name, "--verify", "--json")
        assert shown.exit_code == 0, shown.errors
        (of_run,) = json.loads(shown.output)["runs"]
        assert {one["known_by"] for one in of_run["rounds"][:-1]} <= {"claims"}  # for the last one who leaves does not wait long
        assert 0 < of_run["paid"] <= credit


def test_an_invited_light_contributor_earns_through_the_aggregators_own_gateway_though_it_stands_still_and_the_gateway_is_killed(
    tmp_path: Path,
) -> None:
    home, open_s = tmp_path / "aggregator" / "gateway", 3.0
    config = small_run(rounds=10_000, first_open_s=open_s, min_open_s=2.0, max_open_s=open_s)
    with Programs(tmp_path, config.model_copy(update={"admission": AdmissionSection(how="invitation")})) as programs:
        run = programs.start_aggregator("--gateway", "127.0.0.1:0")["run"]
        programs.wait_until(lambda: bool(programs.status("aggregator")["gateway"]), "its gateway answers")
        before = read_json(home / "status.json")
        url = f"{programs.status('aggregator')['gateway']}#{before['peer']}"
        assert f"  manta-peer join --light --gateway {url} --run {run}\n" in programs.log("aggregator")
        made = typed(main, "invite", "--dir", tmp_path / "aggregator", "--keys", 1, "--out", tmp_path / "invitation.txt")
        assert made.exit_code == 0, made.errors
        common = ("-P", "-m", "manta_swarm.peer.cli", "join", "--light", "--gateway", url, "--run", run, *REST)
        invited = ("--invitation", str(tmp_path / "invitation.txt"))
        programs.start_command("light", *common, "--dir", str(tmp_path / "light"), *invited)

        # It is alone at the gateway, and its computer stands still for longer than a round.
        programs.wait_until(lambda: programs.status("light").get("taken", 0) > 1, "the log has its work")
        programs.wait_until(lambda: programs.status("light")["stage"] == "working", "it has a lease")
        programs.pause("light")
        stands_until_s = time.monotonic() + 2 * open_s
        programs.wait_until(lambda: time.monotonic() > stands_until_s, "all was due, and it stood still")
        programs.resume("light")
        taken = programs.status("light")["taken"]
        programs.wait_until(lambda: programs.status("light")["taken"] > taken + 1, "it goes on")
        assert programs.status("light")["lost"] == 0, programs.log("light")

        os.kill(before["pid"], signal.SIGKILL)
        programs.wait_until(lambda: bool(programs.status("light")["waiting_for"]), "it waits for its gateway")
        taken = programs.status("light")["taken"]
        programs.wait_until(lambda: programs.status("light")["taken"] > taken, "the gateway is back, and has leased")
        after = read_json(home / "status.json")
        assert (after["key"], after["leases_at"]) == (before["key"], before["leases_at"])
        assert after["pid"] != before["pid"]
        programs.wait_until(lambda: bool(programs.status("light")["credit"]), "a round counted the light contributor")

        for name, more, why in (("stranger", (), "takes invited peers only"), ("late", invited, "used up: it was for 1 keys")):
            programs.expect_end(name)
            programs.start_command(name, *common, "--dir", str(tmp_path / name), *more)
            assert programs.wait_for_end(name) == 2
            assert why in programs.log(name).splitlines()[-1]
        back = typed(main, "revoke", "--dir", tmp_path / "aggregator", "--peer", programs.status("light")["peer"])
        assert back.exit_code == 0, back.errors
        programs.expect_end("light")
        assert programs.wait_for_end("light") == 2
        assert "does not let your key in any more" in programs.log("light").splitlines()[-1]

        family = [psutil.Process(after["pid"]), *processes_of(home)]
        programs.kill("aggregator")
        wait_for(lambda: are_gone(family), "the gateway has ended with its aggregator", detail=programs.logs)
    found = verify_directory(tmp_path / "aggregator")
    assert found.credits[bytes.fromhex(str(programs.status("light")["key"]))] > 0
    assert found.credits[bytes.fromhex(str(after["key"]))] > 0
