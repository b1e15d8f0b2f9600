"""The commands of manta-aggregator that look at a run's log or follow it, whoever keeps it. Parses, calls, prints, exits."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from manta_swarm.aggregator.commands import DIRECTORY, FILE, FOLDER, clear_errors
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import end_soon, ending_at_ctrl_c
from manta_swarm.runtime.console import FORMATS, PrintingConsole, set_up_logging
from manta_swarm.runtime.signals import told_to_stop

if TYPE_CHECKING:
    from manta_swarm.aggregator.log.copies import VerifiedLog
    from manta_swarm.aggregator.log.verify import Verification

_RUN = re.compile(r"[0-9a-f]{64}")


@click.command()
@click.option(
    "--of",
    "addresses",
    multiple=True,
    required=True,
    metavar="MADDR",
    help="Address of the aggregator or a peer; may be repeated.",
)
@click.option("--dir", "directory", required=True, type=FOLDER, metavar="DIR", help="Folder of its memory and key.")
@click.option("--run", metavar="ID", help="The run's id: any other is refused.")
@click.option("--listen", metavar="HOST:PORT", help="Answer C2SP's add-checkpoint here, by HTTP.  [default: only dial out]")
@click.option("--keep-entries", is_flag=True, help="Keep all entries in DIR/log: a run that lost its newest ones goes on from there.")
@click.option("--verbose", is_flag=True, help="Log why the log is not heard.")
def witness(addresses: tuple[str, ...], directory: Path, run: str | None, listen: str | None, keep_entries: bool, verbose: bool) -> None:
    """Watch the log of anybody's run from outside. Sign each of its heads that goes on from the last one, never two of one size."""
    set_up_logging(FORMATS[0], verbose=verbose)
    with clear_errors():
        from manta_swarm.network.addresses import check_peer_address
        from manta_swarm.runtime.commands import check_installed
        from manta_swarm.runtime.disk import check_directory
        from manta_swarm.runtime.listen_address import ListenAddress

        check_installed()
        if run is not None and not _RUN.fullmatch(run):
            raise UserError(f"--run: a run's id is 64 hexadecimal digits in lower case, not {run[:80]!r}")
        for address in addresses:
            check_peer_address(address)
        listen_address = None if listen is None else ListenAddress.at(listen, flag="--listen")
        if listen_address is not None:
            listen_address.listen()[0].close()
        check_directory(directory)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.features.witness.program import WitnessSettings, be_witness

        console = PrintingConsole()

        async def watch() -> None:
            async with told_to_stop() as stopped:
                await be_witness(WitnessSettings(addresses, run, listen_address, keep_entries), directory, console=console, stopped=stopped)

        try:
            with console:
                asyncio.run(watch())
        finally:
            end_soon()
        click.echo("stopped; start again with the same --dir to go on")


@click.group()
def ledger() -> None:
    """Look at a run's log."""


@ledger.command()
@click.option(
    "--dir",
    "directory",
    type=FOLDER,
    metavar="DIR",
    help="The run's files. With --from: where to keep what is fetched.  [default: in your cache]",
)
@click.option("--from", "url", metavar="URL", help="Check the log of a server, as https://HOST/tlog/, from outside.")
@click.option("--run", "run_id", metavar="ID", help="With --from: the run's id, or at least 16 digits of it.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="With --from: an operator's key, 12D3Koo...")
def verify(directory: Path | None, url: str | None, run_id: str | None, keys: tuple[str, ...]) -> None:
    """Check every signature, the tree, the heads and the credits. Prints the root.

    With --from nothing of the run is needed but an address. What was fetched is kept: type it again to go on, or to check what is new.
    That has to go on from what was there before. Exit code 3: it does not.
    """
    with clear_errors():
        if url is not None:
            _verify_from(url, directory, run_id, keys)
            return
        from manta_swarm.aggregator.log.storage import read_manifest

        if directory is None:
            raise UserError("give --dir DIR, a run's folder, or --from URL, the address of a log")
        if run_id is not None or keys:
            raise UserError("--run and --key say which log has to be at the address of --from: leave them out with a folder alone")
        read_manifest(directory)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.verify import verify_directory

        found = verify_directory(directory)
        click.echo(f"run {found.run.hex()}")
        click.echo(f"verified {found.size} entries, {found.rounds} rounds: signatures, tree, tree head and credits hold")
        _say_credits(found)
        click.echo(f"root {found.root.hex()}")


def _verify_from(url: str, folder: Path | None, run_id: str | None, keys: tuple[str, ...]) -> None:
    from manta_swarm.aggregator.log.copies import web_copy
    from manta_swarm.aggregator.log.mirror import ExpectedRun, open_mirror

    web, known = web_copy(url), ExpectedRun.of(run_id, keys)
    if web.is_open_to_others:
        click.echo("http:// without TLS: whoever is on the line can hold entries back from you, or show you another run", err=True)
    opened = open_mirror(web, known, folder)
    with ending_at_ctrl_c():
        from manta_swarm.aggregator.log.copies import LogCheck

    check = LogCheck(opened.mirror)
    _show_progress(check.entries(), check.head.size)
    found = check.shown()
    opened.finish()
    _say_shown(found)
    before = opened.before
    click.echo(f"it goes on from the {before.size} entries that were there before" if before else "it is seen here for the first time")
    if not (run_id or keys):
        click.echo("whoever shows it may have made up the whole run: compare the run's id or the key with what you know, by --run or --key")


def _show_progress(done: Iterable[int], total: int) -> None:
    """Go through what is done, and show at a terminal how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("entries"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("entries", total=total)
        for count in done:
            progress.update(task, completed=count)


def _say_shown(found: "VerifiedLog") -> None:
    from manta_swarm.protocol.signing import peer_name

    click.echo(f"run {found.run.hex()}")
    _say_operators(found.operators)
    click.echo(f"verified {found.head.size} entries, {found.rounds} rounds: signatures, tiles, tree head and credits hold")
    _say_credits(found)
    for size, cosignature in found.witnesses:
        click.echo(f"witness {peer_name(cosignature.key)} cosigned {size} entries")
    click.echo(f"root {found.head.root.hex()}")


def _say_operators(keys: Iterable[bytes]) -> None:
    from manta_swarm.protocol.signing import peer_name

    for key in keys:
        click.echo(f"operator {key.hex()} {peer_name(key)}")


def _say_credits(found: "Verification | VerifiedLog") -> None:
    from manta_swarm.aggregator.log.credits import earned_by_account, fault_in_words, settled_in_words, together
    from manta_swarm.protocol.signing import peer_name

    mark = " private data" if found.is_private else ""
    for account, of_keys in earned_by_account(found.reputation).items():
        earned = together(of_keys.values())
        if earned.credit:
            pending = f", pending {earned.pending}" if earned.pending else ""
            click.echo(f"credit {earned.paid}{pending} {peer_name(account)}{mark}")
    for key, faults in sorted(found.reputation.faults.items()):
        for fault in faults:
            click.echo(f"{fault_in_words(fault)}: {peer_name(key)}")
    if words := settled_in_words(found.reputation, found.num_rounds, is_settled=found.is_settled):
        click.echo(words)
    if found.is_private:
        click.echo("private data: nobody but a peer can compute its microbatches again, so its share of a round was capped")


@ledger.command()
@click.argument("to", type=FOLDER)
@DIRECTORY
def export(to: Path, directory: Path) -> None:
    """Write the log to the folder TO as static files. Where it was written before, what is new; the run may be at work.

    Any web server can serve them, and anybody check them: with check-export, or with tools for C2SP's tlog-tiles.
    """
    with clear_errors():
        from manta_swarm.aggregator.log.storage import read_manifest

        read_manifest(directory)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.contents import CHECKPOINT
            from manta_swarm.aggregator.log.tiles import export as export_log
            from manta_swarm.protocol.footprint import in_words

        done = export_log(directory, to)
        click.echo(
            f"{to}: {done.head.size} entries, {done.new_entries} of them new; {done.num_files} files written, {in_words(done.num_bytes)}"
        )
        click.echo(f"tree head {to / CHECKPOINT}, root {done.head.root.hex()}; signed by {done.keys.strip().replace(chr(10), ', ')}")


@ledger.command("check-export")
@click.argument("folder", type=FOLDER)
def check_export(folder: Path) -> None:
    """Check an exported log from its files alone. That is every signature, each entry after those before it, and each tile. Prints the
    credits."""
    with clear_errors():
        from manta_swarm.aggregator.log.contents import check_exported

        check_exported(folder)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.copies import verify as verify_export

        _say_shown(verify_export(folder))


@ledger.command()
@DIRECTORY
@click.option("--verbose", is_flag=True, help="Print each round's state.")
def replay(directory: Path, verbose: bool) -> None:
    """Verify the log, then compute every state again. It goes from the oldest snapshot and the kept bodies, and compares each state with
    the log."""
    with clear_errors():
        from manta_swarm.aggregator.log.storage import read_manifest

        read_manifest(directory)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.states.replay import replay_directory

        def show(round_: int, state: bytes) -> None:
            if verbose:
                click.echo(f"round {round_} state {state.hex()}")

        found = replay_directory(directory, show)
        click.echo(f"run {found.run.hex()}")
        click.echo(f"verified {found.size} entries, {found.rounds} rounds")
        click.echo(
            f"replayed {found.rounds - found.first} of {found.rounds} rounds, from the state of round {found.first} on: "
            "each comes to the weights, the mean, the state, the thresholds and the min exponent that the log says"
        )
        click.echo(f"state {found.state.hex()}")


@ledger.command("check-proof")
@click.argument("proof", type=FILE)
@click.option("--run", "run_id", metavar="ID", help="The run's id, which it has to be about.")
def check_proof(proof: Path, run_id: str | None) -> None:
    """Check the PROOF that a log did wrong. It committed a wrong mean, or signed two histories. Needs nothing but the file.

    Exit code 0: it is proven, and who did it is named. 5: the file is whole, and proves nothing against anybody. 2: it is no proof: it is
    damaged, not rightly signed, about another run, or something else.
    """
    with clear_errors():
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.proofs import check_proof as check

        proven = check(proof, run_id)
        click.echo(f"run {proven.run.hex()}")
        _say_operators(proven.operators)
        click.echo(f"proven: {proven.what}")


@ledger.command()
@DIRECTORY
@click.option("--peer", metavar="NAME", help="Only contributions of this peer, 12D3Koo...")
@click.option("--all", "all_of_them", is_flag=True, help="Show verdicts that all is good, too.")
def verdicts(directory: Path, peer: str | None, all_of_them: bool) -> None:
    """Show what auditors said of contributions. As the log has it: what takes something away, or all of it."""
    with clear_errors():
        from manta_swarm.aggregator.features.audits.facts import verdicts_in
        from manta_swarm.aggregator.log.storage import read_manifest
        from manta_swarm.protocol.errors import SignatureError
        from manta_swarm.protocol.signing import key_named, peer_name

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


@click.command(name="credits")
@DIRECTORY
@click.option("--csv", "is_csv", is_flag=True, help="Print a table for a spreadsheet.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON: each pending round, and what was found out.")
def credits_command(directory: Path, is_csv: bool, is_json: bool) -> None:
    """Verify a log, and say what everybody has earned. What of it is paid, what is pending, and what was found out. The
    run may be at work."""
    with clear_errors():
        from manta_swarm.aggregator.log.storage import read_manifest

        if is_csv and is_json:
            raise UserError("--csv or --json, not both")
        read_manifest(directory)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log import credits
            from manta_swarm.aggregator.log.verify import verify_directory

        found = verify_directory(directory)
        if is_csv:
            click.echo(credits.as_csv(found), nl=False)
        elif is_json:
            click.echo(credits.as_json(found))
        else:
            for line in credits.as_lines(found):
                click.echo(line)


COMMANDS = (ledger, credits_command, witness)
