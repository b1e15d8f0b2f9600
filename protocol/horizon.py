"""Up to where a run's pay becomes final, from the run's start on; in words, too. Pure.

Nothing becomes final after a run's last round: what is pending then stays pending.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from protocol.manifest import Manifest

STAYS_NOTHING, STAYS_LATER, STAYS_ALL = "", "later", "all"  # of what is pending: what of it stays so


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
