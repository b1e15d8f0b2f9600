"""The commands of manta-aggregator beside start and ledger: each parses, and its body imports what works. Here is what they share."""

from functools import partial
from pathlib import Path

import click

from manta_swarm.runtime.commands import ending_in_a_line

clear_errors = partial(ending_in_a_line, "manta-aggregator")

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
DIRECTORY = click.option("--dir", "directory", required=True, type=FOLDER, metavar="DIR", help="The run's files.")
RUN_FILE = click.argument("run_file", type=FILE)
DATA_ROOT = click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    envvar="MANTA_DATA_ROOT",
    metavar="DIR",
    help="Data sets that come with no library.  [default: what the run file says]",
)
