"""The command of manta-peer that says what this peer has earned, offline. Parses, calls, prints, exits."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from manta_swarm.peer.commands import DIR, clear_errors, directory_in
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import ending_at_ctrl_c

if TYPE_CHECKING:
    from manta_swarm.network.log_client import CreditWord
    from manta_swarm.peer.commands.earnings import AccountEarned, RoundEarnings, RunEarned

SHOWN = 20  # rounds, unless all are asked for


@click.command(name="credits")
@DIR
@click.option("--verify", is_flag=True, help="Check each signature and proof; exit code 1 if one does not hold.")
@click.option("--all", "is_all", is_flag=True, help=f"Show every round, not only the newest {SHOWN}.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON: every round, with what proves it.")
@click.option("--account", metavar="KEY", help="Sum the checked payout receipts for the account KEY in all FOLDERs.")
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
def credits_command(verify: bool, is_all: bool, is_json: bool, account: str | None, folders: tuple[Path, ...], **options: Any) -> None:
    """Say what runs have paid this peer, and what is pending. What is lost is said too, round by round.

    All of it comes from what the peer keeps: nothing is asked over the network. With --account, a FOLDER is a peer's, or one of payout
    receipts, copied from any machine."""
    with clear_errors():
        if account is not None:
            _say_account(account, folders or (directory_in(options),), is_json=is_json)
        if folders:
            raise UserError("FOLDER... is for --account KEY, which adds up the payout receipts of several machines; else give --dir DIR")
        with ending_at_ctrl_c():
            from manta_swarm.peer.commands.earnings import runs_of

        directory = directory_in(options)
        runs = runs_of(directory, verify=verify)
        if is_json:
            click.echo(
                json.dumps({"verified": verify, "holds": holds(runs), "runs": [plain(run, verify=verify) for run in runs]}, indent=1)
            )
        else:
            for line in lines_of(runs, verify=verify, is_all=is_all):
                click.echo(line)
            if not runs:
                click.echo(f"no payout receipts in {directory}: no round has counted this peer yet, as far as it knows")
    sys.exit(0 if holds(runs) else 1)


def _say_account(name: str, folders: tuple[Path, ...], *, is_json: bool) -> NoReturn:
    from manta_swarm.peer.config import account_named

    try:
        account = account_named(name)
    except ValueError as error:
        raise UserError(f"--account: {error}") from error
    with ending_at_ctrl_c():
        from manta_swarm.peer.commands.earnings import account_runs_of

    runs = account_runs_of(folders, account)
    is_good = not any(run.problems for run in runs)
    if is_json:
        shown = {"account": name, "verified": True, "holds": is_good, "runs": [_plain_of_account(run) for run in runs]}
        click.echo(json.dumps(shown, indent=1))
    else:
        click.echo(f"account {name}")
        for run in runs:
            for line in _lines_of_account(run):
                click.echo(line)
    sys.exit(0 if is_good else 1)


def _lines_of_account(run: "AccountEarned") -> Iterator[str]:
    from manta_swarm.peer.commands.earnings import CLAIMS
    from manta_swarm.protocol.signing import peer_name

    if run.run:
        yield f"run {run.name} ({run.run[:16]})"
        for key in run.keys:
            yield f"  peer {peer_name(key)} {_sums(run.of_key(key))}"
        every = list(run.rounds.values())
        yield f"total of {_counted(len(run.keys), 'peer')} {_sums(every)}"
        proven = sum(one.by == CLAIMS for one in every)
        yield f"verified: {len(every)} payout receipts are in the run's log and name the account; what {proven} paid follows from them"
        if proven < len(every):
            yield f"not proven: what the other {len(every) - proven} paid is the log's word: their claims are not kept there"
    for problem in run.problems:
        yield f"PROBLEM: {problem}"


def _sums(rounds: "list[RoundEarnings]") -> str:
    from manta_swarm.peer.commands.earnings import LOST, PAID, PENDING, total

    amounts = f"paid {total(rounds, PAID):,}, pending {total(rounds, PENDING):,}, lost {total(rounds, LOST):,}"
    return f"on {_counted(len(rounds), 'payout receipt')}: {amounts}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _plain_of_account(run: "AccountEarned") -> dict[str, Any]:
    from manta_swarm.protocol.signing import peer_name

    return {
        "run": run.run,
        "name": run.name,
        **_plain_sums(list(run.rounds.values())),
        "peers": [{"peer": peer_name(key), **_plain_sums(run.of_key(key))} for key in run.keys],
        "problems": run.problems,
    }


def _plain_sums(rounds: "list[RoundEarnings]") -> dict[str, int]:
    from manta_swarm.peer.commands.earnings import CLAIMS, LOST, PAID, PENDING, total

    return {
        "payout_receipts": len(rounds),
        "proven": sum(one.by == CLAIMS for one in rounds),
        "paid": total(rounds, PAID),
        "pending": total(rounds, PENDING),
        "lost": total(rounds, LOST),
    }


def holds(runs: "list[RunEarned]") -> bool:
    """Return whether nothing is damaged, and all that was checked holds."""
    return not any(run.problems for run in runs)


def lines_of(runs: "list[RunEarned]", *, verify: bool, is_all: bool = False) -> Iterator[str]:
    """Yield what a person reads."""
    for run in runs:
        if run.run:
            yield from _lines_of(run, verify=verify, is_all=is_all)
        for problem in run.problems:
            yield f"PROBLEM: {problem}"


def _lines_of(run: "RunEarned", *, verify: bool, is_all: bool) -> Iterator[str]:
    from manta_swarm.peer.commands.earnings import CLAIMS, UNKNOWN
    from manta_swarm.protocol.signing import peer_name

    yield f"run {run.name} ({run.run[:16]}), known up to round {run.round}"
    for key in sorted({one.key for one in run.rounds}):
        yield f"key {peer_name(key)}"
    for account in sorted({one.account for one in run.rounds if one.account != one.key}):
        of = [one for one in run.rounds if one.account == account]
        yield f"{len(of)} of {len(run.rounds)} payout receipts add up to account {peer_name(account)}"
    shown = run.rounds if is_all else run.rounds[-SHOWN:]
    if len(shown) < len(run.rounds):
        yield f"  {len(run.rounds) - len(shown)} rounds before these: see --all"
    for one in shown:
        amount = "not known" if one.amount is None else f"{one.amount:,}"
        yield f"  round {one.round:<8} {amount:>16}{_voucher(one, verify=verify)}  {one.state}{f' ({one.reason})' if one.reason else ''}"
    yield f"total {_sums(run.rounds)}"
    if run.is_private:
        yield "the data are private: nobody else can compute microbatches of them again"
    if verify and run.rounds:
        whole = sum(one.by == CLAIMS for one in run.rounds)
        rounds = f"{len(run.rounds)} rounds are in the run's log and count this peer"
        yield f"verified: {rounds}; what {whole} of them paid follows from their claims"
        if whole < len(run.rounds):
            yield f"not proven: what the other {len(run.rounds) - whole} paid is the log's word: their claims are not kept here"
    if unknown := sum(one.by == UNKNOWN for one in run.rounds):
        yield f"what {unknown} rounds paid is not known here: the log did not say, and has it"
    yield from _lines_of_word(run)


def _lines_of_word(run: "RunEarned") -> Iterator[str]:
    """Say what is the log's word alone."""
    from manta_swarm.peer.status import fault_line, pending_words, plain_fault, unproven_words

    word = run.word
    if word is None:
        yield "the log has not said yet what it counts: verdicts, and pay for audits, are not known here"
        return
    words = f" ({pending_words(word.until, run.num_rounds)})" if word.pending else ""
    yield f"the log says, up to round {word.round}: paid {word.paid:,}, pending {word.pending:,}{words}"
    for each in word.faults:
        yield f"  {fault_line(plain_fault(each))}"
    if run.rules is not None and not word.proven:
        yield f"  {unproven_words(word.good, run.rules.proven_after)}"
    known = sum(one.amount or 0 for one in run.rounds if one.round <= word.round)
    if (more := word.credit - known) > 0:
        yield f"  {more:,} of it is on no payout receipt here: earned in rounds whose payout receipts are not kept here, or by audits"
    if run.rules is not None:
        yield "what a round of an audited run pays follows from its whole log: amounts and verdicts are the log's word here, and may have"
        yield "changed since: who copies the log sees them (manta-aggregator credits)"


def _voucher(one: "RoundEarnings", *, verify: bool) -> str:
    from manta_swarm.peer.commands.earnings import CLAIMS, WORD

    if one.by == WORD:
        return " (as the log says)"
    return " (proven)" if verify and one.by == CLAIMS else ""


def plain(run: "RunEarned", *, verify: bool) -> dict[str, Any]:
    """Return what is known of a run as plain values."""
    from manta_swarm.peer.commands.earnings import LOST, PAID, PENDING
    from manta_swarm.protocol.signing import peer_name

    return {
        "run": run.run,
        "name": run.name,
        "folder": str(run.folder),
        "round": run.round,
        "num_rounds": run.num_rounds,
        "pending_rounds": 0 if run.rules is None else run.rules.pending_rounds,
        "is_private": run.is_private,
        "paid": run.total(PAID),
        "pending": run.total(PENDING),
        "lost": run.total(LOST),
        "rounds": [
            {
                "round": one.round,
                "peer": peer_name(one.key),
                "account": peer_name(one.account),
                "amount": one.amount,
                "known_by": one.by,
                "state": one.state,
                "reason": one.reason,
                "paid_with": one.paid_with,
                **(_proof(one) if verify else {}),
            }
            for one in run.rounds
        ],
        "log_says": None if run.word is None else _plain_word(run.word),
        "problems": run.problems,
    }


def _proof(one: "RoundEarnings") -> dict[str, Any]:
    payout_receipt = one.payout_receipt
    if payout_receipt is None:
        return {}
    return {
        "index": payout_receipt.index,
        "tree_size": payout_receipt.head.size,
        "root": payout_receipt.head.root.hex(),
        "commit": payout_receipt.commit.hex(),
        "microbatches": payout_receipt.microbatches,
    }


def _plain_word(word: "CreditWord") -> dict[str, Any]:
    from manta_swarm.peer.status import plain_fault

    return {
        "round": word.round,
        "paid": word.paid,
        "pending": word.pending,
        "until": word.until,
        "faults": [asdict(plain_fault(each)) for each in word.faults],
        "good": word.good,
        "is_proven": bool(word.proven),
    }
