"""Evidence that a log does not hold to what it signed: a tree head of its operator, and what the same key showed after it.

A log that was replaced by an older copy of itself *went back*: it shows fewer entries than its key has signed for. Once it goes on from
there it is *forked*: its key has signed for two histories, and two signed heads, or two receipts, prove that to anybody.
"""

from dataclasses import dataclass
from enum import Enum

from protocol.errors import ProofError
from protocol.manifest import SignedManifest
from protocol.merkle import verify_consistency
from protocol.notes import TreeHead, open_tree_head, origin
from protocol.receipts import ProvenRound, open_round_receipt
from protocol.records import Receipt
from protocol.signing import Digest


class Departure(Enum):
    """How a log departs from what it signed."""

    WENT_BACK = "went back"  # it shows fewer entries
    UNPROVEN = "not proven"  # it shows more, and does not prove that they continue those signed for before
    FORKED = "forked"  # its key has signed for two histories: proven


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
    operator: bytes
    departure: Departure
    held: ProvenRound  # the round that the log had, and the head that it signed for it
    shown: TreeHead  # what the same key showed


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
            ProofError: nothing: the log goes on as it began.
            RemoteFault: a part is not what it should be, or not signed by the run's operator.
        """
        operator, run = self.manifest.open().operators[0], self.manifest.run
        held = open_round_receipt(self.held, run, operator)
        if self.other:
            other = open_round_receipt(self.other[0], run, operator)
            if not contradict(held, other):
                raise ProofError(f"rounds {held.round.round} and {other.round.round} may stand in one log")
            return Shown(run, operator, Departure.FORKED, held, other.tree_head)
        shown = open_log_head(self.shown, run, operator)
        found = departure(held.tree_head, shown, self.consistency)
        if found is None:
            raise ProofError(f"a log of {shown.size} entries that continues the {held.tree_head.size} signed for before")
        return Shown(run, operator, found, held, shown)


@dataclass(frozen=True, slots=True)
class TwoHeads:
    """Two tree heads of one size that one log signed, of different trees: they prove by themselves that it has two histories."""

    manifest: SignedManifest
    heads: tuple[str, str]

    def check(self) -> tuple[TreeHead, TreeHead]:
        """Return both.

        Raises:
            ProofError: they are of one tree, or of several sizes: they show nothing.
            RemoteFault: a part is not what it should be, or not signed by the run's operator.
        """
        operator = self.manifest.open().operators[0]
        one, other = (open_log_head(note, self.manifest.run, operator) for note in self.heads)
        if one.size != other.size or one.root == other.root:
            raise ProofError(f"heads of {one.size} and {other.size} entries that may be of one log")
        return one, other


def open_log_head(note: str, run: bytes, operator: bytes) -> TreeHead:
    """Return the tree head in ``note``, which the log of ``operator`` signed for a run.

    Raises:
        EncodingError, SignatureError: as ``open_tree_head``.
        ProofError: it is of another log.
    """
    name = origin(run, operator)
    head = open_tree_head(note, name, operator)
    if head.origin != name:
        raise ProofError(f"a tree head of another log: {head.origin!r}")
    return head
