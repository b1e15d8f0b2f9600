"""What ``manta-peer limits`` does: changes what a peer may take, and says what holds."""

from pathlib import Path
from typing import Any

from peer.config import load_config
from peer.control import LIMITS, tell
from peer.limits.kept import checked, keep_limits
from peer.limits.limits import listed
from peer.limits.sensors import THIS_COMPUTER
from protocol.errors import UserError
from runtime.disk import IDENTITY
from swarm.control import NobodyRuns


def set_limits(directory: Path, given: dict[str, Any]) -> str:
    """Change the limits of the peer of ``directory``, now if it runs and for its next start; say what holds.

    Raises:
        UserError: a limit that cannot be, or that this computer cannot keep, or there is no peer in the directory; nothing is changed.
        Unreachable: the peer does not answer.
    """
    told = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    checked(told)
    try:
        return tell(directory, LIMITS, told)
    except NobodyRuns:
        pass
    if not (directory / IDENTITY).exists():  # a mistyped name would become a folder
        raise UserError(
            f"there is no peer in {directory}: name its folder with --dir; manta-peer identity new makes a key, as the first join does"
        )
    before = load_config({"dir": directory}).limits
    limits = checked(told, before)
    THIS_COMPUTER.check(limits)
    if told:
        keep_limits(directory, told)
    return f"no peer runs on {directory}; at its next start: {listed(limits.words()) or 'no limits'}"
