"""The commands of manta-peer beside join: each parses, and its body imports what works. Here is what they share.

Nothing that imports torch, pydantic or numpy is imported here, or above a command's function: help and mistakes are told at once.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from manta_swarm.runtime.commands import ending_in_a_line

Command = TypeVar("Command", bound=Callable[..., Any])

clear_errors = partial(ending_in_a_line, "manta-peer")

DIR = click.option("--dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The peer's directory.")
INITIAL_PEERS = click.option("--initial-peers", multiple=True, metavar="MADDR", help="Address that the operator printed; may be repeated.")
RUN = click.option("--run", metavar="ID", help="The run's id: take no other.")
DATA_ROOT = click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Data sets that come with no library.")


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def directory_in(options: dict[str, Any]) -> Path:
    """Return the peer's directory, as ``DIR``, the environment or the default says."""
    from manta_swarm.peer.config import directory_of

    return directory_of(given({"dir": options.get("dir")}))
