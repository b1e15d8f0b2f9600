"""No process outlives the one that started it, however that ends: Linux is asked to end the one with the other.

A process asks for itself, after its start: code between fork and exec (``preexec_fn``) may hang where the parent has threads. A program
that does not know of this is started by way of this file, which asks and then becomes it: ``python tether.py PARENT_PID COMMAND...``.
Start it on the main thread: what Linux looks at is the end of the thread that started a process. Other systems know nothing like it.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> bool:
    """Have this process killed when the one that started it ends; return whether that, ``parent``, is still there."""
    with contextlib.suppress(OSError, AttributeError):
        # Not a signal to be heard: nobody would be left to insist, and a peer that is asked first hands in what it trained.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent  # else it ended before the line above


def tethered(command: Sequence[str]) -> list[str]:
    """Return how to start ``command`` so that it ends with this process; the process id and all else are the command's own."""
    if sys.platform != "linux":
        return list(command)
    # -I, -S: nothing is imported but what this file names, which takes some hundredths of a second.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    if not end_with_parent(int(sys.argv[1])):
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])
