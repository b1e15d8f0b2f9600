"""What everybody has earned for which account, by what a log's verdicts add up to. Pure; loads no torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from manta_swarm.protocol.reputation import Reputation


@dataclass(frozen=True, slots=True)
class Earned:
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


def earned_by_account(reputation: Reputation) -> dict[bytes, dict[bytes, Earned]]:
    """Return account -> key -> what it has earned for that: accounts and keys with most first.

    Also those keys are there that have nothing, but were found out.
    """
    pending = dict[tuple[bytes, bytes], list[tuple[int, int]]]()
    for round_, works in reputation.unpaid.items():
        accounts = {key: account for work in works for key, account in zip(work.keys, work.payouts, strict=True)}
        for key, amount in reputation.expected(round_).items():
            if amount:
                pending.setdefault((key, accounts[key]), []).append((round_, amount))
    pairs = {pair for pair, amount in reputation.paid.items() if amount} | pending.keys()
    pairs |= {(key, reputation.payouts.get(key, key)) for key in reputation.faults}
    found = dict[bytes, dict[bytes, Earned]]()
    for key, account in pairs:
        found.setdefault(account, {})[key] = Earned(reputation.paid[key, account], tuple(pending.get((key, account), ())))
    of_accounts = {account: together(of_keys.values()).credit for account, of_keys in found.items()}
    return {
        account: dict(sorted(found[account].items(), key=lambda one: (-one[1].credit, one[0])))
        for account in sorted(found, key=lambda account: (-of_accounts[account], account))
    }


def together(earned: Iterable[Earned]) -> Earned:
    """Return what several keys have earned for one account."""
    paid, rounds = 0, dict[int, int]()
    for one in earned:
        paid += one.paid
        for round_, amount in one.rounds:
            rounds[round_] = rounds.get(round_, 0) + amount
    return Earned(paid, tuple(sorted(rounds.items())))
