"""What the evaluator writes is what the monitor reads, of real states; it works from snapshots, and survives its own death."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from manta_swarm.aggregator.monitor import evaluator as module
from manta_swarm.aggregator.monitor.evaluator import StateEvaluator, last_evaluated, newest_snapshot
from manta_swarm.aggregator.monitor.quality import INDEX, PICTURES, QUALITY, Evaluations, Pictures, evenly, picture_name
from manta_swarm.aggregator.monitor.scenes import DrawnDisparities, coloured_png
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.automl.evaluation.held_out import evaluate, quick_evaluation
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.rewards import architecture_cost
from tests.aggregator.full_disk import file_size_limit
from tests.aggregator.real_run import DATASET, STATE


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, played: tuple[Path, OpenedRun]) -> Path:
    """A folder with the evaluation of the newest snapshot of a run."""
    directory = tmp_path_factory.mktemp("evaluated")
    (directory / DIRECTORY).mkdir()
    newest = newest_snapshot(played[0])
    assert newest is not None
    assert newest[0] == 3
    StateEvaluator(played[1].signed.open(), DATASET, directory).evaluate(load_snapshot(newest[1])[0])
    return directory / DIRECTORY


def test_an_evaluation_names_the_state_of_the_log_and_has_all_kinds_of_subnets(evaluated: Path, played: tuple[Path, OpenedRun]) -> None:
    evaluations = Evaluations(evaluated)
    assert evaluations.read_on()
    newest = evaluations.newest
    assert newest is not None
    assert (newest.round, newest.state) == (3, played[1].log.ledger.state.hex())
    assert [len(newest.of_kind(kind)) for kind in ("largest", "smallest", "random")] == [1, 1, 6]
    manifest = played[1].signed.open()
    largest = space_named(manifest.supernet).largest()
    assert newest.of_kind("largest")[0].macs == architecture_cost(largest.text, manifest.cost_table())
    assert newest.of_kind("largest")[0].macs > newest.of_kind("smallest")[0].macs
    assert all(0 <= point.quality <= 1 and point.loss is not None and point.loss > 0 for point in newest.points)
    assert newest.held_out == DATASET.num_held_out
    assert all(point.latency_ms is not None and point.latency_ms > 0 for point in newest.points)
    assert len({point.latency_ms for point in newest.points}) > 1
    assert not evaluations.read_on()


def test_a_quick_evaluation_of_a_small_set_is_the_whole_figure() -> None:
    """All 355 held-out digits are looked at; only the recalibration is shorter, and the full one with as many samples gives the same."""
    space = space_named("classifier-tiny")
    supernet = build(space)
    supernet.load(STATE.parameters)
    seen = quick_evaluation(supernet, DATASET, space.smallest())
    (whole,) = evaluate(supernet, DATASET, [space.smallest()], calibration_samples=256)
    assert seen.quality == whole["accuracy"]
    assert seen.samples == DATASET.num_held_out


def test_the_pictures_are_read_and_are_pictures(evaluated: Path) -> None:
    pictures = Pictures(evaluated, "classification")
    assert pictures.read_on()
    index = pictures.index
    assert index.round == 3
    assert index.sheet is not None
    data = pictures.get(index.sheet.picture)
    assert data is not None
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "PNG"
        assert image.size == (index.sheet.columns * index.sheet.tile_width, 3 * index.sheet.tile_height)
    assert len(index.answers) == index.sheet.count == 24
    assert {answer.label for answer in index.answers} <= set(map(str, range(10)))
    assert len({answer.label for answer in index.answers}) > 3
    assert pictures.get("0" * 32) is None
    assert not pictures.read_on()


@pytest.mark.parametrize("change", ["other bytes", "a name out of the folder", "not JSON", "gone"])
def test_pictures_that_are_not_what_the_index_says_are_not_shown(evaluated: Path, tmp_path: Path, change: str) -> None:
    folder = tmp_path / PICTURES
    folder.mkdir()
    for path in (evaluated / PICTURES).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    index = json.loads((folder / INDEX).read_text())
    name = index["sheet"]["picture"]
    if change == "other bytes":
        (folder / f"{name}.png").write_bytes(b"other")
    elif change == "gone":
        (folder / f"{name}.png").unlink()
    else:
        index["sheet"]["picture"] = "../../../identity.key"
        (folder / INDEX).write_text("{" if change == "not JSON" else json.dumps(index))
    pictures = Pictures(tmp_path, "classification")
    with pytest.raises(FileNotFoundError if change == "gone" else ValueError):
        pictures.read_on()
    assert pictures.index.round is None
    assert pictures.get("../../../identity.key") is None


@pytest.mark.parametrize("damage", [b"\0" * 40 + b"\n", b"7\n", b'{"round":"four"}\n', b"\xff\xfe\n\n", b"x" * 70_000 + b"\n"])
def test_a_line_that_is_damaged_or_that_a_kill_left_unfinished_ends_nothing_and_costs_no_other(
    evaluated: Path, tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / QUALITY
    whole = (evaluated / QUALITY).read_bytes()
    evaluations = Evaluations(tmp_path)
    for torn in (whole[:100], b"", b"\0" * 40):
        path.write_bytes(whole + damage + torn)
        evaluations.read_on()
        assert [one.round for one in evaluations.seen] == [3]
        assert last_evaluated(path) == 3
        assert path.read_bytes() == whole + damage
    with path.open("ab") as file:
        file.write(whole.replace(b'"round":3', b'"round":5'))
    evaluations.read_on()
    assert [one.round for one in evaluations.seen] == [3, 5]
    assert evaluations.passed_over == damage.count(b"\n")
    assert last_evaluated(path) == 5
    path.write_bytes(damage)
    assert last_evaluated(path) == -1
    assert last_evaluated(tmp_path / "none") == -1


def test_a_full_disk_is_a_storage_error_and_what_was_written_is_read_again(
    played: tuple[Path, OpenedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "quick_evaluation", lambda *_: SimpleNamespace(quality=0.5, loss=1.0, samples=355))
    monkeypatch.setattr(module, "core_ms", lambda _, subnets: [1.0] * len(subnets))
    (tmp_path / DIRECTORY).mkdir()
    path = tmp_path / DIRECTORY / QUALITY
    evaluator = StateEvaluator(played[1].signed.open(), DATASET, tmp_path)
    evaluator.evaluate(STATE)
    whole = path.read_bytes()
    size = 256 * 1024  # more than its pictures
    path.write_bytes(whole * (size // len(whole)))
    with file_size_limit(size), pytest.raises(StorageError, match=r"quality\.jsonl: .*make room"):
        evaluator.evaluate(STATE)
    assert last_evaluated(path) == 0
    assert path.read_bytes() == whole * (size // len(whole))
    with file_size_limit(512):
        (tmp_path / DIRECTORY / PICTURES / INDEX).unlink()
        with pytest.raises(StorageError, match=r"make room"):
            evaluator.evaluate(STATE)


def test_of_many_the_first_and_the_newest_are_always_chosen() -> None:
    for count in (0, 1, 2, 3, 10, 1_000):
        for most in (1, 2, 3, 7):
            chosen = evenly(range(count), most)
            assert len(chosen) == min(count, most)
            assert chosen == sorted(set(chosen))
            assert not chosen or chosen[-1] == count - 1
            assert most == 1 or not chosen or chosen[0] == 0


def test_disparities_of_two_sizes_are_drawn_beside_the_truth() -> None:
    torch.manual_seed(0)
    truth = torch.full((2, 32, 64), 8.0)
    truth[:, :4] = -1.0  # unknown
    largest = DrawnDisparities(torch.rand(2, 3, 32, 64), truth, truth.clamp(min=0) + 1.0)
    smallest = DrawnDisparities(torch.rand(2, 3, 16, 32), truth[:, ::2, ::2] / 2, torch.full((2, 16, 32), 2.0))
    index, pictures = largest.beside(smallest, 7)
    assert (index.round, index.kind, len(index.scenes)) == (7, "stereo", 2)
    assert set(index.pictures) == set(pictures)
    assert all(picture_name(data) == name for name, data in pictures.items())
    scene = index.scenes[0]
    assert (scene.width, scene.height, scene.largest_epe, scene.smallest_epe) == (64, 32, 1.0, 4.0)
    with Image.open(io.BytesIO(pictures[scene.truth])) as image:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
    assert (alpha[:4] == 0).all()
    assert (alpha[4:] == 255).all()


def test_colours_go_from_dark_to_bright() -> None:
    values = np.linspace(0, 10, 11, dtype=np.float32)[None]
    with Image.open(io.BytesIO(coloured_png(values, 10.0, np.ones_like(values, dtype=bool)))) as image:
        brightness = np.asarray(image.convert("L"), dtype=int)[0]
    assert (np.diff(brightness) > 0).all()
