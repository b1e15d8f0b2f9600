"""How each command of manta-peer ends when something is wrong: one line, and an exit code."""

import contextlib
import sys
from collections.abc import Iterator

import click

from protocol.errors import MantaError, OtherHistory, UserError


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Say in one line what went wrong, and exit: 2 the person's, 3 a log that is not what its key has signed for, 1 all else."""
    try:
        yield
    except UserError as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except OtherHistory as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(3)
    except MantaError as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(1)
