"""Every benchmark starts as its page says: from any folder, with an interpreter in which the project is installed, and nothing else.

``make faults`` also runs each once, with its smallest sizes, and looks at what it writes.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import namespaces, programs_needed

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FORKS = Path(__file__).with_name("program_forks.py")
DEADLINE_S = 300.0


def programs() -> list[Path]:
    """Return what a person starts, or what a benchmark starts as a program of its own; what is only imported is in these."""
    return [path for path in sorted(BENCHMARKS.glob("*.py")) if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]


def answers(programs: list[Path], folders: list[Path]) -> list[tuple[int, str, str]]:
    """Return the exit code of each program with ``--help``, what it prints and its errors; each works in an empty folder."""
    for folder in folders:
        folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [sys.executable, str(FORKS)],
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        input=json.dumps([(str(program), str(folder)) for program, folder in zip(programs, folders, strict=True)]),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [(code, out, err) for code, out, err in json.loads(ended.stdout)]


def fault_in(answer: tuple[int, str, str], folder: Path) -> str:
    """Return what is wrong with how a program answered ``--help`` in a folder that was empty; nothing: ''."""
    code, printed, errors = answer
    if code:
        return f"exit code {code}: {errors[-500:]}"
    if not printed.startswith("usage: "):
        return f"it does something else than to say how it is used: {printed[:200]!r}"
    return f"it leaves {sorted(path.name for path in folder.iterdir())} behind" if any(folder.iterdir()) else ""


def test_every_benchmark_and_each_of_its_helper_programs_says_how_it_is_used_and_measures_nothing(tmp_path: Path) -> None:
    found = programs()
    assert BENCHMARKS / "wan_hivemind.py" in found
    folders = [tmp_path / program.stem for program in found]
    faults = [fault_in(*each) for each in zip(answers(found, folders), folders, strict=True)]
    assert not {program.name: fault for program, fault in zip(found, faults, strict=True) if fault}


SMALLEST = {  # arguments, and figures that a row has to have
    "accuracy": ("--data {data} --task classification --schedule sandwich --no-twins --rounds 2", {"tasks"}),
    "audit_limits": ("--claims 1,2 --trained 1", {"parts_of_bound"}),
    "bodies": ("--counts 5000 --repeats 1 --codecs int16", {"body_bytes", "cpu_ms"}),
    "cheats": ("--cheats noise --honest 1 --rounds 1 --microbatches 1", {"auditor_cpu_s", "honest_cpu_s"}),
    "convolutions": ("--repeats 1", {"torch_ms", "here_ms"}),
    "crowd": ("--peers 16 --rounds 4", {"counted", "digest"}),
    "crowd_gossip": ("--peers 16 --weights tiny", {"all_s", "log_sent_mb"}),
    "depthwise": ("--batch 1 --times 1", {"torch_gradients_ms", "here_gradients_ms"}),
    "evaluations": ("--share 100 --seconds 1 --pairs 1 --workers 1", {"with_to_without"}),
    "gpu": ("--microbatches 4 --samples 8", {"against_cpu"}),
    "ledger": ("--claims 200 --keys 50", {"claims", "seconds"}),
    "light": ("--rounds 1 --round-s 4", {"first_credit_s", "received_bytes"}),
    "light_limits": ("--duty 60 --rate 2MB --seconds 1", {"limit", "measured"}),
    "limits": ("--duty 60 --rate 2MB --seconds 1", {"limit", "measured"}),
    "local_steps": ("--out {folder}/runs --updates 2 --cohorts 1 --seeds 0 --settings int16@1", {"runs"}),
    "monitor": ("--peers 8 --rounds 20 --claims 4 --clients 2 --seconds 1", {"route", "median_ms"}),
    "operators": ("--times 1 --peers 1", {"promises_lost", "forks"}),
    "private": ("--data digits --peers 2 --updates 5 --settings private --out {folder}/runs", {"runs"}),
    "reduce": ("--values 1000 --peers 2 --rounds 1", {"variant", "record"}),
    "scale": ("--peers 2 --rounds 1 --microbatch-ms 100", {"share", "beside_s"}),
    "search": ("--snapshots {snapshot} --population 2 --generations 1 --random 2 --held-out 40 --threads 1", {"unseen"}),
    "sessions": ("--processes 1 --sessions 2 --rounds 2 --microbatch-ms 100 --microbatches 2", {"samples_counted"}),
    "shards": ("--samples 200 --microbatches 1", {"made_s", "read_mib"}),
    "soak": ("--peers 2 --cohort-size 1 --minutes 0.5 --on-time 1", {"broken"}),
    "spaces": ("", {"macs_and_weights_by_stride"}),
    "start": ("--times 1", {"wall_s", "cpu_s"}),
    "strangers": ("--attacks dht_answers --minutes 0.1 --quiet-minutes 0.1", {"spans"}),
    "supernet": ("--supernet classifier-tiny --batch 2 --steps 1 --threads 1", {"elastic_ms", "plain_ms"}),
    "tolerances": ("--supernets classifier-tiny --microbatches 2 --each 2 --claims 1 --trained 1", {"apart"}),
    "update": ("--repeats 1", {"step_ms", "digest_ms"}),
    "vertical": ("--microbatches 2 --samples 2", {"round_trips", "left_to_right_kb"}),
    "wan": ("--mbit 50 --vectors tiny --rounds 1 --sides manta --settings sparse", {"manta"}),
    "workers": ("--microbatches 3 --turns 1", {"samples_a_second"}),
}
ROOT_NEEDED = {"limits", "wan"}


def test_every_benchmark_that_keeps_figures_has_smallest_sizes_here() -> None:
    """The runs below leave no such benchmark out."""
    assert {path.stem for path in programs() if "results.parser(__doc__)" in path.read_text(encoding="utf-8")} == set(SMALLEST)


@pytest.mark.swarm
@pytest.mark.faults
@pytest.mark.parametrize("name", sorted(SMALLEST))
def test_a_benchmark_runs_with_its_smallest_sizes_and_keeps_what_it_measured(name: str, tmp_path: Path) -> None:
    """Its figures say nothing at these sizes: what is asked is that it ends well, and that its file has what the page shows."""
    words, needed = SMALLEST[name]
    data = os.environ.get("MANTA_BENCHMARK_DATA", "")
    if "{data}" in words and not data:
        pytest.skip("MANTA_BENCHMARK_DATA names no folder with FashionMNIST/raw and middlebury")
    if name in ROOT_NEEDED and (reason := namespaces.why_not(("-L",), "list rules")) is not None:
        pytest.skip(f"{name}.py {reason}")
    if name == "operators":
        programs_needed.need("etcd")
    if name == "gpu" and not has_gpu():
        pytest.skip("there is no CUDA GPU")
    snapshot = snapshot_in(tmp_path) if "{snapshot}" in words else ""
    kept = tmp_path / "figures.json"
    given = [word.format(data=data, folder=tmp_path, snapshot=snapshot) for word in words.split()]
    run(str(BENCHMARKS / f"{name}.py"), *given, "--json", str(kept))
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert found["command"].startswith(f"benchmarks/{name}.py")
    assert found["machine"]["cores"] >= 1
    assert set(found["machine"]["versions"]) == {"python", "manta-swarm", "torch", "numpy", "hivemind"}
    assert any(needed <= set(row) for row in found["rows"]), found["rows"]


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    torch = importlib.import_module("torch")
    return bool(torch.cuda.is_available())


def snapshot_in(folder: Path) -> Path:
    """Return what a training of one round leaves."""
    asked = ("--rounds", "1", "--microbatch-samples", "8", "--target-batch", "8", "--threads", "1", "--out", str(folder / "trained"))
    run("-m", "manta_swarm.automl.cli", "train", *asked)
    return next((folder / "trained").glob("*.safetensors"))


def run(*words: str) -> None:
    """Run an interpreter to a good end."""
    ended = subprocess.run([sys.executable, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
