"""Evidence that a log does not hold to what was signed for it: a tree head that counts, and what was shown after it.

A log that was replaced by an older copy of itself *went back*: it shows fewer entries than were signed for. Only who was shown them knows
that, for an honest log has signed both heads too, one after the other. Once it goes on from there it is *forked*: two histories were signed
for, and two heads of one size, or two receipts, prove that to anybody. Where a run has several operators, those who signed both are the
liars: an honest one never does.
"""

from dataclasses import dataclass
from enum import Enum

from protocol.errors import NothingProven, ProofError, SignatureError
from protocol.manifest import SignedManifest
from protocol.merkle import verify_consistency
from protocol.notes import TreeHead
from protocol.operators import Operators
from protocol.receipts import ProvenRound, open_round_receipt
from protocol.records import Receipt
from protocol.signing import Digest, PublicKey


class Departure(Enum):
    """How a log departs from what it signed."""

    WENT_BACK = "went back"  # it shows fewer entries: proven to nobody else
    UNPROVEN = "not proven"  # it shows more, and does not prove that they continue those signed for before: proven to nobody else
    FORKED = "forked"  # two histories were signed for: proven to anybody


def departure(held: TreeHead, shown: TreeHead, consistency: tuple[bytes, ...]) -> Departure | None:
    """Return how a log departs that signed ``held`` before, and now shows ``shown`` with a proof from there; None: it goes on."""
    if shown.size < held.size:
        return Departure.WENT_BACK
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
    """What evidence shows."""

    run: Digest
    operators: tuple[
        PublicKey, ...
    ]  # who signed both, what was held and what was shown: of a log that is forked, and of no other, who lied
    departure: Departure
    held: ProvenRound  # the round that the log had, and the head that it signed for it
    shown: TreeHead  # what was shown after it
    counts: bool  # enough operators signed it, so that peers may have followed it


@dataclass(frozen=True, slots=True)
class Histories:
    """The evidence: what was held, and what was shown after it."""

    manifest: SignedManifest
    held: Receipt  # of a round
    shown: str  # a signed tree head
    consistency: tuple[bytes, ...]  # that came with it, from the size of the head held
    other: tuple[Receipt, ...] = ()  # of a round that contradicts the one held; then ``shown`` is its tree head

    def __post_init__(self) -> None:
        if len(self.other) > 1:
            raise ValueError("one round contradicts another, not several")

    def check(self) -> Shown:
        """Return what this shows.

        Raises:
            NothingProven: the log goes on as it began, or nobody signed both.
            RemoteFault: a part is not what it should be, or not signed by enough of the run's operators.
        """
        operators, run = Operators.of_signed(self.manifest), self.manifest.run
        held = open_round_receipt(self.held, operators)
        if self.other:
            other = open_round_receipt(self.other[0], operators)
            if not contradict(held, other):
                raise NothingProven(f"rounds {held.round.round} and {other.round.round} may stand in one log")
            both = operators.signed_both(self.held.tree_head, self.other[0].tree_head)
            return Shown(run, both, Departure.FORKED, held, other.tree_head, counts=True)
        signers, both = operators.signers(self.shown), operators.signed_both(self.held.tree_head, self.shown)
        if not signers.keys:
            raise SignatureError("no operator of the run signed what was shown")
        if not both:  # with several operators it need not count: who signed what was held answers for it
            raise NothingProven("nobody who signed what was held signed what was shown")
        found = departure(held.tree_head, signers.head, self.consistency)
        if found is None:
            raise NothingProven(f"a log of {signers.head.size} entries that continues the {held.tree_head.size} signed for before")
        return Shown(run, both, found, held, signers.head, operators.counts(self.shown))


@dataclass(frozen=True, slots=True)
class Twice:
    """What two heads of one size show."""

    liars: tuple[PublicKey, ...]  # who signed both
    one: TreeHead
    other: TreeHead
    is_forked: bool  # both count, so that peers may have followed either


@dataclass(frozen=True, slots=True)
class TwoHeads:
    """Two tree heads of one size, of different trees, that one operator signed: they prove by themselves that it lied.

    They need not count. Where both do, the log has two histories.
    """

    manifest: SignedManifest
    heads: tuple[str, str]

    def check(self) -> Twice:
        """Return what they show.

        Raises:
            NothingProven: they are of one tree, of several sizes, or nobody signed both.
            RemoteFault: a part is not what it should be.
        """
        operators = Operators.of_signed(self.manifest)
        one, other = (operators.signers(note) for note in self.heads)
        if one.head.size != other.head.size or one.head.root == other.head.root:
            raise NothingProven(f"heads of {one.head.size} and {other.head.size} entries that may be of one log")
        liars = operators.signed_both(*self.heads)
        if not liars:
            raise NothingProven("no operator signed both heads")
        return Twice(liars, one.head, other.head, is_forked=all(operators.counts(note) for note in self.heads))
