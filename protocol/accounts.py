"""What claims have earned, by the key that made them and the account that they add up to: pending, final, or void with the reason. Pure.

A claim's credit is earned by its key: a fault of the key makes void what is pending of it, whichever account its claims name. It adds up to
the claim's payout account. What a key earns otherwise, by audits, adds up to the account that its newest claim in a table names, or to its
own where it has none.

What is pending becomes final some rounds later; nothing that is final is taken back. Whether somebody is guilty is ``protocol.standing``'s.
Nothing becomes final after a run's last round; what that means is ``protocol.horizon``'s.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Fault:
    """Why trust in a key ended."""

    round: int  # with whose entry
    reason: str  # one of ``protocol.standing``'s reasons
    claim: bytes  # SignedClaim.digest that it is about


@dataclass(frozen=True, slots=True)
class Void:
    """What was earned and is taken back, or was earned after guilt."""

    amount: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Account:
    """What one key has earned, or what adds up to one account."""

    final: int
    pending: tuple[tuple[int, int], ...]  # (round, amount), the oldest first
    void: tuple[Void, ...]  # one a fault, the newest last

    @property
    def credit(self) -> int:
        """What it has, for good or for now."""
        return self.final + sum(amount for _, amount in self.pending)


class Share(NamedTuple):
    """What a round pays to one key."""

    account: bytes  # that it adds up to
    amount: int


@dataclass(slots=True)
class Accounts:
    """The accounts of a run. What is inside a mapping here is never changed, only replaced, so a copy may share it."""

    rounds: int  # for which what is earned is pending; 0: it is final at once
    final: dict[bytes, dict[bytes, int]] = field(default_factory=dict)  # by key, by account
    pending: dict[int, dict[bytes, Share]] = field(default_factory=dict)  # by round, the oldest first, by key
    void: dict[bytes, dict[bytes, tuple[Void, ...]]] = field(default_factory=dict)  # by key, by account
    payouts: dict[bytes, bytes] = field(default_factory=dict)  # by key: the account that its newest claim names

    def copy(self) -> "Accounts":
        """Return accounts that can go another way."""
        return Accounts(self.rounds, self.final.copy(), self.pending.copy(), self.void.copy(), self.payouts.copy())

    def name(self, payouts: Mapping[bytes, bytes]) -> None:
        """Note which accounts the claims of the newest round name, by key."""
        self.payouts.update(payouts)

    def earn(self, round: int, shares: Mapping[bytes, int]) -> None:
        """Note what the newest round pays, by key; what is old enough becomes final."""
        self.pending[round] = {key: Share(self.payouts.get(key, key), amount) for key, amount in shares.items()}
        for old in [old for old in self.pending if old <= round - self.rounds]:
            for key, share in self.pending.pop(old).items():
                before = self.final.get(key, {})
                self.final[key] = {**before, share.account: before.get(share.account, 0) + share.amount}

    def take_back(self, key: bytes, fault: Fault, round: int | None = None) -> None:
        """Make all void that is pending for ``key``, or that alone which ``round`` paid."""
        taken: Counter[bytes] = Counter()
        for round_, shares in self.pending.items():
            if key in shares and round in (None, round_):
                taken[shares[key].account] += shares[key].amount
                self.pending[round_] = {each: share for each, share in shares.items() if each != key}
        for account in taken or (self.payouts.get(key, key),):
            self._void(key, account, taken[account], fault)

    def deny(self, key: bytes, amount: int, fault: Fault) -> None:
        """Note what the newest round would have paid to ``key`` but for its fault."""
        self._void(key, self.payouts.get(key, key), amount, fault)

    def of(self, key: bytes, account: bytes | None = None) -> Account:
        """Return what ``key`` has earned, for whichever accounts, or for one alone."""
        final, void = self.final.get(key, {}), self.void.get(key, {})
        shares = [(round_, shares[key]) for round_, shares in self.pending.items() if key in shares]
        return together(
            Account(
                sum(amount for each, amount in final.items() if account in (None, each)),
                tuple((round_, share.amount) for round_, share in shares if account in (None, share.account)),
                tuple(each for of, voids in void.items() for each in voids if account in (None, of)),
            )
        )

    def of_account(self, account: bytes) -> Account:
        """Return what adds up to ``account``, whoever earned it."""
        keys = {*self.final, *self.void, *(key for shares in self.pending.values() for key in shares)}
        return together(*(self.of(key, account) for key in sorted(keys)))

    def has_earned(self, key: bytes) -> bool:
        """Return whether work of ``key`` is paid, or will be, if only with nothing."""
        return key in self.final or any(key in shares for shares in self.pending.values())

    def credits(self) -> dict[bytes, int]:
        """Return account -> what it has, for good or for now; accounts in order, who has nothing is not in it."""
        return _in_order((account, amount) for _, account, amount in self._amounts())

    def credits_of_keys(self) -> dict[bytes, int]:
        """Return key -> what it has earned, for good or for now; keys in order, who has nothing is not in it."""
        return _in_order((key, amount) for key, _, amount in self._amounts())

    def keys(self) -> list[bytes]:
        """Return all keys that have, or had, earned anything."""
        return sorted({*self.credits_of_keys(), *self.void})

    def by_account(self) -> dict[bytes, dict[bytes, int]]:
        """Return account -> key -> what it has earned for that, for good or for now; all in order, and with 0 where all of it is void."""
        pairs = Counter({(account, key): 0 for key, voids in self.void.items() for account in voids})
        for key, account, amount in self._amounts():
            pairs[account, key] += amount
        found = dict[bytes, dict[bytes, int]]()
        for account, key in sorted(pair for pair, amount in pairs.items() if amount or pair[0] in self.void.get(pair[1], {})):
            found.setdefault(account, {})[key] = pairs[account, key]
        return found

    def _amounts(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key, account and amount of all that is final or pending."""
        for key, amounts in self.final.items():
            yield from ((key, account, amount) for account, amount in amounts.items())
        for shares in self.pending.values():
            yield from ((key, share.account, share.amount) for key, share in shares.items())

    def _void(self, key: bytes, account: bytes, amount: int, fault: Fault) -> None:
        voids = self.void.get(key, {})
        before = voids.get(account, ())
        said = sum(each.amount for each in before if each.fault == fault)
        self.void[key] = {**voids, account: (*(each for each in before if each.fault != fault), Void(said + amount, fault))}


def together(*accounts: Account) -> Account:
    """Return the sum of several accounts."""
    of_round, of_fault = Counter[int](), Counter[Fault]()
    for round_, amount in sorted(each for one in accounts for each in one.pending):
        of_round[round_] += amount
    for void in sorted((void for one in accounts for void in one.void), key=lambda void: void.fault.round):
        of_fault[void.fault] += void.amount
    pending = tuple((round_, amount) for round_, amount in of_round.items() if amount)
    return Account(sum(one.final for one in accounts), pending, tuple(Void(amount, fault) for fault, amount in of_fault.items()))


def _in_order(amounts: Iterable[tuple[bytes, int]]) -> dict[bytes, int]:
    total: Counter[bytes] = Counter()
    for key, amount in amounts:
        total[key] += amount
    return {key: total[key] for key in sorted(total) if total[key]}
