"""An operator's invitation to a run, or that of a peer whom the manifest trusts with it; signed here, counted by the log alone."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from aggregator.log.storage import read_manifest
from protocol.admission import INVITATION, MAX_LET_IN, NUMBER_BYTES, Invitation, SignedInvitation, Token
from protocol.errors import SignatureError, StorageError, UserError
from protocol.fields import MAX_ROUND
from protocol.signing import Identity, PublicKey, key_named
from swarm.disk import IDENTITY, load_identity, write_durably


@dataclass(frozen=True, slots=True)
class Made:
    """An invitation as it is handed on."""

    text: str
    words: str  # what it is


def invitation(
    directory: Path | None, key: Path | None, run_id: str | None, *, keys: int, until_round: int | None, holder: str | None
) -> Made:
    """Return a new invitation.

    Args:
        directory: the aggregator's, whose operator signs; None: ``key`` is the file of who does, for the run ``run_id``.
        key: see there.
        run_id: see there.
        keys: how many it lets in.
        until_round: the last round before whose commit they come in; None: the run's last one.
        holder: the peer's id that it is for; None: whoever holds it.

    Raises:
        UserError: the run is open to everybody, there is no run or no key, or a value cannot be.
    """
    issuer, run, last = _signer(directory, key, run_id, until_round)
    secret = os.urandom(32) if holder is None else b""
    public = Identity(secret).public_key if holder is None else _key_of(holder)
    if keys > MAX_LET_IN:
        raise UserError(f"--keys: an invitation lets in {MAX_LET_IN} peers at most")
    signed = SignedInvitation.sign(Invitation(run, issuer.public_key, public, keys, last, os.urandom(NUMBER_BYTES)), issuer)
    for_whom = "whoever holds it" if holder is None else holder
    return Made(Token(signed, secret).to_text(), f"an invitation of {keys} for {for_whom}, until round {last}")


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


def _signer(directory: Path | None, key: Path | None, run_id: str | None, until_round: int | None) -> tuple[Identity, bytes, int]:
    if (directory is None) == (key is None) or (key is None) != (run_id is None):
        raise UserError(
            "give the run's folder with --dir; or with --as and --run the key of a peer that the manifest trusts, and the run's id"
        )
    if key is not None:
        assert run_id is not None
        if re.fullmatch(r"[0-9a-f]{64}", run_id) is None:
            raise UserError(f"--run: a run's id is 64 hexadecimal digits in lower case, not {run_id!r}")
        if until_round is None or until_round > MAX_ROUND:
            raise UserError("--until-round: say until which round; the run's manifest is not here")
        if not key.exists():
            raise UserError(f"there is no key {key}; a peer's is the {IDENTITY} of its folder")
        return load_identity(key), bytes.fromhex(run_id), until_round
    assert directory is not None
    signed = read_manifest(directory)
    manifest = signed.open()
    if manifest.admission.how != INVITATION:
        whom = "is open to everybody" if manifest.admission.is_open else "takes the peers that its manifest lists, for good"
        raise UserError(f"the run {manifest.name} {whom}: nobody can be invited to it")
    if until_round is not None and until_round > manifest.num_rounds:
        raise UserError(f"--until-round: the run has {manifest.num_rounds} rounds")
    if not (directory / IDENTITY).exists():
        raise UserError(f"{directory / IDENTITY} is missing, the key of the log in {directory}; restore it from a backup")
    return load_identity(directory / IDENTITY), signed.run, until_round or manifest.num_rounds


def _key_of(name: str) -> PublicKey:
    try:
        return key_named(name)
    except SignatureError as error:
        raise UserError(f"--for: {name!r} is no peer's id ({error}); manta-peer identity prints it") from error
