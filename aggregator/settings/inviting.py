"""The keys that an operator lets into its run: invitations that it signs for peers, and the keys of its own sidecars."""

import os
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.contents import AUDITOR
from manta_swarm.aggregator.log.storage import log_key, read_manifest
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.network.invitation import Token
from manta_swarm.protocol.admission import GUEST, INVITATION, LIST, MAX_LET_IN, MEMBER, PROVEN, Invitation
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory, write_durably

_TO = {GUEST: "to look on", MEMBER: "to train", PROVEN: "to train, proven from the start"}

GATEWAY = "gateway"
_INVITATION = "invitation.txt"


@dataclass(frozen=True, slots=True)
class MadeInvitation:
    """An invitation as it is handed on."""

    text: str
    words: str  # what it is


def invitation(directory: Path, *, keys: int = 1, until_round: int | None = None, access: str = MEMBER) -> MadeInvitation:
    """Return a new invitation, signed by the operator of an aggregator's folder.

    Args:
        directory: the aggregator's.
        keys: how many it lets in.
        until_round: the last round before whose commit they come in; None: the run's last one.
        access: what they may do, one of ``protocol.admission.ACCESSES``.

    Raises:
        UserError: nobody is invited to the run, there is no run or no key, or a value cannot be.
    """
    signed = read_manifest(directory)
    manifest = signed.open()
    if manifest.admission.how != INVITATION:
        whom = "is open to everybody" if manifest.admission.is_open else "takes the peers that its manifest lists, for good"
        raise UserError(f"the run {manifest.name} {whom}: nobody can be invited to it")
    if keys > MAX_LET_IN:
        raise UserError(f"--keys: an invitation lets in {MAX_LET_IN} peers at most")
    if until_round is not None and until_round > manifest.num_rounds:
        raise UserError(f"--until-round: the run has {manifest.num_rounds} rounds")
    if access == PROVEN and not manifest.is_audited:
        raise UserError(f"--proven: the run {manifest.name} is not audited, so nobody has to be proven; leave it out")
    operator, secret, last = log_key(directory), os.urandom(32), until_round or manifest.num_rounds
    made = Invitation(signed.run, operator.public_key, Identity(secret).public_key, keys, last, access)
    token = Token(Signed.sign(made, operator), secret)
    return MadeInvitation(token.to_text(), f"an invitation for {keys} {'peer' if keys == 1 else 'peers'} {_TO[access]}, until round {last}")


def write_invitation(path: Path, text: str) -> None:
    """Write an invitation to a new file that nobody else can read.

    Raises:
        UserError: there is a file, or it cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} is there already; give the name of a file that is not")
    try:
        write_durably(path, (text + "\n").encode(), mode=0o600)
    except StorageError as error:
        raise UserError(f"cannot write {path}: {error.__cause__ or error}; choose another place") from error


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
