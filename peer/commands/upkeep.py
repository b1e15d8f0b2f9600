"""The commands of manta-peer that look after a computer's peer: its settings, its limits, its key, its service, what is wrong with it.

Each imports what it needs when it is called: torch and hivemind take seconds. Here, too, are the flags of a volunteer's limits, which
``manta-peer join`` has as well.
"""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manta_swarm.peer.commands import DATA_ROOT, DIR, INITIAL_PEERS, RUN, Command, clear_errors, directory_in, given
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.peer.config import PeerConfig

_IDLE = "5min"  # of --when-idle without a time
_DUTY = "Share of the time to compute in, as 60%. (A cap on a GPU's power needs root; this does without.)"
_EVALUATION = "Share of the time to measure networks for others in, beside the microbatches; 0% refuses.  [default: 10%]"

_AUDIT = "Share of the time to compute contributions of others again in, for the run, which pays for it.  [default: 0%]"


@click.command(name="init")
@DIR
def init_command(**options: Any) -> None:
    """Write a peer.toml with every setting. Each says what it means, and is commented out."""
    with clear_errors():
        from manta_swarm.peer.commands.settings_file import write_settings

        path = write_settings(directory_in(options))
        click.echo(f"wrote {path}; edit it, then: manta-peer join --dir {path.parent}")


@click.group(name="identity", invoke_without_command=True)
@DIR
def identity_group(**options: Any) -> None:
    """Say under which key this peer takes part. Make one before the first join, back it up, and restore it."""
    if click.get_current_context().invoked_subcommand is None:
        with clear_errors():
            from manta_swarm.peer.commands.keys import shown

            click.echo(shown(directory_in(options)))


@identity_group.command(name="new")
@DIR
def new_command(**options: Any) -> None:
    """Make a key before the first join. An operator lists or invites it by its name. What is there stays."""
    with clear_errors():
        from manta_swarm.peer.commands.keys import make

        click.echo(make(directory_in(_nearest(options))))


@identity_group.command(name="backup")
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@DIR
def backup_command(copy: Path, **options: Any) -> None:
    """Copy the key to FILE. It must not be there yet, and nobody else can read it. Whoever has it can act as you."""
    with clear_errors():
        from manta_swarm.peer.commands.keys import backup

        click.echo(backup(directory_in(_nearest(options)), copy.expanduser()))


@identity_group.command(name="restore")
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@DIR
def restore_command(copy: Path, **options: Any) -> None:
    """Make the key in FILE this peer's again. Another key is not overwritten."""
    with clear_errors():
        from manta_swarm.peer.commands.keys import restore

        click.echo(restore(directory_in(_nearest(options)), copy.expanduser()))


def _nearest(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with the directory of the group's where the command has none."""
    group = click.get_current_context().parent
    return {**options, "dir": group.params.get("dir")} if options.get("dir") is None and group is not None else options


@click.group(name="service")
def service_group() -> None:
    """Run the peer as a service of your session (systemd), no root."""


@service_group.command(name="install")
@DIR
@click.option("--start/--no-start", "starts", default=True, help="Start it now, and with each session of yours.  [default: start]")
def install_command(starts: bool, **options: Any) -> None:
    """Write a systemd user unit for the peer of DIR, and start it. Its settings are in peer.toml (manta-peer init)."""
    with clear_errors():
        from manta_swarm.peer.commands.service import install
        from manta_swarm.peer.config import load_config

        directory = directory_in(options)
        config = load_config({"dir": directory})  # a mistake there would be seen by nobody
        for line in install(directory, starts=starts):
            click.echo(line)
        if not (config.initial_peers or config.gateway or (directory / "last.json").exists()):
            where = f"set initial_peers and run in {directory / 'peer.toml'}"
            click.echo(f"it knows no run yet, and ends at once unless an aggregator is on this computer: {where}")


@service_group.command(name="remove")
def remove_command() -> None:
    """Stop the service and take it away. What is trained is handed in before; key and settings stay."""
    with clear_errors():
        from manta_swarm.peer.commands.service import remove

        for line in remove():
            click.echo(line)


def of_a_run(command: Command) -> Command:
    """Give a command the flags that name a run."""
    for flag in (DATA_ROOT, RUN, INITIAL_PEERS):
        command = flag(command)
    return command


def _config_of(options: dict[str, Any]) -> "PeerConfig":
    """Return the settings, with addresses that are some.

    Raises:
        UserError: there is a mistake in them.
    """
    from manta_swarm.network.addresses import check_peer_address
    from manta_swarm.peer.config import load_config

    config = load_config(given(options))
    for address in config.initial_peers:
        check_peer_address(address)
    return config


@click.command(name="doctor")
@DIR
@of_a_run
@click.option("--gpus", metavar="all|none|0,2", help="GPUs that are to compute.")
@click.option("--offline", is_flag=True, help="Check this computer only.")
def doctor_command(offline: bool, **options: Any) -> None:
    """Say whether this computer can take part, or what to do. Exit code 0: it can, 1: something is in the way."""
    with clear_errors():
        from manta_swarm.peer.commands.diagnoses import Diagnosis, exit_code
        from manta_swarm.peer.commands.doctor import of_the_run, of_this_computer

        config, seen = _config_of(options), list[Diagnosis]()

        def show(diagnosis: Diagnosis) -> None:
            seen.append(diagnosis)
            for line in diagnosis.lines():
                click.echo(line)

        async def show_run() -> None:
            async for diagnosis in of_the_run(config):
                show(diagnosis)

        with ending_at_ctrl_c():
            for diagnosis in of_this_computer(config):
                show(diagnosis)
        if not offline and exit_code(seen) == 0:
            asyncio.run(show_run())
    sys.exit(exit_code(seen))


@click.command(name="about")
@DIR
@of_a_run
def about_command(**options: Any) -> None:
    """Say what is downloaded, stored and sent. With --initial-peers, or where a run was joined, its sizes too."""
    with clear_errors():
        from manta_swarm.peer.commands.about import general_lines, lines_of_run

        config = _config_of(options)
        for line in general_lines(config.dir):
            click.echo(line)
        if not config.initial_peers and not (config.dir / "last.json").exists():
            return
        with ending_at_ctrl_c():
            from manta_swarm.peer.contact.visiting import sizes_of, visiting
            from manta_swarm.protocol.errors import Unreachable

        async def look() -> None:
            async with visiting(config) as visit:
                newest = None
                with contextlib.suppress(Unreachable):  # its log is away, and somebody else gave the manifest
                    newest = await visit.newest()
                click.echo()
                for line in lines_of_run(visit.manifest, visit.signed.run, sizes_of(visit.manifest), newest, config):
                    click.echo(line)

        asyncio.run(look())


@click.command(name="specialise")
@click.option("--latency-ms", required=True, metavar="MS", help="Most milliseconds for one sample.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", default="specialised", show_default=True, help="Folder of all files."
)
@click.option(
    "--snapshot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="State to take.  [default: the run's newest]"
)
@click.option("--device", metavar="cpu|cuda", default="cpu", show_default=True, help="Device of this machine.")
@click.option("--quick", "is_quick", is_flag=True, help="Measure and search less: not as good, in a minute or two.")
@DIR
@of_a_run
@click.option("--cpu-threads", metavar="N", help="CPU threads to compute with.  [default: all cores]")
def specialise_command(latency_ms: str, out: Path, snapshot: Path | None, device: str, is_quick: bool, **options: Any) -> None:
    """Make the best network for this machine of a run's state. It profiles, searches, exports and evaluates, and goes on after a
    break."""
    with clear_errors():
        from manta_swarm.peer.commands.specialise import Specialisation, specialise

        specialisation, config = Specialisation(latency_ms, out, snapshot, device, is_quick), _config_of(options)
        specialisation.check()
        if snapshot is None:
            _require_run(config)
        specialise(specialisation, config)


def _require_run(config: "PeerConfig") -> None:
    """Refuse settings that name no run.

    Raises:
        UserError: none is known.
    """
    from manta_swarm.peer.contact.run_locator import find_addresses
    from manta_swarm.peer.store import read_last_run

    find_addresses(config, read_last_run(config.dir))


COMMANDS: tuple[click.Command, ...] = (about_command, doctor_command, init_command, identity_group, service_group, specialise_command)


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
    """Change what a peer may take, at once. Its next starts keep to it too, and what holds is printed; none lifts a
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
