"""Taking back a peer's admission or an invitation: by the aggregator at work, or in the folder of one that is not."""

from pathlib import Path

from aggregator.control import REVOKED, is_running, tell_to_revoke
from aggregator.log.storage import log_key, read_manifest
from protocol.errors import LedgerError, SignatureError, UserError
from protocol.records import entry_of
from protocol.revocation import INVITED, PEER
from protocol.signing import key_named
from runtime.disk import only_process
from swarm.invitation import read_invitation


def target_of(peer: str | None, invitation: str | None) -> tuple[str, bytes]:
    """Return what is to be taken back, as ``protocol.revocation.Revocation`` has it.

    Args:
        peer: a peer's id, or None.
        invitation: an invitation's text, or the name of its file, or None.

    Raises:
        UserError: it is not one of the two, or none.
    """
    if (peer is None) == (invitation is None):
        raise UserError("say what is taken back, one of the two: --peer 12D3Koo..., or --invitation FILE")
    if peer is not None:
        try:
            return PEER, key_named(peer)
        except SignatureError as error:
            raise UserError(f"--peer: {peer!r} is no peer's id ({error}); manta-peer identity prints it") from error
    assert invitation is not None
    return INVITED, read_invitation(invitation).invitation.unchecked().key


def revoke(directory: Path, what: str, target: bytes) -> str:
    """Take it back; it is in the log when this returns: when peers hear of it.

    Raises:
        UserError: there is no run, or no key of its operator, or nothing to take back, or one operator alone may not.
        Unreachable: the aggregator at work does not answer.
        StorageError: the disk failed.
    """
    signed = read_manifest(directory)
    if is_running(directory):
        answer = tell_to_revoke(directory, what, target)
        if answer != REVOKED:
            raise UserError(f"not taken back: {answer}")
        return "peers hear of it within seconds"
    manifest = signed.open()
    if manifest.admission.is_open:  # before the whole log is read
        raise UserError("not taken back: the run is open to everybody, nobody was let in")
    if len(manifest.operators) > 1:
        raise UserError("not taken back: the run has several operators, of whom one writes: type it there, while its aggregator runs")
    from aggregator.log.log import Log
    from aggregator.rounds.revocations import signed_revocation

    operator = log_key(directory)
    with only_process(directory), Log.open(directory, operator) as log:
        try:
            log.commit([entry_of(signed_revocation(log.ledger, operator, what, target))])
        except LedgerError as error:
            raise UserError(f"not taken back: {error}") from error
    return "peers hear of it once the aggregator runs again"
