"""The network for manta-search: checks an address, and opens the run there. Imports nothing heavy before it is needed."""

from contextlib import AbstractContextManager
from pathlib import Path

from manta_swarm.automl.commands.doors import AskedRun, Opens
from manta_swarm.peer.config import check_visit, config_of
from manta_swarm.runtime.commands import ending_at_ctrl_c


def run_at(address: str, run: str | None, invitation: str | None) -> Opens:
    """Return what opens the run at an address: its newest state is kept in a folder, or the one that is there is gone on with.

    Where a run takes invited peers only the folder has the key that is let in by the ``invitation``, for the next time.

    Raises:
        UserError: it can be no address, or the run's id or the invitation is none, or a library is missing.
    """
    config = config_of({"initial_peers": (address,), "run": run, "invitation": invitation})
    check_visit(config)

    def opens(folder: Path) -> AbstractContextManager[AskedRun]:
        with ending_at_ctrl_c():
            from manta_swarm.programs.asked_run import opened
        return opened(config, folder)

    return opens
