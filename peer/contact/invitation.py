"""What a volunteer was given to come into a run whose peers are invited, checked before anything is asked. No network."""

from pathlib import Path

from protocol.errors import UserError
from swarm.disk import load_identity
from swarm.invitation import read_invitation


def check_invitation(told: str, identity: Path) -> None:
    """Refuse an invitation that is none, or is for another key than that of the file ``identity``, where there is one.

    Raises:
        UserError: so it is.
    """
    token = read_invitation(told)
    if not token.secret and identity.exists() and load_identity(identity).public_key != token.invitation.read().holder:
        raise UserError("--invitation: it is for another key than yours; ask for one for the key that manta-peer identity shows")
