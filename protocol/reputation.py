"""Who is proven, who is guilty, and what everybody has earned: what a run's verdicts add up to. A pure fold over its rounds.

A run without audits has no rules of audits (None): every key is proven then, and a round is paid with its own entry. Else

1. a verdict that stands before a round's contributions takes effect with the round's entry (``turn``, first);
2. then what became old enough is paid, once, by what is known by then;
3. then the beacon of the round before is there, and says which of its contributions are audited (``protocol.auditing``).

A claim is *good* by the word of the one named auditor that the beacon draws. What takes something away needs more than half of the named
auditors; where these differ in how much, it is what so many of them say at least.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from manta_swarm.protocol.auditing import AuditCandidate, auditor_of, drawn
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.rewards import share_out
from manta_swarm.protocol.verdicts import AuditRules, Outcome, Verdict

WITHHELD, FALSE = "withheld", "false"  # why a key was demoted; why it is guilty


@dataclass(frozen=True, slots=True)
class PayableWork:
    """A contribution of a round, as far as audits and pay go."""

    contribution: bytes  # its digest
    keys: tuple[bytes, ...]  # of its claims, in order
    payouts: tuple[bytes, ...]  # the account of each claim
    weights: tuple[int, ...]  # what each claim weighs in the pay; 0: it is listed unpaid, and proves nothing of its key
    samples: int  # that an audit of it computes
    proven: tuple[bool, ...]  # which of the keys were proven when it was listed


@dataclass(frozen=True, slots=True)
class Audit:
    """A contribution that was drawn, and what was said of it."""

    round: int
    work: PayableWork
    auditor: bytes  # whose word that it is good counts
    verdicts: tuple[Verdict, ...] = ()
    outcomes: tuple[Outcome | None, ...] = ()  # what it came to so far, by claim; None, or none at all: nothing yet

    @property
    def is_against(self) -> bool:
        """Whether somebody would take something away."""
        return any(outcome != Outcome.GOOD for verdict in self.verdicts for outcome in verdict.outcomes)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a key is not proven any more, or guilty."""

    round: int  # with whose entry
    reason: str  # WITHHELD or FALSE
    contribution: bytes  # that it is about


@dataclass(frozen=True, slots=True)
class KeyStanding:
    """What one key has earned, and what was found out about it."""

    paid: int
    pending: tuple[tuple[int, int], ...]  # (round, what it would get of it if nothing more were found), the oldest first
    faults: tuple[Fault, ...]  # the oldest first

    @property
    def credit(self) -> int:
        """What the key has, for good or for now."""
        return self.paid + sum(amount for _, amount in self.pending)


@dataclass(frozen=True, slots=True)
class Pools:
    """What a round pays."""

    work: int  # in all, for the claims of its contributions
    audits: int = 0  # in all, for audits of them
    cap: int | None = None  # one key at most for its claim


@dataclass(frozen=True, slots=True)
class Paid:
    """A round as it was paid."""

    round: int
    shares: Mapping[bytes, int]  # key -> for its claim
    audits: tuple[Audit, ...]  # of its contributions, as they stood then


@dataclass(slots=True)
class Reputation:
    """What verdicts and rounds add up to: which keys are proven or guilty, and what each has earned. Values inside its mappings are never
    changed, only replaced, so a copy may share them.
    """

    rules: AuditRules | None
    pools: Pools
    round: int = 0  # the newest
    given: frozenset[bytes] = frozenset()  # keys that are proven from the start, until they are demoted
    good: Counter[bytes] = field(default_factory=Counter)  # by key: contributions found good since it was last demoted
    lost: dict[bytes, int] = field(default_factory=dict)  # by key: the newest round with whose entry it was demoted, or found guilty
    guilty: dict[bytes, Fault] = field(default_factory=dict)
    faults: dict[bytes, tuple[Fault, ...]] = field(default_factory=dict)  # by key, the oldest first
    pending: dict[int, tuple[PayableWork, ...]] = field(default_factory=dict)  # by round: those that are not paid yet, the oldest first
    audits: dict[bytes, Audit] = field(default_factory=dict)  # by contribution: those of the pending rounds that were drawn
    paid: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)  # by key and account: all that was paid
    earned: Counter[bytes] = field(default_factory=Counter)  # by key: the same
    payouts: dict[bytes, bytes] = field(default_factory=dict)  # by key: the account that its newest claim named
    paid_now: tuple[Paid, ...] = ()  # the rounds that were paid with the newest entry, the oldest first

    _shares: dict[int, dict[bytes, int]] = field(default_factory=dict, repr=False)  # by pending round: see ``expected``

    def __post_init__(self) -> None:
        if self.rules is not None and not self.round:
            self.given = frozenset(self.rules.proven)

    def copy(self) -> "Reputation":
        """Return a copy that can go another way."""
        return replace(
            self,
            good=self.good.copy(),
            lost=self.lost.copy(),
            guilty=self.guilty.copy(),
            faults=self.faults.copy(),
            pending=self.pending.copy(),
            audits=self.audits.copy(),
            paid=self.paid.copy(),
            earned=self.earned.copy(),
            payouts=self.payouts.copy(),
            _shares=self._shares.copy(),
        )

    # What is.

    def is_proven(self, key: bytes) -> bool:
        """Return whether a key's samples weigh fully, and are paid unless audits find something else; without audits those of all do."""
        if self.rules is None:
            return True
        return key not in self.guilty and (key in self.given or self.good[key] >= self.rules.proven_after)

    def expected(self, round: int) -> dict[bytes, int]:
        """Return what each key would get of a round that is not paid yet, if nothing more were found."""
        if round not in self._shares:
            self._shares[round] = share_out(self.pools.work, self._weights(round), self.pools.cap)
        return self._shares[round]

    def standing(self, key: bytes) -> KeyStanding:
        """Return what a key has earned, for whichever account."""
        pending = [(round_, self.expected(round_).get(key, 0)) for round_ in self.pending]
        return KeyStanding(self.earned[key], tuple(each for each in pending if each[1]), self.faults.get(key, ()))

    def credits(self) -> dict[bytes, int]:
        """Return account -> what was paid to it; accounts in order, who has nothing is not in it."""
        return {account: sum(amounts.values()) for account, amounts in self.by_account().items()}

    def by_account(self) -> dict[bytes, dict[bytes, int]]:
        """Return account -> key -> what the key was paid for that; all in order."""
        found = dict[bytes, dict[bytes, int]]()
        for account, key in sorted((account, key) for (key, account), amount in self.paid.items() if amount):
            found.setdefault(account, {})[key] = self.paid[key, account]
        return found

    # What may be handed in.

    def check(self, verdict: Verdict) -> None:
        """Check that a verdict may follow the newest round.

        Raises:
            LedgerError: it may not.
        """
        audit, rules = self.audits.get(verdict.contribution), self.rules
        if rules is None or verdict.auditor not in rules.named:
            raise LedgerError("a verdict of somebody who is no named auditor")
        if audit is None or audit.round != verdict.round:
            raise LedgerError("a verdict on a contribution that is not audited, or not any more")
        if any(other.auditor == verdict.auditor for other in audit.verdicts):
            raise LedgerError("this auditor has judged this contribution")
        if len(verdict.outcomes) != len(audit.work.keys):
            raise LedgerError("a verdict of other claims than the contribution has")
        said = set(verdict.outcomes)  # unpaid beside void: nobody can say what a founder made of what a member lied about
        is_withheld = Outcome.DEMOTED in said or (Outcome.UNPAID in said and Outcome.VOID not in said)
        if is_withheld and self.round < audit.round + rules.kept_rounds:
            raise LedgerError("what has to be brought may still come")
        if verdict.by in audit.work.keys or (verdict.by != verdict.auditor and not self.is_proven(verdict.by)):
            raise LedgerError("a verdict by the work of somebody who may not look at this contribution")

    # What a round's entry does.

    def admit(self, key: bytes) -> None:
        """A key came in that is proven from the start."""
        self.given |= {key}

    def turn(self, round: int, commit: bytes, verdicts: Sequence[Verdict], works: Sequence[PayableWork]) -> None:
        """Take a round.

        Args:
            round: its number.
            commit: its entry's digest, the beacon of the round before.
            verdicts: that stand before its contributions, checked, in the log's order.
            works: its contributions, in order.
        """
        self.round, self.paid_now = round, ()
        for verdict in verdicts:
            self._take(verdict)
        self.pending[round] = tuple(works)
        self.payouts.update(pair for work in works for pair in zip(work.keys, work.payouts, strict=True))
        pending_rounds = 0 if self.rules is None else self.rules.pending_rounds
        for old in [old for old in self.pending if old <= round - pending_rounds]:
            self._pay(old)
        if self.rules is not None and round - 1 in self.pending:
            self._draw(self.rules, commit, self.pending[round - 1])

    def settle(self, verdicts: Sequence[Verdict]) -> None:
        """The run is over: take the last verdicts, and pay all that is not paid yet."""
        self.paid_now = ()
        for verdict in verdicts:
            self._take(verdict)
        for round_ in list(self.pending):
            self._pay(round_)

    def decides_all(self, verdicts: Sequence[Verdict]) -> bool:
        """Return whether each contribution that is audited has an outcome for all of its claims, once these verdicts are taken."""
        after = self.copy()
        for verdict in verdicts:
            if verdict.contribution in after.audits:
                after._take(verdict)
        return all(audit.outcomes and None not in audit.outcomes for audit in after.audits.values())

    def _draw(self, rules: AuditRules, beacon: bytes, works: Sequence[PayableWork]) -> None:
        candidates = [
            AuditCandidate(work.contribution, work.samples, any(work.proven), all(self.good[key] for key in work.keys)) for work in works
        ]
        chosen = drawn(rules, beacon, candidates)
        for work in works:
            auditor = auditor_of(beacon, work.contribution, work.keys, rules.named)
            if work.contribution in chosen and auditor is not None:
                self.audits[work.contribution] = Audit(self.round - 1, work, auditor)

    def _take(self, verdict: Verdict) -> None:
        audit = self.audits[verdict.contribution]
        if any(other.auditor == verdict.auditor for other in audit.verdicts):
            return  # the auditor said two things in one round: the first one counts
        verdicts, keys = (*audit.verdicts, verdict), audit.work.keys
        outcomes = tuple(self._outcome(audit.auditor, verdicts, place) for place in range(len(keys)))
        self.audits[verdict.contribution] = replace(audit, verdicts=verdicts, outcomes=outcomes)
        before = audit.outcomes or (None,) * len(keys)
        for key, weight, was, now in zip(keys, audit.work.weights, before, outcomes, strict=True):
            if now is not None and now != was:
                self._shares.clear()
                fault = Fault(self.round, FALSE if now == Outcome.VOID else WITHHELD, verdict.contribution)
                self._decided(key, was, now, fault, is_paid=weight > 0)

    def _outcome(self, auditor: bytes, verdicts: Sequence[Verdict], place: int) -> Outcome | None:
        """Return what verdicts on a contribution come to for the claim at a place."""
        assert self.rules is not None
        said, quorum = sorted((verdict.outcomes[place] for verdict in verdicts), reverse=True), self.rules.quorum
        if len(said) >= quorum and (least := Outcome(said[quorum - 1])) != Outcome.GOOD:
            return least
        is_good = any(verdict.auditor == auditor and verdict.outcomes[place] == Outcome.GOOD for verdict in verdicts)
        return Outcome.GOOD if is_good else None

    def _decided(self, key: bytes, was: Outcome | None, now: Outcome, fault: Fault, *, is_paid: bool) -> None:
        if is_paid:
            self.good[key] = max(0, self.good[key] + (now == Outcome.GOOD) - (was == Outcome.GOOD))
        if now >= Outcome.DEMOTED:
            self.good.pop(key, None)
            self.given -= {key}
            self.lost[key] = fault.round
            self.faults[key] = (*self.faults.get(key, ()), fault)
        if now == Outcome.VOID:
            self.guilty.setdefault(key, fault)

    def _outcomes(self, work: PayableWork) -> tuple[Outcome | None, ...]:
        audit = self.audits.get(work.contribution)
        return audit.outcomes if audit is not None and audit.outcomes else (None,) * len(work.keys)

    def _weights(self, round: int) -> dict[bytes, int]:
        """Return what those claims of a round weigh that are paid: found good, or of a key that was proven then and lost nothing since."""
        weights = {}
        for work in self.pending[round]:
            for key, weight, was_proven, outcome in zip(work.keys, work.weights, work.proven, self._outcomes(work), strict=True):
                is_clean = outcome is None and was_proven and self.lost.get(key, -1) < round
                if weight and (outcome == Outcome.GOOD or is_clean):  # a key that stands twice is paid once
                    weights[key] = weight
        return weights

    def _pay(self, round: int) -> None:
        accounts = {key: account for work in self.pending[round] for key, account in zip(work.keys, work.payouts, strict=True)}
        audits = tuple(self.audits[work.contribution] for work in self.pending[round] if work.contribution in self.audits)
        self.paid_now += (Paid(round, self.expected(round), audits),)
        self._credit(self.expected(round), accounts)
        self._credit(share_out(self.pools.audits, self._audited(round)), self.payouts)
        self._shares.pop(round, None)
        for work in self.pending.pop(round):
            self.audits.pop(work.contribution, None)

    def _audited(self, round: int) -> dict[bytes, int]:
        """Return for how many samples of a round everybody's audits counted: those that said what it came to."""
        samples = Counter[bytes]()
        for work in self.pending[round]:
            audit = self.audits.get(work.contribution)
            for verdict in audit.verdicts if audit is not None else ():
                if audit is not None and verdict.outcomes == audit.outcomes:
                    samples[verdict.by] += work.samples
        return samples

    def _credit(self, shares: Mapping[bytes, int], accounts: Mapping[bytes, bytes]) -> None:
        for key, amount in shares.items():
            self.earned[key] += amount
            self.paid[key, accounts.get(key, key)] += amount


def paid_with(rules: AuditRules | None, num_rounds: int, round: int) -> int | None:
    """Return the round with whose entry a round is paid, in a run of so many; None: with the settlement after the last one."""
    paid = round if rules is None else round + rules.pending_rounds
    return paid if paid <= num_rounds else None
