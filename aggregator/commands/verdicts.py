"""The command of manta-aggregator that computes the verdicts of a log again. Parses, calls, prints, exits."""

import sys
from pathlib import Path

import click

from aggregator.clear_errors import clear_errors
from aggregator.commands.folder import DIRECTORY
from aggregator.commands.settings import DATA_ROOT
from swarm.loading import ending_at_ctrl_c


@click.command()
@DIRECTORY
@DATA_ROOT
@click.option("--all", "all_of_them", is_flag=True, help="Findings that a claim holds, too.")
def verdicts(directory: Path, data_root: Path | None, all_of_them: bool) -> None:
    """Compute again what auditors found against claims. Nothing but the folder is needed. Exit code 1 if something else comes out."""
    with clear_errors():
        from aggregator.early import check_run

        check_run(directory)
        with ending_at_ctrl_c():
            from aggregator.audits.repeating import repeat
            from protocol.signing import peer_name

        agreeing = contradicted = unknown = 0
        for one in repeat(directory, data_root, all_of_them=all_of_them):
            finding = one.finding
            what = f"{finding.check} {finding.lot}" if finding.check == "lot" else finding.check
            said = (
                f"a claim of {peer_name(one.key)} in round {finding.round} ({what}): {finding.outcome}, says {peer_name(finding.auditor)}"
            )
            if one.agrees is None:
                unknown += 1
                click.echo(f"{said}; not repeated: {one.reason}")
            else:
                agreeing, contradicted = agreeing + one.agrees, contradicted + (not one.agrees)
                why = f": {one.reason}" if one.reason else ""
                click.echo(f"{said}; {'so it is here' if one.agrees else f'HERE IT {one.outcome.upper()}'}{why}")
        click.echo(f"{agreeing} findings repeated, {contradicted} contradicted, {unknown} that cannot be repeated here")
        if contradicted:
            sys.exit(1)


COMMANDS = (verdicts,)
