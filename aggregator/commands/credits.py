"""The command of manta-aggregator that says who has earned what, from the log alone. Parses, calls, prints, exits."""

from pathlib import Path

import click

from aggregator.commands import DIRECTORY, clear_errors
from protocol.errors import UserError
from runtime.commands import ending_at_ctrl_c


@click.command(name="credits")
@DIRECTORY
@click.option("--csv", "is_csv", is_flag=True, help="As a table, for a spreadsheet.")
@click.option("--json", "is_json", is_flag=True, help="As JSON: each pending round, and what was found out.")
def credits_command(directory: Path, is_csv: bool, is_json: bool) -> None:
    """Verify the log of a folder, and say what everybody has earned. What of it is paid, what is pending, and what was found out. The
    run may be at work."""
    with clear_errors():
        from aggregator.log.storage import read_manifest

        if is_csv and is_json:
            raise UserError("--csv or --json, not both")
        read_manifest(directory)
        with ending_at_ctrl_c():
            from aggregator.log import credits
            from aggregator.log.verify import verify_directory

        found = verify_directory(directory)
        if is_csv:
            click.echo(credits.as_csv(found), nl=False)
        elif is_json:
            click.echo(credits.as_json(found))
        else:
            for line in credits.as_lines(found):
                click.echo(line)


COMMANDS = (credits_command,)
