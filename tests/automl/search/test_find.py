import json
import math
import os
import re
import signal
from array import array
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from matplotlib.image import imread

from manta_swarm.automl.cli import main
from manta_swarm.automl.data.dataset import EvaluationSet
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.latency.table import Accuracy, Conditions, LatencyTable
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.search.evolution import Effort
from manta_swarm.automl.spaces.choice import chosen
from manta_swarm.automl.spaces.cost import cost_table, macs, num_weights
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, Architecture
from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.update import State
from tests.automl.commands.mistakes import assert_one_line
from tests.automl.search.synthetic import measured_of, quality_of
from tests.command import Home, environment, home
from tests.network.processes import wait_for

__all__ = ["environment", "home"]  # fixtures

SMALLEST = macs(TINY.smallest(), TINY)
SHORT = ("--population", "4", "--generations", "3")


@pytest.fixture
def snapshot(tmp_path: Path, supernet: Supernet) -> Path:
    path = tmp_path / "round-00000005.safetensors"
    save_snapshot(path, State(5, supernet.flat_weights_N, ()), {"supernet": TINY.name, "dataset": "digits"})
    return path


class Measuring:
    """Takes the place of the measuring; counts, and is interrupted at a measurement if told so."""

    def __init__(self) -> None:
        self.architectures: list[Architecture] = []
        self.interrupted_at: int | None = None
        self.precisions: set[str] = set()

    def evaluate(self, supernet: Supernet, dataset: EvaluationSet, architecture: Architecture, part: str, precision: str) -> Measured:
        self.precisions.add(precision)
        if len(self.architectures) == self.interrupted_at:
            raise KeyboardInterrupt
        self.architectures.append(architecture)
        measured = measured_of(architecture, part)
        if supernet.space.task == "stereo":
            loss = measured.quality["loss"]
            return Measured({"epe": 5 * loss, "d1": loss, "bad3": loss}, measured.losses, array("i"))
        return measured


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    measured = Measuring()
    monkeypatch.setattr("manta_swarm.automl.search.evaluators.evaluate_samples", measured.evaluate)
    return measured


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing, which takes longer than the search."""
    monkeypatch.setattr("manta_swarm.automl.search.report.plot", lambda *_: b"a plot")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A latency table of a device on which a million MACs take a millisecond."""
    entries = {key: cost / 1e6 for key, cost in cost_table(TINY)}
    conditions = Conditions("cpu", "test", 1, "fp32", 1, "2")
    LatencyTable(TINY.name, conditions, entries, 0.0, 1.0, Accuracy(1, 1, 0.0, 0.0, 1.0)).save(tmp_path / "latency.json")
    return tmp_path / "latency.json"


def find(snapshot: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["find", "--snapshot", str(snapshot), *map(str, arguments)])


def test_find_writes_the_best_subnet_the_front_and_a_plot(snapshot: Path, measured: Measuring, tmp_path: Path) -> None:
    result = find(snapshot, "--macs", "1.2M", "--weights", "150k", "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = json.loads((tmp_path / "found" / "result.json").read_text())
    best = Architecture.from_json((tmp_path / "found" / "best.json").read_text(), TINY)
    assert found["best"]["text"] == best.text
    assert found["best"]["id"] == best.id
    assert found["best"]["costs"] == {"macs": macs(best, TINY), "weights": num_weights(best, TINY)}
    assert found["best"]["search"] == quality_of(best, "search")
    assert found["best"]["test"] == quality_of(best, "test")
    assert found["best"] in found["front"]
    assert all(each["costs"]["macs"] <= 1.2e6 and each["costs"]["weights"] <= 150e3 for each in found["front"])
    assert found["measured"] == 12
    assert found["settings"]["macs"] == 1.2e6
    assert best.text in result.stdout
    assert best.id[:8] in result.stdout
    assert chosen(best.id[:8], TINY, tmp_path / "found") == chosen(str(tmp_path / "found" / "best.json"), TINY) == best
    assert imread(tmp_path / "found" / "front.png").shape[2] == 4


def test_a_latency_limit_goes_by_the_table(snapshot: Path, measured: Measuring, table: Path, tmp_path: Path) -> None:
    result = find(snapshot, "--latency-ms", "1.1", "--latency-table", table, "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found" / "result.json").read_text())
    assert found["axes"] == ["latency"]
    assert found["latencies"]["runtime"] == "torch"
    assert "latencies: of test (cpu), torch 2, batch 1" in result.stdout
    assert found["best"]["costs"]["latency_ms"] == pytest.approx(found["best"]["costs"]["macs"] / 1e6)
    assert all(each["costs"]["latency_ms"] <= 1.1 for each in found["front"])
    assert found["best"]["id"][:8] in result.output  # also in a narrow window: it is what people copy


@pytest.mark.usefixtures("unplotted")
def test_a_search_in_bf16_says_so_and_shares_no_figure_with_one_in_fp32(
    snapshot: Path, measured: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ("--device", "cuda", "--precision", "bf16", "--random", "0")
    monkeypatch.setattr("manta_swarm.automl.training.snapshot.checked_device", lambda name: "cpu")  # this computer may have no GPU
    result = find(snapshot, *typed, "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    assert measured.precisions == {"bf16"}
    assert "figures: of networks computed in bf16" in result.stdout
    assert json.loads((tmp_path / "found" / "result.json").read_text())["settings"]["precision"] == "bf16"
    assert_one_line(find(snapshot, "--out", tmp_path / "found", *SHORT), "precision")
    before = len(measured.architectures)
    for arguments, measures_anew in ((typed, False), (("--random", "0"), True)):
        result = find(snapshot, *arguments, "--warm-start", tmp_path / "found", "--out", tmp_path / f"warm-{measures_anew}", *SHORT)
        assert result.exit_code == 0, result.output
        asked = measured.architectures[before:]
        before = len(measured.architectures)
        known = {line.get("architecture") for line in map(json.loads, (tmp_path / "found" / "search.jsonl").read_text().splitlines())}
        assert any(each.text in known for each in asked) == measures_anew
    assert measured.precisions == {"bf16", "fp32"}


@pytest.mark.usefixtures("unplotted")
def test_a_predictor_says_how_good_it_is(snapshot: Path, measured: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.automl.search.search._PREDICTED_EFFORT", Effort(30, 6))
    result = find(snapshot, "--predictor", "--samples", "60", "--macs", "1.2e6", "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    fit = json.loads((tmp_path / "found" / "result.json").read_text())["predictor"]
    assert f"rank correlation {fit['rank_correlation']:.2f}" in result.stdout
    assert fit["samples"] == 60


def test_stereo_is_searched_by_its_end_point_error(stereo: Supernet, measured: Measuring, tmp_path: Path) -> None:
    path = tmp_path / "stereo.safetensors"
    save_snapshot(path, State(5, stereo.flat_weights_N, ()), {"supernet": STEREO_TINY.name, "dataset": "layers"})
    result = find(path, "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    front = json.loads((tmp_path / "found" / "result.json").read_text())["front"]
    assert [each["search"]["epe"] for each in front] == sorted((each["search"]["epe"] for each in front), reverse=True)
    assert "EPE px" in result.stdout


def test_real_subnets_are_measured(snapshot: Path, few_by_name: None, tmp_path: Path) -> None:
    result = find(snapshot, "--macs", str(SMALLEST), "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found" / "result.json").read_text())
    assert found["best"]["text"] == TINY.smallest().text
    assert 0.0 < found["best"]["test"]["accuracy"] < 0.5


@pytest.mark.usefixtures("unplotted")
def test_the_same_command_goes_on_after_a_break(snapshot: Path, measured: Measuring, tmp_path: Path) -> None:
    expected = find(snapshot, "--macs", "1.2M", "--out", tmp_path / "whole", *SHORT)
    everything, measured.architectures = measured.architectures, []
    measured.interrupted_at = 7
    result = find(snapshot, "--macs", "1.2M", "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert re.fullmatch(r"manta-search: stopped; .* the same command goes on from there\n", result.stderr)
    assert not (tmp_path / "found" / "best.json").exists()
    measured.interrupted_at = None
    result = find(snapshot, "--macs", "1200k", "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    assert measured.architectures == everything
    assert result.stdout.replace(str(tmp_path / "found"), "") == expected.stdout.replace(str(tmp_path / "whole"), "")
    assert (tmp_path / "found" / "result.json").read_bytes() == (tmp_path / "whole" / "result.json").read_bytes()


@pytest.mark.usefixtures("unplotted")
def test_a_search_starts_from_an_earlier_one_and_measures_nothing_again(snapshot: Path, measured: Measuring, tmp_path: Path) -> None:
    assert find(snapshot, "--out", tmp_path / "first", *SHORT).exit_code == 0
    known = set(measured.architectures)
    before = len(measured.architectures)
    result = find(snapshot, "--macs", "2M", "--warm-start", tmp_path / "first", "--out", tmp_path / "found", *SHORT)
    assert result.exit_code == 0, result.output
    journal = [json.loads(line) for line in (tmp_path / "found" / "search.jsonl").read_text().splitlines()[1:]]
    recalled = [entry for entry in journal if Architecture.parse(entry["architecture"], TINY) in known]
    assert len(recalled) > 2
    assert len(measured.architectures) - before < len(journal)
    assert_one_line(find(snapshot, "--macs", "2M", "--out", tmp_path / "found", *SHORT), "warm start is")


@pytest.mark.usefixtures("unplotted")
def test_a_journal_of_an_earlier_version_goes_on_and_it_is_said(snapshot: Path, measured: Measuring, tmp_path: Path) -> None:
    out = tmp_path / "found"
    assert find(snapshot, "--macs", "1.2M", "--out", out, *SHORT).exit_code == 0
    header, *entries = [json.loads(line) for line in (out / "search.jsonl").read_text().splitlines()]
    names = ("part", "architecture", "quality")
    settings = {name: value for name, value in header["settings"].items() if name != "warm start"}
    old = [{"format": "manta/search/v1", "settings": settings}, *({name: entry[name] for name in names} for entry in entries)]
    (out / "search.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    result = find(snapshot, "--macs", "1.2M", "--out", out, *SHORT)
    assert result.exit_code == 0, result.output
    assert f"{len(entries)} measurements of an earlier version" in result.stderr
    assert find(snapshot, "--macs", "1.2M", "--out", out, *SHORT).stderr == ""


@pytest.mark.usefixtures("unplotted")
def test_the_folder_is_named_by_the_snapshot_and_the_limits(
    snapshot: Path, measured: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(snapshot, "--macs", "1.2M", *SHORT).exit_code == 0
    assert (tmp_path / "round-00000005-macs-1200000" / "best.json").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_broken_weights_leave_no_folder_that_was_not_there(
    is_there: bool, snapshot: Path, measured: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "searches" / "found"
    if is_there:
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")

    def broken(*arguments: object, **options: object) -> Measured:
        return Measured({"accuracy": math.nan}, array("q", [0]), array("i"))

    monkeypatch.setattr("manta_swarm.automl.search.evaluators.evaluate_samples", broken)
    result = find(snapshot, "--out", folder, *SHORT)
    assert (result.exit_code, "the snapshot's weights are broken" in result.stderr) == (2, True)
    assert folder.parent.exists() == is_there
    assert not is_there or (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--macs", "100"], f"nearest feasible value is --macs {SMALLEST}"),
        (["--macs", "0"], "--macs '0' is no amount above zero"),
        (["--macs", "-5"], "is no amount"),
        (["--macs", "2,5M"], "write it like"),
        (["--macs", "nan"], "is no amount"),
        (["--macs", "1e999"], "is no amount"),
        (["--macs", ""], "is no amount"),
        (["--weights", "10"], "nearest feasible value is --weights"),
        (["--latency-ms", "5"], "needs --latency-table"),
        (["--latency-ms", "5", "--latency-table", "missing.json"], "missing.json"),
        (["--latency-table", "other.json"], "latency table of stereo-tiny"),
        (["--data", "faces"], "unknown data set"),
        (["--data", "layers"], "does not fit"),
        (["--device", "tpu"], "no device"),
        (["--out", "file.txt/found"], "cannot make the folder"),
        (["--warm-start", "nowhere"], "nowhere has no search.jsonl"),
        (["--snapshot", "no-data.safetensors"], "name it with --data"),
        (["--snapshot", "no-supernet.safetensors"], "does not say which supernet"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_two(
    arguments: list[str], words: str, snapshot: Path, table: Path, measured: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").touch()
    whole = LatencyTable.load(table)
    other = LatencyTable(
        STEREO_TINY.name, whole.conditions, {key: float(cost) for key, cost in cost_table(STEREO_TINY)}, 0.0, 1.0, whole.accuracy
    )
    other.save(tmp_path / "other.json")
    state, _ = load_snapshot(snapshot)
    save_snapshot(tmp_path / "no-data.safetensors", state, {"supernet": TINY.name})
    save_snapshot(tmp_path / "no-supernet.safetensors", state, {"dataset": "digits"})
    before = sorted(tmp_path.iterdir())
    assert_one_line(find(snapshot, *arguments, *SHORT), words)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.swarm
def test_ctrl_c_leaves_no_process_and_a_journal_that_goes_on_with_as_many_processes_as_there_are_now(
    home: Home, snapshot: Path, tmp_path: Path
) -> None:
    out = tmp_path / "found"
    options = ("--macs", "600k", "--out", out, "--random", "2", *SHORT)
    process = home.start("manta_swarm.automl.cli", "find", "--snapshot", snapshot, *options, "--workers", "2")
    wait_for(lambda: lines_of(out / "search.jsonl") > 2, "something is measured", detail=lambda: "")
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group
    ended = home.end_of(process)
    assert ended.exit_code == 130, ended
    assert re.fullmatch(r"manta-search: stopped; .*\n", ended.errors), ended
    kept = (out / "search.jsonl").read_bytes()
    result = find(snapshot, *options)
    assert result.exit_code == 0, result.output
    whole = (out / "search.jsonl").read_bytes()
    assert whole.startswith(kept[: kept.rfind(b"\n") + 1])
    assert whole.count(b"\n") > kept.count(b"\n")
    assert json.loads((out / "result.json").read_text())["best"]["costs"]["macs"] <= 600e3


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
