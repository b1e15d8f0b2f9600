"""What coding leaves out is not lost: a model with exact numbers, whose claims and contributions go through the real ledger.

Peers learn vectors of integers. A contribution lists the mean of what its members gave, weighted by their samples, of which only the
largest value travels, rounded; what is left is the residual of each member, named by its digest. Peers split, merge and move between
cohorts, are late, and are not listed. The residual of a key is what its last listed contribution left, and none after a sort of the
channels: whoever names that one, or none, loses nothing else. The weighted sum of what was learnt is that of what was listed, of the
residuals that are left, and of what was forgotten. What a key that goes by the log names is what an audit finds to have been left to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.listed import RESIDUAL_ROUNDS, Listed, is_added, was_left
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS, claim_of, commit, header_of, listing
from tests.protocol.ledgers import ledger_of
from tests.runs import EXCHANGE, FixedTrainingSpec

Vector = tuple[Fraction, ...]
CROWD, STRANGER = PEERS[:6], PEERS[7]
MICROBATCHES = {peer.public_key: (number + 1, 0) for number, peer in enumerate(CROWD)}  # for good: so weights stay the same
WEIGHTS = {key: min(16 * microbatches[0], EXCHANGE.weight_cap) for key, microbatches in MICROBATCHES.items()}
SORTED_AFTER = 6
ZERO: Vector = (Fraction(0),) * 3


def plus(*vectors: Vector) -> Vector:
    return tuple(sum(values, Fraction(0)) for values in zip(*vectors, strict=True))


def times(factor: Fraction | int, vector: Vector) -> Vector:
    return tuple(factor * value for value in vector)


def digest(vector: Vector) -> bytes:
    """What names a residual; of zeros it is empty."""
    return sha256(repr(vector).encode()) if any(vector) else b""


def coded(vector: Vector) -> Vector:
    """What is decoded by everybody: the largest value, rounded to an even number."""
    place = max(range(len(vector)), key=lambda place: (abs(vector[place]), -place))
    return tuple(Fraction(2 * round(value / 2)) if at == place else Fraction(0) for at, value in enumerate(vector))


@dataclass(frozen=True)
class Given:
    """A contribution that waits to be handed in, and what the model knows of it."""

    header: Header
    learnt: dict[bytes, Vector]
    used: dict[bytes, Vector]  # the residual that each member's claim names
    decoded: Vector
    left: Vector


class Swarm(RuleBasedStateMachine):
    """Contributions are made on the newest base and listed now, later, or never."""

    @initialize(percent=st.sampled_from([100, 100, 95, 0]))
    def begin(self, percent: int) -> None:
        exchange = replace(EXCHANGE, codec="topk-256-4", residual_percent=percent)
        self.ledger = ledger_of(FixedTrainingSpec(sorts=frozenset({SORTED_AFTER})), exchange, num_rounds=1_000)
        self.kept = Fraction(percent, 100)
        self.known: dict[bytes, Vector] = {b"": ZERO}  # every residual that ever was, by its digest
        self.waiting: list[Given] = []
        self.listed = self.learnt = self.forgotten = ZERO
        self.left: dict[bytes, bytes] = {}  # by key, the digest of its residual
        self.left_by: dict[int, dict[bytes, bytes]] = {}  # by round, what its table left
        self.may_forget = percent < 100

    def residual(self, key: bytes) -> Vector:
        """What a key is left with."""
        return self.known[self.left.get(key, b"")]

    def make(self, members: Sequence[Identity], learnt: Sequence[Vector], used: Sequence[Vector]) -> None:
        founder = members[0]
        claims = [
            claim_of(
                self.ledger,
                member,
                microbatches=MICROBATCHES[member.public_key],
                founder=founder.public_key,
                residual=digest(residual),
            )
            for member, residual in zip(members, used, strict=True)
        ]
        keys = [member.public_key for member in members]
        given = [times(WEIGHTS[key], plus(new, times(self.kept, old))) for key, new, old in zip(keys, learnt, used, strict=True)]
        mean = times(Fraction(1, sum(WEIGHTS[key] for key in keys)), plus(*given))
        left = plus(mean, times(-1, coded(mean)))
        header = listing(claims, founder, left=digest(left))
        self.waiting.append(Given(header, dict(zip(keys, learnt, strict=True)), dict(zip(keys, used, strict=True)), coded(mean), left))

    vectors = st.lists(st.integers(-9, 9), min_size=3, max_size=3).map(lambda values: tuple(map(Fraction, values)))

    @rule(
        cohorts=st.lists(st.integers(0, 3), min_size=len(CROWD), max_size=len(CROWD)),
        learnt=st.lists(vectors, min_size=len(CROWD), max_size=len(CROWD)),
    )
    def all_learn_something(self, cohorts: list[int], learnt: list[Vector]) -> None:
        """Have peers train in cohorts drawn by chance, each with the residual that it was left with; cohort 0 sits it out."""
        for cohort in {1, 2, 3} & set(cohorts):
            members = [place for place, each in enumerate(cohorts) if each == cohort]
            peers = [CROWD[place] for place in members]
            self.make(peers, [learnt[place] for place in members], [self.residual(peer.public_key) for peer in peers])

    @rule(members=st.lists(st.integers(0, len(CROWD) - 1), min_size=1, max_size=3, unique=True), learnt=vectors)
    def some_name_no_residual(self, members: list[int], learnt: Vector) -> None:
        self.make([CROWD[place] for place in members], [learnt for _ in members], [ZERO for _ in members])

    @rule(data=st.data())
    def a_round_is_committed(self, data: st.DataObject) -> None:
        """Commit some of what waits, in any order; the rest is late, or never comes."""
        table: dict[bytes, tuple[Given, Listed]] = {}
        for one in data.draw(st.permutations(self.waiting)):
            if not data.draw(st.integers(0, 3)):
                continue
            if any(digest(used) not in (b"", self.left.get(key, b"")) for key, used in one.used.items()):
                continue  # another one of that key came first: who goes by the log makes another one
            listed = self.offered(one)
            if listed is None:
                continue
            if all(set(listed.keys).isdisjoint(other.keys) for _, other in table.values()):
                table[one.header.contribution.digest] = one, listed
        before = {peer.public_key: self.residual(peer.public_key) for peer in CROWD}
        commit(self.ledger, [*(one.header for one, _ in table.values()), header_of(self.ledger, STRANGER)])
        for one, _ in table.values():
            self.take(one, before)
        self.leave([one for one, _ in table.values()])
        self.waiting = [one for one in self.waiting if one.header.contribution.digest not in table][-12:]
        if self.ledger.round == SORTED_AFTER:
            self.may_forget = True
            for key in WEIGHTS:
                left = next((one.left for one, listed in table.values() if key in listed.keys), before[key])
                self.forgotten = plus(self.forgotten, times(WEIGHTS[key], left))

    def offered(self, one: Given) -> Listed | None:
        """What a contribution would be in the next table; None: it is too old, from before the sort, or in the log."""
        try:
            return self.ledger.listed(one.header, self.ledger.round + 1)
        except LedgerError:
            return None

    def leave(self, table: Sequence[Given]) -> None:
        """What a table leaves to each key; what each of them used is what an audit finds."""
        round_ = self.ledger.round
        for signed in (signed for one in table for signed in one.header.claims):
            assert was_left(signed.unchecked(), round_, self.ledger.training_spec.sorts_after, lambda number: self.left_by[number])
        self.left_by[round_] = {key: digest(one.left) for one in table for key in one.learnt}
        self.left = {} if round_ == SORTED_AFTER else self.left | self.left_by[round_]

    def take(self, one: Given, before: dict[bytes, Vector]) -> None:
        """Put a listed contribution into the books."""
        self.known[digest(one.left)] = one.left
        for key, learnt in one.learnt.items():
            spent = plus(before[key], times(-self.kept, one.used[key]))  # what decays, or all of it where it was not named
            self.may_forget |= one.used[key] != before[key]
            self.learnt = plus(self.learnt, times(WEIGHTS[key], learnt))
            self.listed = plus(self.listed, times(WEIGHTS[key], one.decoded))
            self.forgotten = plus(self.forgotten, times(WEIGHTS[key], spent))

    @invariant()
    def what_was_learnt_and_listed_is_what_was_decoded_and_what_is_left(self) -> None:
        if hasattr(self, "ledger"):
            left = plus(ZERO, *(times(weight, self.residual(key)) for key, weight in WEIGHTS.items()))
            assert self.learnt == plus(self.listed, left, self.forgotten)

    @invariant()
    def where_nothing_decays_and_all_name_what_they_are_left_with_nothing_is_forgotten(self) -> None:
        if hasattr(self, "ledger") and not self.may_forget:
            assert self.forgotten == ZERO


# What an audit finds.

KEY, LEFT, SPENT = CROWD[0].public_key, sha256(b"left"), sha256(b"spent")


def is_found(residual: bytes, left_by: dict[int, bytes], *, base: int = 99, round: int = 100, sorted_after: int | None = None) -> bool:
    """Whether a claim on the commit of ``base`` in the table of ``round`` names what one of the tables ``left_by`` left to its key."""
    claim = claim_of(ledger_of(), CROWD[0], round=base + 1, residual=residual).open()
    return was_left(claim, round, lambda number: number == sorted_after, lambda number: {KEY: left_by[number]} if number in left_by else {})


def test_a_residual_is_found_that_a_table_before_left_and_no_other() -> None:
    tables = {97: SPENT, 98: LEFT}
    assert is_found(b"", {})
    assert is_found(LEFT, tables)
    assert is_found(SPENT, tables)
    assert not is_found(sha256(b"made up"), tables)
    assert not is_found(LEFT, {100: LEFT})  # its own table
    assert not is_found(LEFT, {98: LEFT}, sorted_after=98)
    assert not is_found(LEFT, {98: LEFT}, sorted_after=99)
    assert is_found(LEFT, {98: LEFT}, sorted_after=97)
    assert is_found(LEFT, {1: LEFT}, base=1, round=2)


def test_another_key_s_residual_is_not_found() -> None:
    claim = claim_of(ledger_of(), CROWD[0], round=3, residual=LEFT).open()
    assert not was_left(claim, 3, lambda _: False, lambda _: {CROWD[1].public_key: LEFT})


@pytest.mark.parametrize("late", range(5))
@pytest.mark.parametrize("rounds", [RESIDUAL_ROUNDS - 1, RESIDUAL_ROUNDS, RESIDUAL_ROUNDS + 1])
def test_whatever_a_peer_still_adds_is_found_however_late_its_work_is_listed(rounds: int, late: int) -> None:
    base = 99
    assert is_added(base - rounds, base, lambda _: False) == (rounds <= RESIDUAL_ROUNDS)
    assert is_found(LEFT, {base - rounds: LEFT}, base=base, round=base + 1 + late) == (rounds <= RESIDUAL_ROUNDS)


TestSwarm = Swarm.TestCase
TestSwarm.settings = settings(max_examples=40, stateful_step_count=30)
