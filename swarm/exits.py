"""How a command ends: soon; and where it cannot go on, with one line that says what is wrong, and an exit code."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Iterator

import click

from protocol.errors import FoundGuilty, MantaError, NothingProven, OtherHistory, UserError

_CODES: tuple[tuple[type[MantaError], int], ...] = ((UserError, 2), (OtherHistory, 3), (FoundGuilty, 4), (NothingProven, 5))


@contextlib.contextmanager
def ending_in_a_line(program: str) -> Iterator[None]:
    """Say what went wrong, and exit.

    The codes: 130 Ctrl-C, 2 the person's, 3 a log that is not as it was signed, 4 found guilty, 5 what was kept as a proof shows nobody's
    fault, 1 all else.
    """
    try:
        yield
    except (KeyboardInterrupt, click.Abort):  # the latter in the middle of a question
        click.echo(f"{program}: ended by Ctrl-C", err=True)
        sys.exit(130)
    except PermissionError as error:  # of a folder on the way to a file, which to ask after is not allowed either
        click.echo(f"{program}: {error.filename}: {error.strerror}; choose another place, or have it changed", err=True)
        sys.exit(2)
    except MantaError as error:
        click.echo(f"{program}: {error}", err=True)
        sys.exit(next((code for kind, code in _CODES if isinstance(error, kind)), 1))


def end_soon() -> None:
    """Spare a process that ends now, with all closed, the last search for garbage among what its libraries made: it takes seconds."""
    gc.freeze()


def told_to_stop() -> "asyncio.Future[None]":
    """Return what is done at the first SIGINT or SIGTERM from now on."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not told.done():
            told.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return told
