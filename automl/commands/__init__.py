"""The commands of manta-search, one a module; each parses, calls, prints and exits. Here is what they share."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from automl.networks import build
from automl.snapshot import load_snapshot
from automl.space import TINY, space_named
from automl.supernet import Supernet
from automl.update import State
from protocol.errors import MantaError, UserError


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """End the program with one line: exit code 2 where the person can mend it, 1 where not, 130 after Ctrl-C."""
    try:
        yield
    except UserError as error:
        click.echo(f"manta-search: {error}", err=True)
        sys.exit(2)
    except MantaError as error:
        click.echo(f"manta-search: {error}", err=True)
        sys.exit(1)


def opened_snapshot(path: Path, device: str = "cpu") -> tuple[Supernet, State, dict[str, str]]:
    """Return the supernet with a snapshot's weights, the snapshot's state, and its metadata.

    Raises:
        UserError: the file is no snapshot, or not one of the supernet that it names.
    """
    state, metadata = load_snapshot(path)
    supernet = build(space_named(metadata.get("supernet", TINY.name)), device)
    try:
        supernet.load(state.parameters)
    except ValueError as error:
        raise UserError(f"{path} does not fit the supernet that it names: {error}; give the snapshot of a run") from error
    return supernet, state, metadata
