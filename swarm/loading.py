"""While a program loads its libraries, which takes seconds: Ctrl-C just ends it, and one that is missing is named with its extra.

No library is imported here.
"""

import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import UserError

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


@contextmanager
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
