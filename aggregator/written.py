"""Files of JSON that one of the aggregator's programs replaces from time to time, and another one reads: bounded, and whole or refused."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def bounded(path: Path, max_bytes: int) -> bytes:
    """Return a file's bytes.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it has more than ``max_bytes`` bytes.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path.name} has more than {max_bytes} bytes")
    return data


def read_written(path: Path, kind: type[Model], max_bytes: int) -> Model:
    """Return what a file says.

    Raises:
        FileNotFoundError, OSError: as ``bounded``.
        ValueError: it has too many bytes, is damaged, or is of another version.
    """
    try:
        return kind.model_validate_json(bounded(path, max_bytes))
    except ValidationError as error:
        raise ValueError(f"{path.name} is damaged, or of another version") from error
