"""How the aggregator's own gateway, a peer with a key of its own in DIR/gateway, comes into a run that not everybody may take part in."""

from pathlib import Path

from manta_swarm.aggregator.settings.inviting import invitation, write_invitation
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.protocol.admission import LIST
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory

FOLDER = "gateway"
_INVITATION = "invitation.txt"


def check_gateway_key(admission: AdmissionSection, directory: Path) -> None:
    """Refuse a gateway beside the log in ``directory`` whose key the run file does not list, where it lists keys.

    Raises:
        UserError: so it is.
    """
    if admission.how != LIST:
        return
    path = directory / FOLDER / IDENTITY
    if path.exists() and peer_name(load_identity(path).public_key) in admission.peers:
        return
    raise UserError(
        f"[admission] peers lists who takes part, not the gateway's key: manta-aggregator key --dir {directory / FOLDER} "
        "makes and prints it, for the run file that the run begins with; or leave --gateway out"
    )


def invitation_for(directory: Path) -> Path:
    """Return the file of the invitation for the gateway beside the log in ``directory``; it lets one key in, and there is one for each.

    Raises:
        UserError: the log's key is missing.
        StorageError: the disk refuses.
    """
    folder = directory / FOLDER
    path = folder / _INVITATION
    if not (folder / IDENTITY).exists():  # a new key needs a new one
        path.unlink(missing_ok=True)
    if not path.exists():
        make_directory(folder)
        write_invitation(path, invitation(directory).text)
    return path
