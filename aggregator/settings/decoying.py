"""A new decoy of an operator's: the folder of a peer whose claims will be known to be bad; signed here, planted when that peer starts."""

import os
from pathlib import Path

from aggregator.log.storage import read_manifest
from protocol.audits import SALT_BYTES
from protocol.decoys import FILE, Decoy
from protocol.encoding import pack
from protocol.errors import UserError
from protocol.signing import peer_name
from swarm.disk import IDENTITY, load_identity, make_directory, write_durably


def make_decoy(directory: Path, out: Path) -> str:
    """Make a decoy for the run in ``directory`` in the new folder ``out``; return its name.

    Raises:
        UserError: there is no such run or key, its claims are not audited, or the folder is there already.
        StorageError: the disk refuses.
    """
    signed = read_manifest(directory)
    manifest = signed.open()
    if not manifest.trust.is_audited:
        raise UserError(f"the run {manifest.name} has no audits, and so no auditors to be checked")
    if not (directory / IDENTITY).exists():
        raise UserError(f"{directory / IDENTITY} is missing, the key of the log in {directory}; restore it from a backup")
    if out.exists():
        raise UserError(f"{out} is there already; give the name of a folder that is not")
    make_directory(out)
    decoy = load_identity(out / IDENTITY)
    made = Decoy.made(signed.run, load_identity(directory / IDENTITY), decoy.public_key, os.urandom(SALT_BYTES))
    write_durably(out / FILE, pack(made), mode=0o600)
    return peer_name(decoy.public_key)
