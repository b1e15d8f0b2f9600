"""A classifier with widths, gates and a wide head, from its training to its exported files, by the commands that a person types."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.data.catalog import digits as load_digits
from manta_swarm.automl.export.files import TOLERANCE, open_exported
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.snapshot import load_snapshot
from tests.automl.narrow import WIDENED, register

ROUNDS = 6  # one of each phase at least: full, kernel, depth, width twice


def said(*arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--threads", "1"])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_is_trained_searched_exported_in_every_form_and_evaluated(
    tmp_path: Path, few_by_name: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    trained = ["train", "--out", str(tmp_path / "run"), "--supernet", WIDENED.name, "--rounds", str(ROUNDS), "--schedule", "shrinking"]
    trained += ["--algorithm", "model-parallel", "--local-steps", "2", "--cohorts", "2", "--codec", "topk-256-4"]
    said(*trained, "--microbatch-samples", "4", "--target-batch", "16")
    snapshot = tmp_path / "run" / f"round-0000000{ROUNDS}.safetensors"
    state, _ = load_snapshot(snapshot)
    assert torch.isfinite(state.parameters).all()
    limit = macs(WIDENED.smallest(), WIDENED) * 5 // 4
    found = ["find", "--snapshot", str(snapshot), "--macs", str(limit), "--out", str(tmp_path / "found"), "--no-predictor"]
    said(*found, "--population", "4", "--generations", "2", "--random", "2")
    best = json.loads((tmp_path / "found" / "result.json").read_text())["best"]
    architecture = Architecture.parse(best["text"], WIDENED)
    assert macs(architecture, WIDENED) == best["costs"]["macs"] <= limit
    exported = ["export", "--snapshot", str(snapshot), "--arch", best["id"][:12], "--search", str(tmp_path / "found"), "--name", "net"]
    exported += ["--format", "pt2,onnx,folder,int8", "--licence", "mit", "--data-licence", "cc-by-4.0"]
    assert "with 8 bits accuracy" in said(*exported, "--out", str(tmp_path))
    images = next(load_digits().held_out_batches(architecture.resolution, 16)).inputs
    of_folder = open_exported(tmp_path / "net")
    described = of_folder.description
    assert described.architecture == architecture
    assert described.presentation is not None
    assert (described.presentation.licence, described.presentation.dataset_licence) == ("mit", "cc-by-4.0")
    assert json.loads((tmp_path / "net" / "config.json").read_text())["architecture"]["widths"] == list(architecture.widths)
    expected = of_folder(images)
    for name, allowed in (("net.pt2", 0.0), ("net.onnx", TOLERANCE), ("net.int8.onnx", 0.25)):
        assert (open_exported(tmp_path / name)(images) - expected).abs().max().item() <= allowed, name
    evaluated = said("evaluate", str(tmp_path / "net.int8.onnx")).splitlines()
    measured, says = (line.split("accuracy ")[1].split("%")[0] for line in evaluated[1:3])
    assert described.int8 is not None
    assert measured == says == f"{described.int8.metrics['accuracy']:.2%}"[:-1]
