"""Limits that outlive a peer: ``limits.toml`` in its directory, which ``manta-peer limits`` writes and a peer at work, too."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.disk import make_directory, replace_file, settings_text


def limits_file(directory: Path) -> Path:
    """Return the file of a peer's directory."""
    return directory / "limits.toml"


def settings_in(path: Path) -> dict[str, Any]:
    """Return what a file of settings (TOML) says; nothing where there is none.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return tomllib.loads(settings_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; mend it, or move it away") from error


def kept_limits(directory: Path) -> dict[str, Any]:
    """Return what ``manta-peer limits`` was told of the peer of ``directory``, in the person's words.

    Raises:
        UserError: the file cannot be read.
    """
    path = limits_file(directory)
    kept = settings_in(path)
    if wrong := sorted(set(kept) - set(Limits.model_fields)):
        raise UserError(f"{path}: {wrong[0]!r} is no limit; delete the file, or that line")
    return kept


def keep_limits(directory: Path, told: dict[str, str]) -> None:
    """Keep what a person said of limits, over what was said before; the directory is made if it is not there.

    Raises:
        UserError: a limit that cannot be, or the directory cannot be made.
        StorageError: the disk refuses.
    """
    checked(told)
    make_directory(directory)
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in {**kept_limits(directory), **told}.items()]
    text = "\n".join(("# Written by manta-peer limits; stronger than peer.toml.", *lines, ""))
    replace_file(limits_file(directory), text.encode())


def checked(told: dict[str, str], before: Limits | None = None) -> Limits:
    """Return the limits ``before``, or none, changed by what a person said.

    Raises:
        UserError: a limit that cannot be; the message says what it takes.
    """
    try:
        before = before or Limits()
        return type(before)(**{**before.model_dump(), **told})
    except ValidationError as error:
        raise refused(error, flag_of) from error


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def refused(error: ValidationError, origin: Callable[[str], str]) -> UserError:
    """Return the one line that says what is wrong with a setting; ``origin`` says where the person wrote it."""
    problem = error.errors()[0]
    said = problem["msg"].removeprefix("Value error, ")
    return UserError(f"{origin(str(problem['loc'][0]))}: {said}" if problem["loc"] else said)  # settings that do not go together
