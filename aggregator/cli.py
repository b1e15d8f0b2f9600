"""manta-aggregator: the operator's program. Parses, calls, prints, exits.

A command imports what it needs itself: first what reads and checks files and settings, then, once they hold, what works.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import click

from manta_swarm.aggregator.commands import DATA_ROOT, DIRECTORY, FILE, RUN_FILE, clear_errors
from manta_swarm.aggregator.commands import folder as cli_folder
from manta_swarm.aggregator.commands import invitations as cli_invitations
from manta_swarm.aggregator.commands import ledger as cli_ledger
from manta_swarm.aggregator.commands import settings as cli_settings
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import end_soon, ending_at_ctrl_c
from manta_swarm.runtime.console import FORMATS, PrintingConsole, json_line, set_up_logging


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Open a Manta run, and keep its log."""


@main.command()
@RUN_FILE
@DIRECTORY
@click.option("--listen", metavar="MADDR", help="Address to listen on.  [default: every address, a port that stays the same]")
@DATA_ROOT
@click.option("--threads", type=click.IntRange(1, 1024), envvar="MANTA_CPU_THREADS", metavar="N", help="CPU threads.  [default: all cores]")
@click.option("--gateway", metavar="HOST:PORT", help="Lease microbatches to light contributors here, by HTTP.")
@click.option(
    "--gateway-cert", type=click.Path(path_type=Path), metavar="FILE", help="The gateway's certificate, PEM.  [default: plain HTTP]"
)
@click.option("--gateway-key", type=click.Path(path_type=Path), metavar="FILE", help="The certificate's key, PEM.")
@click.option("--monitor", metavar="ADDRESS", help="HOST:PORT of the monitor's page.  [default: what the run file says]")
@click.option("--no-monitor", is_flag=True, help="Start no monitor.")
@click.option("--initial-peers", multiple=True, metavar="MADDR", help="Address of a peer, by which others find a moved log.")
@click.option("--first-state", type=FILE, metavar="FILE", help="Snapshot whose weights a new run begins with.")
@click.option(
    "--newest", "is_newest", is_flag=True, help="This folder has all that the run's log ever signed, as you know; it is a copy or a backup."
)
@click.option("--log-format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="json: one object a line.")
@click.option("--verbose", is_flag=True, help="Log what happens between the rounds.")
def start(
    run_file: Path,
    data_root: Path | None,
    gateway: str | None,
    gateway_cert: Path | None,
    gateway_key: Path | None,
    monitor: str | None,
    no_monitor: bool,
    log_format: str,
    verbose: bool,
    **options: Any,
) -> None:
    """Serve the run of RUN_FILE until Ctrl-C; start again to go on."""
    set_up_logging(log_format, verbose=verbose)
    printing = PrintingConsole()
    console = _JsonConsole(printing) if log_format == "json" else printing
    with clear_errors():
        from manta_swarm.aggregator.settings.config import load_run_file
        from manta_swarm.aggregator.settings.start import Start, listen_address_of

        if no_monitor and monitor is not None:
            raise UserError("--monitor and --no-monitor do not go together")
        config = load_run_file(run_file)
        listen_address = listen_address_of(gateway, gateway_cert, gateway_key)
        page = "" if no_monitor else monitor
        asked = Start(config=config, gateway=listen_address, page=page, data_root=data_root or config.data_root, **options)
        asked.check()
        with ending_at_ctrl_c():
            import torch

            from manta_swarm.aggregator.program import Aggregator

        if asked.threads is not None:
            torch.set_num_threads(asked.threads)
        try:
            with printing:  # a terminal that is closed, or a pipe that nobody reads, is no reason to end a run
                asyncio.run(Aggregator(asked, console).run())
        finally:
            end_soon()


class _JsonConsole:
    """A ``runtime.console.Console`` that says each line as an object."""

    def __init__(self, console: PrintingConsole) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.say(json_line(text.strip(), level="info", logger="manta.aggregator", at_s=time.time()))


for command in (*cli_settings.COMMANDS, *cli_folder.COMMANDS, *cli_invitations.COMMANDS, *cli_ledger.COMMANDS):
    main.add_command(command)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
