"""The commands of manta-aggregator that let peers into a run that is not open, and take that back. Parses, calls, prints, exits."""

from pathlib import Path

import click

from aggregator.clear_errors import clear_errors
from protocol.errors import UserError

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The run's files.")
@click.option("--keys", type=click.IntRange(1), metavar="N", help="How many peers it lets in.  [default: 1]")
@click.option("--until-round", type=click.IntRange(1), metavar="R", help="They come in before this round is over.  [default: the last]")
@click.option("--for", "holder", metavar="PEER", help="For this peer alone, 12D3Koo...  [default: whoever holds the invitation]")
@click.option("--out", type=_FILE, metavar="FILE", help="Write it to this new file, for nobody else to read.  [default: print it]")
@click.option("--as", "key", type=_FILE, metavar="KEY", help="Sign by this key, which the manifest trusts; with --run, without --dir.")
@click.option("--run", "run_id", metavar="ID", help="The run's id, with --as.")
def invite(
    directory: Path | None,
    keys: int | None,
    until_round: int | None,
    holder: str | None,
    out: Path | None,
    key: Path | None,
    run_id: str | None,
) -> None:
    """Make an invitation to a run, at work or not. Who has one that names no peer can use it: send it on a safe way."""
    with clear_errors():
        from aggregator.settings.inviting import invitation, write_invitation

        if holder is not None and keys not in (None, 1):
            raise UserError("--for names one peer: leave --keys out")
        made = invitation(directory, key, run_id, keys=keys or 1, until_round=until_round, holder=holder)
        if out is None:
            click.echo(made.text)
            return
        write_invitation(out, made.text)
        click.echo(f"wrote {out}: {made.words}; they join with: manta-peer join --invitation {out.name}")


@click.command()
@click.option("--dir", "directory", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The run's files.")
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
