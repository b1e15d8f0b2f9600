"""Whole histories of a run: credits against exact fractions, and random entries against a model of what may follow."""

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.errors import LedgerError
from protocol.exchange import MAX_AGE, next_open_ms
from protocol.records import Header, Round, entry_of
from protocol.signing import Identity, sha256
from protocol.table import Row, table_root
from tests.contributions import PEERS, commit, header_of, with_contribution
from tests.protocol.ledgers import claim_entry, ledger_of, refused, seen
from tests.runs import EXCHANGE, FixedCourse

NUM_ROUNDS, MAX_ROWS, SORTED_AFTER, BIG = 7, 3, 3, (30, 30)
COURSE = FixedCourse(sorts=frozenset({SORTED_AFTER}))
CROWD = PEERS[:5]
BACKS = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6])  # commits from a claim's base to the last one


def shares(weights: dict[bytes, Fraction], pool: int) -> dict[bytes, int]:
    """Largest remainders, by the book: one unit after the other to whom the most is missing."""
    total = sum(weights.values())
    if not total:
        return {}
    exact = {key: pool * weight / total for key, weight in weights.items()}
    paid = {key: int(share) for key, share in exact.items()}
    missing = {key: exact[key] - paid[key] for key in exact}
    while sum(paid.values()) < pool:
        key = min(missing, key=lambda key: (-missing[key], key))
        paid[key] += 1
        del missing[key]
    return paid


def worth(lots: tuple[int, ...]) -> Fraction:
    """MACs of 16 samples a lot at 10 and 15 each, of 80 samples at most, rounded down."""
    samples = 16 * sum(lots)
    return Fraction(int(16 * (10 * lots[0] + 15 * lots[1]) * min(Fraction(1), Fraction(80, samples))))


peers_lots = st.dictionaries(
    st.sampled_from(CROWD), st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(any), min_size=1, max_size=len(CROWD)
)


@settings(max_examples=60)
@given(st.lists(peers_lots, min_size=1, max_size=4))
def test_credits_are_the_sum_of_each_round_s_shares_and_the_log_replayed_gives_the_same(
    tables: list[dict[Identity, tuple[int, int]]],
) -> None:
    ledger, expected, log = ledger_of(), Counter[bytes](), list[bytes]()
    for table in tables:
        log += commit(ledger, [header_of(ledger, peer, lots=lots) for peer, lots in table.items()])
        expected.update(shares({peer.public_key: worth(lots) for peer, lots in table.items()}, 1_000))
        assert ledger.credits() == {key: paid for key, paid in sorted(expected.items()) if paid}
        assert list(ledger.credits()) == sorted(ledger.credits())
        assert ledger.last_founders == {peer.public_key for peer in table}
    assert sum(ledger.credits().values()) == 1_000 * len(tables)
    replayed = ledger_of()
    for entry in log:
        replayed.append(entry)
    assert seen(replayed) == seen(ledger)


def test_credits_by_hand() -> None:
    ledger = ledger_of()
    lots = [(2, 0), (0, 2), (20, 20)]  # 320, 480, and 640 samples of 12.5 each capped to 80: 1000
    commit(ledger, [header_of(ledger, peer, lots=each) for peer, each in zip(PEERS, lots, strict=False)])
    # 1000 in the ratio 320 : 480 : 1000 is 177.78, 266.67 and 555.56: two more by largest remainder
    assert ledger.credits() == {PEERS[0].public_key: 178, PEERS[1].public_key: 267, PEERS[2].public_key: 555}


def test_work_that_costs_nothing_earns_nothing() -> None:
    ledger = ledger_of(FixedCourse(prices=(0, 15)))
    commit(ledger, [header_of(ledger, PEERS[0], lots=(4, 0)), header_of(ledger, PEERS[1], lots=(0, 1))])
    assert ledger.credits() == {PEERS[1].public_key: 1_000}
    commit(ledger, [header_of(ledger, PEERS[0], lots=(4, 0))])
    assert ledger.credits() == {PEERS[1].public_key: 1_000}


def test_aged_work_earns_in_the_round_that_it_counts_in() -> None:
    ledger = ledger_of()
    aged = header_of(ledger, PEERS[0])
    commit(ledger, [header_of(ledger, PEERS[1])])
    assert ledger.credits() == {PEERS[1].public_key: 1_000}
    commit(ledger, [aged, header_of(ledger, PEERS[1])])  # the same work: age lowers the weight in the mean, not what it earns
    assert ledger.credits() == {PEERS[0].public_key: 500, PEERS[1].public_key: 1_500}


@dataclass(frozen=True)
class Listed:
    """What the model keeps of a contribution."""

    peer: int
    round: int  # the round after its base
    body: int
    lots: tuple[int, ...]
    contribution: bytes = b""


class Histories(RuleBasedStateMachine):
    """Random entries, most of which might follow, one after the other; a model without bytes says which do."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger_of(COURSE, replace(EXCHANGE, max_rows=MAX_ROWS), NUM_ROUNDS)
        self.log: list[bytes] = []
        self.done: list[list[Listed]] = []  # tables of committed rounds
        self.table: list[Listed] = []
        self.pending: tuple[Listed, Header] | None = None  # a claim that waits for its contribution
        self.before_claim = self.ledger
        self.paid: Counter[bytes] = Counter()
        self.open_ms = EXCHANGE.first_open_ms

    @property
    def next(self) -> int:
        return len(self.done) + 1

    def offer(self, entry: bytes, is_right: bool) -> bool:
        if not is_right:
            refused(self.ledger, entry)
            return False
        self.ledger.append(entry)
        self.log.append(entry)
        return True

    def row(self, one: Listed) -> Row:
        samples = min(16 * sum(one.lots), 80)
        return Row(one.contribution, CROWD[one.peer].public_key, self.next - one.round, 0, samples, sha256(b"%d" % one.body))

    def base_may_count(self, round_: int) -> bool:
        return self.next <= NUM_ROUNDS and self.next - round_ <= MAX_AGE and not round_ <= SORTED_AFTER < self.next

    def claim_may_follow(self, claim: Listed) -> bool:
        counted = {(one.peer, one.round) for table in self.done for one in table}
        in_table = {one.peer for one in self.table} | ({self.pending[0].peer} if self.pending else set())
        return (
            len(self.table) < MAX_ROWS
            and self.base_may_count(claim.round)
            and claim.lots != BIG
            and (claim.peer, claim.round) not in counted
            and claim.peer not in in_table
        )

    @rule(
        peer=st.integers(0, len(CROWD) - 1),
        back=BACKS,
        lots=st.sampled_from([(1, 1), (1, 1), (3, 0), (0, 20), BIG]),
        body=st.integers(0, 30),
    )
    def claim(self, peer: int, back: int, lots: tuple[int, ...], body: int) -> None:
        claim = Listed(peer, max(1, self.next - back), body, lots)
        header = header_of(self.ledger, CROWD[peer], round=claim.round, lots=lots, body=sha256(b"%d" % body))
        if self.pending is not None:  # whatever it is: no contribution of a cohort of one could list both
            refused(self.ledger, claim_entry(header))
            return
        before = self.ledger.copy()
        if self.offer(claim_entry(header), self.claim_may_follow(claim)):
            self.pending, self.before_claim = (claim, header), before

    @rule(fault=st.sampled_from([None, None, None, None, "body", "round", "claims"]))
    @precondition(lambda self: self.pending is not None)
    def contribution(self, fault: str | None) -> None:
        assert self.pending is not None
        listed, header = self.pending
        wrong = {
            "body": {"body": sha256(b"%d" % self.done[0][0].body)} if self.done else {"run": sha256(b"another")},
            "round": {"round": listed.round + 1},
            "claims": {"claims": (sha256(b"another"),)},
        }
        if fault is not None:
            header = with_contribution(header, CROWD[listed.peer], **wrong[fault])
        bodies = {one.body for table in (*self.done, self.table) for one in table}
        is_right = (
            fault is None and listed.body not in bodies and len(self.table) < MAX_ROWS and all(one.peer < listed.peer for one in self.table)
        )
        if self.offer(entry_of(header.contribution), is_right):
            self.table.append(replace(listed, contribution=header.contribution.digest))
            self.pending = None

    @rule()
    @precondition(lambda self: self.pending is not None)
    def forget_the_claim(self) -> None:
        """Go on with the copy from before it."""
        self.ledger, self.pending = self.before_claim, None
        self.log.pop()

    @rule(
        fault=st.sampled_from([None, None, None, "base", "rows", "table", "counted", "open_ms", "floor"]),
        raised=st.sampled_from([-1, 0, 1]),
    )
    def round(self, fault: str | None, raised: int) -> None:
        counted = sum(16 * sum(one.lots) for one in self.table)
        open_ms = next_open_ms(EXCHANGE, self.open_ms, counted, [10] * max(len(self.table), 1))
        digest = sha256(b"another")
        round_ = Round(
            run=self.ledger.run,
            round=self.next,
            base=self.ledger.last_commit,
            table=table_root([self.row(one) for one in self.table]) if self.table else digest,
            rows=max(len(self.table), 1),
            mean=digest,
            state=digest,
            counted=max(counted, 1),
            thresholds=(),
            floor=self.ledger.floor_at(self.ledger.round) + raised,
            open_ms=open_ms,
        )
        if fault is not None:
            wrong = {
                "base": digest,
                "rows": round_.rows + 1,
                "table": bytes(32),
                "counted": round_.counted + 1,
                "open_ms": round_.open_ms + 1,
                "floor": self.ledger.floor_at(self.ledger.round) + (raised or 1) * 2,
            }
            round_ = replace(round_, **{fault: wrong[fault]})
        is_right = fault is None and self.pending is None and bool(self.table) and self.next <= NUM_ROUNDS
        if self.offer(entry_of(round_), is_right):
            self.paid.update(shares({CROWD[one.peer].public_key: worth(one.lots) for one in self.table}, 1_000))
            self.done.append(self.table)
            self.table, self.open_ms = [], open_ms

    @rule(
        peers=st.sets(st.integers(0, len(CROWD) - 1), min_size=1, max_size=MAX_ROWS),
        backs=st.lists(BACKS, min_size=MAX_ROWS, max_size=MAX_ROWS),
    )
    @precondition(lambda self: self.pending is None)
    def whole_table(self, peers: set[int], backs: list[int]) -> None:
        """So that histories become long."""
        for peer, back in zip(sorted(peers), backs, strict=False):
            self.claim(peer, back, (1, 2), 1_000 + len(self.log))
            if self.pending is not None:
                self.contribution(None)
            if self.pending is not None:
                self.forget_the_claim()
        self.round(None, 0)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.ledger.size == len(self.log)
        assert (self.ledger.round, self.ledger.finished) == (len(self.done), len(self.done) == NUM_ROUNDS)
        assert self.ledger.is_between_rounds == (self.pending is None and not self.table)
        assert self.ledger.credits() == {key: paid for key, paid in sorted(self.paid.items()) if paid}
        assert self.ledger.last_founders == {CROWD[one.peer].public_key for one in (self.done[-1] if self.done else [])}
        assert self.ledger.open_ms == self.open_ms

    def teardown(self) -> None:
        replayed = ledger_of(COURSE, replace(EXCHANGE, max_rows=MAX_ROWS), NUM_ROUNDS)
        for entry in self.log:
            replayed.append(entry)
        assert seen(replayed) == seen(self.ledger)


Histories.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestHistories = Histories.TestCase


def test_two_logs_of_one_run_do_not_mix() -> None:
    one, other = ledger_of(), ledger_of()
    commit(one, [header_of(one, PEERS[0])])
    first, contribution, round_ = commit(other, [header_of(other, PEERS[1])])
    with pytest.raises(LedgerError, match="another base"):
        one.listed(header_of(other, PEERS[2]), 2)
    one.append(first)  # work on the run's start fits both
    one.append(contribution)
    refused(one, round_, match="does not follow")
