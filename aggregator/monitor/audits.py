"""What a log's verdicts add up to, as people want to see it: who is proven, what was audited, what it came to. A pure fold.

``protocol.reputation`` is the fold; what is kept beside it is where in the log things stand, and what was said against somebody.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from aggregator.monitor.tables import ContributionSeen
from protocol.manifest import Manifest
from protocol.reputation import Audit, Fault, Pools, Reputation, Work
from protocol.verdicts import Outcome, Verdict

MAX_ENDED = 1024  # audits of rounds that are paid, the newest


@dataclass(frozen=True, slots=True)
class VerdictSeen:
    """A verdict in the log."""

    index: int
    round: int | None  # with whose entry it took effect; None: with the settlement
    said: Verdict


@dataclass(frozen=True, slots=True)
class AuditSeen:
    """A contribution that was drawn."""

    index: int  # of its entry
    founder: bytes
    audit: Audit  # what it has come to
    verdicts: tuple[VerdictSeen, ...] = ()

    @property
    def is_decided(self) -> bool:
        """Whether something is decided of each claim."""
        return bool(self.audit.outcomes) and None not in self.audit.outcomes

    @property
    def is_in_doubt(self) -> bool:
        """Whether somebody would take away what the others have not said yet."""
        worst = max((outcome for verdict in self.audit.verdicts for outcome in verdict.outcomes), default=0)
        return worst > max((outcome or 0 for outcome in self.audit.outcomes), default=0)


@dataclass(slots=True)
class Audits:
    """What the entries so far add up to. In an open run nothing is audited, and all is paid at once."""

    reputation: Reputation
    waiting: dict[bytes, AuditSeen] = field(default_factory=dict)  # by contribution: of rounds that are not paid, the oldest first
    ended: dict[bytes, AuditSeen] = field(default_factory=dict)  # of paid rounds: those against which somebody spoke, the oldest first
    drawn: int = 0  # contributions so far
    drawn_samples: int = 0  # that their audits compute
    samples: int = 0  # of all contributions that could be drawn
    outcomes: Counter[Outcome] = field(default_factory=Counter)  # of claims in paid rounds that were drawn

    @classmethod
    def of(cls, manifest: Manifest) -> "Audits":
        """Return those of a run without entries."""
        pools = Pools(manifest.work_pool, manifest.audit_pool, manifest.credit_cap)
        return cls(Reputation(manifest.audit_rules, pools))

    def find(self, contribution: bytes) -> AuditSeen | None:
        """Return what there is on a contribution that was drawn; None: nothing, or nothing any more."""
        return self.waiting.get(contribution) or self.ended.get(contribution)

    @property
    def num_undecided(self) -> int:
        """How many contributions wait for a word."""
        return sum(not one.is_decided for one in self.waiting.values())

    @property
    def in_doubt(self) -> list[AuditSeen]:
        """Those of rounds that are not paid against which somebody spoke, and it is not decided."""
        return [one for one in self.waiting.values() if one.is_in_doubt]

    def num_claims(self) -> dict[Outcome | None, int]:
        """Return what the claims of all contributions that were drawn came to; None: nothing yet."""
        counts = Counter[Outcome | None](self.outcomes)
        for one in self.waiting.values():
            counts.update(one.audit.outcomes or (None,) * len(one.audit.work.keys))
        return dict(counts)

    def faults(self) -> list[tuple[bytes, Fault]]:
        """Return key and fault of all that was found out, the newest first."""
        found = [(key, fault) for key, faults in self.reputation.faults.items() for fault in faults]
        return sorted(found, key=lambda one: (-one[1].round, one[0], one[1].contribution))

    def works_of(self, contributions: Iterable[ContributionSeen]) -> list[Work]:
        """Return what audits and pay go by, of the contributions of the next round."""
        is_proven = self.reputation.is_proven
        return [
            Work(
                contribution=one.digest,
                keys=tuple(claim.key for claim in one.claims),
                payouts=tuple(claim.payout for claim in one.claims),
                weights=tuple(claim.weight for claim in one.claims),
                samples=sum(claim.samples for claim in one.claims),
                proven=tuple(is_proven(claim.key) for claim in one.claims),
            )
            for one in contributions
        ]

    def turn(
        self,
        round_: int,
        commit: bytes,
        verdicts: Sequence[tuple[int, Verdict]],
        contributions: Sequence[ContributionSeen],
        before: Sequence[ContributionSeen],
    ) -> None:
        """Take a round.

        Args:
            round_: its number.
            commit: its entry's digest.
            verdicts: those before its contributions, each with the place of its entry.
            contributions: its own, in order.
            before: the contributions of the round before it: some of them are drawn now.
        """
        self.reputation.turn(round_, commit, [said for _, said in verdicts], self.works_of(contributions))
        self._note(verdicts, round_)
        self._end_paid()
        for one in before if self.reputation.rules is not None else ():
            audit = self.reputation.audits.get(one.digest)
            samples = sum(claim.samples for claim in one.claims)
            self.samples += samples
            if audit is not None:
                self.waiting[one.digest] = AuditSeen(one.index, one.founder, audit)
                self.drawn += 1
                self.drawn_samples += samples

    def settle(self, verdicts: Sequence[tuple[int, Verdict]]) -> None:
        """Take the settlement, after these verdicts."""
        self.reputation.settle([said for _, said in verdicts])
        self._note(verdicts, None)
        self._end_paid()

    def _note(self, verdicts: Sequence[tuple[int, Verdict]], round_: int | None) -> None:
        for index, said in verdicts:
            seen, audit = self.waiting[said.contribution], self.reputation.audits.get(said.contribution)
            places = (*seen.verdicts, VerdictSeen(index, round_, said))
            self.waiting[said.contribution] = replace(seen, audit=audit or seen.audit, verdicts=places)

    def _end_paid(self) -> None:
        for paid in self.reputation.paid_now:
            for audit in paid.audits:
                seen = replace(self.waiting.pop(audit.work.contribution), audit=audit)
                self.outcomes.update(outcome for outcome in audit.outcomes if outcome is not None)
                if audit.is_against:
                    self.ended[audit.work.contribution] = seen
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
