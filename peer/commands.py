"""The commands of manta-peer that look after a computer's peer: its settings, its key, its service, what is wrong with it.

Each imports what it needs when it is called: torch and hivemind take seconds.
"""

from pathlib import Path
from typing import Any

import click

from peer.clear_errors import clear_errors

DIR = click.option("--dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The peer's directory.")


def directory_in(options: dict[str, Any]) -> Path:
    """Return the peer's directory, as ``DIR``, the environment or the default says."""
    from peer.config import directory_of

    return directory_of({"dir": options["dir"]} if options.get("dir") is not None else {})


@click.command(name="init")
@DIR
def init_command(**options: Any) -> None:
    """Write a settings file, peer.toml, with every setting and what it means, all commented out."""
    with clear_errors():
        from peer.settings_file import write_settings

        path = write_settings(directory_in(options))
        click.echo(f"wrote {path}; edit it, then: manta-peer join --dir {path.parent}")


@click.group(name="identity", invoke_without_command=True)
@DIR
def identity_group(**options: Any) -> None:
    """Say under which key this peer takes part; back the key up, and restore it."""
    if click.get_current_context().invoked_subcommand is None:
        with clear_errors():
            from peer.keys import shown

            click.echo(shown(directory_in(options)))


@identity_group.command(name="backup")
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@DIR
def backup_command(copy: Path, **options: Any) -> None:
    """Copy the key to FILE, which must not be there yet and nobody else can read. Who has it is you."""
    with clear_errors():
        from peer.keys import backup

        click.echo(backup(directory_in(_nearest(options)), copy.expanduser()))


@identity_group.command(name="restore")
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@DIR
def restore_command(copy: Path, **options: Any) -> None:
    """Make the key in FILE this peer's again. Another key is not overwritten."""
    with clear_errors():
        from peer.keys import restore

        click.echo(restore(directory_in(_nearest(options)), copy.expanduser()))


def _nearest(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with the directory of the group's where the command has none."""
    group = click.get_current_context().parent
    return {**options, "dir": group.params.get("dir")} if options.get("dir") is None and group is not None else options


@click.group(name="service")
def service_group() -> None:
    """Run the peer as a service of your own session (systemd), without root."""


@service_group.command(name="install")
@DIR
@click.option("--start/--no-start", "starts", default=True, help="Start it now, and with each session of yours.  [default: start]")
def install_command(starts: bool, **options: Any) -> None:
    """Write a systemd user unit for the peer of DIR, and start it. Its settings are in peer.toml (manta-peer init)."""
    with clear_errors():
        from peer.config import load_config
        from peer.service import install

        directory = directory_in(options)
        load_config({"dir": directory})  # a mistake there would be seen by nobody
        for line in install(directory, starts=starts):
            click.echo(line)


@service_group.command(name="remove")
def remove_command() -> None:
    """Stop the service, after what is trained is handed in, and take it away; key and settings stay."""
    with clear_errors():
        from peer.service import remove

        for line in remove():
            click.echo(line)


COMMANDS: tuple[click.Command, ...] = (init_command, identity_group, service_group)
