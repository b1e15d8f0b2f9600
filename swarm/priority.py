"""A process of less priority than all others, also on a Linux that groups processes by session.

A Linux with autogroups (most desktops and servers: ``/proc/sys/kernel/sched_autogroup_enabled``) shares the processors out among sessions
first and among the processes of a session after that: niceness then says nothing to who is in another session. Measured on such a one: of
two busy loops in sessions of their own on one core, one of them of niceness 19, each had half; once that session's group had it too, 5 %.
"""

import asyncio
import contextlib
import errno
import os
from pathlib import Path

_LEAST = 19
_AGAIN_S, _TRIES = 0.15, 20  # the system takes one such change in 100 ms from all users who are not root


async def lower(pid: int, niceness: int) -> None:
    """Give a process that leads a session of its own so much less priority than this one has; its children inherit it.

    Raises:
        OSError: the system does not let us.
    """
    niceness = min(_LEAST, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    for _ in range(_TRIES):
        try:
            _group_of(pid).write_text(f"{niceness}\n")
        except (FileNotFoundError, ProcessLookupError):  # a system without such groups, or it has ended
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            await asyncio.sleep(_AGAIN_S)
        else:
            return
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def group_niceness(pid: int) -> int | None:
    """Return the niceness of a process's session; None: the system has no such groups."""
    try:
        return int(_group_of(pid).read_text().split()[-1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None


def _group_of(pid: int) -> Path:
    return Path("/proc") / str(pid) / "autogroup"
