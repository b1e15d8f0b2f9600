"""The four programs as they are typed. From the first moment of each Ctrl-C ends it with one line, also while its modules are imported.

That holds until a command has loaded its libraries (``swarm.loading``, ``automl.commands.loading``): from then on there may be something
to clean up, and Ctrl-C is a KeyboardInterrupt, or what the command makes of it. Nothing but the standard library is imported here.
What comes before, Python's own start, nobody can change: a Ctrl-C in it shows Python's traceback.
"""

import os
import signal
from types import FrameType

_ENDED = 130  # as a shell says of a program that SIGINT ended
_ERRORS = 2


def peer() -> None:
    """Be manta-peer."""
    _end_at_ctrl_c("manta-peer")
    from peer.cli import main

    main()


def aggregator() -> None:
    """Be manta-aggregator."""
    _end_at_ctrl_c("manta-aggregator")
    from aggregator.cli import main

    main()


def swarm() -> None:
    """Be manta-swarm."""
    _end_at_ctrl_c("manta-swarm")
    from aggregator.local.cli import main

    main()


def search() -> None:
    """Be manta-search."""
    _end_at_ctrl_c("manta-search")
    from automl.cli import main
    from automl.commands.doors import Doors
    from programs.doors import asked_run, check_run

    main(obj=Doors(check_run, asked_run))


def _end_at_ctrl_c(program: str) -> None:
    """Let SIGINT end the process with a line, and without an exception: in the middle of an import it would come out as something else."""

    def end(_number: int, _frame: FrameType | None) -> None:
        try:
            os.write(_ERRORS, f"{program}: ended by Ctrl-C\n".encode())
        finally:
            os._exit(_ENDED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started this program wants it ignored
        signal.signal(signal.SIGINT, end)
