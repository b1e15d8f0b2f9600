"""How benchmarks take their arguments, say what they find, and keep it: ``--json FILE`` writes the rows with the machine they are of.

Not run by itself.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("manta-swarm", "torch", "numpy", "hivemind")
_rows: list[dict[str, Any]] = []


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of arguments whose help is a module's docstring, and which knows ``--json``."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="keep the figures there, with the machine they are of")
    return made


def keep(**figures: object) -> None:
    """Keep a row of figures."""
    _rows.append(figures)


def say(line: str, **figures: object) -> None:
    """Print a line at once, and keep the figures that are in it."""
    print(line, flush=True)
    if figures:
        keep(**figures)


def machine() -> dict[str, object]:
    """Return what the figures depend on beside the program: cores, memory, versions, and the GPU of a program that has torch."""
    torch = sys.modules.get("torch")
    return {
        "cores": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "gpu": torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None,
        "versions": {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _PACKAGES}},
    }


def write(arguments: argparse.Namespace) -> None:
    """Write all rows to the file of ``--json``, if there is one."""
    if arguments.json is None:
        return
    command = " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    found = {"command": command, "machine": machine(), "rows": _rows}
    arguments.json.write_text(json.dumps(found, indent=1, default=_plain) + "\n", encoding="utf-8")


def take(path: Path) -> None:
    """Keep the rows that a benchmark's other process wrote."""
    _rows.extend(json.loads(path.read_text(encoding="utf-8"))["rows"])


def _plain(value: Any) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.item() if hasattr(value, "item") else str(value)
