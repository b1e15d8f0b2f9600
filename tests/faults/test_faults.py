"""What happens to machines and lines, with real programs: who is not hit loses nothing, and nobody ends on another state than the log's."""

import resource
import signal
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.settings.sections import ExchangeSection
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.update import state_piece_sizes
from tests.faults.lines import Line
from tests.faults.scene import ENDLESS, Scene, quick_run
from tests.network.processes import wait_for

pytestmark = pytest.mark.swarm

DYING = ("dies-working", "dies-handing-in", "dies-promised", "dies-fetching")
STAGES = ("full", "dies-open", "dies-closed", "dies-unsigned", "dies-committed", "dies-saving")


def test_peers_that_are_killed_at_any_moment_cost_nobody_else_anything(tmp_path: Path) -> None:
    honest, back = ["one", "two"], ["dies-handing-in", "dies-promised"]
    with Scene(tmp_path, quick_run()) as scene:
        scene.start_aggregator()
        for name in honest:
            scene.start_peer(name)
        for name in DYING:
            scene.start_strange_peer(name, name)
        for name in DYING:
            assert (name, scene.wait_for_end(name)) == (name, -signal.SIGKILL)
        keys = {name: scene.status(name)["key"] for name in DYING}
        scene.rounds_go_on()
        last = max(scene.tables())
        counted = {name: scene.rounds_with(key) for name, key in keys.items()}
        assert {name: len(rounds) for name, rounds in counted.items() if len(rounds) > 2} == {"dies-promised": 3}
        # An inclusion promise is kept, though who has it is gone.
        promised = scene.log("dies-promised").rpartition("dies with an inclusion promise for round ")[2].split()[0]
        assert counted["dies-promised"][-1] == int(promised)

        # And who comes back under its name takes part as before.
        for name in back:
            scene.start_peer(name)
        for name in back:
            scene.counts_again(name)
        scene.end(*honest, *back)
        # What they had signed when they died is too old by now; that the one was in a table they cannot know.
        scene.assert_all_agree(*honest, *back, lost=dict.fromkeys(back, 640))
        for name in back:
            assert scene.status(name)["key"] == keys[name]
            assert max(scene.rounds_with(keys[name])) > last


def test_a_log_that_is_killed_at_any_stage_of_a_round_keeps_every_promise(tmp_path: Path) -> None:
    honest = ["one", "two", "three"]
    with Scene(tmp_path, quick_run()) as scene:
        scene.start_strange_log(STAGES[0])
        wait_for(lambda: bool(scene.status("aggregator").get("addresses")), "the aggregator listens")
        for name in honest:
            scene.start_peer(name)
        for stage, next_stage in zip(STAGES, [*STAGES[1:], None], strict=True):
            family = scene.family("aggregator")
            returncode = scene.wait_until_gone("aggregator", family)
            assert (stage, returncode) == (stage, 1 if stage == "full" else -signal.SIGKILL), scene.logs()
            before = scene.tables()
            # What any peer was told is in the log.
            assert all(scene.status(name).get("round", 0) <= len(before) for name in honest)
            if next_stage is not None:
                scene.start_strange_log(next_stage)
            else:
                scene.start_aggregator()
            wait_for(lambda: bool(scene.status("aggregator").get("addresses")), "the aggregator listens", detail=scene.logs)
        scene.rounds_go_on()
        for name in honest:
            scene.counts_again(name)
        scene.end(*honest)
        scene.assert_all_agree(*honest)
        said = [line for line in scene.log("aggregator").splitlines() if line.startswith(("dies", "full"))]
        assert [line.split()[1] for line in said] == ["round=1", "open", "closed", "unsigned", "committed", "saving"]


@pytest.mark.faults
def test_a_log_that_commits_a_wrong_mean_is_found_out_and_there_is_a_proof_of_it(tmp_path: Path) -> None:
    with Scene(tmp_path, quick_run()) as scene:
        scene.start_strange_log("wrong-mean")
        wait_for(lambda: bool(scene.status("aggregator").get("addresses")), "the aggregator listens")
        scene.start_strange_peer("means", "means")  # it has to be there in the third round
        scene.wait_until(lambda: bool(scene.status("means").get("state")), "it holds the first state")
        for name in ("one", "two"):
            scene.start_peer(name)
            scene.expect_end(name)  # nobody can go on from a lie
        assert scene.wait_for_end("means") == 1
        assert "wrong mean in round 3" in scene.log("means")
        (path,) = (tmp_path / "means" / "proofs").iterdir()
        result = CliRunner().invoke(main, ["ledger", "check-proof", str(path), "--run", scene.status("aggregator")["run"]])
        assert result.exit_code == 0
        assert f"operator {scene.manifest.operators[0].hex()}" in result.output
        assert "proven: of the mean of round 3 group 0 has 1 values that its table does not come to" in result.output
        other = CliRunner().invoke(main, ["ledger", "check-proof", str(path), "--run", "0" * 64])
        assert (other.exit_code, "is about another run" in other.output) == (2, True)


@pytest.mark.faults
def test_who_stands_still_or_is_cut_off_for_a_while_goes_on_where_the_run_is_then(tmp_path: Path) -> None:
    honest = ["one", "two"]
    with Scene(tmp_path, quick_run()) as scene:
        address = scene.start_aggregator()["addresses"][0]
        port = int(address.split("/tcp/")[1].split("/")[0])
        with Line(port) as line:
            for name in honest:
                scene.start_peer(name)
            scene.start_strange_peer("alone", "alone")
            scene.start_peer_by("far", address.replace(f"/tcp/{port}/", f"/tcp/{line.port}/"))
            for name in (*honest, "alone", "far"):
                scene.wait_until(lambda name=name: scene.status(name).get("rounds_counted", 0) >= 1, f"{name} takes part")  # type: ignore[misc]

            scene.pause("far")
            scene.rounds_go_on(32)  # 16 seconds
            scene.resume("far")
            scene.counts_again("far")
            assert "this computer stood still for" in scene.log("far")
            with scene.without_daemon("far"):
                scene.rounds_go_on(6)
            scene.counts_again("far")
            before = line.num_bytes
            assert before > 1_000_000, "it goes by the line"
            with line.dead():
                scene.rounds_go_on(3)
                before = scene.status("far")["rounds_counted"]
                scene.rounds_go_on(12)
                assert scene.status("far")["rounds_counted"] == before, "it has no other way to the log"
            scene.counts_again("far")

            fill_disk(scene, "far")
            assert scene.wait_for_end("far") == 1
            assert "make room" in scene.log("far")
            scene.rounds_go_on()
            scene.start_peer_by("far", address)
            scene.counts_again("far")
            scene.counts_again("alone")
            scene.end(*honest, "alone", "far")
        scene.assert_all_agree(*honest, "alone", "far", lost={"far": ENDLESS})


def fill_disk(scene: Scene, name: str) -> None:
    """Let no file of a program grow beyond a tenth of a body."""
    pid = scene.status(name)["pid"]
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (45_000, most))


@pytest.mark.faults
def test_a_slow_line_costs_nobody_else_anything(tmp_path: Path) -> None:
    config = quick_run(target_batch=4096, weight_cap=512, max_claim_samples=4096, first_open_s=8.0, min_open_s=8.0, max_open_s=8.0)
    config = config.model_copy(update={"exchange": ExchangeSection(codec="int8")})
    with Scene(tmp_path, config) as scene:
        address = scene.start_aggregator()["addresses"][0]
        port = int(address.split("/tcp/")[1].split("/")[0])
        # 1 Mbit/s: two seconds for a body, so six of a round's eight for the others' two and its own.
        with Line(port, bytes_per_s=125_000) as line:
            scene.start_peer("one")
            scene.start_peer("two")
            scene.start_peer_by("slow", address.replace(f"/tcp/{port}/", f"/tcp/{line.port}/"))
            scene.wait_until(lambda: scene.status("slow").get("rounds_counted", 0) >= 2, "two of its contributions count")
            assert line.num_bytes > 1_000_000, "it goes by the line"
            scene.end("one", "two", "slow")
        scene.assert_all_agree("one", "two", "slow")
        rounds = scene.tables()
        for name in ("one", "two"):
            with_it = scene.rounds_with(scene.status(name)["key"])
            assert len(with_it) > len(rounds) // 2


@pytest.mark.faults
def test_a_newcomer_on_a_slow_line_fetches_one_state_and_then_follows_round_by_round(tmp_path: Path) -> None:
    config = quick_run(target_batch=1024, weight_cap=512, first_open_s=2.0, min_open_s=2.0, max_open_s=4.0)
    config = config.model_copy(update={"exchange": ExchangeSection(local_steps=2, codec="topk-64-4")})
    with Scene(tmp_path, config) as scene:
        address = scene.start_aggregator()["addresses"][0]
        port = int(address.split("/tcp/")[1].split("/")[0])
        scene.start_peer("one")
        scene.start_peer("two")
        scene.counts_again("one")
        num_weights = build(space_named(scene.manifest.supernet), torch.device("cpu")).num_weights
        state_bytes = sum(state_piece_sizes(num_weights, scene.manifest.optimizer, 2))
        # Half a minute for a state, while a round lasts two seconds.
        with Line(port, bytes_per_s=state_bytes / 30) as line:
            scene.start_peer_by("slow", address.replace(f"/tcp/{port}/", f"/tcp/{line.port}/"))
            scene.wait_until(lambda: scene.status("slow").get("rounds_counted", 0) >= 3, "contributions of the newcomer count")
            assert state_bytes < line.num_bytes < 2 * state_bytes, "it goes by the line, and one state does"
            joined = scene.status("slow")["joined_at_round"]
            assert scene.status("aggregator")["round"] > joined + 8, "rounds went by meanwhile"
            scene.end("one", "two", "slow")
        scene.assert_all_agree("one", "two", "slow", lost={"slow": ENDLESS})


@pytest.mark.faults
def test_a_peer_that_is_started_again_while_the_log_is_away_waits_for_it(tmp_path: Path) -> None:
    with Scene(tmp_path, quick_run()) as scene:
        scene.start_aggregator()
        scene.start_peer("one")
        scene.counts_again("one")
        scene.let_leave("one")
        scene.kill_all("aggregator")
        scene.start_peer("one")
        wait_for(lambda: "it is tried again until somebody answers" in scene.log("one"), "it waits")
        assert scene.log("one").count("no answer from") == 1
        scene.start_aggregator()
        scene.counts_again("one")
        scene.end("one")
        scene.assert_all_agree("one")
