"""The command of manta-aggregator that shows the verdicts in a log. Parses, calls, prints, exits."""

from pathlib import Path

import click

from aggregator.commands import DIRECTORY, clear_errors


@click.command()
@DIRECTORY
@click.option("--peer", metavar="NAME", help="Of contributions with a claim of this peer only: 12D3Koo....")
@click.option("--all", "all_of_them", is_flag=True, help="Those that all is good, too.")
def verdicts(directory: Path, peer: str | None, all_of_them: bool) -> None:
    """Show what auditors said of contributions. As the log has it: what takes something away, or all of it."""
    with clear_errors():
        from aggregator.audits.listing import verdicts_in
        from aggregator.log.storage import read_manifest
        from protocol.errors import SignatureError, UserError
        from protocol.signing import key_named, peer_name

        read_manifest(directory)
        try:
            key = None if peer is None else key_named(peer)
        except SignatureError as error:
            raise UserError(f"--peer: {error}") from error
        shown = 0
        for one in verdicts_in(directory):
            if (key is not None and key not in one.keys) or (one.is_good and not all_of_them):
                continue
            shown += 1
            said = ", ".join(f"{peer_name(each)} {outcome.name.lower()}" for each, outcome in zip(one.keys, one.outcomes, strict=True))
            verdict = one.verdict
            by = "" if verdict.by == verdict.auditor else f", computed by {peer_name(verdict.by)}"
            click.echo(
                f"entry {one.index}, round {verdict.round}, {verdict.contribution.hex()}: {said}, says {peer_name(verdict.auditor)}{by}"
            )
        click.echo(f"{shown} {'verdict' if shown == 1 else 'verdicts'}")


COMMANDS = (verdicts,)
