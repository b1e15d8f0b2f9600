"""The interface through which manta-search uses the network, which this package does not know; ``programs`` implements it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from manta_swarm.protocol.evaluations import Result


class AskedRun(Protocol):
    """A run whose members measure architectures for a search."""

    @property
    def snapshot(self) -> Path:
        """A file with the state that they are asked about; its weights are the run's, checked."""

    def ask(self, architectures: Sequence[str], part: str) -> Sequence[Result]:
        """Return what the members say of architectures of that state (``automl.search.evaluators.Members``)."""

    def words(self) -> Sequence[str]:
        """Return what a person should know of the answers, in lines."""


class RunAtAddress(Protocol):
    """A run at an address that could be one."""

    def opened(self, folder: Path) -> AbstractContextManager[AskedRun]:
        """Return what opens the run, whose state is kept in the folder."""


class SearchNetwork(Protocol):
    """The network, as far as a search needs it."""

    def run_at(self, address: str, run: str | None, invitation: str | None) -> RunAtAddress:
        """Return the run at an address; imports no heavy library.

        Raises:
            UserError: the address, the run's id or the invitation cannot be one.
        """


@dataclass(frozen=True, slots=True)
class CommandContext:
    """Holds the network that ``programs`` gave to the commands, if it gave one."""

    network: SearchNetwork
