"""How benchmarks of swarms begin and end: a codec as it is typed, a directory for the programs, nothing left when they are told to stop.

Not run by itself: a benchmark says where the project's packages are.
"""

import argparse
import contextlib
import gc
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from manta_swarm.protocol.exchange import codec_named


def codec(text: str) -> str:
    """Return a codec's name, for ``argparse``.

    Raises:
        ArgumentTypeError: there is no such codec.
    """
    try:
        codec_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


@contextlib.contextmanager
def scratch(prefix: str, keep: bool) -> Iterator[Path]:
    """Make a directory for a swarm; remove it in the end, or say where it is."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))  # short: sockets are in it
    try:
        yield directory
    finally:
        if keep:
            print(f"files: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def ending_when_told() -> Iterator[None]:
    """End in an orderly way at Ctrl-C and SIGTERM; call it once all is imported that the programs, which are forks, share."""
    signal.signal(signal.SIGTERM, _end)
    gc.freeze()  # what is here by now is shared by all processes for as long as nobody writes to it
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
