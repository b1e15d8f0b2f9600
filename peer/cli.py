"""manta-peer: the volunteer's program. Parses, calls, prints, exits."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from peer.config import PeerConfig, load_config
from protocol.errors import MantaError, UserError
from swarm.loading import ending_at_ctrl_c


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Lend this computer to a Manta run."""


@main.command(name="join")
@click.option("--gpus", metavar="all|none|N", help="GPUs to use; without one the CPU computes.  [default: all]")
@click.option("--initial-peers", multiple=True, metavar="MADDR", help="Address that the operator printed; may be repeated.")
@click.option("--run", metavar="ID", help="The run's id: join no other.")
@click.option("--cohort", metavar="NAME", help="Peers with the same name average first among themselves.  [default: this host]")
@click.option("--listen", multiple=True, metavar="MADDR", help="Address to listen on.  [default: /ip4/0.0.0.0/tcp/0]")
@click.option("--dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Identity, settings and frozen work.")
@click.option("--threads", type=int, metavar="N", help="CPU threads to compute with.  [default: all cores]")
@click.option("--verbose", is_flag=True, help="Log what happens between the rounds.")
def join_command(verbose: bool, **options: Any) -> None:
    """Join a run and train until it is finished. Ctrl-C finishes what is claimed and leaves; twice stops at once."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)
    flags = {name: tuple(value) if isinstance(value, tuple) else value for name, value in options.items() if value not in (None, ())}
    try:
        _join(load_config(flags))
    except UserError as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except MantaError as error:
        click.echo(f"manta-peer: {error}", err=True)
        sys.exit(1)


def _join(config: PeerConfig) -> None:
    with ending_at_ctrl_c():  # imported here: a mistake in the settings is said at once, and so is --help
        from peer.session import Stopped, join

    try:
        asyncio.run(join(config))
    except Stopped:
        click.echo("manta-peer: stopped at once; frozen work is kept and goes on at the next start", err=True)
        sys.exit(130)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
