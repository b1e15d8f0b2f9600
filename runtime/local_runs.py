"""Which aggregators run on this computer: small files in the user's state directory, so that a peer here needs no address.

The aggregator holds a lock on its file while it runs; a file that nobody locks is a dead one's.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from manta_swarm.runtime.disk import make_directory


@dataclass(frozen=True, slots=True)
class LocalRun:
    """An aggregator on this computer."""

    run: str  # id in hex
    name: str
    addresses: tuple[str, ...]


def _directory() -> Path:
    return Path(os.environ.get("MANTA_STATE_DIR") or platformdirs.user_state_dir("manta")) / "aggregators"


@contextlib.contextmanager
def listed(run: LocalRun) -> Iterator[None]:
    """List an aggregator of this process while it runs."""
    make_directory(_directory())
    path = _directory() / f"{os.getpid()}.json"
    part = path.with_suffix(".part")
    with part.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # before it has its name: nobody takes it for a dead one's
        json.dump({"run": run.run, "name": run.name, "addresses": run.addresses}, file)
        file.flush()
        os.replace(part, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def find() -> list[LocalRun]:
    """Return the aggregators that run on this computer; what dead ones left is removed."""
    runs = []
    for path in sorted(_directory().glob("*.json")):
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            if _is_abandoned(file.fileno()):
                path.unlink()
                continue
            try:
                entry = json.load(file)
                runs.append(LocalRun(str(entry["run"]), str(entry["name"]), tuple(map(str, entry["addresses"]))))
            except (ValueError, KeyError, TypeError):
                continue  # being written, or not one of ours: nothing to offer
    return runs


def _is_abandoned(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
