"""Starts a program that does not outlive the one that wanted it, however that ends, and removes what it leaves behind.

A script of its own, not a module to import: ``python -I -S tether.py PARENT_PID NICENESS FOLDER COMMAND...``. It gives itself the priority,
before anything large is loaded, asks Linux to be killed when its parent ends, and becomes COMMAND, which keeps its process id. Code between
fork and exec (``preexec_fn``) could do the same, but may hang where the parent has threads. What Linux looks at is the end of the thread
that started a process: start it on the main thread.

Where a FOLDER is to be removed after COMMAND has ended, or on a system where nothing kills orphans, it stays instead, as a keeper: it ends
COMMAND when its parent is gone, or SIGTERM comes. PARENT_PID 0: COMMAND sees to its end itself, as one that has a line to its parent does.

A Linux with autogroups (most desktops and servers: ``/proc/sys/kernel/sched_autogroup_enabled``) shares the processors out among sessions
first and among the processes of a session after that: niceness then says nothing to who is in another session. Measured on such a one: of
two busy loops in sessions of their own on one core, one of them of niceness 19, each had half; once that session's group had it too, 5 %.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_POLL_S = 1.0  # where the kernel sends no parent-death signal, the parent is looked for this often
_LAST_S = 5.0  # for an orderly end
_AGAIN_S, _TRIES = 0.15, 20  # the system takes one such change in 100 ms from all users who are not root


def ask_for_end_with_parent(number: int) -> None:
    """Have this process sent a signal when the thread that started it ends, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def lower(niceness: int) -> None:
    """Give this process, which leads a session of its own, so much less priority than it has; its children inherit it.

    Raises:
        OSError: the system does not let us.
    """
    total = os.nice(niceness)
    for _ in range(_TRIES):
        try:
            with open("/proc/self/autogroup", "w") as group:
                group.write(f"{total}\n")
        except FileNotFoundError:  # a system without such groups
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            time.sleep(_AGAIN_S)
        else:
            return
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def keep(parent: int, folder: str, command: Sequence[str]) -> int:
    """Run a command until it ends or the parent does; return its exit code, after ``folder`` was removed, if there is one."""
    import shutil  # here: most programs are started without them, and sooner
    import subprocess

    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal: for the program, not for a daemon that it has
        signal.signal(number, signal.SIG_IGN if folder else lambda number, _frame: running.send_signal(number))
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    ask_for_end_with_parent(signal.SIGTERM)
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=bool(folder),  # a terminal's Ctrl-C is not for a daemon
        preexec_fn=lambda: ask_for_end_with_parent(signal.SIGTERM),
    )
    try:
        while not stopping and os.getppid() == parent:
            # sigtimedwait wakes at once for the child's end; a SIGTERM's handler runs and the loop sees it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return running.wait(timeout=_POLL_S)
        running.terminate()
        try:
            return running.wait(timeout=_LAST_S)
        except subprocess.TimeoutExpired:
            running.kill()
            return running.wait()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Be the program, or its keeper."""
    parent, niceness, folder, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    if niceness:
        try:
            lower(niceness)
        except OSError as error:  # it works at most a share of the time all the same
            print(f"its priority stays: {error.strerror}", file=sys.stderr)
    if folder or (parent and sys.platform != "linux"):
        return keep(parent, folder, command)
    # Not a signal to be heard: nobody would be left to insist, and a peer that is asked first hands in what it trained.
    ask_for_end_with_parent(signal.SIGKILL)
    if parent and os.getppid() != parent:  # it ended before the line above
        return 1
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
