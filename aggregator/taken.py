"""A state of a run's folder, taken out while the run goes on: the newest snapshot, checked, with what proves that the log has it."""

import shutil
from pathlib import Path

from aggregator.replay import SNAPSHOTS
from aggregator.storage import read_manifest
from automl.training.snapshot import load_snapshot
from automl.training.update import state_digest
from protocol.errors import StorageError, UserError
from swarm.disk import disk_errors, sync_directory

_TRIES = 3  # the run goes on meanwhile, and prunes


def take_snapshot(directory: Path, out: Path) -> tuple[int, str]:
    """Copy the newest state of the run in ``directory`` to the new file ``out``, and its proof beside it; return its round and digest.

    Raises:
        UserError: there is no run or no state, or ``out`` is there already or cannot be written.
        StorageError: the disk fails, or the state is damaged.
    """
    read_manifest(directory)
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: a snapshot's name ends with .safetensors")
    proof_out = out.with_suffix(".json")
    for path in (out, proof_out):
        if path.exists():
            raise UserError(f"{path} exists already; it is left as it is: choose another name")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.absolute().parent}")
    part = out.with_name(f"{out.name}.part")
    try:
        proof = _copied(directory / SNAPSHOTS, part)
        try:
            state, metadata = load_snapshot(part)
        except UserError as error:  # nobody chose that file
            raise StorageError(f"the newest state of {directory} is damaged: {error}") from error
        digest = state_digest(state).hex()
        if metadata.get("state") != digest:
            raise StorageError(f"the newest state of {directory} is damaged: its digest is another one than it says")
        with disk_errors(out):
            proof_out.write_bytes(proof)
            part.rename(out)
        sync_directory(out.absolute().parent)
    finally:
        part.unlink(missing_ok=True)
    return state.round, digest


def _copied(snapshots: Path, part: Path) -> bytes:
    """Copy the newest state that has a proof; return the proof.

    Raises:
        UserError: there is none.
    """
    for _ in range(_TRIES):
        for proof in sorted(snapshots.glob("round-*.json"), reverse=True):
            try:
                data = proof.read_bytes()
                with disk_errors(part), proof.with_suffix(".safetensors").open("rb") as file, part.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
            except (FileNotFoundError, StorageError):
                continue  # it was pruned a moment ago; a disk that fails fails at all of them
            return data
    raise UserError(f"{snapshots} has no state that the log has")
