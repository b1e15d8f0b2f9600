"""How a command of manta-aggregator ends that cannot go on: one line that says what is wrong, and an exit code."""

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
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as error:
        _end(error, 2)
    except OtherHistory as error:
        _end(error, 3)
    except MantaError as error:
        _end(error, 1)


def _end(error: MantaError, exit_code: int) -> None:
    click.echo(f"manta-aggregator: {error}", err=True)
    sys.exit(exit_code)
