"""Runs hivemind's libp2p daemon and ends it, with its sockets, when the program that wanted it is gone, however it went.

A script of its own, not a module to import: ``python keeper.py PARENT_PID SOCKET_DIR DAEMON ARGS...``. The daemon gets a session
of its own, so that Ctrl-C in a terminal reaches the program (which wants to finish its round) and not the daemon.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
POLL_S = 1.0  # where the kernel sends no parent-death signal, the parent is looked for this often


def die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent ends; elsewhere the poll in ``main`` has to do."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    """Run the daemon until it ends or the parent does; return its exit code."""
    parent, socket_dir, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal, for the program
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    die_with_parent()
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent)
    try:
        while not stopping and os.getppid() == parent:
            # sigtimedwait wakes at once for the child's end; a SIGTERM's handler runs and the loop sees it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return daemon.wait(timeout=POLL_S)
        daemon.terminate()
        try:
            return daemon.wait(timeout=5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            return daemon.wait()
    finally:
        shutil.rmtree(socket_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
