"""The commands of manta-aggregator that let peers into a run that is not open, and take that back. Parses, calls, prints, exits."""

from pathlib import Path

import click

from aggregator.commands import DIRECTORY, FILE, clear_errors
from protocol.errors import UserError


@click.command()
@DIRECTORY
@click.option("--keys", type=click.IntRange(1), default=1, metavar="N", help="How many peers it lets in.  [default: 1]")
@click.option("--until-round", type=click.IntRange(1), metavar="R", help="They come in before this round is over.  [default: the last]")
@click.option("--guest", is_flag=True, help="They look on and search, and train nothing.")
@click.option("--proven", is_flag=True, help="In an audited run: they count as proven from the start.")
@click.option("--out", type=FILE, metavar="FILE", help="Write it to this new file, for nobody else to read.  [default: print it]")
def invite(directory: Path, keys: int, until_round: int | None, guest: bool, proven: bool, out: Path | None) -> None:
    """Make an invitation to a run, at work or not. Whoever has it can use it: send it on a safe way."""
    with clear_errors():
        from aggregator.settings.inviting import invitation, write_invitation
        from protocol.admission import GUEST, MEMBER, PROVEN

        if guest and proven:
            raise UserError("--guest trains nothing, so there is nothing to be proven by: leave --guest or --proven out")
        role = GUEST if guest else PROVEN if proven else MEMBER
        made = invitation(directory, keys=keys, until_round=until_round, role=role)
        if out is None:
            click.echo(made.text)
            return
        write_invitation(out, made.text)
        way = "manta-search find --peers ADDRESS" if guest else "manta-peer join"
        click.echo(f"wrote {out}: {made.words}; they come in with: {way} --invitation {out.name}")


@click.command()
@DIRECTORY
@click.option("--peer", metavar="PEER", help="This peer, 12D3Koo...: it is out at once, for good; what it earned stays.")
@click.option("--invitation", "told", metavar="FILE|TEXT", help="This invitation: it lets nobody in any more; who came in by it stays.")
def revoke(directory: Path, peer: str | None, told: str | None) -> None:
    """Take back a peer's admission, or an invitation. The run may be at work. It stands in the log."""
    with clear_errors():
        from aggregator.settings.revoking import revoke, target_of

        what, target = target_of(peer, told)
        heard = revoke(directory, what, target)
        click.echo(f"taken back; it stands in the log, and {heard}")


COMMANDS = (invite, revoke)
