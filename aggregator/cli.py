"""manta-aggregator: the operator's program. Parses, calls, prints, exits.

A command imports what it needs itself: first what reads and checks files and settings, then, once they hold, what works.
"""

import asyncio
import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aggregator.commands import DATA_ROOT, DIRECTORY, FILE, FOLDER, RUN_FILE, clear_errors
from aggregator.commands import credits as cli_credits
from aggregator.commands import folder as cli_folder
from aggregator.commands import invitations as cli_invitations
from aggregator.commands import settings as cli_settings
from aggregator.commands import verdicts as cli_verdicts
from aggregator.commands import witness as cli_witness
from protocol.errors import UserError
from runtime.commands import end_soon, ending_at_ctrl_c
from swarm.logs import FORMATS, json_line, set_up_logging
from swarm.voice import Voice

if TYPE_CHECKING:
    from aggregator.log.exported import Shown
    from aggregator.log.verify import Verification


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Open a Manta run that others can join, and keep its log."""


@main.command()
@RUN_FILE
@DIRECTORY
@click.option("--listen", metavar="MADDR", help="Address to listen on.  [default: every address, a port that stays the same]")
@DATA_ROOT
@click.option("--threads", type=click.IntRange(1, 1024), envvar="MANTA_CPU_THREADS", metavar="N", help="CPU threads.  [default: all cores]")
@click.option("--gateway", metavar="HOST:PORT", help="Lease lots to light contributors here, by HTTP.")
@click.option(
    "--gateway-cert", type=click.Path(path_type=Path), metavar="FILE", help="The gateway's certificate, PEM.  [default: plain HTTP]"
)
@click.option("--gateway-key", type=click.Path(path_type=Path), metavar="FILE", help="Its key.")
@click.option("--monitor", metavar="ADDRESS", help="HOST:PORT of the monitor's page.  [default: what the run file says]")
@click.option("--no-monitor", is_flag=True, help="Without it.")
@click.option(
    "--initial-peers", multiple=True, metavar="MADDR", help="Address of a peer of the run, by which the others find a log that has moved."
)
@click.option(
    "--first-state",
    type=FILE,
    metavar="FILE",
    help="Begin a new run with the weights of this snapshot.",
)
@click.option(
    "--newest", "is_newest", is_flag=True, help="You know that this folder, a copy or a backup, has all that the run's log ever signed."
)
@click.option("--log-format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="json: one object a line.")
@click.option("--verbose", is_flag=True, help="Log what happens between the rounds.")
def start(
    run_file: Path,
    data_root: Path | None,
    gateway: str | None,
    gateway_cert: Path | None,
    gateway_key: Path | None,
    monitor: str | None,
    no_monitor: bool,
    log_format: str,
    verbose: bool,
    **options: Any,
) -> None:
    """Serve the run of RUN_FILE until Ctrl-C; start again to go on."""
    set_up_logging(log_format, verbose=verbose)
    voice = Voice()
    say = partial(_say_json, voice) if log_format == "json" else voice.say
    with clear_errors():
        from aggregator.settings.config import load_run_file
        from aggregator.settings.start import Start, door_of

        if no_monitor and monitor is not None:
            raise UserError("--monitor and --no-monitor do not go together")
        config = load_run_file(run_file)
        door = door_of(gateway, gateway_cert, gateway_key)
        page = "" if no_monitor else monitor
        asked = Start(config=config, gateway=door, page=page, data_root=data_root or config.data_root, **options)
        asked.check()
        with ending_at_ctrl_c():
            import torch

            from aggregator.operator import Operator

        if asked.threads is not None:
            torch.set_num_threads(asked.threads)
        try:
            with voice:  # a terminal that is closed, or a pipe that nobody reads, is no reason to end a run
                asyncio.run(Operator(asked, say).run())
        finally:
            end_soon()


def _say_json(voice: Voice, line: str) -> None:
    voice.say(json_line(line.strip(), level="info", logger="manta.aggregator", at_s=time.time()))


@main.group()
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
@click.option("--from", "url", metavar="URL", help="Check the log that a server shows, as https://HOST/tlog/, from outside.")
@click.option("--run", "run_id", metavar="ID", help="With --from: the run that it has to be of, its id or 16 digits of it or more.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="With --from: an operator that it has to be of, as 12D3Koo...")
def verify(directory: Path | None, url: str | None, run_id: str | None, keys: tuple[str, ...]) -> None:
    """Check every signature, the tree, the heads and the credits. Prints the root.

    With --from nothing of the run is needed but an address. What was fetched is kept: type it again to go on, or to check what is new.
    That has to go on from what was there before. Exit code 3: it does not.
    """
    with clear_errors():
        if url is not None:
            _verify_from(url, directory, run_id, keys)
            return
        from aggregator.log.storage import read_manifest

        if directory is None:
            raise UserError("give --dir DIR, a run's folder, or --from URL, the address of a log")
        if run_id is not None or keys:
            raise UserError("--run and --key say which log has to be at the address of --from: leave them out with a folder alone")
        read_manifest(directory)
        with ending_at_ctrl_c():
            from aggregator.log.verify import verify_directory

        found = verify_directory(directory)
        click.echo(f"run {found.run.hex()}")
        click.echo(f"verified {found.size} entries, {found.rounds} rounds: signatures, tree, tree head and credits hold")
        _say_credits(found)
        click.echo(f"root {found.root.hex()}")


def _verify_from(url: str, folder: Path | None, run_id: str | None, keys: tuple[str, ...]) -> None:
    from aggregator.log.copies import web_copy
    from aggregator.log.mirror import Known, open_mirror

    web, known = web_copy(url), Known.of(run_id, keys)
    if web.is_open_to_others:
        click.echo("http:// without TLS: whoever is on the line can hold entries back from you, or show you another run", err=True)
    opened = open_mirror(web, known, folder)
    with ending_at_ctrl_c():
        from aggregator.log.exported import Check
        from automl.training.course import RunCourse

    check = Check(opened.mirror, course_of=RunCourse)
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


def _say_shown(found: "Shown") -> None:
    from protocol.signing import peer_name

    click.echo(f"run {found.run.hex()}")
    _say_operators(found.operators)
    click.echo(f"verified {found.head.size} entries, {found.rounds} rounds: signatures, tiles, tree head and credits hold")
    _say_credits(found)
    for size, cosignature in found.witnesses:
        click.echo(f"witness {peer_name(cosignature.key)} cosigned {size} entries")
    click.echo(f"root {found.head.root.hex()}")


def _say_operators(keys: Iterable[bytes]) -> None:
    from protocol.signing import peer_name

    for key in keys:
        click.echo(f"operator {key.hex()} {peer_name(key)}")


def _say_credits(found: "Verification | Shown") -> None:
    from aggregator.log.credits import fault_in_words, settled_in_words
    from aggregator.log.earned import earned_by_account, together
    from protocol.signing import peer_name

    mark = " unaudited" if found.is_unaudited else ""
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
    if found.is_unaudited:
        click.echo("unaudited: the data are private, so nobody but a peer can compute its lots again; its share of a round was capped")


@ledger.command()
@click.argument("to", type=FOLDER)
@DIRECTORY
def export(to: Path, directory: Path) -> None:
    """Write the log to the folder TO as static files. Where it was written before, what is new; the run may be at work.

    Any web server can serve them, and anybody check them: with check-export, or with tools for C2SP's tlog-tiles.
    """
    with clear_errors():
        from aggregator.log.storage import read_manifest

        read_manifest(directory)
        with ending_at_ctrl_c():
            from aggregator.log.contents import CHECKPOINT
            from aggregator.log.tiles import export as export_log
            from protocol.footprint import in_words

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
        from aggregator.log.contents import check_exported

        check_exported(folder)
        with ending_at_ctrl_c():
            from aggregator.log.exported import verify as verify_export

        _say_shown(verify_export(folder))


@ledger.command()
@DIRECTORY
@click.option("--verbose", is_flag=True, help="Print each round's state.")
def replay(directory: Path, verbose: bool) -> None:
    """Verify the log, then compute every state again. It goes from the oldest snapshot and the kept bodies, and compares each state with
    the log."""
    with clear_errors():
        from aggregator.log.storage import read_manifest

        read_manifest(directory)
        with ending_at_ctrl_c():
            from aggregator.rounds.replay import replay_directory

        def show(round_: int, state: bytes) -> None:
            if verbose:
                click.echo(f"round {round_} state {state.hex()}")

        found = replay_directory(directory, show)
        click.echo(f"run {found.run.hex()}")
        click.echo(f"verified {found.size} entries, {found.rounds} rounds")
        click.echo(
            f"replayed {found.rounds - found.first} of {found.rounds} rounds, from the state of round {found.first} on: "
            "each comes to the weights, the mean, the state, the thresholds and the floor that the log says"
        )
        click.echo(f"state {found.state.hex()}")


@ledger.command("check-proof")
@click.argument("proof", type=FILE)
@click.option("--run", "run_id", metavar="ID", help="The run that it has to be about.")
def check_proof(proof: Path, run_id: str | None) -> None:
    """Check what was kept as PROOF that a log did wrong. It committed a wrong mean, or signed two histories. Needs nothing but the file.

    Exit code 0: it is proven, and who did it is named. 5: the file is whole, and proves nothing against anybody. 2: it is no proof: it is
    damaged, not rightly signed, about another run, or something else.
    """
    with clear_errors():
        with ending_at_ctrl_c():
            from aggregator.log.proofs import check_proof as check

        proven = check(proof, run_id)
        click.echo(f"run {proven.run.hex()}")
        _say_operators(proven.operators)
        click.echo(f"proven: {proven.what}")


_MODULES = (cli_settings, cli_folder, cli_witness, cli_invitations, cli_credits)
for command in (command for module in _MODULES for command in module.COMMANDS):
    main.add_command(command)
for command in cli_verdicts.COMMANDS:
    ledger.add_command(command)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
