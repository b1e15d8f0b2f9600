"""The command of manta-aggregator that follows the log of another's run. Parses, calls, prints, exits."""

import asyncio
import re
from pathlib import Path

import click

from manta_swarm.aggregator.commands import FOLDER, clear_errors
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import end_soon, ending_at_ctrl_c
from manta_swarm.runtime.console import FORMATS, PrintingConsole, set_up_logging
from manta_swarm.runtime.signals import told_to_stop

_RUN = re.compile(r"[0-9a-f]{64}")


@click.command()
@click.option(
    "--of",
    "addresses",
    multiple=True,
    required=True,
    metavar="MADDR",
    help="Address of the aggregator or a peer; may be repeated.",
)
@click.option("--dir", "directory", required=True, type=FOLDER, metavar="DIR", help="Folder of its memory and key.")
@click.option("--run", metavar="ID", help="The run's id: any other is refused.")
@click.option("--listen", metavar="HOST:PORT", help="Answer C2SP's add-checkpoint here, by HTTP.  [default: only dial out]")
@click.option("--keep-entries", is_flag=True, help="Keep all entries in DIR/log: a run that lost its newest ones goes on from there.")
@click.option("--verbose", is_flag=True, help="Log why the log is not heard.")
def witness(addresses: tuple[str, ...], directory: Path, run: str | None, listen: str | None, keep_entries: bool, verbose: bool) -> None:
    """Watch the log of anybody's run from outside. Sign each of its heads that goes on from the last one, never two of one size."""
    set_up_logging(FORMATS[0], verbose=verbose)
    with clear_errors():
        from manta_swarm.network.addresses import check_peer_address
        from manta_swarm.runtime.commands import check_installed
        from manta_swarm.runtime.disk import check_directory
        from manta_swarm.runtime.listen_address import ListenAddress

        check_installed()
        if run is not None and not _RUN.fullmatch(run):
            raise UserError(f"--run: a run's id is 64 hexadecimal digits in lower case, not {run[:80]!r}")
        for address in addresses:
            check_peer_address(address)
        listen_address = None if listen is None else ListenAddress.at(listen, flag="--listen")
        if listen_address is not None:
            listen_address.listen()[0].close()
        check_directory(directory)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.features.witness.program import Asked, be_witness

        console = PrintingConsole()

        async def watch() -> None:
            async with told_to_stop() as stopped:
                await be_witness(Asked(addresses, run, listen_address, keep_entries), directory, console=console, stopped=stopped)

        try:
            with console:
                asyncio.run(watch())
        finally:
            end_soon()
        click.echo("stopped; start again with the same --dir to go on")


COMMANDS = (witness,)
