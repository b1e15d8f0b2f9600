"""A model-parallel run in which one computer is small: its claims are of networks up to its size alone, and the log is computed again."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import RunSection
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.training.schedule import Plan, bound_macs
from manta_swarm.protocol.cohorts import ALL, size_of
from manta_swarm.protocol.ledger import Ledger
from tests import forked
from tests.network.processes import Programs, small_run

pytestmark = pytest.mark.swarm

ROUNDS = 5
STEPS = 2  # so that a contribution is about the weights of its architecture alone


def test_a_small_computer_trains_small_networks_and_the_log_is_computed_again_to_the_bit(tmp_path: Path) -> None:
    config = small_run(rounds=10_000, first_open_s=2, max_open_s=4)
    exchange = config.exchange.model_copy(update={"local_steps": STEPS, "codec": "topk-512-4"})
    config = config.model_copy(update={"run": RunSection(name="test", rounds=10_000, algorithm="model-parallel"), "exchange": exchange})
    with Programs(tmp_path, config) as programs:
        programs.start_aggregator()
        programs.start_peer("small", "cohort-0", "--size", "1")
        programs.start_peer("large", "cohort-1", "--size", "4")
        programs.wait_until(
            lambda: all(programs.status(name).get("rounds_counted", 0) >= ROUNDS for name in ("small", "large")), "some rounds"
        )
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in ("small", "large")}
        said = forked.run("manta_swarm.peer.cli", "status", "--dir", tmp_path / "small")
        assert "\nsize 1 of 4: --size 1\n" in said.stdout, said.stderr
        for name in ("small", "large", "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
    plan = Plan.of(read_manifest(tmp_path / "aggregator").open())
    trained: dict[bytes, list[tuple[int, int]]] = {key: [] for key in keys.values()}

    def look(ledger: Ledger) -> None:
        for one in ledger.table_at(ledger.round) or ():
            (architecture,) = plan.architectures(one.round, one.cohort)
            trained[one.founder].append((size_of(one.cohort), macs(architecture, plan.space)))

    found = verify_directory(tmp_path / "aggregator", on_round=look)
    small, large = trained[keys["small"]], trained[keys["large"]]
    assert min(len(small), len(large)) >= ROUNDS
    assert ({size for size, _ in small}, {size for size, _ in large}) == ({1}, {ALL})
    assert max(cost for _, cost in small) <= bound_macs(plan.space, 1)
    assert min(found.credits[key] for key in keys.values()) > 0
    assert replay_directory(tmp_path / "aggregator").rounds == found.rounds
