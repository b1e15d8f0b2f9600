"""Evidence that a log does not hold to what was signed for it: a tree head that counts, and what was shown after it.

A log that was replaced by an older copy of itself *went back*: it shows fewer entries than were signed for. Only who was shown them knows
that, for an honest log has signed both heads too, one after the other. Once it goes on from there it is *forked*: two histories were signed
for, and two heads of one size, or two receipts, prove that to anybody. Where a run has several operators, those who signed both are the
liars: an honest one never does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from manta_swarm.protocol.errors import NothingProven, ProofError, SignatureError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import verify_consistency
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import ProvenRound, open_round_receipt
from manta_swarm.protocol.records import Included, Receipt
from manta_swarm.protocol.signing import Digest, PublicKey


class Departure(Enum):
    """How a log departs from what it signed."""

    ROLLED_BACK = "went back"  # it shows fewer entries: proven to nobody else
    UNPROVEN = "not proven"  # it shows more, and does not prove that they continue those signed for before: proven to nobody else
    FORKED = "forked"  # two histories were signed for: proven to anybody


def departure(held: TreeHead, shown: TreeHead, consistency: tuple[bytes, ...]) -> Departure | None:
    """Return how a log departs that signed ``held`` before, and now shows ``shown`` with a proof from there; None: it goes on."""
    if shown.size < held.size:
        return Departure.ROLLED_BACK
    if shown.size == held.size:
        return None if shown.root == held.root else Departure.FORKED
    try:
        verify_consistency(held.size, shown.size, consistency, held.root, shown.root)
    except ProofError:
        return Departure.UNPROVEN
    return None


def contradict(one: ProvenRound, other: ProvenRound) -> bool:
    """Return whether no log can have both of these rounds: another commit of the same round, or one that is not on the other."""
    before, after = sorted((one, other), key=lambda proven: proven.round.round)
    if before.round.round == after.round.round:
        return before.commit != after.commit
    return after.round.round == before.round.round + 1 and after.round.base != before.commit


@dataclass(frozen=True, slots=True)
class Shown:
    """What evidence against a log shows."""

    run: Digest
    operators: tuple[PublicKey, ...]  # who signed both heads: of a log that is forked, and of no other, who lied
    departure: Departure
    held: TreeHead
    shown: TreeHead
    counts: bool  # enough operators signed each head, so that peers may have followed either
    round: int | None  # up to which the log had come with the head that was held; None: the evidence does not say

    @property
    def entries_held(self) -> str:
        """What was signed for first, for people."""
        return f"{self.held.size} entries" if self.round is None else f"{self.held.size} entries, up to round {self.round}"


@dataclass(frozen=True, slots=True)
class Histories:
    """The evidence: two tree heads, the one that was held and the one that was shown after it, signed by one operator at least.

    Heads of one size and of two trees prove by themselves that whoever signed both lied, and so do two heads under which stand rounds that
    contradict each other. If these heads count, the log has two histories.
    """

    manifest: SignedManifest
    heads: tuple[str, str]  # signed
    consistency: tuple[bytes, ...] = ()  # that came with the second one, from the size of the first one
    rounds: tuple[Included, ...] = ()  # the round up to which the log had come with the first head, and one under the second beside it

    def __post_init__(self) -> None:
        if len(self.rounds) > 2:
            raise ValueError("a head has one round")

    @classmethod
    def shown_after(cls, manifest: SignedManifest, held: Receipt, shown: str, consistency: tuple[bytes, ...] = ()) -> "Histories":
        """Return what shows that a tree head came after a commit was held; ``consistency`` came with it."""
        return cls(manifest, (held.tree_head, shown), consistency, (_under(held),))

    @classmethod
    def of_rounds(cls, manifest: SignedManifest, held: Receipt, other: Receipt) -> "Histories":
        """Return what shows that two commits contradict each other."""
        return cls(manifest, (held.tree_head, other.tree_head), (), (_under(held), _under(other)))

    def check(self) -> Shown:
        """Return what this shows.

        Raises:
            NothingProven: the log goes on as it began, or nobody signed both heads.
            RemoteFault: a part is not what it should be, a head is signed by no operator of the run, or one with a round does not count.
        """
        operators = Operators.of_signed(self.manifest)
        rounds = [
            open_round_receipt(Receipt(each.entry, each.index, each.proof, head), operators)
            for each, head in zip(self.rounds, self.heads, strict=False)
        ]
        held, shown = (operators.signers(note) for note in self.heads)
        for what, signers in (("held", held), ("shown", shown)):
            if not signers.keys:
                raise SignatureError(f"no operator of the run signed what was {what}")
        both = operators.signed_both(*self.heads)
        if not both:  # with several operators a head need not count: who signed both answers for it
            raise NothingProven("no operator signed both what was held and what was shown")
        return Shown(
            run=self.manifest.run,
            operators=both,
            departure=self._departure(rounds, held.head, shown.head),
            held=held.head,
            shown=shown.head,
            counts=all(operators.counts(note) for note in self.heads),
            round=rounds[0].round.round if rounds else None,
        )

    def _departure(self, rounds: Sequence[ProvenRound], held: TreeHead, shown: TreeHead) -> Departure:
        """Return how the log departs.

        Raises:
            NothingProven: it does not.
        """
        if len(rounds) == 2:
            if not contradict(*rounds):
                raise NothingProven(f"rounds {rounds[0].round.round} and {rounds[1].round.round} may stand in one log")
            return Departure.FORKED
        found = departure(held, shown, self.consistency)
        if found is None:
            raise NothingProven(f"a log of {shown.size} entries that continues the {held.size} signed for before")
        return found


def _under(receipt: Receipt) -> Included:
    return Included(receipt.entry, receipt.index, receipt.proof)
