"""What keys have earned: pending for some rounds, then final; or void, with the reason. Pure, integers.

Where audits count, guilt takes back what is pending and nothing that is final. Whether somebody is guilty is ``protocol.standing``'s.
Nothing becomes final after a run's last round: what is pending then stays pending. ``Horizon`` says what that is, from the start on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from protocol.manifest import Manifest

STAYS_NOTHING, STAYS_LATER, STAYS_ALL = "", "later", "all"  # of what is pending: what of it stays so


@dataclass(frozen=True, slots=True)
class Fault:
    """Why trust in a key ended."""

    round: int  # with whose entry
    reason: str  # one of ``protocol.standing``'s reasons
    claim: bytes  # SignedClaim.digest that it is about; of a decoy itself, empty


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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What becomes of pending credit that no fault takes back."""

    final: int  # of it, that becomes final within the run
    until: int  # the round with which the last of that is final; 0: nothing is
    stays: int  # of it, that stays pending
    num_rounds: int  # of the run

    def words(self, number: Callable[[int], str] = str) -> str:
        """Return it in words, amounts as ``number`` writes them; empty where nothing is pending."""
        stays = f"stays pending: the run ends with round {self.num_rounds}"
        if not self.stays:
            return f"final with round {self.until}" if self.final else ""
        return f"{number(self.final)} of it final with round {self.until}; {number(self.stays)} {stays}" if self.final else stays


@dataclass(frozen=True, slots=True)
class Horizon:
    """Up to where a run's pay becomes final: its last round is the last one with whose entry anything does."""

    num_rounds: int  # of the run
    pending_rounds: int  # for which what is earned is pending; 0: it is final at once

    @classmethod
    def of(cls, manifest: Manifest) -> "Horizon":
        """Return a run's."""
        return cls(manifest.num_rounds, manifest.trust.pending_rounds if manifest.trust.is_audited else 0)

    @property
    def last_final(self) -> int:
        """The newest round whose pay becomes final within the run, 0: there is none; what later ones pay stays pending."""
        return max(0, self.num_rounds - self.pending_rounds)

    def final_with(self, round: int) -> int | None:
        """Return the round with whose entry what ``round`` pays becomes final; None: it stays pending."""
        return round + self.pending_rounds if round <= self.last_final else None

    def outlook(self, pending: Iterable[tuple[int, int]]) -> Outlook:
        """Return what becomes of these: (round, amount)."""
        final = until = stays = 0
        for round_, amount in pending:
            if (end := self.final_with(round_)) is None:
                stays += amount
            else:
                final, until = final + amount, max(until, end)
        return Outlook(final, until, stays, self.num_rounds)

    def told(self, round: int, until: int) -> tuple[str, int]:
        """Return what the log's word of a key says of what is pending, whose rounds it does not tell.

        Args:
            round: the newest that it counts.
            until: the round with which the last of it would be final, if the run went on; 0: nothing is pending.

        Returns:
            STAYS_NOTHING, STAYS_ALL, or STAYS_LATER: what rounds after ``last_final`` paid; and the round with which the rest is
            final, at the latest; 0: nothing is.
        """
        if until <= self.num_rounds:
            return STAYS_NOTHING, until
        return (STAYS_LATER, self.num_rounds) if self.last_final and round < self.num_rounds else (STAYS_ALL, 0)


def told_words(stays: str, until: int, last_final: int, num_rounds: int) -> str:
    """Return in words what ``Horizon.told`` says of credit that is pending."""
    if stays == STAYS_NOTHING:
        return f"the last of it final with round {until}"
    if stays == STAYS_ALL:
        return f"stays pending: the run ends with round {num_rounds}"
    of_earlier = f"what rounds up to {last_final} paid is final by round {until}"
    return f"{of_earlier}; what later ones pay stays pending: the run ends with round {num_rounds}"


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

    def take_back(self, key: bytes, fault: Fault) -> None:
        """Make all void that is pending for ``key``."""
        amount = 0
        for round_, shares in self.pending.items():
            if key in shares:
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
