"""The flags of a volunteer's limits, of ``manta-peer join`` and ``manta-peer limits``."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_IDLE = "5min"  # of --when-idle without a time
_DUTY = "Share of the time to compute in, as 60%. (A cap on a GPU's power needs root; this does without.)"
_EVALUATION = "Share of the time to measure networks for others in, beside the lots; 0% refuses.  [default: 10%]"

_AUDIT = "Share of the time to compute contributions of others again in, for the run, which pays for it.  [default: 0%]"


def limit_options(command: Command) -> Command:
    """Give a command the flags of all limits, and of how each is lifted."""
    flags = (
        click.option("--duty", metavar="PERCENT", help=_DUTY),
        click.option("--cpu-threads", "--threads", metavar="N", help="CPU threads to compute with.  [default: all cores]"),
        click.option("--gpu-memory", metavar="SIZE", help="Most memory for the lots on each GPU, as 6GB."),
        click.option("--max-temperature", metavar="CELSIUS", help="Pause while CPU or GPU are hotter, as 80."),
        click.option("--max-upload", metavar="RATE", help="Send at most so much a second, as 10Mbit or 2MB."),
        click.option("--max-download", metavar="RATE", help="Receive at most so much a second."),
        click.option(
            "--when-idle", is_flag=False, flag_value=_IDLE, metavar="[TIME]", help=f"Compute only while nobody uses it.  [TIME: {_IDLE}]"
        ),
        click.option("--schedule", metavar="TIMES", help="Compute only at these times of the day, as 22:00-07:00."),
        click.option("--evaluation", metavar="PERCENT", help=_EVALUATION),
        click.option("--audit", metavar="PERCENT", help=_AUDIT),
        click.option("--on-ac/--no-on-ac", default=None, help="Compute only on mains power.  [default: on battery too]"),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command
