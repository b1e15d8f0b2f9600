"""The flags of a volunteer's limits, of ``manta-peer join`` and ``manta-peer limits``; and what the latter says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from peer.config import checked, keep_limits, load_config
from peer.control import LIMITS, tell
from peer.limits import listed
from peer.sensors import THIS_COMPUTER
from swarm.control import NobodyRuns

Command = TypeVar("Command", bound=Callable[..., Any])

_IDLE = "5min"  # of --when-idle without a time
_DUTY = "Share of the time to compute in, as 60%. (A cap on a GPU's power needs root; this does without.)"


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
        click.option("--on-ac/--no-on-ac", default=None, help="Compute only on mains power.  [default: on battery too]"),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def set_limits(directory: Path, given: dict[str, Any]) -> str:
    """Change the limits of the peer of ``directory``, now if it runs and for its next start; say what holds.

    Raises:
        UserError: a limit that cannot be, or that this computer cannot keep; nothing is changed.
        Unreachable: the peer does not answer.
    """
    told = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    checked(told)
    try:
        return tell(directory, LIMITS, told)
    except NobodyRuns:
        pass
    before = load_config({"dir": directory}).limits
    limits = checked(told, before)
    THIS_COMPUTER.check(limits)
    if told:
        keep_limits(directory, told)
    return f"no peer runs on {directory}; at its next start: {listed(limits.words()) or 'no limits'}"
