"""A classifier whose units have widths to choose from, from its training to the exported file, by the commands that a person types."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.data.catalog import digits as load_digits
from manta_swarm.automl.export.files import open_exported
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.snapshot import load_snapshot
from tests.automl.narrow import NARROW, register

ROUNDS = 6  # one of each phase at least: full, kernel, depth, width twice


def said(*arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--threads", "1"])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("algorithm", "schedule"), [("model-parallel", "shrinking"), ("data-parallel", "sandwich")])
def test_it_is_trained_searched_and_exported_in_every_form(
    algorithm: str, schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    trained = ["train", "--out", str(tmp_path / "run"), "--supernet", NARROW.name, "--rounds", str(ROUNDS), "--schedule", schedule]
    trained += ["--algorithm", algorithm, "--local-steps", "2", "--cohorts", "2", "--codec", "topk-256-4"]
    said(*trained, "--microbatch-samples", "4", "--target-batch", "16")
    snapshot = tmp_path / "run" / f"round-0000000{ROUNDS}.safetensors"
    state, _ = load_snapshot(snapshot)
    assert torch.isfinite(state.parameters).all()
    limit = (macs(NARROW.smallest(), NARROW) + macs(NARROW.largest(), NARROW)) // 4
    found = ["find", "--snapshot", str(snapshot), "--macs", str(limit), "--out", str(tmp_path / "found"), "--no-predictor"]
    said(*found, "--population", "4", "--generations", "2", "--random", "2")
    best = json.loads((tmp_path / "found" / "result.json").read_text())["best"]
    architecture = Architecture.parse(best["text"], NARROW)
    assert macs(architecture, NARROW) == best["costs"]["macs"] <= limit
    exported = ["export", "--snapshot", str(snapshot), "--arch", best["id"][:12], "--search", str(tmp_path / "found"), "--name", "net"]
    said(*exported, "--out", str(tmp_path), "--format", "pt2,onnx,folder,int8")
    images = next(load_digits().held_out_batches(architecture.resolution, 16)).inputs
    of_folder = open_exported(tmp_path / "net")
    assert of_folder.description.architecture == architecture
    assert json.loads((tmp_path / "net" / "config.json").read_text())["architecture"]["widths"] == list(architecture.widths)
    expected = of_folder(images)
    for name, allowed in (("net.pt2", 0.0), ("net.onnx", 1e-4), ("net.int8.onnx", 0.25)):
        assert (open_exported(tmp_path / name)(images) - expected).abs().max().item() <= allowed, name
