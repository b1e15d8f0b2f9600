"""What a run's audits add up to: who is proven, who is guilty, what is to be found out, and what all have earned. A pure fold.

It is told of each round with the extras before it, in the log's order (``protocol.ledger``). What questions there are, whom they go to and
what answers come to says ``protocol.trust``. In an open run nothing of it is kept but the accounts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from protocol.accounts import Account, Accounts, Fault
from protocol.audits import DIFFERS, HOLDS, LOT, THERE, WHOLE, WITHHELD, Extra, Finding
from protocol.errors import LedgerError
from protocol.horizon import Horizon
from protocol.listed import Listed
from protocol.manifest import Manifest
from protocol.trust import Decision, Question, Vote, check_evidence, decided, is_whole, lots_audited, panel, percent_audited, questions_due

LEFT, OUTVOTED = "left", "outvoted"
REASONS = (DIFFERS, WITHHELD, LEFT, OUTVOTED)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim in a table, as far as audits go."""

    digest: bytes
    key: bytes
    payout: bytes  # the account that its credit adds up to
    round: int  # of the table
    row: int
    lots: int
    lots_root: bytes
    samples: int  # capped
    mates: tuple[bytes, ...]  # keys of the contribution that lists it, its own among them


@dataclass(frozen=True, slots=True)
class Asked:
    """What audits of one table are about, fixed with its beacon."""

    beacon: bytes
    named: tuple[bytes, ...]  # who may audit, of those that the run names, sorted
    proven: tuple[bytes, ...]  # and of the other proven keys, sorted
    due: tuple[Question, ...]  # what ought to be found out
    worth: int  # what each of these pays
    panels: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict, compare=False)  # by claim: those that were asked for, drawn once


@dataclass(frozen=True, slots=True)
class Due:
    """A question that is open."""

    question: Question
    claimed: Claimed
    beacon: bytes
    panel: tuple[bytes, ...]  # whose findings count, in the order in which they are asked
    votes: tuple[Vote, ...]

    @property
    def is_accused(self) -> bool:
        """Whether somebody spoke against the claim: then the others of the panel ought to look."""
        return any(vote.is_against for vote in self.votes)


@dataclass(slots=True)
class Standing:
    """The fold. Values inside its mappings are never changed, only replaced, so a copy may share them."""

    manifest: Manifest
    accounts: Accounts
    round: int = 0  # the newest
    samples: Counter[bytes] = field(default_factory=Counter)  # by key, that audits found good since its last fault
    guilty: dict[bytes, Fault] = field(default_factory=dict)
    named: frozenset[bytes] = frozenset()  # proven from the start: by the manifest, or by the invitation that let them in
    fallen: frozenset[bytes] = frozenset()  # of these: until they withheld something while they were there
    tables: dict[int, dict[bytes, Claimed]] = field(default_factory=dict)  # by round: the claims whose audits are not over
    asked: dict[int, Asked] = field(default_factory=dict)  # by round of the table
    votes: dict[Question, tuple[Vote, ...]] = field(default_factory=dict)
    accused: frozenset[Question] = frozenset()  # of these: somebody spoke against the claim, and it is not decided
    decisions: dict[Question, Decision] = field(default_factory=dict)
    good: dict[bytes, int] = field(default_factory=dict)  # claim -> how many of its key's samples are its own; all that were ever counted

    @classmethod
    def of(cls, manifest: Manifest) -> "Standing":
        """Return the standing of everybody at a run's start."""
        return cls(manifest, Accounts(Horizon.of(manifest).pending_rounds), named=frozenset(manifest.trust.proven))

    def copy(self) -> "Standing":
        """Return one that can go another way."""
        return replace(
            self,
            accounts=self.accounts.copy(),
            samples=self.samples.copy(),
            guilty=self.guilty.copy(),
            tables=self.tables.copy(),
            asked=self.asked.copy(),
            votes=self.votes.copy(),
            decisions=self.decisions.copy(),
            good=self.good.copy(),
        )

    # What is.

    def is_proven(self, key: bytes) -> bool:
        """Return whether a key's samples weigh fully; in an open run those of all do."""
        trust = self.manifest.trust
        if not trust.is_audited:
            return True
        if key in self.guilty:
            return False
        return self.samples[key] >= trust.proven_samples or (key in self.named and key not in self.fallen)

    def account(self, key: bytes) -> Account:
        """Return what a key has earned, for whichever account: pending, final and void."""
        return self.accounts.of(key)

    def due(self) -> list[Due]:
        """Return what is open of the tables whose audits are not over: what ought to be found out, and what else was accused."""
        found = []
        for round_, asked in self.asked.items():
            accused = [question for question in sorted(self.accused) if question.claim in self.tables[round_]]
            ought = asked.due if self._is_taken(round_, is_accused=False) else ()
            others = [question for question in accused if question not in ought and self._is_taken(round_, is_accused=True)]
            for question in (*ought, *others):
                claimed = self.tables[round_][question.claim]
                if not self._is_closed(question) and claimed.key not in self.guilty:
                    found.append(Due(question, claimed, asked.beacon, self._panel(asked, claimed), self.votes.get(question, ())))
        return found

    def claimed(self, round: int, claim: bytes) -> Claimed | None:
        """Return a claim in the table of ``round`` whose audits are not over; None: there is none."""
        return self.tables.get(round, {}).get(claim)

    def was_there(self, claimed: Claimed) -> bool:
        """Return whether a claim's key took part while it was asked what audits of it need."""
        late = [table for round_, table in self.tables.items() if round_ >= claimed.round + min(THERE, self.manifest.trust.kept_rounds)]
        return any(other.key == claimed.key for table in late for other in table.values())

    # What may be handed in.

    def check(self, extra: Extra) -> None:
        """Check that an extra may follow the newest round.

        Raises:
            LedgerError: it may not.
        """
        if not self.manifest.trust.is_audited:
            raise LedgerError("audits do not count in an open run")
        self._check_finding(extra)

    def _check_finding(self, finding: Finding) -> None:
        asked, claimed = self.asked.get(finding.round), self.claimed(finding.round, finding.claim)
        question = Question(finding.claim, finding.check, finding.lot)
        is_taken = self._is_taken(finding.round, is_accused=question in self.accused)
        if asked is None or claimed is None or claimed.row != finding.row or not is_taken:
            raise LedgerError("a finding on no claim of that table, or one that is not to be audited yet, or any more")
        if finding.check == WHOLE and not is_whole(self.manifest.trust, asked.beacon, finding.claim):
            raise LedgerError("a finding on a whole claim whose beacon asks for single lots")  # its key has not kept what that needs
        if finding.check == LOT and finding.lot not in lots_audited(self.manifest.trust, asked.beacon, finding.claim, claimed.lots):
            raise LedgerError("a finding on another lot than the beacon's")
        if finding.auditor not in self._panel(asked, claimed):
            raise LedgerError("a finding of somebody who is not asked about this claim")
        if self._is_closed(question) or claimed.key in self.guilty:
            raise LedgerError("a finding on what is decided")
        if any(vote.auditor == finding.auditor for vote in self.votes.get(question, ())):
            raise LedgerError("this auditor has answered this question")
        check_evidence(finding, claimed.lots_root, claimed.lots)

    def _is_taken(self, round: int, *, is_accused: bool) -> bool:
        """Are findings on the table of ``round`` still taken, of those that follow the newest round: longer where a claim is accused, for
        whoever accuses it last must not have the last word.
        """
        trust = self.manifest.trust
        return round >= self.round - (trust.shown_rounds if is_accused else trust.kept_rounds)

    def _panel(self, asked: Asked, claimed: Claimed) -> tuple[bytes, ...]:
        keys = asked.panels.get(claimed.digest)
        if keys is None:
            keys = asked.panels[claimed.digest] = panel(asked.beacon, claimed.digest, asked.named, asked.proven, claimed.mates)
        return tuple(key for key in keys if key not in self.guilty)

    def _is_closed(self, question: Question) -> bool:
        decision = self.decisions.get(question)
        return decision is not None and (decision.outcome != HOLDS or bool(decision.outvoted))

    # What an admission's entry does, and a round's.

    def name(self, key: bytes) -> None:
        """Count ``key``, which just came in, as proven from the start."""
        self.named |= {key}

    def turn(self, round: int, commit: bytes, extras: Sequence[Extra], table: Sequence[Claimed], shares: Mapping[bytes, int]) -> None:
        """Take a round: the extras before it, then its table, which the audits of later rounds are about.

        Args:
            round: its number.
            commit: its entry's digest, the beacon of the table before.
            extras: checked, in the log's order.
            table: its claims.
            shares: what it pays, by key.
        """
        self.round = round
        self.accounts.name({claimed.key: claimed.payout for claimed in table})
        if not self.manifest.trust.is_audited:
            self.accounts.earn(round, shares)
            return
        paid: Counter[bytes] = Counter()
        answered = set[Question]()
        for extra in extras:
            if isinstance(extra, Finding):
                answered.add(self._take_finding(extra, round, paid))
        self.tables[round] = {claimed.digest: claimed for claimed in table}
        self._decide(answered | self.accused, round)
        paid.update(shares)
        for key in [key for key in paid if key in self.guilty]:
            self.accounts.deny(key, paid.pop(key), self.guilty[key])
        self.accounts.earn(round, paid)
        if round > 1:
            self.asked[round - 1] = self._asked(round - 1, commit)
        self._forget(round - self.manifest.trust.shown_rounds - 1)

    def _asked(self, round: int, beacon: bytes) -> Asked:
        trust = self.manifest.trust
        named = {*self.manifest.operators, *trust.auditors} - self.guilty.keys()
        candidates = {*self.named, *self.samples}
        due = tuple(
            question
            for claimed in self.tables[round].values()
            if claimed.key not in self.guilty
            for question in questions_due(trust, beacon, claimed.digest, claimed.lots, self._percent(claimed.key))
        )
        proven = {key for key in candidates if self.is_proven(key)} - named
        return Asked(beacon, tuple(sorted(named)), tuple(sorted(proven)), due, self.manifest.audit_pool // max(len(due), 1))

    def _percent(self, key: bytes) -> int:
        return percent_audited(self.manifest.trust, self.is_proven(key), self.samples[key])

    def _take_finding(self, finding: Finding, round: int, paid: Counter[bytes]) -> Question:
        question = Question(finding.claim, finding.check, finding.lot)
        asked, before = self.asked[finding.round], self.votes.get(question, ())
        if any(vote.auditor == finding.auditor for vote in before):
            return question  # it said two things in one round: the first one counts
        votes = (*before, Vote(finding.auditor, finding.outcome, round, finding.auditor in asked.named))
        self.votes[question] = votes
        is_accused = any(vote.is_against for vote in votes)
        if is_accused:
            self.accused |= {question}
        is_open = is_accused or question not in self.decisions
        if question in asked.due and len(votes) <= 3 and (len(votes) == 1 or is_open):
            paid[finding.auditor] += asked.worth // (2 if len(votes) == 1 else 4)
        return question

    def _decide(self, questions: AbstractSet[Question], round: int) -> None:
        """Decide what can be decided, in the order of the questions."""
        for question in sorted(questions):
            claimed = self._claimed_in(question)
            if claimed.key in self.guilty:
                self.accused -= {question}
                continue
            asked = self.asked[claimed.round]
            votes = [vote for vote in self.votes[question] if vote.auditor not in self.guilty]
            num_named = sum(key in asked.named for key in self._panel(asked, claimed))
            decision = decided(votes, num_named, round)
            if decision is None or decision == self.decisions.get(question):
                continue
            self.decisions[question] = decision
            if self._is_closed(question):
                self.accused -= {question}
            for auditor in decision.outvoted:
                self._condemn(auditor, Fault(round, OUTVOTED, question.claim))
            if decision.outcome == HOLDS:
                self._count(claimed)
            elif decision.outcome == WITHHELD and self.was_there(claimed):
                self._bring_down(claimed.key, Fault(round, WITHHELD, question.claim))
            elif decision.outcome == WITHHELD:
                self._pass_over(claimed, Fault(round, LEFT, question.claim))
            else:
                self._condemn(claimed.key, Fault(round, DIFFERS, question.claim))

    def _claimed_in(self, question: Question) -> Claimed:
        return next(table[question.claim] for table in self.tables.values() if question.claim in table)

    def _count(self, claimed: Claimed) -> None:
        if claimed.digest not in self.good:
            self.good[claimed.digest] = claimed.samples
            self.samples[claimed.key] += claimed.samples

    def _pass_over(self, claimed: Claimed, fault: Fault) -> None:
        """What nobody could look at is not paid, nor counted as good; it says nothing of the rest of what its key did."""
        if any(void.fault.claim == claimed.digest for void in self.accounts.of(claimed.key).void):
            return
        self.accounts.take_back(claimed.key, fault, claimed.round)
        self.samples[claimed.key] -= self.good.get(claimed.digest, 0)
        self.good[claimed.digest] = 0  # whatever else is found of it

    def _condemn(self, key: bytes, fault: Fault) -> None:
        """Trust in a key ends for good."""
        if key not in self.guilty:
            self._bring_down(key, fault)
            self.guilty[key] = fault

    def _bring_down(self, key: bytes, fault: Fault) -> None:
        """What is pending for a key is void, and it has to be found good from the beginning."""
        self.accounts.take_back(key, fault)
        self.samples.pop(key, None)
        own = {claimed.digest for table in self.tables.values() for claimed in table.values() if claimed.key == key}
        self.good.update(dict.fromkeys(own & self.good.keys(), 0))
        if key in self.named:
            self.fallen |= {key}

    def _forget(self, oldest: int) -> None:
        """Forget tables before ``oldest``: no finding on them is taken any more, and what was accused had its time."""
        for round_ in [round_ for round_ in self.tables if round_ < oldest]:
            self.asked.pop(round_, None)
            gone = self.tables.pop(round_)
            for question in [question for question in self.votes if question.claim in gone]:
                del self.votes[question]
                self.decisions.pop(question, None)
                self.accused -= {question}
            for claim in gone:
                self.good.pop(claim, None)


def claimed_in(listed: Sequence[Listed], round: int) -> list[Claimed]:
    """Return the claims of the table of ``round``, for its audits."""
    return [
        Claimed(digest, key, payout, round, row, lots.count, lots.root, lots.samples, one.keys)
        for row, one in enumerate(listed)
        for digest, key, payout, lots in zip(one.claims, one.keys, one.payouts, one.lots, strict=True)
    ]
