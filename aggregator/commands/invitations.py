"""The commands of manta-aggregator that let peers into a run that is not open, and take that back. Parses, calls, prints, exits."""

from pathlib import Path

import click

from manta_swarm.aggregator.commands import DIRECTORY, FILE, clear_errors
from manta_swarm.protocol.errors import UserError


@click.command()
@DIRECTORY
@click.option("--keys", type=click.IntRange(1), default=1, metavar="N", help="How many peers it lets in.  [default: 1]")
@click.option("--until-round", type=click.IntRange(1), metavar="R", help="Peers come in before this round is over.  [default: the last]")
@click.option("--guest", is_flag=True, help="Peers look on and search, and train nothing.")
@click.option("--proven", is_flag=True, help="Peers count as proven from the start; in an audited run.")
@click.option("--out", type=FILE, metavar="FILE", help="New file for it, which nobody else can read.  [default: print it]")
def invite(directory: Path, keys: int, until_round: int | None, guest: bool, proven: bool, out: Path | None) -> None:
    """Make an invitation to a run, at work or not. Whoever has it can use it: send it by a safe way."""
    with clear_errors():
        from manta_swarm.aggregator.settings.inviting import invitation, write_invitation
        from manta_swarm.protocol.admission import GUEST, MEMBER, PROVEN

        if guest and proven:
            raise UserError("--guest trains nothing, so there is nothing to be proven by: leave --guest or --proven out")
        access = GUEST if guest else PROVEN if proven else MEMBER
        made = invitation(directory, keys=keys, until_round=until_round, access=access)
        if out is None:
            click.echo(made.text)
            return
        write_invitation(out, made.text)
        way = "manta-search find --peers ADDRESS" if guest else "manta-peer join"
        click.echo(f"wrote {out}: {made.words}; they come in with: {way} --invitation {out.name}")


@click.command()
@DIRECTORY
@click.option("--peer", metavar="PEER", help="Peer, 12D3Koo..., that is out at once, for good; what it earned stays.")
@click.option("--invitation", "told", metavar="FILE|TEXT", help="Invitation that lets nobody in any more; who came in by it stays.")
def revoke(directory: Path, peer: str | None, told: str | None) -> None:
    """Take back a peer's admission, or an invitation. The run may be at work. It stands in the log."""
    with clear_errors():
        what, target = _target_of(peer, told)
        heard = _revoke(directory, what, target)
        click.echo(f"taken back; it stands in the log, and {heard}")


def _target_of(peer: str | None, invitation: str | None) -> tuple[str, bytes]:
    """Return what is to be taken back, as ``protocol.admission.Revocation`` has it.

    Args:
        peer: a peer's id, or None.
        invitation: an invitation's text, or the name of its file, or None.

    Raises:
        UserError: it is not one of the two, or none.
    """
    from manta_swarm.network.invitation import read_invitation
    from manta_swarm.protocol.admission import INVITED, PEER
    from manta_swarm.protocol.errors import SignatureError
    from manta_swarm.protocol.signing import key_named

    if (peer is None) == (invitation is None):
        raise UserError("say what is taken back, one of the two: --peer 12D3Koo..., or --invitation FILE")
    if peer is not None:
        try:
            return PEER, key_named(peer)
        except SignatureError as error:
            raise UserError(f"--peer: {peer!r} is no peer's id ({error}); manta-peer identity prints it") from error
    assert invitation is not None
    return INVITED, read_invitation(invitation).invitation.unchecked().key


def _revoke(directory: Path, what: str, target: bytes) -> str:
    """Take it back; it is in the log when this returns: when peers hear of it.

    Raises:
        UserError: there is no run, or no key of its operator, or nothing to take back, or one operator alone may not.
        Unreachable: the aggregator at work does not answer.
        StorageError: the disk failed.
    """
    from manta_swarm.aggregator.control import REVOKED, is_running, tell_to_revoke
    from manta_swarm.aggregator.log.storage import log_key, read_manifest

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
    operator = log_key(directory)
    from manta_swarm.aggregator.intake.admissions import signed_revocation
    from manta_swarm.aggregator.log.log import Log
    from manta_swarm.protocol.errors import LedgerError
    from manta_swarm.protocol.records import entry_of
    from manta_swarm.runtime.disk import only_process

    with only_process(directory), Log.open(directory, operator) as log:
        try:
            log.commit([entry_of(signed_revocation(log.ledger, operator, what, target))])
        except LedgerError as error:
            raise UserError(f"not taken back: {error}") from error
    return "peers hear of it once the aggregator runs again"


COMMANDS = (invite, revoke)
