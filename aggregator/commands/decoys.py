"""The command of manta-aggregator that makes decoys, by which auditors are checked. Parses, calls, prints, exits."""

from pathlib import Path

import click

from aggregator.clear_errors import clear_errors

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--dir", "directory", type=_FOLDER, required=True, metavar="DIR", help="The run's files.")
@click.option("--out", type=_FOLDER, required=True, metavar="FOLDER", help="The new folder of the peer that is the decoy.")
def decoy(directory: Path, out: Path) -> None:
    """Make a decoy: a peer that lies, to find out lazy auditors. Its lots' records are false, and it tells the log so in the end. Who
    finds them good is found out."""
    with clear_errors():
        from aggregator.settings.decoying import make_decoy

        name = make_decoy(directory, out)
        click.echo(f"made the decoy {name}; start it on another computer as any peer: manta-peer join --dir {out} --initial-peers ...")


COMMANDS = (decoy,)
