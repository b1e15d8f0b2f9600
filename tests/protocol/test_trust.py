"""What audits ask, whom, and what the answers come to: pure functions, each against its meaning."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.audits import AUDITED, DIFFERS, HOLDS, LOT, PATIENCE, WHOLE, WITHHELD, Finding, LotEvidence, Trust
from protocol.encoding import pack
from protocol.errors import LedgerError
from protocol.merkle import Tree, leaf_hash
from protocol.records import LotRecord
from protocol.signing import sha256
from protocol.trust import (
    SEATS,
    Decision,
    Question,
    Vote,
    check_evidence,
    decided,
    lots_audited,
    panel,
    percent_audited,
    questions_due,
)
from tests.protocol.record_samples import ALICE

BEACON, CLAIM = sha256(b"beacon"), sha256(b"claim")
TRUST = Trust(AUDITED)
KEYS = [sha256(b"key %d" % i) for i in range(20)]


# What is asked.


@given(st.integers(1, 50), st.integers(1, 8), st.binary(min_size=32, max_size=32))
def test_lots_are_of_the_claim_and_none_twice(lots: int, wanted: int, beacon: bytes) -> None:
    found = lots_audited(replace(TRUST, audit_lots=wanted), beacon, CLAIM, lots)
    assert len(found) == min(wanted, lots)
    assert list(found) == sorted(set(found))
    assert all(0 <= lot < lots for lot in found)
    fewer = lots_audited(replace(TRUST, audit_lots=1), beacon, CLAIM, lots)
    assert set(fewer) <= set(found)


def test_every_lot_is_as_likely() -> None:
    counts = [0] * 8
    for i in range(4_000):
        counts[lots_audited(TRUST, sha256(b"%d" % i), CLAIM, 8)[0]] += 1
    assert all(400 < count < 600 for count in counts), counts


def test_who_is_not_proven_is_always_audited_and_who_is_less_and_less() -> None:
    assert percent_audited(TRUST, False, 10**9) == 100
    amounts = [0, 65_536, 2 * 65_536, 10 * 65_536, 19 * 65_536, 20 * 65_536, 10**12]
    assert [percent_audited(TRUST, True, samples) for samples in amounts] == [100, 100, 50, 10, 5, 5, 5]


def test_as_many_claims_are_audited_as_was_said_and_whole_ones_among_them() -> None:
    asked = [questions_due(replace(TRUST, whole_percent=20), sha256(b"%d" % i), CLAIM, 5, 30) for i in range(3_000)]
    audited = [questions for questions in asked if questions]
    assert 800 < len(audited) < 1_000
    whole = [questions for questions in audited if questions[-1].check == WHOLE]
    assert 120 < len(whole) < 240
    for place, questions in enumerate(asked):
        if questions:
            (lot,) = lots_audited(TRUST, sha256(b"%d" % place), CLAIM, 5)
            assert questions[0] == Question(CLAIM, LOT, lot)
    assert all(questions_due(TRUST, sha256(b"%d" % i), CLAIM, 5, 100) for i in range(100))


# Who is asked.


def test_the_panel_is_drawn_of_the_named_and_then_of_the_proven_without_mates() -> None:
    named, proven = sorted(KEYS[:5]), sorted(KEYS[5:])
    found = panel(BEACON, CLAIM, named, proven, ())
    assert len(set(found)) == len(found) == 2 * SEATS
    assert set(found[:SEATS]) < set(named)
    assert set(found[SEATS:]) < set(proven)
    without = panel(BEACON, CLAIM, named, proven, [found[0], found[-1]])
    assert len(set(without)) == len(found)
    assert {found[0], found[-1]}.isdisjoint(without)
    assert [key for key in found if key in without] == [key for key in found if key not in (found[0], found[-1])]


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8))
def test_the_panel_has_all_of_few_and_may_be_empty(num_named: int, num_proven: int, num_out: int) -> None:
    named, proven, out = sorted(KEYS[:num_named]), sorted(KEYS[10 : 10 + num_proven]), [*KEYS[:num_out], *KEYS[10:12], KEYS[19]]
    found = panel(BEACON, CLAIM, named, proven, out)
    may = [[key for key in keys if key not in out] for keys in (named, proven)]
    assert len(found) == sum(min(SEATS, len(keys)) for keys in may)
    assert set(found) <= {key for keys in may for key in keys}


def test_each_claim_and_beacon_draws_for_itself_and_every_key_is_as_likely() -> None:
    keys = sorted(KEYS)
    panels = {panel(sha256(b"%d" % i), claim, (), keys, ()) for i in range(10) for claim in (CLAIM, BEACON)}
    assert len(panels) == 20
    for seat in range(SEATS):
        seated = [panel(sha256(b"%d" % i), CLAIM, (), keys, ())[seat] for i in range(2_000)]
        assert all(50 < seated.count(key) < 160 for key in KEYS)


# What answers come to.


def votes(*said: str, named: int = 0, round: int = 5) -> list[Vote]:
    return [Vote(KEYS[place], outcome, round, place < named) for place, outcome in enumerate(said)]


def test_a_single_named_auditor_decides() -> None:
    assert decided(votes(HOLDS, named=1), 1, 5) == Decision(HOLDS, ())
    assert decided(votes(DIFFERS, named=1), 1, 5) == Decision(DIFFERS, ())
    assert decided(votes(WITHHELD, named=1), 1, 5) == Decision(WITHHELD, ())


def test_an_accusation_of_one_among_several_waits_for_others_and_then_stands() -> None:
    one = votes(DIFFERS, named=1)
    assert [decided(one, 3, 5 + waited) for waited in range(PATIENCE)] == [None] * PATIENCE
    assert decided(one, 3, 5 + PATIENCE) == Decision(DIFFERS, ())


def test_two_of_three_decide_and_the_third_is_outvoted() -> None:
    assert decided(votes(DIFFERS, HOLDS, WITHHELD, named=3), 3, 5) == Decision(DIFFERS, (KEYS[1],))
    assert decided(votes(WITHHELD, WITHHELD, HOLDS, named=3), 3, 5) == Decision(WITHHELD, ())  # it was shown to who says that it holds
    assert decided(votes(HOLDS, DIFFERS, HOLDS, named=3), 3, 5) == Decision(HOLDS, (KEYS[1],))
    assert decided(votes(DIFFERS, HOLDS, named=2), 3, 5) is None
    assert decided(votes(DIFFERS, HOLDS, named=2), 3, 100) is None  # a tie comes to nothing


def test_who_is_named_decides_against_any_number_of_others() -> None:
    assert decided(votes(HOLDS, DIFFERS, DIFFERS, DIFFERS, named=1), 1, 5) == Decision(HOLDS, tuple(KEYS[1:4]))
    assert decided(votes(DIFFERS, HOLDS, HOLDS, HOLDS, named=1), 1, 5) == Decision(DIFFERS, tuple(KEYS[1:4]))


def test_that_a_claim_is_withheld_from_one_does_not_contradict_that_others_found_it_to_hold() -> None:
    assert decided(votes(HOLDS, HOLDS, WITHHELD, named=3), 3, 5) == Decision(HOLDS, ())
    assert decided(votes(HOLDS, HOLDS, WITHHELD, DIFFERS, named=2), 2, 5) == Decision(HOLDS, (KEYS[3],))
    assert decided(votes(HOLDS, WITHHELD, WITHHELD, named=3), 3, 5) == Decision(WITHHELD, ())


def test_others_need_two_and_time() -> None:
    assert decided(votes(HOLDS), 1, 5) is None
    assert decided(votes(HOLDS, HOLDS), 1, 5) == Decision(HOLDS, ())
    assert decided(votes(DIFFERS), 1, 100) is None
    assert decided(votes(DIFFERS, DIFFERS), 1, 5) is None
    assert decided(votes(DIFFERS, DIFFERS), 1, 5 + PATIENCE) == Decision(DIFFERS, ())
    assert decided(votes(DIFFERS, DIFFERS, HOLDS), 1, 5 + PATIENCE) == Decision(DIFFERS, (KEYS[2],))
    assert decided(votes(DIFFERS, HOLDS), 1, 100) is None
    assert decided([], 1, 100) is None


@settings(max_examples=300)
@given(st.lists(st.sampled_from([HOLDS, DIFFERS, WITHHELD]), max_size=6), st.integers(0, 3), st.integers(0, 5), st.randoms())
def test_a_decision_has_a_majority_and_names_only_who_contradicts_it(said: list[str], named: int, waited: int, random: object) -> None:
    given_votes = votes(*said, named=named)
    found = decided(given_votes, max(named, 1), 5 + waited)
    if found is None:
        return
    against = found.outcome != HOLDS
    contradicting = {DIFFERS: (HOLDS,), HOLDS: (DIFFERS,), WITHHELD: ()}[found.outcome]
    assert found.outvoted == tuple(vote.auditor for vote in given_votes if vote.outcome in contradicting)
    deciding = [vote for vote in given_votes if vote.is_named] or given_votes
    agreeing = [vote for vote in deciding if vote.is_against == against]
    assert 2 * len(agreeing) > len(deciding)
    assert not against or found.outcome in {vote.outcome for vote in agreeing}
    if not any(vote.is_named for vote in given_votes):
        assert len(agreeing) >= 2


# Evidence.

RECORDS = [pack(LotRecord(0, index, "r32", 16, "1.5", bytes([index]) * 32)) for index in range(5)]


def shown(place: int, record: bytes, of: int = 5) -> tuple[Finding, bytes]:
    tree = Tree()
    for each in RECORDS[:of]:
        tree.append(leaf_hash(each))
    proof = tuple(tree.inclusion_proof(place, of))
    evidence = (LotEvidence(record, proof),)
    return Finding(sha256(b"run"), ALICE.public_key, CLAIM, 4, 0, LOT, place, DIFFERS, b"p" * 32, evidence), tree.root()


@pytest.mark.parametrize("place", range(5))
def test_a_lot_s_record_is_proven_at_its_place(place: int) -> None:
    finding, root = shown(place, RECORDS[place])
    record = check_evidence(finding, root, 5)
    assert record is not None
    assert record.index == place
    with pytest.raises(LedgerError, match="evidence"):
        check_evidence(shown(place, RECORDS[(place + 1) % 5])[0], root, 5)
    with pytest.raises(LedgerError, match="evidence"):
        check_evidence(replace(finding, lot=(place + 1) % 5), root, 5)
    with pytest.raises(LedgerError, match="evidence"):
        check_evidence(finding, sha256(b"another root"), 5)
    with pytest.raises(LedgerError, match="evidence"):
        check_evidence(replace(finding, lot=9), root, 5)


def test_what_is_proven_but_no_record_of_a_lot_is_refused() -> None:
    finding, _ = shown(0, b"junk", of=1)
    with pytest.raises(LedgerError, match="evidence"):
        check_evidence(finding, leaf_hash(b"junk"), 1)


def test_a_finding_without_evidence_shows_none() -> None:
    finding = Finding(sha256(b"run"), ALICE.public_key, CLAIM, 4, 0, LOT, 0, WITHHELD, b"", ())
    assert check_evidence(finding, sha256(b"root"), 1) is None
