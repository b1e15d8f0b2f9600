"""Strangers keep all streams of a log busy with calls that don't go on: rounds are committed, and everybody who works counts in them."""

from pathlib import Path

import pytest

from tests.faults.scene import Scene, quick_run
from tests.network.processes import wait_for

pytestmark = [pytest.mark.swarm, pytest.mark.faults]

HONEST = ("one", "two")
ROUNDS, DEADLINE_S = 25, 120  # where idle streams keep their places it is fewer than ten in that time


def test_strangers_that_take_all_streams_and_use_none_hold_no_round_up(tmp_path: Path) -> None:
    with Scene(tmp_path, quick_run()) as scene:
        aggregator = scene.start_aggregator()
        for name in HONEST:
            scene.start_peer(name)
        scene.rounds_go_on()
        strangers = ("-m", "tests.faults.strangers", "idle_streams", aggregator["addresses"][0], aggregator["run"])
        scene.start_command("strangers", *strangers)
        wait_for(lambda: "attacks" in scene.log("strangers"), "the attack is under way", detail=scene.logs)
        first = scene.status("aggregator")["round"]
        scene.start_peer("newcomer")
        scene.wait_until(lambda: scene.status("aggregator")["round"] >= first + ROUNDS, "rounds go on", deadline_s=DEADLINE_S)
        for name in (*HONEST, "newcomer"):
            scene.counts_again(name, 5)
        scene.expect_end("strangers")
        scene.end(*HONEST, "newcomer")
        scene.assert_all_agree(*HONEST, "newcomer")
