"""Peers without labels, of different people on one host: a cohort where the manifest says affinity, alone where it says token.

Payout receipts prove what each of them earned.
"""

import re
import secrets
from pathlib import Path
from typing import Literal

import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import ExchangeSection, RunSection
from manta_swarm.automl.training.settings import first_min_exponent
from manta_swarm.peer.commands.earnings import CLAIMS, runs_of
from tests.network.processes import LISTEN, Programs, small_run

pytestmark = pytest.mark.swarm

NAMES = ("one", "other", "third")


def start(programs: Programs, name: str) -> None:
    """Start a peer of somebody else than all others: it has a token of its own, and no label."""
    aggregator = programs.status("aggregator")
    where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"], "--listen", LISTEN)
    environment = {"MANTA_COHORT_TOKEN": secrets.token_hex(32)}
    own = ("--dir", str(programs.directory / name), "--gpus", "none")
    programs.start_command(name, "-P", "-m", "manta_swarm.peer.cli", "join", *where, *own, environment=environment)


def states(programs: Programs, name: str) -> dict[str, str]:
    """Return the state of each round that a program says was committed."""
    log = (programs.directory / f"{name}.log").read_text()
    return dict(re.findall(r"round committed round=(\d+) .*?state=([0-9a-f]{12})", log))


def together(programs: Programs) -> int:
    """Return how many rounds have one contribution of two peers."""
    return len(re.findall(r"round committed .*peers=2 contributions=1 ", (programs.directory / "aggregator.log").read_text()))


@pytest.mark.parametrize("cohorts", ["affinity", "token"])
def test_strangers_on_one_host_are_a_cohort_if_the_manifest_says_so(tmp_path: Path, cohorts: Literal["affinity", "token"]) -> None:
    names = NAMES[:2] if cohorts == "affinity" else NAMES
    exchange = ExchangeSection(codec="int8", first_min_exponent=first_min_exponent("int8"))  # the bodies of two others are less than a mean
    settings = {"run": RunSection(name="test", rounds=1000, cohorts=cohorts), "exchange": exchange}
    config = small_run(first_open_s=2, max_open_s=6).model_copy(update=settings)
    with Programs(tmp_path, config) as programs:
        programs.start_aggregator()
        for name in names:
            start(programs, name)
        if cohorts == "affinity":
            programs.wait_until(lambda: together(programs) >= 2, "two rounds have one contribution of both")
            programs.wait_until(
                lambda: all(programs.status(name)["cohort_peers"] == 1 for name in names), "both say that they have a cohort peer"
            )
            assert {programs.status(name)["why"] for name in names} == {"same host as 1 other"}
            assert len({programs.status(name)["cohort"] for name in names}) == 1
        else:
            near = "same host as 2 others"
            programs.wait_until(lambda: {programs.status(name).get("near") for name in names} == {near}, "all know who is near")
            before = len(states(programs, "aggregator"))
            programs.wait_until(lambda: len(states(programs, "aggregator")) >= before + 3, "three more rounds")
            assert {programs.status(name)["cohort_peers"] for name in names} == {0}
            assert together(programs) == 0
        told = {name: states(programs, name) for name in ("aggregator", *names)}
        common = set.intersection(*(set(each) for each in told.values()))
        assert common
        assert all(len({each[round_] for each in told.values()}) == 1 for round_ in common)
        for name in (*names, "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in names}
    check_pay(tmp_path, keys)


def check_pay(directory: Path, keys: dict[str, bytes]) -> None:
    """Check that payout receipts prove what the log says that each earned."""
    found = verify_directory(directory / "aggregator")
    assert 0 < sum(found.credits.values()) <= found.rounds * 1_000_000
    for name, key in keys.items():
        (earned,) = runs_of(directory / name, verify=True)
        assert earned.problems == []
        paid = sum(one.amount or 0 for one in earned.rounds if one.by == CLAIMS)
        assert 0 < paid <= found.credits[key]  # who left may have no payout receipt of the last round, or one without its claims
