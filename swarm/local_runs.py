"""Which aggregators run on this computer: small files in the user's runtime directory, so that a peer here needs no address."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swarm.disk import make_directory, replace_file


@dataclass(frozen=True, slots=True)
class LocalRun:
    """An aggregator on this computer."""

    run: str  # id in hex
    name: str
    addresses: tuple[str, ...]


def _directory() -> Path:
    return Path(os.environ.get("MANTA_RUNTIME_DIR") or platformdirs.user_runtime_dir("manta")) / "aggregators"


@contextlib.contextmanager
def listed(run: LocalRun) -> Iterator[None]:
    """List an aggregator of this process while it runs."""
    make_directory(_directory())
    path = _directory() / f"{os.getpid()}.json"
    replace_file(path, json.dumps({"run": run.run, "name": run.name, "addresses": run.addresses}).encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find() -> list[LocalRun]:
    """Return the aggregators that run on this computer; what dead ones left is removed."""
    runs = []
    for path in sorted(_directory().glob("*.json")):
        try:
            os.kill(int(path.stem), 0)
            entry = json.loads(path.read_text())
            runs.append(LocalRun(str(entry["run"]), str(entry["name"]), tuple(map(str, entry["addresses"]))))
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (ValueError, KeyError, TypeError, OSError):
            continue  # not one of ours, or just going away: nothing to offer
    return runs
