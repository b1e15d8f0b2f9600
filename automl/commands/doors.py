"""What commands may be given that this package does not know: the network. ``programs`` gives it; a program without it says so."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from manta_swarm.protocol.evaluations import Result


class AskedRun(Protocol):
    """A run whose members are asked."""

    @property
    def snapshot(self) -> Path:
        """A file with the state that they are asked about; its weights are the run's, checked."""

    def ask(self, architectures: Sequence[str], part: str) -> Sequence[Result]:
        """Return what the members say of architectures of that state.

        Raises:
            MantaError: they cannot be asked, or what they answer cannot be believed.
        """

    def words(self) -> Sequence[str]:
        """Return what a person should know of the answers, in lines."""


Opens: TypeAlias = Callable[[Path], AbstractContextManager[AskedRun]]


@dataclass(frozen=True, slots=True)
class Doors:
    """The ways out."""

    # From an address, a run's id or None, and an invitation or None, to what opens the run there, with a folder for its state.
    # Raises UserError where one of them cannot be; imports no heavy library before a run is opened.
    run_at: Callable[[str, str | None, str | None], Opens]
