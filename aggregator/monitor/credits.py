"""What everybody has, by one rule for all that the monitor shows: what was paid, and what rounds would pay that are not paid yet. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from manta_swarm.aggregator.log.credits import Earned, earned_by_account, together
from manta_swarm.protocol.reputation import Reputation


@dataclass(frozen=True, slots=True)
class Credits:
    """What every key and every account has earned at one moment."""

    by_key: Mapping[bytes, int]  # what all who earned something once have, for whichever accounts
    ranked: tuple[bytes, ...]  # these keys, who has most first; ties by key
    by_account: Mapping[bytes, Earned]  # what adds up to each account; which has most first, ties by key
    earners: Mapping[bytes, tuple[bytes, ...]]  # by account: the keys that earned something for it once, who has most first
    paid: int
    pending: int

    @property
    def total(self) -> int:
        """What all have."""
        return self.paid + self.pending


def credits_of(reputation: Reputation) -> Credits:
    """Return what everybody has."""
    found = earned_by_account(reputation)
    by_key = Counter[bytes]()
    for of_keys in found.values():
        for key, earned in of_keys.items():
            by_key[key] += earned.credit
    by_account = {account: together(of_keys.values()) for account, of_keys in found.items()}
    return Credits(
        by_key=by_key,
        ranked=tuple(sorted(by_key, key=lambda key: (-by_key[key], key))),
        by_account=by_account,
        earners={account: tuple(of_keys) for account, of_keys in found.items()},
        paid=sum(earned.paid for earned in by_account.values()),
        pending=sum(earned.pending for earned in by_account.values()),
    )
