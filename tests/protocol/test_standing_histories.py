"""Whatever auditors, cheats and operators say in whatever order: what always holds of trust, weight and credit."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.audits import DIFFERS, HOLDS, PATIENCE, WITHHELD, SignedExtra
from protocol.errors import LedgerError
from protocol.ledger import Ledger
from protocol.records import entry_of
from protocol.signing import Identity
from protocol.table import weights
from tests.audited import OPERATOR, SECOND, THIRD, audited_ledger, finding_of, works_of
from tests.contributions import PEERS, round_of

WORKERS = PEERS[:5]
PROVEN = tuple(sorted(peer.public_key for peer in WORKERS[:2]))
NAMED = tuple(sorted((SECOND.public_key, THIRD.public_key)))
AUDITORS = [OPERATOR, SECOND, THIRD, *WORKERS]
ROUNDS = 40


class Histories(RuleBasedStateMachine):
    """A run whose extras and rounds hypothesis chooses; each entry is kept, so that another ledger can take them all."""

    ledger: Ledger

    @initialize(named=st.sampled_from([(), NAMED]), proven=st.sampled_from([(), PROVEN]), lots=st.sampled_from([1, 3]))
    def begin(self, named: tuple[bytes, ...], proven: tuple[bytes, ...], lots: int) -> None:
        self.ledger = audited_ledger(ROUNDS, auditors=named, proven=proven, audit_lots=lots)
        self.follower = self.ledger.copy()
        self.entries: list[bytes] = []
        self.waiting: dict[bytes, SignedExtra] = {}
        self.final: Counter[bytes] = Counter()
        self.fallen: set[bytes] = set()
        for _ in range(2):
            self.commit(frozenset(range(5)))

    def append(self, entry: bytes) -> None:
        step = self.ledger.append(entry)
        if step is not None:
            self.follower.follow(step)
        self.entries.append(entry)

    def commit(self, who: frozenset[int]) -> None:
        for digest in sorted(self.waiting):
            try:
                self.append(entry_of(self.waiting[digest]))
            except LedgerError:
                assert self.ledger.size == len(self.entries)  # what was decided meanwhile leaves no trace
        self.waiting.clear()
        headers = works_of(self.ledger, [WORKERS[each] for each in sorted(who)])
        listed = [self.ledger.listed(header, self.ledger.round + 1) for header in headers]
        found = weights([one.weighing for one in listed])
        proven = sum(weight for weight, one in zip(found, listed, strict=True) if not one.weighing.unproven)
        if proven:
            assert 4 * (sum(found) - proven) <= proven + len(found)
        for entry in (*map(entry_of, headers), entry_of(round_of(self.ledger, listed))):
            self.append(entry)

    @precondition(lambda self: self.ledger.round < ROUNDS)
    @rule(who=st.frozensets(st.integers(0, 4), min_size=1))
    def go_on(self, who: frozenset[int]) -> None:
        self.commit(who)

    @rule(
        auditor=st.sampled_from(AUDITORS), of=st.sampled_from(WORKERS), outcome=st.sampled_from([HOLDS, DIFFERS, WITHHELD]), data=st.data()
    )
    def find(self, auditor: Identity, of: Identity, outcome: str, data: st.DataObject) -> None:
        standing = self.ledger.standing
        there = [round_ for round_ in standing.asked if any(one.key == of.public_key for one in standing.tables[round_].values())]
        if there:
            self.hand_in(finding_of(self.ledger, auditor, of, outcome, round=data.draw(st.sampled_from(there))))

    def hand_in(self, extra: SignedExtra) -> None:
        before = self.ledger.copy()
        try:
            self.ledger.check_extra(extra)
        except LedgerError:
            pass
        else:
            self.waiting[extra.digest] = extra
        assert vars(self.ledger) == vars(before)

    @invariant()
    def final_stays_final(self) -> None:
        accounts = self.ledger.standing.accounts
        final = {key: accounts.of(key).final for key in accounts.final}
        assert all(final[key] >= amount for key, amount in self.final.items())
        self.final = final

    @invariant()
    def no_more_is_paid_than_the_pool(self) -> None:
        accounts = self.ledger.standing.accounts
        of_keys = [
            accounts.of(key)
            for key in sorted({*accounts.final, *accounts.void, *(key for each in accounts.pending.values() for key in each)})
        ]
        assert sum(one.credit + sum(void.amount for void in one.void) for one in of_keys) <= 1000 * self.ledger.round

    @invariant()
    def the_guilty_have_nothing_pending_and_no_trust_for_good(self) -> None:
        standing = self.ledger.standing
        assert self.fallen <= standing.guilty.keys()
        self.fallen = set(standing.guilty)
        for key in standing.guilty:
            assert standing.account(key).pending == ()
            assert not standing.is_proven(key)
            assert standing.samples[key] == 0

    @invariant()
    def what_audits_need_is_forgotten_in_time(self) -> None:
        standing, kept = self.ledger.standing, self.ledger.manifest.trust.kept_rounds
        assert len(standing.tables) <= kept + PATIENCE + 2
        claims = {claim for table in standing.tables.values() for claim in table}
        assert {question.claim for question in standing.votes} | set(standing.good) <= claims
        assert standing.accused <= standing.votes.keys()
        for due in standing.due():
            assert OPERATOR.public_key in due.panel or OPERATOR.public_key in standing.guilty
            assert not set(due.panel) & (set(due.claimed.mates) | standing.guilty.keys())

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        trust = self.ledger.manifest.trust
        again = audited_ledger(ROUNDS, auditors=trust.auditors, proven=trust.proven, audit_lots=trust.audit_lots)
        for entry in self.entries:
            again.append(entry)
        assert again.standing == self.ledger.standing
        assert again.last_commit == self.ledger.last_commit
        assert vars(self.follower) == vars(self.ledger)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=20, stateful_step_count=30)
