"""The network for manta-search: checks an address, and opens the run there. Imports nothing heavy before it is needed."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.automl.commands.network_interface import AskedRun
from manta_swarm.peer.config import PeerConfig, check_visit, config_of
from manta_swarm.runtime.commands import ending_at_ctrl_c


@dataclass(frozen=True, slots=True)
class RunAtAddress:
    """A run at an address, not opened yet. Implements ``automl.commands.network_interface.RunAtAddress``."""

    config: PeerConfig

    def opened(self, folder: Path) -> AbstractContextManager[AskedRun]:
        """Return what opens the run: its newest state is kept in a folder, or the one that is there is gone on with.

        Where a run takes invited peers only the folder has the key that is let in by the invitation, for the next time.
        """
        with ending_at_ctrl_c():
            from manta_swarm.programs.asked_run import opened
        return opened(self.config, folder)


class SearchNetwork:
    """Gives a search its run by an address. Implements ``automl.commands.network_interface.SearchNetwork``."""

    def run_at(self, address: str, run: str | None, invitation: str | None) -> RunAtAddress:
        """Return the run at an address.

        Raises:
            UserError: it can be no address, or the run's id or the invitation is none, or a library is missing.
        """
        config = config_of({"initial_peers": (address,), "run": run, "invitation": invitation})
        check_visit(config)
        return RunAtAddress(config)
