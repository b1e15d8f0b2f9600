"""How each command of manta-peer ends when something is wrong: one line, and an exit code."""

import contextlib
import sys
from collections.abc import Iterator

import click

from protocol.errors import MantaError, UserError


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Say in one line what went wrong, and exit."""
    try:
        yield
    except UserError as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except MantaError as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(1)
