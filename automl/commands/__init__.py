"""The commands of manta-search, one a module: each parses, checks what needs no torch, then imports its job (``automl.jobs``).

Nothing that imports torch is imported here, or above a command's function: a person's mistakes are told at once. Here is what the commands
share.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from automl.data.names import check_name
from automl.spaces.space import SearchSpace, space_named
from automl.training.snapshot_header import read_header
from protocol.errors import MantaError, UserError

MAX_THREADS = 1024  # that somebody may ask for: torch starts all of them, and a mistyped number would leave the computer none

_OF_SWARM = frozenset({"torchvision", "sklearn", "scipy", "skimage", "matplotlib", "PIL"})  # what a light contributor's install lacks


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """End the program with one line: exit code 2 where the person can mend it, 1 where not, 130 at Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"{program()}: ended by Ctrl-C", err=True)
        sys.exit(130)
    except PermissionError as error:
        click.echo(f"{program()}: {error.filename}: {error.strerror}; choose another place, or have it changed", err=True)
        sys.exit(2)
    except UserError as error:
        click.echo(f"{program()}: {error}", err=True)
        sys.exit(2)
    except MantaError as error:
        click.echo(f"{program()}: {error}", err=True)
        sys.exit(1)


def program() -> str:
    """Return the name of the program that a person typed: manta-search, or what runs its commands (a context's ``obj``)."""
    context = click.get_current_context(silent=True)
    return (context.find_object(str) if context is not None else None) or "manta-search"


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For imports only: let SIGINT end the process as the system does, and name a library that is missing.

    A KeyboardInterrupt in the middle of an import comes out as whatever the library makes of it. Afterwards it is what SIGINT raises.

    Raises:
        UserError: a library is missing that the extra "swarm" brings.
    """
    is_listened_to = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # else whoever started this program wants it ignored
    if is_listened_to:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _OF_SWARM:
            raise
        raise UserError(f"{library} is not installed; install Manta with its extra: pip install 'manta-swarm[swarm]'") from error
    finally:
        if is_listened_to:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def described(snapshot: Path) -> tuple[SearchSpace, dict[str, str]]:
    """Return which supernet a snapshot is of, and its metadata; its weights are not read.

    Raises:
        UserError: it is no snapshot, or of no supernet that this version knows.
    """
    metadata = read_header(snapshot)
    if "supernet" not in metadata:
        raise UserError(f"{snapshot} does not say which supernet it is of; give the snapshot of a run")
    return space_named(metadata["supernet"]), metadata


def check_data(metadata: Mapping[str, str], given: str | None, root: Path | None) -> None:
    """Refuse a data set that the person named, or that a snapshot was trained on, where its name or its folder cannot be.

    Raises:
        UserError: neither is named, or see ``automl.data.names``.
    """
    name = given or metadata.get("dataset")
    if name is None:
        raise UserError("the snapshot does not say what it was trained on: name it with --data")
    check_name(name, root)


def check_device(name: str) -> None:
    """Refuse the name of what is no device anywhere; whether a GPU is here, only torch can say.

    Raises:
        UserError: it is none.
    """
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"there is no device {name!r} here; use --device cpu")
