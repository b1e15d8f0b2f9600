"""A state of a run's folder, taken out while the run goes on: the newest snapshot, checked, with what proves that the log has it."""

import shutil
import tempfile
from pathlib import Path

from aggregator.log.copying import check_snapshot
from aggregator.rounds.replay import SNAPSHOTS
from automl.training.snapshot import load_snapshot
from automl.training.update import state_digest
from protocol.errors import StorageError, UserError
from runtime.disk import disk_errors, sync_directory

_TRIES = 3  # the run goes on meanwhile, and prunes


def take_snapshot(directory: Path, out: Path) -> tuple[int, str]:
    """Copy the newest state of the run in ``directory`` to the new file ``out``, and its proof beside it; return its round and digest.

    Raises:
        UserError: there is no run or no state, or ``out`` is there already or cannot be written.
        StorageError: the disk fails, or the state is damaged.
    """
    proof_out = check_snapshot(directory, out)
    try:
        making = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent)
    except OSError as error:
        raise UserError(f"cannot write to {out.absolute().parent}: {error.strerror}") from error
    with making as temporary:
        part, proof_part = Path(temporary) / out.name, Path(temporary) / proof_out.name
        _copy_newest(directory / SNAPSHOTS, part, proof_part)
        try:
            state, metadata = load_snapshot(part)
        except UserError as error:  # nobody chose that file
            raise StorageError(f"the newest state of {directory} is damaged: {error}") from error
        digest = state_digest(state).hex()
        if metadata.get("state") != digest:
            raise StorageError(f"the newest state of {directory} is damaged: its digest is another one than it says")
        with disk_errors(out):
            proof_part.rename(proof_out)
            part.rename(out)
        sync_directory(out.absolute().parent)
    return state.round, digest


def _copy_newest(snapshots: Path, part: Path, proof_part: Path) -> None:
    """Copy the newest state that has a proof, and the proof.

    Raises:
        UserError: there is none.
        StorageError: the disk fails.
    """
    for _ in range(_TRIES):
        for proof in sorted(snapshots.glob("round-*.json"), reverse=True):
            try:
                data, state = proof.read_bytes(), proof.with_suffix(".safetensors").open("rb")
            except FileNotFoundError:
                continue  # it was pruned a moment ago
            except OSError as error:
                raise StorageError(f"{proof} and its state cannot be read: {error.strerror}; check the disk and the permissions") from error
            with state, disk_errors(part), part.open("wb") as copy:
                shutil.copyfileobj(state, copy)
                proof_part.write_bytes(data)
            return
    raise UserError(f"{snapshots} has no state that the log has")
