"""The four programs as they are typed. From the first moment of each Ctrl-C ends it with one line, also while its modules are imported.

That holds until a command has loaded its libraries (``runtime.commands``): from then on there may be something
to clean up, and Ctrl-C is a KeyboardInterrupt, or what the command makes of it. Nothing but the standard library is imported here.
What comes before, Python's own start, nobody can change: a Ctrl-C in it shows Python's traceback.
"""

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

_ENDED = 130  # as a shell says of a program that SIGINT ended
_ERRORS = 2
_MISTAKE = 2


def peer() -> None:
    """Be manta-peer."""
    _end_at_ctrl_c("manta-peer")
    from manta_swarm.peer.cli import main

    _run("manta-peer", main)


def aggregator() -> None:
    """Be manta-aggregator."""
    _end_at_ctrl_c("manta-aggregator")
    from manta_swarm.aggregator.cli import main

    _run("manta-aggregator", main)


def swarm() -> None:
    """Be manta-swarm."""
    _end_at_ctrl_c("manta-swarm")
    from manta_swarm.aggregator.local.cli import main

    _run("manta-swarm", main)


def search() -> None:
    """Be manta-search."""
    _end_at_ctrl_c("manta-search")
    from manta_swarm.automl.cli import main
    from manta_swarm.automl.commands.network_interface import CommandContext
    from manta_swarm.programs.search_network import SearchNetwork

    _run("manta-search", main, obj=CommandContext(SearchNetwork()))


def _run(program: str, main: "click.Command", **options: Any) -> None:
    """Do what was typed, and exit; of a command line that cannot be parsed say in one line what is wrong with it."""
    import click

    no_words: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # a group alone: shows its help; newer click's
    try:
        ended = main(prog_name=program, standalone_mode=False, **options)
        sys.exit(ended if isinstance(ended, int) else 0)  # a code where a command, or --help, ended by one
    except click.UsageError as error:
        if isinstance(error, no_words):
            error.show()
        else:
            message = " ".join(error.format_message().split()).removesuffix(".")
            command = program if error.ctx is None else error.ctx.command_path
            click.echo(f"{program}: {message} ({command} --help says what there is)", err=True)
        sys.exit(_MISTAKE)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:  # who read is gone, as of ``| head``: what is left unsaid must not be tried again as the program ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except click.Abort:
        click.echo(f"{program}: ended by Ctrl-C", err=True)
        sys.exit(_ENDED)


def _end_at_ctrl_c(program: str) -> None:
    """Let SIGINT end the process with a line, and without an exception: in the middle of an import it would come out as something else."""

    def end(_number: int, _frame: FrameType | None) -> None:
        try:
            os.write(_ERRORS, f"{program}: ended by Ctrl-C\n".encode())
        finally:
            os._exit(_ENDED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started this program wants it ignored
        signal.signal(signal.SIGINT, end)
