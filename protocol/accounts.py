"""What keys have earned: pending for some rounds, then final; or void, with the reason. Pure, integers.

Where audits count, guilt takes back what is pending and nothing that is final. Whether somebody is guilty is ``protocol.standing``'s.
Nothing becomes final after a run's last round; what that means is ``protocol.horizon``'s.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """What one key has earned."""

    final: int
    pending: tuple[tuple[int, int], ...]  # (round, amount), the oldest first
    void: tuple[Void, ...]

    @property
    def credit(self) -> int:
        """What it has, for good or for now."""
        return self.final + sum(amount for _, amount in self.pending)


@dataclass(slots=True)
class Accounts:
    """The accounts of a run's keys. What is inside a mapping here is never changed, only replaced, so a copy may share it."""

    rounds: int  # for which what is earned is pending; 0: it is final at once
    final: Counter[bytes] = field(default_factory=Counter)
    pending: dict[int, dict[bytes, int]] = field(default_factory=dict)  # by round, the oldest first
    void: dict[bytes, tuple[Void, ...]] = field(default_factory=dict)

    def copy(self) -> "Accounts":
        """Return accounts that can go another way."""
        return Accounts(self.rounds, self.final.copy(), self.pending.copy(), self.void.copy())

    def earn(self, round: int, shares: Mapping[bytes, int]) -> None:
        """Note what the newest round pays; what is old enough becomes final."""
        if not self.rounds:
            self.final.update(shares)
            return
        self.pending[round] = dict(shares)
        for old in [old for old in self.pending if old <= round - self.rounds]:
            self.final.update(self.pending.pop(old))

    def take_back(self, key: bytes, fault: Fault, round: int | None = None) -> None:
        """Make all void that is pending for ``key``, or that alone which ``round`` paid."""
        amount = 0
        for round_, shares in self.pending.items():
            if key in shares and round in (None, round_):
                amount += shares[key]
                self.pending[round_] = {each: share for each, share in shares.items() if each != key}
        self.deny(key, amount, fault)

    def deny(self, key: bytes, amount: int, fault: Fault) -> None:
        """Note what ``key`` would have earned but for its fault."""
        before = self.void.get(key, ())
        said = sum(each.amount for each in before if each.fault == fault)
        self.void[key] = (*(each for each in before if each.fault != fault), Void(said + amount, fault))

    def of(self, key: bytes) -> Account:
        """Return what ``key`` has earned."""
        pending = tuple((round_, shares[key]) for round_, shares in self.pending.items() if shares.get(key))
        return Account(self.final[key], pending, self.void.get(key, ()))

    def has_earned(self, key: bytes) -> bool:
        """Return whether work of ``key`` is paid, or will be, if only with nothing."""
        return key in self.final or any(key in shares for shares in self.pending.values())

    def credits(self) -> dict[bytes, int]:
        """Return key -> what it has, for good or for now; keys in order, who has nothing is not in it."""
        total = self.final.copy()
        for shares in self.pending.values():
            total.update(shares)
        return {key: total[key] for key in sorted(total) if total[key]}

    def keys(self) -> list[bytes]:
        """Return all keys that have, or had, anything."""
        return sorted({*self.credits(), *self.void})
