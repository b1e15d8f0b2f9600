"""The commands of manta-search: each parses, checks what needs no torch, then imports what works inside its function.

Nothing that imports torch is imported here, or above a command's function: a person's mistakes are told at once. Here is what the commands
share.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import click

from manta_swarm.automl.data.names import check_name
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_in_a_line

_MAX_THREADS = 1024  # that somebody may ask for: torch starts all of them, and a mistyped number would leave the computer none

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
SNAPSHOT = click.option("--snapshot", type=FILE, required=True, metavar="FILE", help="A .safetensors file.")
SEARCH = click.option("--search", type=FOLDER, metavar="DIR", help="A search's folder, to look up ids in.")
DATA = click.option("--data", metavar="NAME", help="Data set to measure with.  [default: what the snapshot was trained on]")
DATA_ROOT = click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Folder of data sets.")
OWN_ROOT = click.option("--data-root", "--root", "root", type=click.Path(path_type=Path), metavar="DIR", help="Folder of data sets.")
DEVICE = click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, or cuda for a GPU.")
THREADS = click.option(
    "--threads", type=click.IntRange(1, _MAX_THREADS), metavar="N", help="CPU threads to compute with.  [default: all cores]"
)


def clear_errors() -> AbstractContextManager[None]:
    """Return what ends the program with one line where something is wrong."""
    return ending_in_a_line(program())


def program() -> str:
    """Return the name of the program that a person typed: manta-search, or what runs its commands (a context's ``obj``)."""
    context = click.get_current_context(silent=True)
    return (context.find_object(str) if context is not None else None) or "manta-search"


def use_threads(threads: int | None) -> None:
    """Let torch compute with so many threads; None: with as many as it chooses itself."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def checked_data(metadata: Mapping[str, str], given: str | None, root: Path | None) -> str:
    """Return the name of the data set that the person named, or that a snapshot was trained on.

    Raises:
        UserError: neither is named, or see ``automl.data.names``.
    """
    name = given or metadata.get("dataset")
    if name is None:
        raise UserError("the snapshot does not say what it was trained on: name it with --data")
    check_name(name, root)
    return name
