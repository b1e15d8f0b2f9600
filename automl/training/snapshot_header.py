"""What a snapshot says of itself: its format, its metadata and the shapes in it, without reading a weight. No torch."""

from pathlib import Path

import safetensors

from manta_swarm.automl.spaces.space import SearchSpace, space_named
from manta_swarm.protocol.errors import UserError

FORMAT = "manta/state/v3"  # of states, whether they travel or lie on a disk
PARAMETERS = "parameters"


def read_header(path: Path) -> dict[str, str]:
    """Return the metadata of a snapshot of this version's format.

    Raises:
        UserError: there is no such file, or it is no snapshot.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            _check_format(path, metadata.get("format"))
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
            shapes = {(tuple(tensor.get_shape()), tensor.get_dtype()) for tensor in tensors.values()}
            names = set(tensors)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} is no snapshot of a run: {error}") from error
    _check_state(path, metadata)
    if names != {PARAMETERS, *(moment(index) for index in range(len(names) - 1))}:
        raise UserError(f"{path} is no snapshot of a run: its tensors are called {', '.join(sorted(names))[:80]}")
    if len(shapes) != 1 or any(len(shape) != 1 or dtype != "F32" for shape, dtype in shapes):
        raise UserError(f"{path} is no snapshot of a run: its tensors are not fp32 vectors of one length")
    return metadata


def described(snapshot: Path) -> tuple[SearchSpace, dict[str, str]]:
    """Return which supernet a snapshot is of, and its metadata; its weights are not read.

    Raises:
        UserError: it is no snapshot, or of no supernet that this version knows.
    """
    metadata = read_header(snapshot)
    if "supernet" not in metadata:
        raise UserError(f"{snapshot} does not say which supernet it is of; give the snapshot of a run")
    return space_named(metadata["supernet"]), metadata


def _check_state(path: Path, metadata: dict[str, str]) -> None:
    try:
        int(metadata["round"])
        teacher = bytes.fromhex(metadata["teacher"])
    except KeyError as error:
        raise UserError(f"{path} is no snapshot of a run: its metadata lacks {error}") from error
    except ValueError as error:
        raise UserError(f"{path} is no snapshot of a run: {error}") from error
    if len(teacher) not in (0, 32):
        raise UserError(f"{path} is no snapshot of a run: the digest of its teacher has {len(teacher)} bytes")


def moment(index: int) -> str:
    """Return what a moment is called in the file."""
    return f"moment{index}"


def _check_format(path: Path, found: str | None) -> None:
    """Refuse what is not of this version's format: an earlier one named none and had its weights in another order."""
    if found != FORMAT:
        named = "no format" if found is None else f"the format {found[:40]!r}"
        raise UserError(
            f"{path} is no snapshot that this version reads: it names {named}, not {FORMAT!r}; "
            "give the snapshot of a run, or use the version that wrote it"
        )
