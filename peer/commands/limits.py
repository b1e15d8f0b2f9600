"""manta-peer limits, and the flags of a volunteer's limits, which ``manta-peer join`` has too."""

from pathlib import Path
from typing import Any

import click

from manta_swarm.peer.commands import DIR, Command, clear_errors, directory_in, given
from manta_swarm.protocol.errors import UserError

_IDLE = "5min"  # of --when-idle without a time
_DUTY = "Share of the time to compute in, as 60%. (A cap on a GPU's power needs root; this does without.)"
_EVALUATION = "Share of the time to measure networks for others in, beside the microbatches; 0% refuses.  [default: 10%]"

_AUDIT = "Share of the time to compute contributions of others again in, for the run, which pays for it.  [default: 0%]"


def limit_options(command: Command) -> Command:
    """Give a command the flags of all limits, and of how each is lifted."""
    flags = (
        click.option("--duty", metavar="PERCENT", help=_DUTY),
        click.option("--cpu-threads", "--threads", metavar="N", help="CPU threads to compute with.  [default: all cores]"),
        click.option("--gpu-memory", metavar="SIZE", help="Most memory for the microbatches on each GPU, as 6GB."),
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


@click.command(name="limits")
@DIR
@limit_options
def limits_command(**options: Any) -> None:
    """Change what the peer of a directory may take, at once. Its next starts keep to it too, and what holds is printed; none lifts a
    limit."""
    with clear_errors():
        directory = directory_in(options)
        told = given({**options, "dir": None})
        click.echo(_set_limits(directory, {name: str(value).lower() if isinstance(value, bool) else value for name, value in told.items()}))


def _set_limits(directory: Path, told: dict[str, str]) -> str:
    """Change the limits of the peer of ``directory``, now if it runs and for its next start; say what holds.

    Raises:
        UserError: a limit that cannot be, or that this computer cannot keep, or there is no peer in the directory; nothing is changed.
        Unreachable: the peer does not answer.
    """
    from manta_swarm.peer.config import load_config
    from manta_swarm.peer.control import LIMITS, tell
    from manta_swarm.peer.limits.limits import checked, keep_limits, listed
    from manta_swarm.peer.limits.sensors import THIS_COMPUTER
    from manta_swarm.runtime.control import NobodyRuns
    from manta_swarm.runtime.disk import IDENTITY

    checked(told)
    try:
        return tell(directory, LIMITS, told)
    except NobodyRuns:
        pass
    if not (directory / IDENTITY).exists():  # a mistyped name would become a folder
        raise UserError(
            f"there is no peer in {directory}: name its folder with --dir; manta-peer identity new makes a key, as the first join does"
        )
    limits = checked(told, load_config({"dir": directory}).limits)
    THIS_COMPUTER.check(limits)
    if told:
        keep_limits(directory, told)
    return f"no peer runs on {directory}; at its next start: {listed(limits.words()) or 'no limits'}"
