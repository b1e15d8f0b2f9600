"""A search whose networks the members of a real run measure, one of whom lies: the same front as on one computer, and the liar's name."""

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.commands.network_interface import CommandContext
from manta_swarm.programs.search_network import SearchNetwork
from manta_swarm.protocol.signing import peer_name
from tests.network.processes import ROOT, Programs, small_run

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # hivemind's way to find its daemon
]

MEMBERS = {"one": "honest", "other": "here", "liar": "lying"}
OPTIONS = ("--macs", "1M", "--population", "3", "--generations", "2", "--no-predictor", "--random", "2")


def searched(*arguments: str | Path) -> str:
    """Return what ``manta-search find ARGUMENTS`` says."""
    ended = CliRunner().invoke(main, ["find", *OPTIONS, *map(str, arguments)], obj=CommandContext(SearchNetwork()))
    assert ended.exit_code == 0, ended.output
    return ended.output


def end_in_the_middle(programs: Programs, address: str) -> int:
    """Tell a search to end as soon as it asks members; return its exit code. Its temporary files are in a folder of its own."""
    out = programs.directory / "ended"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # in a longer one its sockets would not be made
        folder = Path(short)
        command = ("-P", "-m", "tests.network.searching", "find", "--peers", address, *OPTIONS, "--out", str(out))
        programs.start_command("search", *command, environment={"PYTHONPATH": ROOT, "TMPDIR": str(folder)})
        programs.wait_until(lambda: any(out.glob("*.safetensors")), "it has the state")
        assert any(folder.iterdir())
        assert not list(folder.rglob("identity.key"))  # not even a kill could leave it there
        programs.expect_end("search")
        programs._children["search"].process.send_signal(signal.SIGTERM)
        exit_code = programs.wait_for_end("search")
        assert not list(folder.iterdir())
    return exit_code


def result(folder: Path) -> dict[str, Any]:
    """Return what a search found."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def as_good(front: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Return whether each network of a front has one on another that is as good.

    It need not be the same one: so early some layers change nothing yet, and networks with and without them are the same function.
    """
    losses = [each["search"]["loss"] for each in other]
    return all(any(abs(each["search"]["loss"] - loss) < 0.001 for loss in losses) for each in front)


def test_a_search_by_members_finds_what_one_computer_finds_and_who_lies(tmp_path: Path) -> None:
    config = small_run(rounds=10_000, first_open_s=15, min_open_s=15, max_open_s=60, max_claim_samples=64, weight_cap=64)
    by_members, alone = tmp_path / "by-members", tmp_path / "alone"
    with Programs(tmp_path, config) as programs:  # peers are done with a round's few microbatches long before it ends
        address = programs.start_aggregator()["addresses"][0]
        for name, kind in MEMBERS.items():
            where = ("--initial-peers", address, "--listen", programs.listen(name), "--dir", str(tmp_path / name), "--gpus", "none")
            own = ("--cohort", name, "--evaluation", "100%")
            member = ("-P", "-m", "tests.network.asked_member", kind, "join")
            programs.start_command(name, *member, *where, *own, environment={"PYTHONPATH": ROOT})
        programs.wait_until(lambda: all(programs.status(name).get("members") == 3 for name in MEMBERS), "all know all")
        programs.wait_for_round(1)
        said = searched("--peers", address, "--out", by_members)
        liar = programs.status("liar")
        assert f"not believed: {peer_name(bytes.fromhex(liar['key']))}" in said
        assert "by the word of these alone" not in said
        assert end_in_the_middle(programs, address) == 128 + signal.SIGTERM

    (snapshot,) = by_members.glob("*.safetensors")
    searched("--snapshot", snapshot, "--out", alone)
    there, here = result(by_members), result(alone)
    assert as_good(there["front"], here["front"])
    assert as_good(here["front"], there["front"])
    interval = here["unseen"]["loss"]["choice"]
    assert interval["low"] <= there["unseen"]["loss"]["choice"]["value"] <= interval["high"]
    assert there["settings"] == here["settings"]  # the same state, and the same data
