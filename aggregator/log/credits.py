"""What adds up to each account by a log that was verified, and which keys earned it: as lines, as CSV, as JSON.

An account is the key that claims name as their payout: where nobody names another, each key's own. What is paid and what is pending is told
of each account and of each key that earned something for it. Pending is what rounds that are not paid yet would pay if nothing more were
found; what their audits pay comes on top. With a key stands what was found out about it: of which contribution, and since which round.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.log.verify import Verification
from manta_swarm.protocol.reputation import FALSE, Fault, Reputation, paid_with
from manta_swarm.protocol.signing import peer_name

SETTLEMENT = "settlement"  # what pays the rounds that no round's entry pays
_COLUMNS = ("account", "peer", "paid", "pending", "all_paid_with", "faults")


@dataclass(frozen=True, slots=True)
class AccountCredit:
    """What was earned for an account, by one key or by several."""

    paid: int
    rounds: tuple[tuple[int, int], ...]  # (round, what is pending of it), the oldest first

    @property
    def pending(self) -> int:
        """What is pending of all rounds."""
        return sum(amount for _, amount in self.rounds)

    @property
    def credit(self) -> int:
        """What is paid or pending."""
        return self.paid + self.pending


def earned_by_account(reputation: Reputation) -> dict[bytes, dict[bytes, AccountCredit]]:
    """Return account -> key -> what it has earned for that: accounts and keys with most first.

    Also those keys are there that have nothing, but were found out.
    """
    pending = dict[tuple[bytes, bytes], list[tuple[int, int]]]()
    for round_, works in reputation.pending.items():
        accounts = {key: account for work in works for key, account in zip(work.keys, work.payouts, strict=True)}
        for key, amount in reputation.expected(round_).items():
            if amount:
                pending.setdefault((key, accounts[key]), []).append((round_, amount))
    pairs = {pair for pair, amount in reputation.paid.items() if amount} | pending.keys()
    pairs |= {(key, reputation.payouts.get(key, key)) for key in reputation.faults}
    found = dict[bytes, dict[bytes, AccountCredit]]()
    for key, account in pairs:
        found.setdefault(account, {})[key] = AccountCredit(reputation.paid[key, account], tuple(pending.get((key, account), ())))
    of_accounts = {account: together(of_keys.values()).credit for account, of_keys in found.items()}
    return {
        account: dict(sorted(found[account].items(), key=lambda one: (-one[1].credit, one[0])))
        for account in sorted(found, key=lambda account: (-of_accounts[account], account))
    }


def together(earned: Iterable[AccountCredit]) -> AccountCredit:
    """Return what several keys have earned for one account."""
    paid, rounds = 0, dict[int, int]()
    for one in earned:
        paid += one.paid
        for round_, amount in one.rounds:
            rounds[round_] = rounds.get(round_, 0) + amount
    return AccountCredit(paid, tuple(sorted(rounds.items())))


def fault_in_words(fault: Fault) -> str:
    """Return what was found out, in words."""
    what = "found false" if fault.reason == FALSE else "not shown"
    return f"{what}, round {fault.round}, contribution {fault.contribution.hex()[:16]}"


def settled_in_words(reputation: Reputation, num_rounds: int, *, is_settled: bool) -> str:
    """Return up to where a run is paid, in words; empty: all of it is, as in every run without audits."""
    if reputation.rules is None:
        return ""
    if is_settled:
        return "settled: all that the run pays is paid"
    if not reputation.pending:
        return "not settled yet"
    first, last = min(reputation.pending), max(reputation.pending)
    paid = f"rounds up to {first - 1} are paid" if first > 1 else "no round is paid yet"
    return f"{paid}; round {last} is paid {_with(paid_with(reputation.rules, num_rounds, last))}"


def as_lines(found: Verification) -> Iterator[str]:
    """Yield what a person reads: who has most first."""
    yield f"run {found.run.hex()}"
    yield f"round {found.rounds}, {found.size} entries verified, root {found.root.hex()}"
    if words := settled_in_words(found.reputation, found.num_rounds, is_settled=found.is_settled):
        yield words
    for account, of_keys in earned_by_account(found.reputation).items():
        is_own = [*of_keys] == [account]
        if not is_own:
            of = "1 key" if len(of_keys) == 1 else f"{len(of_keys)} keys"
            yield f"account {peer_name(account)} of {of}: {_parts(found, together(of_keys.values()))}"
        for key, earned in of_keys.items():
            faults = "".join(f"; {fault_in_words(fault)}" for fault in _faults(found, key))
            line = f"{peer_name(key)} {_parts(found, earned)}{faults}{' private data' if found.is_private else ''}"
            yield line if is_own else f"  {line}"


def _parts(found: Verification, earned: AccountCredit) -> str:
    paid = f"paid {earned.paid}"
    return f"{paid}, pending {earned.pending} (all paid {_with(_all_paid_with(found, earned))})" if earned.rounds else paid


def _with(round_: int | None) -> str:
    return f"with the {SETTLEMENT}" if round_ is None else f"with round {round_}"


def _all_paid_with(found: Verification, earned: AccountCredit) -> int | None:
    """Return the round with which the last of what is pending is paid; None: with the settlement."""
    return paid_with(found.reputation.rules, found.num_rounds, earned.rounds[-1][0])


def _faults(found: Verification, key: bytes) -> Sequence[Fault]:
    return found.reputation.faults.get(key, ())


def as_csv(found: Verification) -> str:
    """Return a table with a line of names first, and a row for each key of each account; several faults are separated by semicolons.

    ``all_paid_with`` is a round, ``settlement``, or empty where nothing is pending.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for account, of_keys in earned_by_account(found.reputation).items():
        for key, earned in of_keys.items():
            faults = "; ".join(map(fault_in_words, _faults(found, key)))
            last = (_all_paid_with(found, earned) or SETTLEMENT) if earned.rounds else ""
            table.writerow((peer_name(account), peer_name(key), earned.paid, earned.pending, last, faults))
    return text.getvalue()


def as_json(found: Verification) -> str:
    """Return all that the log says of credit, with the root that it was verified under."""
    rules = found.reputation.rules
    return json.dumps(
        {
            "run": found.run.hex(),
            "round": found.rounds,
            "entries": found.size,
            "root": found.root.hex(),
            "num_rounds": found.num_rounds,
            "is_audited": rules is not None,
            "pending_rounds": 0 if rules is None else rules.pending_rounds,
            "is_settled": found.is_settled,
            "is_private": found.is_private,
            "accounts": [_plain_account(found, *one) for one in earned_by_account(found.reputation).items()],
        },
        indent=1,
    )


def _plain_account(found: Verification, account: bytes, of_keys: Mapping[bytes, AccountCredit]) -> dict[str, object]:
    whole = together(of_keys.values())
    return {
        "account": peer_name(account),
        "key": account.hex(),
        "paid": whole.paid,
        "pending": whole.pending,
        "peers": [_plain(found, key, earned) for key, earned in of_keys.items()],
    }


def _plain(found: Verification, key: bytes, earned: AccountCredit) -> dict[str, object]:
    """Return what a key has earned for an account; ``paid_with``: a round, or null for the settlement."""
    rules = found.reputation.rules
    return {
        "peer": peer_name(key),
        "key": key.hex(),
        "paid": earned.paid,
        "pending": [
            {"round": round_, "amount": amount, "paid_with": paid_with(rules, found.num_rounds, round_)} for round_, amount in earned.rounds
        ],
        "is_proven": found.reputation.is_proven(key),
        "found_good": found.reputation.good[key],
        "faults": [
            {"round": fault.round, "reason": fault.reason, "contribution": fault.contribution.hex()} for fault in _faults(found, key)
        ],
    }
