"""The keys of an operator's sidecars: the gateway's in DIR/gateway has to come into the run, which names the auditor's in DIR/auditor."""

from pathlib import Path

from manta_swarm.aggregator.log.contents import AUDITOR
from manta_swarm.aggregator.settings.inviting import invitation, write_invitation
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.protocol.admission import LIST
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import PublicKey, peer_name
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory

GATEWAY = "gateway"
_INVITATION = "invitation.txt"


def check_gateway_key(admission: AdmissionSection, directory: Path) -> None:
    """Refuse a gateway beside the log in ``directory`` whose key the run file does not list, where it lists keys.

    Raises:
        UserError: so it is.
    """
    if admission.how != LIST:
        return
    path = directory / GATEWAY / IDENTITY
    if path.exists() and peer_name(load_identity(path).public_key) in admission.peers:
        return
    raise UserError(
        f"[admission] peers lists who takes part, not the gateway's key: manta-aggregator key --dir {directory / GATEWAY} "
        "makes and prints it, for the run file that the run begins with; or leave --gateway out"
    )


def invitation_for(directory: Path) -> Path:
    """Return the file of the invitation for the gateway beside the log in ``directory``; it lets one key in, and there is one for each.

    Raises:
        UserError: the log's key is missing.
        StorageError: the disk refuses.
    """
    folder = directory / GATEWAY
    path = folder / _INVITATION
    if not (folder / IDENTITY).exists():  # a new key needs a new one
        path.unlink(missing_ok=True)
    if not path.exists():
        make_directory(folder)
        write_invitation(path, invitation(directory).text)
    return path


def auditor_key(directory: Path) -> PublicKey:
    """Return the key of the auditor beside the log in ``directory``; it is made if it is not there.

    Raises:
        UserError: the folder cannot be used.
        StorageError: the disk refuses, or the key's file is damaged.
    """
    folder = directory / AUDITOR
    make_directory(folder)
    return PublicKey(load_identity(folder / IDENTITY).public_key)


def is_named(directory: Path, rules: AuditRules | None) -> bool:
    """Return whether a run's rules name the auditor beside the log in ``directory``. None is made.

    Raises:
        StorageError: its key's file is damaged.
    """
    path = directory / AUDITOR / IDENTITY
    return rules is not None and path.exists() and load_identity(path).public_key in rules.named
