"""Whole histories of a run: credits against exact fractions, and random entries against a model of what may follow."""

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.records import Claim, Round, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS, claim_of, commit, header_of, listing, with_contribution
from tests.protocol.ledgers import ledger_of, refused, seen
from tests.protocol.test_rewards import shares
from tests.runs import EXCHANGE, FixedTrainingSpec

NUM_ROUNDS, MAX_ROWS, SORTED_AFTER, BIG = 7, 3, 3, (30, 30)
TRAINING_SPEC = FixedTrainingSpec(sorts=frozenset({SORTED_AFTER}))
CROWD = PEERS[:5]
BACKS = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6])  # commits from a claim's base to the last one


def worth(microbatches: tuple[int, ...]) -> Fraction:
    """MACs of 16 samples a microbatch at 10 and 15 each, of 80 samples at most, rounded down."""
    samples = 16 * sum(microbatches)
    return Fraction(int(16 * (10 * microbatches[0] + 15 * microbatches[1]) * min(Fraction(1), Fraction(80, samples))))


peers_microbatches = st.dictionaries(
    st.sampled_from(CROWD), st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(any), min_size=1, max_size=len(CROWD)
)


@settings(max_examples=60)
@given(st.lists(peers_microbatches, min_size=1, max_size=4))
def test_credits_are_the_sum_of_each_round_s_shares_and_the_log_replayed_gives_the_same(
    tables: list[dict[Identity, tuple[int, int]]],
) -> None:
    ledger, expected, log = ledger_of(), Counter[bytes](), list[bytes]()
    for table in tables:
        log += commit(ledger, [header_of(ledger, peer, microbatches=microbatches) for peer, microbatches in table.items()])
        expected.update(shares({peer.public_key: worth(microbatches) for peer, microbatches in table.items()}, 1_000))
        assert ledger.credits() == {key: paid for key, paid in sorted(expected.items()) if paid}
        assert list(ledger.credits()) == sorted(ledger.credits())
        assert ledger.last_keys == {peer.public_key for peer in table}
    assert sum(ledger.credits().values()) == 1_000 * len(tables)
    replayed = ledger_of()
    for entry in log:
        replayed.append(entry)
    assert seen(replayed) == seen(ledger)


def test_work_that_costs_nothing_earns_nothing() -> None:
    ledger = ledger_of(FixedTrainingSpec(prices=(0, 15)))
    commit(ledger, [header_of(ledger, PEERS[0], microbatches=(4, 0)), header_of(ledger, PEERS[1], microbatches=(0, 1))])
    assert ledger.credits() == {PEERS[1].public_key: 1_000}
    commit(ledger, [header_of(ledger, PEERS[0], microbatches=(4, 0))])
    assert ledger.credits() == {PEERS[1].public_key: 1_000}


@dataclass(frozen=True)
class Work:
    """What the model keeps of a claim."""

    peer: int
    founder: int  # whom it names
    name: str  # of the cohort
    round: int  # the round after its base
    microbatches: tuple[int, ...]
    payout: int  # whose key its credit adds up to


@dataclass(frozen=True)
class Listed:
    """What the model keeps of a contribution."""

    founder: int
    works: tuple[Work, ...]
    body: int

    @property
    def peers(self) -> list[int]:
        return [work.peer for work in self.works]


class Histories(RuleBasedStateMachine):
    """Random entries, many of which might follow, one after the other; a model without bytes says which do."""

    def __init__(self) -> None:
        super().__init__()
        self.exchange = replace(EXCHANGE, max_rows=MAX_ROWS, codec="topk-256-4")
        self.ledger = ledger_of(TRAINING_SPEC, self.exchange, NUM_ROUNDS)
        self.log: list[bytes] = []
        self.done: list[list[Listed]] = []  # tables of committed rounds
        self.table: list[Listed] = []
        self.pending: list[tuple[Work, Signed[Claim]]] = []  # claims of the contribution that comes next
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

    def base_may_count(self, round_: int) -> bool:
        return self.next <= NUM_ROUNDS and self.next - round_ <= MAX_AGE and not round_ <= SORTED_AFTER < self.next

    def claim_may_follow(self, claim: Work) -> bool:
        counted = {(work.peer, work.round) for table in self.done for one in table for work in one.works}
        in_table = {peer for one in self.table for peer in one.peers}
        return (
            self.base_may_count(claim.round)
            and claim.microbatches != BIG
            and (claim.peer, claim.round) not in counted
            and claim.peer not in in_table
        )

    @rule(
        peer=st.integers(0, len(CROWD) - 1),
        founder=st.one_of(st.none(), st.integers(0, len(CROWD) - 1)),
        name=st.sampled_from(["here", "here", "here", "there"]),
        back=BACKS,
        microbatches=st.sampled_from([(1, 1), (1, 1), (3, 0), (0, 20), BIG]),
        residual=st.sampled_from([b"", sha256(b"left"), sha256(b"new")]),
        payout=st.one_of(st.none(), st.integers(0, len(CROWD) - 1)),
    )
    def claim(
        self,
        peer: int,
        founder: int | None,
        name: str,
        back: int,
        microbatches: tuple[int, ...],
        residual: bytes,
        payout: int | None = None,
    ) -> None:
        """A claim for the contribution that comes next."""
        if founder is None and self.pending:
            founder = self.pending[0][0].founder
        founder = peer if founder is None else founder
        round_ = self.pending[0][0].round if self.pending else max(1, self.next - back)
        claim = Work(peer, founder, name, round_, microbatches, peer if payout is None else payout)
        signed = claim_of(
            self.ledger,
            CROWD[peer],
            round=claim.round,
            microbatches=microbatches,
            cohort=name,
            founder=CROWD[founder].public_key,
            residual=residual,
            payout=CROWD[claim.payout].public_key,
        )
        others = [one for one in self.pending if one[0].peer != peer]
        self.pending = sorted([*others, (claim, signed)], key=lambda one: one[0].peer)

    @rule(
        body=st.integers(0, 5),
        left=st.sampled_from([b"", sha256(b"left"), sha256(b"left too")]),
        signer=st.one_of(st.none(), st.integers(0, len(CROWD) - 1)),
        fault=st.sampled_from([None, None, None, None, "run", "round", "claims"]),
    )
    @precondition(lambda self: self.pending)
    def contribution(self, body: int, left: bytes, signer: int | None, fault: str | None) -> None:
        works = tuple(work for work, _ in self.pending)
        founder = works[0].founder if signer is None else signer
        one = Listed(founder, works, body)
        header = listing([signed for _, signed in self.pending], CROWD[founder], body=sha256(b"%d" % body), left=left)
        wrong = {
            "run": {"run": sha256(b"another")},
            "round": {"round": works[0].round + 1},
            "claims": {"claims": (*header.contribution.open().claims[1:], sha256(b"another"))},
        }
        if fault is not None:
            header = with_contribution(header, CROWD[founder], **wrong[fault])
        consented = all(work.founder == founder for work in works) or (len(works) == 1 and works[0].peer == founder)
        is_right = (
            fault is None
            and founder in one.peers
            and consented
            and len({(work.round, work.name) for work in works}) == 1
            and all(map(self.claim_may_follow, works))
            and len(self.table) < MAX_ROWS
            and all(before.founder < founder for before in self.table)
        )
        if self.offer(entry_of(header), is_right):
            self.table.append(one)
        self.pending = []

    @rule(
        fault=st.sampled_from([None, None, None, "base", "first", "contributions", "open_ms", "min_exponent"]),
        raised=st.sampled_from([-1, 0, 1]),
        open_ms=st.integers(EXCHANGE.min_open_ms, EXCHANGE.max_open_ms),
    )
    def round(self, fault: str | None, raised: int, open_ms: int) -> None:
        works = [work for one in self.table for work in one.works]
        digest = sha256(b"another")
        round_ = Round(
            run=self.ledger.run,
            round=self.next,
            base=self.ledger.last_commit,
            first=len(self.log) - len(self.table),
            contributions=max(len(self.table), 1),
            weights=digest,
            mean=digest,
            state=digest,
            thresholds=(),
            min_exponent=self.ledger.min_exponent_at(self.ledger.round) + raised,
            open_ms=open_ms,
        )
        if fault is not None:
            wrong = {
                "base": digest,
                "first": round_.first + 1,
                "contributions": round_.contributions + 1,
                "open_ms": EXCHANGE.max_open_ms + open_ms,
                "min_exponent": self.ledger.min_exponent_at(self.ledger.round) + (raised or 1) * 2,
            }
            round_ = replace(round_, **{fault: wrong[fault]})
        is_right = fault is None and bool(self.table) and self.next <= NUM_ROUNDS
        if self.offer(entry_of(round_), is_right):
            earned = shares({CROWD[work.peer].public_key: worth(work.microbatches) for work in works}, 1_000)
            for work in works:
                self.paid[CROWD[work.payout].public_key] += earned.get(CROWD[work.peer].public_key, 0)
            self.done.append(self.table)
            self.table, self.open_ms = [], open_ms

    @rule(
        founders=st.lists(st.one_of(st.integers(0, len(CROWD) - 1), st.none()), min_size=len(CROWD), max_size=len(CROWD)),
        backs=st.lists(BACKS, min_size=len(CROWD), max_size=len(CROWD)),
    )
    @precondition(lambda self: not self.pending)
    def whole_table(self, founders: list[int | None], backs: list[int]) -> None:
        """Fill a table, so that histories become long: a cohort for each named founder, on its base."""
        for founder in sorted({each for each in founders if each is not None}):
            for peer in (each for each, named in enumerate(founders) if named == founder or each == founder):
                self.claim(peer, founder, "here", backs[founder], (1, 2), sha256(b"left"))
            if self.pending:
                self.contribution(1_000 + len(self.log), sha256(b"left %d" % len(self.log)), None, None)
        self.round(None, 0, EXCHANGE.first_open_ms)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.ledger.size == len(self.log)
        assert (self.ledger.round, self.ledger.finished) == (len(self.done), len(self.done) == NUM_ROUNDS)
        assert self.ledger.is_between_rounds == (not self.table)
        assert self.ledger.credits() == {key: paid for key, paid in sorted(self.paid.items()) if paid}
        last = self.done[-1] if self.done else []
        assert self.ledger.last_keys == {CROWD[peer].public_key for one in last for peer in one.peers}
        assert self.ledger.open_ms == self.open_ms

    @invariant()
    def a_key_stands_once_in_a_table_and_its_work_on_a_base_once_in_the_log(self) -> None:
        tables = [self.ledger.table_at(number + 1) for number in range(len(self.done))]
        for number, table in enumerate(tables, 1):
            keys = [key for one in table or () for key in one.keys]
            assert len(set(keys)) == len(keys)
            for one in table or ():
                assert len(one.claims) == len(one.keys)
                assert all(self.ledger.claim_listed(key, one.round) == number for key in one.keys)
        listed = {(key, one.round) for table in tables for one in table or () for key in one.keys}
        for identity in CROWD:
            for round_ in range(1, self.next + 1):
                found = self.ledger.claim_listed(identity.public_key, round_)
                assert (found is not None) == ((identity.public_key, round_) in listed)

    def teardown(self) -> None:
        replayed, stepped = (ledger_of(TRAINING_SPEC, self.exchange, NUM_ROUNDS) for _ in range(2))
        for entry in self.log:
            step = replayed.append(entry)
            if step is not None:
                stepped.follow(step)
                assert seen(stepped) == seen(replayed)
        assert seen(replayed) == seen(self.ledger)


Histories.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestHistories = Histories.TestCase


def test_two_logs_of_one_run_do_not_mix() -> None:
    one, other = ledger_of(), ledger_of()
    commit(one, [header_of(one, PEERS[0])])
    contribution, round_ = commit(other, [header_of(other, PEERS[1])])
    with pytest.raises(LedgerError, match="another base"):
        one.listed(header_of(other, PEERS[2]), 2)
    one.append(contribution)  # work on the run's start fits both
    refused(one, round_, match="does not follow")
