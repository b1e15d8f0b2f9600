"""manta-peer specialise: the best subnet for this very machine from a run's newest state: got, profiled, searched, exported, evaluated.

It does what ``manta-search`` does when its commands are typed one after the other. It says each command as it would be typed, and leaves
the command's files, so that the same command goes on where it was.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from manta_swarm.automl.commands.evaluate import evaluate
from manta_swarm.automl.commands.export import export
from manta_swarm.automl.commands.find import find
from manta_swarm.automl.commands.profile import profile
from manta_swarm.automl.forms import FORMATS, ONNX
from manta_swarm.automl.latency.table import GRAPHS, TORCH, LatencyTable
from manta_swarm.automl.training.snapshot_header import read_header
from manta_swarm.peer.config import PeerConfig
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

TABLE, SEARCH = "latency.json", "search"
_AMOUNT = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Specialisation:
    """What a person wants; see the command's options."""

    latency_ms: str
    out: Path
    snapshot: Path | None  # None: the run's newest state
    device: str
    is_quick: bool  # less exact, in minutes

    def check(self) -> None:
        """Refuse what cannot be, before anything takes time.

        Raises:
            UserError: it is so.
        """
        if not _AMOUNT.fullmatch(self.latency_ms) or float(self.latency_ms) == 0:
            raise UserError(f"--latency-ms {self.latency_ms!r} is no time above zero: write it like 5 or 2.5")
        if self.device not in ("cpu", "cuda"):
            raise UserError(f"there is no device {self.device!r}: --device takes cpu or cuda")
        if self.snapshot is not None:
            read_header(self.snapshot)
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"{self.out} is no folder: choose another --out")

    @property
    def name(self) -> str:
        """What the network is called."""
        return f"best-{self.latency_ms}ms-{self.device}"


def specialise(specialisation: Specialisation, config: PeerConfig) -> None:
    """Profile, search, export and evaluate; what the commands say is printed by them.

    Raises:
        UserError: the run, the data or the wish do not fit.
        Unreachable: nobody gives the run's state.
    """
    try:
        specialisation.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {specialisation.out}: {error.strerror}; choose another --out") from error
    if specialisation.snapshot is None:
        with ending_at_ctrl_c():
            import manta_swarm.peer.contact.visiting  # noqa: F401 - it takes seconds, and then there is something to clean up
    snapshot = specialisation.snapshot or asyncio.run(newest_state(config, specialisation.out))
    data = () if config.data_root is None else ("--data-root", str(config.data_root))
    threads = () if config.cpu_threads is None else ("--threads", str(config.cpu_threads))
    supernet, table = read_header(snapshot).get("supernet", ""), specialisation.out / TABLE
    if not _is_of(table, supernet, specialisation.device):
        quick = ("--quick",) if specialisation.is_quick else ()
        _run(profile, "--supernet", supernet, "--device", specialisation.device, *threads, *quick, "--out", str(table))
    search = specialisation.out / f"{SEARCH}-{snapshot.stem}-{specialisation.latency_ms}ms"
    few = ("--generations", "4", "--population", "12", "--no-predictor") if specialisation.is_quick else ()
    limits = ("--latency-ms", specialisation.latency_ms, "--latency-table", str(table))
    start = ("--snapshot", str(snapshot))
    _run(find, *start, *limits, *data, *threads, *few, "--device", specialisation.device, "--out", str(search))
    forms = [form for form in FORMATS if form != ONNX or find_spec("onnxruntime") is not None]
    best, name = str(search / "best.json"), ("--name", specialisation.name)
    to = ("--format", ",".join(forms), "--out", str(specialisation.out), *name, "--force")
    _run(export, *start, "--arch", best, *data, *threads, *to)
    _run(evaluate, str(specialisation.out / specialisation.name), *data, *threads)


async def newest_state(config: PeerConfig, folder: Path) -> Path:
    """Return a snapshot of the run's newest committed state, got from the run unless it is in ``folder`` already.

    Raises:
        UserError: no run is known, or its data are private: nobody but their owners can measure on them.
        Unreachable: nobody gives the state.
    """
    from manta_swarm.automl.training.snapshot import save_snapshot
    from manta_swarm.peer.contact.visiting import visiting

    async with visiting(config, guest=config.dir) as visit:
        manifest, newest = visit.manifest, await visit.newest()
        if manifest.is_private:
            raise UserError("this run's data stay with their owners: get a snapshot of its operator's, and give --snapshot FILE")
        round_ = 0 if newest is None else newest.round
        path = folder / f"{visit.signed.run.hex()[:8]}-round-{round_:08d}.safetensors"
        digest = manifest.initial_state if newest is None else newest.state
        metadata = {"run": visit.signed.run.hex(), "supernet": manifest.supernet, "dataset": manifest.dataset}
        metadata |= {"schedule": manifest.schedule, "state": digest.hex()}
        if not holds_state(path, digest, metadata):
            again = ", for the file that is there is not it" if path.exists() else ""
            click.echo(f"getting the state of round {round_} of {manifest.name} ({visit.signed.run.hex()[:16]}){again}")
            save_snapshot(path, await visit.state(newest), metadata)
        return path


def holds_state(path: Path, digest: bytes, metadata: Mapping[str, str]) -> bool:
    """Return whether a file is there that has the state of this digest, computed again, and says all of that of itself."""
    from manta_swarm.automl.training.snapshot import load_snapshot
    from manta_swarm.automl.training.update import state_digest

    if not path.exists():
        return False
    try:
        state, found = load_snapshot(path)
    except UserError:
        return False
    return state_digest(state) == digest and metadata.items() <= found.items()


def _is_of(table: Path, supernet: str, device: str) -> bool:
    """Return whether a table is there already, of this supernet and device, measured by torch, one way or the other."""
    try:
        found = LatencyTable.load(table)
    except UserError:
        return False
    of = found.conditions
    return (found.supernet, of.device) == (supernet, device) and of.runtime in (TORCH, GRAPHS)


def _run(command: click.Command, *arguments: str) -> None:
    click.echo(f"manta-search {command.name} {' '.join(arguments)}")
    command.main(list(arguments), prog_name=f"manta-search {command.name}", standalone_mode=False, obj="manta-peer")
