"""The network for manta-search: checks an address, and opens the run there. Imports nothing heavy before it is needed."""

import re
from contextlib import AbstractContextManager
from pathlib import Path

from automl.commands.doors import AskedRun
from protocol.errors import UserError
from runtime.commands import check_installed, ending_at_ctrl_c
from swarm.addresses import check_peer_address
from swarm.invitation import read_invitation


def check_run(address: str, run: str | None, invitation: str | None) -> None:
    """Refuse what cannot be an address, a run's id, or an invitation.

    Raises:
        UserError: it is none, or a library is missing.
    """
    check_peer_address(address)
    if run is not None and not re.fullmatch(r"[0-9a-f]{64}", run):
        raise UserError(f"a run's id is 64 hexadecimal digits in lower case, not {run!r}")
    if invitation is not None:
        read_invitation(invitation)
    check_installed()


def asked_run(address: str, run: str | None, invitation: str | None, folder: Path) -> AbstractContextManager[AskedRun]:
    """Return the run at an address, to be opened: its newest state is kept in ``folder``, or the one that is there is gone on with.

    Where a run takes invited peers only ``folder`` has the key that is let in by the ``invitation``, for the next time.
    """
    with ending_at_ctrl_c():
        from programs.asked_run import opened
    return opened(address, run, invitation, folder)
