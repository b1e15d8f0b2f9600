"""The commands of manta-aggregator about a run's folder, whether the run is at work in it or not. Parses, calls, prints, exits."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from manta_swarm.aggregator.commands import DIRECTORY, FILE, FOLDER, clear_errors
from manta_swarm.protocol.errors import RemoteFault, StorageError, UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.aggregator.log.moving import Copied
    from manta_swarm.aggregator.status import AggregatorStatus, AmongOperators

_reason = click.option("--reason", default="", metavar="TEXT", help="What the peers are told.")
HANDED_OVER = "the run is handed to another operator"


@click.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def status(directory: Path, as_json: bool) -> None:
    """Say where a run stands, and whether its aggregator is at work."""
    with clear_errors():
        from manta_swarm.aggregator.control import is_running
        from manta_swarm.aggregator.log.contents import STATUS
        from manta_swarm.aggregator.status import AggregatorStatus

        try:
            found = AggregatorStatus.read(directory)
        except (StorageError, RemoteFault) as error:
            raise StorageError(f"{directory / STATUS} cannot be read ({error}); it is written again when the aggregator starts") from error
        if found is None:
            raise UserError(f"{directory} holds no run: check the path, or start one there first")
        runs = is_running(directory)
        if as_json:
            click.echo(json.dumps({**found.model_dump(mode="json"), "is_running": runs}, indent=1))
            return
        for line in _lines(found, is_running=runs):
            click.echo(line)


@click.command()
@DIRECTORY
def key(directory: Path) -> None:
    """Print your key as an operator. It belongs to the run in --dir, and is made if there is none."""
    with clear_errors():
        from manta_swarm.protocol.signing import peer_name
        from manta_swarm.runtime.disk import IDENTITY, check_directory, load_identity, make_directory

        check_directory(directory)
        make_directory(directory)
        click.echo(peer_name(load_identity(directory / IDENTITY).public_key))


def _lines(status: "AggregatorStatus", *, is_running: bool) -> Iterator[str]:
    """Yield the lines that a status is."""
    yield f"run {status.name} id {status.run}"
    yield f"round {status.round} of {status.num_rounds}, {status.ledger_size} entries, root {status.ledger_root}"
    yield f"at work, process {status.pid}" if is_running else "not at work"
    yield from (f"  {address}" for address in status.addresses)
    if status.operators is not None and is_running:
        yield f"{_acting(status.operators)}; hears {len(status.operators.heard)} others"
        yield from (f"  {name}" for name in status.operators.heard)
    if status.refused:
        yield f"refused: {', '.join(f'{reason} {count}' for reason, count in status.refused.items())}"


def _acting(one: "AmongOperators") -> str:
    """Return where an operator stands among several."""
    if one.acts_as == "leader":
        return f"writes, term {one.term}"
    if one.acts_as == "newcomer":
        when = f"once {', '.join(one.waits_for)} answered" if one.waits_for else f"once round {one.from_round} is in"
        return f"begins anew, and takes part {when}"
    if one.leader is None:
        return "does not write, and hears nobody who does"
    return f"does not write; {one.leader} does, term {one.term}"


@click.command()
@DIRECTORY
@_reason
@click.option("--for-good", is_flag=True, help="End the run: what has an inclusion promise is committed first; then peers leave.")
def stop(directory: Path, reason: str, for_good: bool) -> None:
    """Stop a run's aggregator, and tell peers why. They wait for it, or with --for-good they leave."""
    with clear_errors():
        _stop(directory, reason, is_over=for_good)
        click.echo("stopped" if for_good else "stopped; start again with the same run file and --dir to go on")


def _stop(directory: Path, reason: str, *, is_over: bool) -> None:
    from manta_swarm.aggregator.control import tell_to_stop, wait_for_end

    click.echo(tell_to_stop(directory, is_over=is_over, reason=reason))
    asyncio.run(wait_for_end(directory))


@click.command()
@click.argument("out", type=FILE)
@DIRECTORY
def snapshot(out: Path, directory: Path) -> None:
    """Copy the newest state of a run to OUT (a .safetensors file). What proves that the log has it is put beside it (.json)."""
    with clear_errors():
        from manta_swarm.aggregator.log.contents import check_snapshot

        check_snapshot(directory, out)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.moving import take_snapshot

        round_, digest = take_snapshot(directory, out)
        click.echo(f"{out}: the state of round {round_}, digest {digest}; its proof is in {out.with_suffix('.json')}")


@click.command()
@click.argument("to", type=FOLDER)
@DIRECTORY
@click.option("--with-key", is_flag=True, help="Add the operator's key: who has the backup can then sign for you.")
def backup(to: Path, directory: Path, with_key: bool) -> None:
    """Copy a run to the new folder TO, and check the copy. The run may be at work."""
    with clear_errors():
        from manta_swarm.aggregator.log.contents import check_backup

        check_backup(directory, to, with_key=with_key)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.moving import back_up
            from manta_swarm.runtime.disk import IDENTITY

        _say_copied(to, back_up(directory, to, with_key=with_key))
        if not with_key:
            click.echo(f"the key is not in it: keep {directory / IDENTITY} apart; nobody can go on with the run without it")


@click.command()
@click.argument("source", metavar="FROM", type=FOLDER)
@DIRECTORY
@click.option("--key", type=FILE, metavar="FILE", help="The operator's key, where the backup lacks it.")
def restore(source: Path, directory: Path, key: Path | None) -> None:
    """Make the new folder --dir of the backup FROM. It signs nothing before a peer says that nothing newer was signed."""
    with clear_errors():
        from manta_swarm.aggregator.log.contents import RUN_FILE, check_restore

        check_restore(source, directory, key=key)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.log.moving import restore

        _say_copied(directory, restore(source, directory, key=key))
        run_file = directory / RUN_FILE if (directory / RUN_FILE).exists() else "RUN_FILE"
        click.echo(f"start it with: manta-aggregator start {run_file} --dir {directory}")


@click.command()
@click.argument("source", metavar="FROM")
@DIRECTORY
@click.option("--initial-peers", multiple=True, metavar="MADDR", help="Address of a peer that gives missing states.")
def recover(source: str, directory: Path, initial_peers: tuple[str, ...]) -> None:
    """Put back what an older copy of a run's folder lacks. It is in FROM: an export of its log, or the address of its /tlog/."""
    with clear_errors():
        from manta_swarm.aggregator.log.copies import copy_at
        from manta_swarm.aggregator.log.storage import read_manifest
        from manta_swarm.network.addresses import check_peer_address

        for address in initial_peers:
            check_peer_address(address)
        read_manifest(directory)
        copy = copy_at(source)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.features.operators.joining import fetch_states, lacking
            from manta_swarm.aggregator.log.moving import recover

        done = recover(directory, copy)
        click.echo(f"{directory}: {done.new_entries} entries were put back; {done.head.size} entries, {done.ledger.round} rounds now")
        missing = lacking(directory, done.ledger)
        if missing and initial_peers:
            for round_ in asyncio.run(fetch_states(directory, done.ledger, initial_peers)):
                click.echo(f"state of round {round_} from peers, as the log names it")
        elif missing:
            rounds = " and ".join(map(str, missing))
            click.echo(
                f"the state of round {rounds} is not here: unless older states and all contributions since are, type this again with "
                "--initial-peers MADDR, the address of a peer of the run"
            )
        click.echo("it signs nothing before a peer says that nothing newer was signed; start it as ever")


@click.command("hand-over")
@click.argument("to", type=FOLDER)
@DIRECTORY
@click.option("--reason", default=HANDED_OVER, show_default=True, metavar="TEXT", help="What the peers are told.")
def hand_over(to: Path, directory: Path, reason: str) -> None:
    """Stop a run for good here, so that another operator goes on. All that they need, the key too, is put in the folder TO."""
    with clear_errors():
        from manta_swarm.aggregator.log.contents import check_backup

        check_backup(directory, to, with_key=True)  # before a run is stopped for it
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.control import is_running
            from manta_swarm.aggregator.log import moving

        if is_running(directory):
            _stop(directory, reason, is_over=False)
        _say_copied(to, moving.hand_over(directory, to))
        click.echo(f"the operator's key is in {to}: send it by a safe way; in {directory} the run does not start any more")
        click.echo(f"there: manta-aggregator restore {to.name} --dir DIR, then start; peers find it by its new address, or by each other")


def _say_copied(folder: Path, copied: "Copied") -> None:
    from manta_swarm.protocol.footprint import in_words

    log = copied.log
    click.echo(f"{folder}: run {copied.name}, {log.rounds} rounds, {log.size} entries, checked; {in_words(copied.num_bytes)}")
    click.echo(f"newest state: round {copied.snapshot}; root {log.root.hex()}")


COMMANDS = (key, status, stop, snapshot, backup, restore, recover, hand_over)
