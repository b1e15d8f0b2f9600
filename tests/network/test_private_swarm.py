"""A swarm whose data stay at home, with the real programs: two peers with different images of their own."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.aggregator.local.cli import main
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.image_folder import write_class_folders
from tests.command import typed
from tests.network.processes import ForkedChild, processes_of

pytestmark = pytest.mark.swarm


def test_peers_with_images_of_their_own_train_one_net_and_the_report_shows_the_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manta_swarm.aggregator.local.swarm.Child", ForkedChild)
    whole, own, directory = digits(), tmp_path / "own", tmp_path / "swarm"
    for name, classes in (("even", (0, 2, 4, 6, 8)), ("odd", (1, 3, 5))):
        chosen = np.flatnonzero(np.isin(whole.train_labels, classes))[:300]
        write_class_folders(whole, chosen.tolist(), own / name)
    done = typed(main, "up", "--no-monitor", "--dir", directory, "--private", own, "--rounds", "3")
    assert done.exit_code == 0, done.output + done.errors
    assert processes_of(directory) == []
    report = json.loads((directory / "report.json").read_text())
    assert (report["data"], report["all_peers_agree"], report["rounds_committed"]) == ("private", True, 3)
    found = verify_directory(directory / "aggregator")
    assert found.is_private
    assert {peer["key"]: peer["credits"] for peer in report["peers"]} == {key.hex(): amount for key, amount in found.credits.items()}
    assert max(found.credits.values()) <= 3 * 250_000
    assert replay_directory(directory / "aggregator").state.hex() == report["state"]
    spread = Measures(directory / "aggregator" / "measures").summed_up()
    assert spread is not None
    assert (spread.peers, spread.first_round, spread.last_round) == (2, 3, 3)
    assert report["own_quality"] == spread.model_dump(mode="json")
    said = [peer["own_largest"] for peer in report["peers"]]
    assert asdict(spread.largest) == pytest.approx({"least": min(said), "median": sum(said) / 2, "best": max(said)})
    for line in ("credits (private)", "held-out images of 2 of them, as they say"):
        assert line in " ".join(done.output.split())
    for number, classes_there in ((0, 5), (1, 3)):
        log = (directory / f"peer-{number}.log").read_text()
        assert f"of {classes_there} of the run's 10 classes" in log
