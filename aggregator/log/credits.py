"""What everybody has earned by a log that was verified: final, pending and void, each with its reason; as lines, as CSV, as JSON."""

import csv
import io
import json
from collections.abc import Iterable, Iterator

from aggregator.log.verify import Verification
from protocol.accounts import Account
from protocol.horizon import Outlook
from protocol.signing import peer_name

_COLUMNS = ("peer", "final", "pending", "all_final_with_round", "void", "reasons", "account", "stays_pending")


def as_lines(found: Verification) -> Iterator[str]:
    """Yield what a person reads: who has most first."""
    yield f"run {found.run.hex()}"
    yield f"round {found.rounds}, {found.size} entries verified, root {found.root.hex()}"
    for key, account in _accounts(found):
        parts = [f"final {account.final}"]
        if pending := account.credit - account.final:
            parts.append(f"pending {pending} ({found.horizon.outlook(account.pending).words()})")
        parts += [f"void {void.amount} ({reason})" for void, reason in zip(account.void, _reasons(account), strict=True)]
        yield f"{peer_name(key)} {', '.join(parts)}{' unaudited' if found.is_unaudited else ''}"
    for owner, keys in by_account(found).items():
        final, outlook, void = _sums(found, keys)
        of = "1 key" if len(keys) == 1 else f"{len(keys)} keys"
        words = f" ({outlook.words()})" if outlook.stays else ""
        yield f"account {peer_name(owner)} of {of}: final {final}, pending {outlook.final + outlook.stays}{words}, void {void}"


def by_account(found: Verification) -> dict[bytes, list[bytes]]:
    """Return account -> the keys whose credit adds up to it: those that belong to it, and its own if that earned something."""
    earned = set(found.accounts.keys())
    return {account: [*([account] if account in earned else []), *keys] for account, keys in found.owners.machines_of().items()}


def _sums(found: Verification, keys: Iterable[bytes]) -> tuple[int, Outlook, int]:
    """Return what is final, what becomes of what is pending, and what is void."""
    accounts = [found.accounts.of(key) for key in keys]
    void = sum(each.amount for account in accounts for each in account.void)
    outlook = found.horizon.outlook(each for account in accounts for each in account.pending)
    return sum(one.final for one in accounts), outlook, void


def as_csv(found: Verification) -> str:
    """Return a table with a line of names first; several reasons are separated by semicolons.

    ``all_final_with_round`` is empty where nothing is pending, and where some of it stays so.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for key, account in _accounts(found):
        outlook = found.horizon.outlook(account.pending)
        void = sum(each.amount for each in account.void)
        table.writerow(
            (
                peer_name(key),
                account.final,
                outlook.final + outlook.stays,
                outlook.until if outlook.until and not outlook.stays else "",
                void,
                "; ".join(_reasons(account)),
                _account_name(found, key),
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
            "accounts": [
                {**_plain(found, key, account), "account": _account_name(found, key) or None} for key, account in _accounts(found)
            ],
            "by_account": [_plain_account(found, account, keys) for account, keys in by_account(found).items()],
        },
        indent=1,
    )


def _plain(found: Verification, key: bytes, account: Account) -> dict[str, object]:
    return {
        "peer": peer_name(key),
        "key": key.hex(),
        "final": account.final,
        "pending": [
            {"round": round_, "amount": amount, "final_with": found.horizon.final_with(round_)} for round_, amount in account.pending
        ],
        "stays_pending": found.horizon.outlook(account.pending).stays,
        "void": [
            {"amount": void.amount, "round": void.fault.round, "reason": void.fault.reason, "claim": void.fault.claim.hex()}
            for void in account.void
        ],
    }


def _plain_account(found: Verification, account: bytes, keys: list[bytes]) -> dict[str, object]:
    final, outlook, void = _sums(found, keys)
    return {
        "account": peer_name(account),
        "peers": [peer_name(key) for key in keys],
        "final": final,
        "pending": outlook.final + outlook.stays,
        "stays_pending": outlook.stays,
        "void": void,
    }


def _account_name(found: Verification, key: bytes) -> str:
    account = found.owners.of(key).account
    return peer_name(account) if account else ""


def _accounts(found: Verification) -> list[tuple[bytes, Account]]:
    keys = found.accounts.keys()
    return sorted(((key, found.accounts.of(key)) for key in keys), key=lambda one: (-one[1].credit, one[0]))


def _reasons(account: Account) -> list[str]:
    return [f"{void.fault.reason}, round {void.fault.round}, claim {void.fault.claim.hex()[:16]}" for void in account.void]
