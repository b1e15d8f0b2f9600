"""Peers without labels, of different people on one host: a cohort where the manifest says affinity, alone where it says consent."""

import re
import secrets
from pathlib import Path
from typing import Literal

import pytest

from aggregator.settings.sections import RunSection
from tests.swarm.processes import LISTEN, Programs, small_run

pytestmark = pytest.mark.swarm

NAMES = ("one", "other")


def start(programs: Programs, name: str) -> None:
    """Start a peer of somebody else than all others: it has a token of its own, and no label."""
    aggregator = programs.status("aggregator")
    where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"], "--listen", LISTEN)
    environment = {"MANTA_COHORT_TOKEN": secrets.token_hex(32)}
    own = ("--dir", str(programs.directory / name), "--gpus", "none")
    programs.start_command(name, "-P", "-m", "peer.cli", "join", *where, *own, environment=environment)


def states(programs: Programs, name: str) -> dict[str, str]:
    """Return the state of each round that a program says was committed."""
    log = (programs.directory / f"{name}.log").read_text()
    return dict(re.findall(r"round committed round=(\d+) .*?state=([0-9a-f]{12})", log))


def together(programs: Programs) -> int:
    """Return how many rounds have one contribution of two peers."""
    return len(re.findall(r"round committed .*peers=2 contributions=1 ", (programs.directory / "aggregator.log").read_text()))


@pytest.mark.parametrize("cohorts", ["affinity", "consent"])
def test_strangers_on_one_host_are_a_cohort_if_the_manifest_says_so(tmp_path: Path, cohorts: Literal["affinity", "consent"]) -> None:
    config = small_run(first_open_s=2, max_open_s=6)
    config = config.model_copy(update={"run": RunSection(name="test", rounds=1000, cohorts=cohorts)})
    with Programs(tmp_path, config) as programs:
        programs.start_aggregator()
        for name in NAMES:
            start(programs, name)
        if cohorts == "affinity":
            programs.wait_until(lambda: together(programs) >= 2, "two rounds have one contribution of both")
            programs.wait_until(lambda: all(programs.status(name)["mates"] == 1 for name in NAMES), "both say that they have a mate")
            assert {programs.status(name)["why"] for name in NAMES} == {"same host as 1 other"}
            assert len({programs.status(name)["cohort"] for name in NAMES}) == 1
        else:
            programs.wait_until(lambda: all(programs.status(name).get("near") for name in NAMES), "both know who is near")
            before = len(states(programs, "aggregator"))
            programs.wait_until(lambda: len(states(programs, "aggregator")) >= before + 3, "three more rounds")
            assert {programs.status(name)["near"] for name in NAMES} == {"same host as 1 other"}
            assert {programs.status(name)["mates"] for name in NAMES} == {0}
            assert together(programs) == 0
        told = {name: states(programs, name) for name in ("aggregator", *NAMES)}
        common = set.intersection(*(set(each) for each in told.values()))
        assert common
        assert all(len({each[round_] for each in told.values()}) == 1 for round_ in common)
