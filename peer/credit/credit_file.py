"""What a peer keeps of its credit beside its payout receipts: the log's word, and how far it computed it itself.

Nothing else follows from it.
"""

from dataclasses import dataclass, replace

from manta_swarm.network.log_client import CreditWord

REMEMBERED = 64  # newest rounds that were computed: none is added twice


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known, as it is kept."""

    word: tuple[CreditWord, ...] = ()  # the log's newest, at most one; none: it said nothing yet
    checked: int = 0  # computed here: the sum over ...
    num_checked: int = 0  # ... so many rounds
    newest: tuple[int, ...] = ()  # of these rounds

    def __post_init__(self) -> None:
        if min(self.checked, self.num_checked) < 0 or len(self.newest) > REMEMBERED or len(self.word) > 1:
            raise ValueError("a credit that cannot be")

    def told(self, word: CreditWord) -> "Kept":
        """Return it with what the log says, unless a newer word is there."""
        return self if self.word and word.round < self.word[0].round else replace(self, word=(word,))

    def computed(self, round_: int, earned: int) -> "Kept":
        """Return it with what a round paid, computed here; once for each of the newest rounds."""
        if round_ in self.newest:
            return self
        newest = (*self.newest, round_)[-REMEMBERED:]
        return replace(self, checked=self.checked + earned, num_checked=self.num_checked + 1, newest=newest)
