"""What a log's verdicts add up to, as people want to see it: who is proven, what was audited, what it came to. A pure fold.

The ledger is the fold; what is kept beside it is where in the log things stand, and what was said against somebody.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed, Settled, TakenRound
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.reputation import Audit, Fault, PayableWork, Pools, Reputation
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.verdicts import Outcome, Verdict
from manta_swarm.protocol.verified import Verified

MAX_ENDED = 1024  # audits of rounds that are paid, the newest


@dataclass(frozen=True, slots=True)
class VerdictSeen:
    """A verdict in the log."""

    index: int
    round: int | None  # with whose entry it took effect; None: with the settlement
    said: Verdict


@dataclass(frozen=True, slots=True)
class AuditSeen:
    """A contribution that was drawn for an audit."""

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


class AuditTotals:
    """What a log's verdicts add up to, and what is paid. Of a run with audits a ledger follows the log, as every ledger does.

    But for one thing: it checks no signature of claims and contributions. The aggregator did, before it signed for them.
    """

    def __init__(self, signed: SignedManifest, training_spec: TrainingSpec) -> None:
        """Have taken no entry of the run of ``signed``, whose training is ``training_spec``."""
        manifest = signed.open()
        pools = Pools(manifest.work_pool, manifest.audit_pool, manifest.credit_cap)
        self.ledger = Ledger(signed, training_spec, Verified(signed_before=True)) if manifest.is_audited else None
        self._open = Reputation(None, pools)  # of a run without audits: what each round paid at once
        self.waiting: dict[bytes, AuditSeen] = {}  # by contribution: of rounds that are not paid, the oldest first
        self.ended: dict[bytes, AuditSeen] = {}  # of paid rounds: those against which somebody spoke, the oldest first
        self.drawn = 0  # contributions so far
        self.unjudged = 0  # of these, of rounds that are paid now: nothing was decided of them in time
        self.drawn_samples = 0  # that their audits compute
        self.samples = 0  # of all contributions that could be drawn
        self.outcomes = Counter[Outcome]()  # of claims in paid rounds that were drawn
        self._before: TakenRound | None = None  # the newest round: some of its contributions are drawn with the next one

    @property
    def reputation(self) -> Reputation:
        """Who is proven, what was found out, and what everybody has. To be read only."""
        return self._open if self.ledger is None else self.ledger.reputation

    @property
    def settlement(self) -> int | None:
        """The place in the log of the settlement; None: it is not there, as in a run without audits."""
        return None if self.ledger is None else self.ledger.settlement

    def find(self, contribution: bytes) -> AuditSeen | None:
        """Return what there is on a contribution that was drawn; None: nothing, or nothing any more."""
        return self.waiting.get(contribution) or self.ended.get(contribution)

    @property
    def num_undecided(self) -> int:
        """How many contributions wait for a word."""
        return sum(not one.is_decided for one in self.waiting.values())

    @property
    def in_doubt(self) -> list[AuditSeen]:
        """The contributions of pending rounds against which somebody spoke, while it is not decided."""
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

    # The log's entries.

    def follow(self, entry: bytes) -> Sequence[Listed]:
        """Take the next entry of a run with audits; return the contributions of the round that it ends, none if it is no round's.

        Raises:
            EncodingError, SignatureError, LedgerError: as ``Ledger.append``; nothing has changed.
        """
        assert self.ledger is not None
        step = self.ledger.append(entry)
        if isinstance(step, TakenRound):
            first = step.index - len(step.contents.listed) - len(step.verdicts)
            self._note(enumerate(step.verdicts, first), step.entry.round)
            self._end_paid()
            self._draw(self._before)
            self._before = step
            return step.contents.listed
        if isinstance(step, Settled):
            self._note(enumerate(step.verdicts, step.index - len(step.verdicts)), None)
            self._end_paid()
        return ()

    def paid_at_once(self, round_: int, works: Sequence[PayableWork]) -> None:
        """Take a round of a run without audits."""
        self._open.turn(round_, b"", (), works)

    def recalled(self, paid: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Take what was kept of a run without audits: key, account, and what was paid to that."""
        for key, account, amount in paid:
            self._open.paid[key, account] = amount
            self._open.earned[key] += amount

    def _draw(self, before: TakenRound | None) -> None:
        listed = () if before is None else before.contents.listed
        for index, one in enumerate(listed, 0 if before is None else before.index - len(listed)):
            self.samples += one.counted
            if (audit := self.reputation.audits.get(one.contribution)) is not None:
                self.waiting[one.contribution] = AuditSeen(index, one.founder, audit)
                self.drawn += 1
                self.drawn_samples += one.counted

    def _note(self, verdicts: Iterable[tuple[int, Verdict]], round_: int | None) -> None:
        for index, said in verdicts:
            seen, audit = self.waiting[said.contribution], self.reputation.audits.get(said.contribution)
            places = (*seen.verdicts, VerdictSeen(index, round_, said))
            self.waiting[said.contribution] = replace(seen, audit=audit or seen.audit, verdicts=places)

    def _end_paid(self) -> None:
        for paid in self.reputation.paid_now:
            for audit in paid.audits:
                seen = replace(self.waiting.pop(audit.work.contribution), audit=audit)
                self.unjudged += not seen.is_decided
                self.outcomes.update(outcome for outcome in audit.outcomes if outcome is not None)
                if audit.is_against:
                    self.ended[audit.work.contribution] = seen
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
