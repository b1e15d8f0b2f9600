"""A stereo run with the real programs, of which one peer has the left views and another one the right views of the same scenes."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import AggregatorSection, DataSection
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.protocol.records import Header, open_entry
from tests.network.processes import Programs, small_run
from tests.stereo_sites import write_scenes

pytestmark = pytest.mark.swarm
TOKEN = {"MANTA_COHORT_TOKEN": "5e" * 32}


def run_of(root: Path) -> RunConfig:
    """Return a stereo run on the pairs of a folder, with microbatches of four samples."""
    few = {"target_batch": 16, "microbatch_samples": 4, "max_claim_samples": 16, "weight_cap": 16}
    config = small_run(rounds=10_000, first_open_s=2.0, min_open_s=1.0, **few)
    data = DataSection(dataset="stereo-scenes", supernet="stereo-tiny")
    return config.model_copy(update={"data": data, "aggregator": AggregatorSection(data_root=str(root))})


def start_sites(programs: Programs, root: Path, *views: str) -> None:
    for view in views:
        arguments = ("--view", view, "--data-root", str(root / "data" / view))
        programs.start_peer(view, "pair", *arguments, environment=TOKEN)


def test_two_sites_train_every_microbatch_together_and_the_log_credits_both(tmp_path: Path) -> None:
    write_scenes(tmp_path / "data", 12)
    with Programs(tmp_path, run_of(tmp_path / "data" / "both")) as programs:
        programs.start_aggregator()
        start_sites(programs, tmp_path, "left", "right")
        programs.wait_until(lambda: min(programs.status(view).get("rounds_counted", 0) for view in ("left", "right")) >= 2, "both count")
        programs.kill("right")
        programs.wait_until(lambda: "without the other site" in programs.log("left"), "the left site knows that it is alone")
        (tmp_path / "right" / "status.json").unlink()
        start_sites(programs, tmp_path, "right")
        programs.wait_until(lambda: programs.status("right").get("rounds_counted", 0) >= 1, "the right site counts again")
        for view in ("left", "right"):
            programs.interrupt(view)
            assert programs.wait_for_end(view) == 0
            assert "Traceback" not in programs.log(view)
    found = verify_directory(tmp_path / "aggregator")
    left, right = (bytes.fromhex(programs.status(view)["key"]) for view in ("left", "right"))
    assert set(found.credits) == {left, right}
    log = StoredLog(tmp_path / "aggregator")
    headers = [record for record in map(open_entry, log.entries(0, found.size)) if isinstance(record, Header)]
    claims = [signed.open() for header in headers for signed in header.claims]
    assert {(claim.key, claim.partner) for claim in claims} == {(left, right), (right, left)}
    assert replay_directory(tmp_path / "aggregator").rounds == found.rounds
