"""What a log would say against claims: it keeps it until others have looked at them, who cannot tell them from others (``volunteers``)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aggregator.audits.volunteers import Volunteers
from aggregator.log.log import Log
from protocol.audits import DIFFERS, PATIENCE, Finding
from protocol.records import Claim, Header, SignedClaim
from protocol.standing import Due
from protocol.trust import Question
from protocol.wanted import Asked

_OTHERS = 2  # that are heard before somebody is accused


@dataclass
class OpenClaim:
    """A claim with questions that are open."""

    claim: SignedClaim
    opened: Claim
    header: Header
    every: tuple[tuple[SignedClaim, Claim], ...]  # in its contribution, in their order
    round: int  # whose table has it
    row: int
    beacon: bytes  # of that table
    was_left: bool  # the residual that it names, if it names one, was left to its key
    questions: frozenset[Question] = frozenset()  # replaced, never changed: threads go through them meanwhile
    refusals: int = 0
    has_no_room: bool = False  # here, for what its key has to show
    is_deep: bool = False  # the projections in its contribution do not fit: vectors say whose fault that is
    jobs: dict[str, Question] = field(default_factory=dict)  # by name, those that the process has
    needs: dict[Asked, tuple[tuple[SignedClaim, bytes], ...]] = field(default_factory=dict)  # vectors, once its records are here


@dataclass(frozen=True, slots=True)
class Doubt:
    """What would be said against a claim."""

    one: OpenClaim
    question: Question
    finding: Finding
    reason: str
    round: int  # the newest when it was found
    is_sure: bool = False  # others contradict: it is being computed once more, and that is handed in


class Doubts:
    """Those of one log."""

    def __init__(self, log: Log, volunteers: Volunteers) -> None:
        """Have none."""
        self._log = log
        self._volunteers = volunteers
        self._kept_rounds = log.ledger.manifest.trust.kept_rounds
        self._kept: dict[Question, Doubt] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept)

    def clear(self) -> None:
        """Have none any more."""
        self._kept.clear()

    def drop(self, question: Question) -> None:
        """Nothing can be found of it any more."""
        self._kept.pop(question, None)

    def keep(self, one: OpenClaim, question: Question, due: Due | None, finding: Finding, reason: str) -> bool:
        """Have others look at a claim that would be accused; False: it would not, there is nobody, or they were asked."""
        before = self._kept.pop(question, None)
        if finding.outcome != DIFFERS or before is not None or due is None or not self._volunteers.doubt(due):
            return False
        self._kept[question] = Doubt(one, question, finding, reason, self._log.ledger.round)
        return True

    def ripe(self, compute_again: Callable[[Doubt], None]) -> list[Doubt]:
        """Return those about which others were asked long enough; where one of them contradicts, it is computed again first."""
        round_, ripe = self._log.ledger.round, list[Doubt]()
        for question, doubt in list(self._kept.items()):
            votes = self._log.ledger.standing.votes.get(question, ())
            is_late = round_ - doubt.one.round >= self._kept_rounds - 2
            if not is_late and (doubt.is_sure or (len(votes) < _OTHERS and round_ - doubt.round < PATIENCE)):
                continue
            if any(not vote.is_against for vote in votes) and not is_late:
                self._kept[question] = replace(doubt, is_sure=True)
                compute_again(doubt)
            else:
                ripe.append(self._kept.pop(question))
        return ripe
