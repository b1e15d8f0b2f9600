"""What adds up to each account by a log that was verified, and which keys earned it: as lines, as CSV, as JSON.

An account is the key that claims name as their payout: where nobody names another, each key's own. What is final, pending and void is told
of each account and of each key that earned something for it, the reasons of what is void with the key.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping

from aggregator.log.verify import Verification
from protocol.accounts import Account, together
from protocol.signing import peer_name

_COLUMNS = ("account", "peer", "final", "pending", "all_final_with_round", "void", "reasons", "stays_pending")


def as_lines(found: Verification) -> Iterator[str]:
    """Yield what a person reads: who has most first."""
    yield f"run {found.run.hex()}"
    yield f"round {found.rounds}, {found.size} entries verified, root {found.root.hex()}"
    for account, of_keys in _by_account(found).items():
        is_own = [*of_keys] == [account]
        if not is_own:
            yield _line_of_account(found, account, of_keys)
        for key, earned in of_keys.items():
            line = f"{peer_name(key)} {', '.join(_parts(found, earned))}{' unaudited' if found.is_unaudited else ''}"
            yield line if is_own else f"  {line}"


def _parts(found: Verification, earned: Account) -> Iterator[str]:
    yield f"final {earned.final}"
    if pending := earned.credit - earned.final:
        yield f"pending {pending} ({found.horizon.outlook(earned.pending).words()})"
    for void, reason in zip(earned.void, _reasons(earned), strict=True):
        yield f"void {void.amount} ({reason})"


def _line_of_account(found: Verification, account: bytes, of_keys: Mapping[bytes, Account]) -> str:
    of = "1 key" if len(of_keys) == 1 else f"{len(of_keys)} keys"
    whole = together(*of_keys.values())
    outlook = found.horizon.outlook(whole.pending)
    words = f" ({outlook.words()})" if outlook.stays else ""
    void = sum(each.amount for each in whole.void)
    return f"account {peer_name(account)} of {of}: final {whole.final}, pending {outlook.final + outlook.stays}{words}, void {void}"


def as_csv(found: Verification) -> str:
    """Return a table with a line of names first, and a row for each key of each account; several reasons are separated by semicolons.

    ``all_final_with_round`` is empty where nothing is pending, and where some of it stays so.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for account, of_keys in _by_account(found).items():
        for key, earned in of_keys.items():
            outlook = found.horizon.outlook(earned.pending)
            table.writerow(
                (
                    peer_name(account),
                    peer_name(key),
                    earned.final,
                    outlook.final + outlook.stays,
                    outlook.until if outlook.until and not outlook.stays else "",
                    sum(each.amount for each in earned.void),
                    "; ".join(_reasons(earned)),
                    outlook.stays,
                )
            )
    return text.getvalue()


def as_json(found: Verification) -> str:
    """Return all that the log says of credit, with the root that it was verified under."""
    return json.dumps(
        {
            "run": found.run.hex(),
            "round": found.rounds,
            "entries": found.size,
            "root": found.root.hex(),
            "num_rounds": found.num_rounds,
            "pending_rounds": found.accounts.rounds,
            "last_final_round": found.horizon.last_final,
            "is_unaudited": found.is_unaudited,
            "accounts": [_plain_account(found, account, of_keys) for account, of_keys in _by_account(found).items()],
        },
        indent=1,
    )


def _plain_account(found: Verification, account: bytes, of_keys: Mapping[bytes, Account]) -> dict[str, object]:
    whole = together(*of_keys.values())
    return {
        "account": peer_name(account),
        "key": account.hex(),
        "final": whole.final,
        "pending": whole.credit - whole.final,
        "stays_pending": found.horizon.outlook(whole.pending).stays,
        "void": sum(each.amount for each in whole.void),
        "peers": [_plain(found, key, earned) for key, earned in of_keys.items()],
    }


def _plain(found: Verification, key: bytes, earned: Account) -> dict[str, object]:
    return {
        "peer": peer_name(key),
        "key": key.hex(),
        "final": earned.final,
        "pending": [
            {"round": round_, "amount": amount, "final_with": found.horizon.final_with(round_)} for round_, amount in earned.pending
        ],
        "stays_pending": found.horizon.outlook(earned.pending).stays,
        "void": [
            {"amount": void.amount, "round": void.fault.round, "reason": void.fault.reason, "claim": void.fault.claim.hex()}
            for void in earned.void
        ],
    }


def _by_account(found: Verification) -> dict[bytes, dict[bytes, Account]]:
    """Return account -> key -> what it has earned for that: accounts and keys with most first."""
    by_account = sorted(found.accounts.by_account().items(), key=lambda one: (-sum(one[1].values()), one[0]))
    return {
        account: {key: found.accounts.of(key, account) for key in sorted(credits_, key=lambda key: (-credits_[key], key))}
        for account, credits_ in by_account
    }


def _reasons(earned: Account) -> list[str]:
    return [f"{void.fault.reason}, round {void.fault.round}, claim {void.fault.claim.hex()[:16]}" for void in earned.void]
