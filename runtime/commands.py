"""How a command begins and ends: it loads its libraries, which takes seconds, stops when told to, and says in one line why it cannot go on.

No library but click is imported here.
"""

import contextlib
import gc
import importlib.util
import logging
import signal
import sys
from collections.abc import Iterator

import click

from manta_swarm.protocol.errors import FoundGuilty, MantaError, NothingProven, OtherHistory, UserError

_CODES: tuple[tuple[type[MantaError], int], ...] = ((UserError, 2), (OtherHistory, 3), (FoundGuilty, 4), (NothingProven, 5))
EXIT_CODES = {
    0: "The command did what was asked.",
    1: "It failed, through no fault of what was typed; or what it checked does not hold.",
    2: "What was typed, an address or a file cannot work; the line says what to do.",
    3: "A log lacks, or contradicts, what its key signed for.",
    4: "Audits found that this peer's work is not what it claimed.",
    5: "The file is whole, and proves nothing against anybody.",
    130: "Ctrl-C (SIGINT) ended it.",
    143: "SIGTERM ended it; join and start hand in or stop first, and end with 0.",
}
_OF_SWARM = ("hivemind", "starlette", "uvicorn", "PIL")
_OF_DATA = ("torchvision", "sklearn", "scipy", "skimage", "matplotlib")  # of the same extra; only some data sets and pictures need them


def check_installed() -> None:
    """Refuse to begin without the libraries of the extra "swarm"; none is imported.

    Raises:
        UserError: one is missing.
    """
    for library in _OF_SWARM:
        try:
            is_there = importlib.util.find_spec(library) is not None
        except ModuleNotFoundError:  # as whoever stands in for a finder says it
            is_there = False
        if not is_there:
            raise _missing(library)


def _missing(library: str) -> UserError:
    return UserError(
        f"{library} is not installed, which all need but light contributors (manta-peer join --light): "
        "install Manta with its extra: pip install 'manta-swarm[swarm]'"
    )


@contextlib.contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """Let SIGINT end the process as the system does, without an exception; for imports only, when there is nothing to clean up yet.

    A KeyboardInterrupt in the middle of an import comes out as whatever the library makes of it (numpy: infinite recursion). Afterwards it
    is what SIGINT raises, also where the program just ended before (``programs``): there may be something to clean up from here on.

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
        if library not in (*_OF_SWARM, *_OF_DATA):
            raise
        raise _missing(library) from error
    finally:
        if is_listened_to:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ending_in_a_line(program: str) -> Iterator[None]:
    """Say what went wrong, and exit.

    ``EXIT_CODES`` has what each code means.
    """
    try:
        yield
    except (KeyboardInterrupt, click.Abort):  # the latter in the middle of a question
        logging.getLogger("asyncio").disabled = True  # its threads still wait for children, and would say that their loop is closed
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
