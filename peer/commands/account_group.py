"""The commands of manta-peer for accounts of several machines. Parse, call, print, exit."""

import asyncio
from pathlib import Path
from typing import Any

import click

from peer.clear_errors import clear_errors
from peer.commands.upkeep import DIR, directory_in
from swarm.loading import ending_at_ctrl_c

_KEY = click.option(
    "--key", "account", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="The account's key."
)


@click.group(name="account", invoke_without_command=True)
@DIR
def account_group(**options: Any) -> None:
    """Have the credit of several machines add up to one account. Without a command, say to which one this machine's is to."""
    if click.get_current_context().invoked_subcommand is None:
        with clear_errors():
            from peer.commands.accounts import shown

            click.echo(shown(directory_in(options)))


@account_group.command(name="new")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
def new_command(path: Path) -> None:
    """Make an account. Its key is in FILE, which no machine needs that trains."""
    with clear_errors():
        from peer.commands.accounts import make_account

        click.echo(make_account(path.expanduser()))


@account_group.command(name="grant")
@click.argument("peer", metavar="PEER")
@_KEY
def grant_command(peer: str, account: Path) -> None:
    """Print the grant with which the machine PEER joins the account. PEER is its name (12D3Koo...), which manta-peer identity prints
    there."""
    with clear_errors():
        from peer.commands.accounts import grant_text

        click.echo(grant_text(account.expanduser(), peer))


@account_group.command(name="join")
@click.argument("grant", metavar="TEXT|FILE")
@DIR
def join_command(grant: str, **options: Any) -> None:
    """Have this machine's credit add up to the account of a grant. That holds in each run that it takes part in."""
    with clear_errors():
        from peer.commands.accounts import join_account

        click.echo(join_account(directory_in(options), grant))


@account_group.command(name="leave")
@DIR
def leave_command(**options: Any) -> None:
    """Have this machine's credit add up to no account any more. It takes with it what it earned."""
    with clear_errors():
        from peer.commands.accounts import leave_account

        click.echo(leave_account(directory_in(options)))


@account_group.command(name="revoke")
@click.argument("peer", metavar="PEER")
@_KEY
@click.option("--initial-peers", multiple=True, metavar="MADDR", help="Address that the operator printed; may be repeated.")
@click.option("--run", metavar="ID", help="The run's id: no other.")
@click.option("--invitation", metavar="FILE|TEXT", help="Where a run takes invited peers only, and the peer of --dir is none of them yet.")
@DIR
def revoke_command(peer: str, account: Path, **options: Any) -> None:
    """End, as the account, that a machine's credit adds up to it. That holds for one run; the machine is not needed for it."""
    with clear_errors():
        from peer.config import load_config
        from peer.early import check_visit

        config = load_config({name: value for name, value in options.items() if value not in (None, ())})
        check_visit(config)
        with ending_at_ctrl_c():
            from peer.commands.accounts import revoke

        click.echo(asyncio.run(revoke(config, account.expanduser(), peer)))
