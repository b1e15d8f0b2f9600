"""Every benchmark starts as its page says: from any folder, with an interpreter in which the project is installed, and nothing else."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
DEADLINE_S = 300.0


def programs() -> list[Path]:
    """Return what a person starts, or what a benchmark starts as a program of its own; what is only imported is in these."""
    return [path for path in sorted(BENCHMARKS.glob("*.py")) if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]


def fault_of(program: Path, folder: Path) -> str:
    """Return what is wrong with how a program answers ``--help`` in an empty folder; nothing: ''."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [sys.executable, str(program), "--help"],
        cwd=folder,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if ended.returncode:
        return f"exit code {ended.returncode}: {ended.stderr[-500:]}"
    if not ended.stdout.startswith("usage: "):
        return f"it does something else than to say how it is used: {ended.stdout[:200]!r}"
    return f"it leaves {sorted(path.name for path in folder.iterdir())} behind" if any(folder.iterdir()) else ""


def test_every_benchmark_and_each_of_its_helper_programs_says_how_it_is_used_and_measures_nothing(tmp_path: Path) -> None:
    """Two at a time: most of them import torch."""
    found = programs()
    assert BENCHMARKS / "wan_hivemind.py" in found
    with ThreadPoolExecutor(2) as threads:
        faults = list(threads.map(lambda program: fault_of(program, tmp_path / program.stem), found))
    assert not {program.name: fault for program, fault in zip(found, faults, strict=True) if fault}
