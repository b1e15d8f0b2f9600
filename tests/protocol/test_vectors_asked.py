"""Which vectors an audit may ask for: those that its questions need, and of a claim that is looked at whole, all of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.audits import AUDITED, Trust
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.evidence import Records
from protocol.records import Claim, StepRecord
from protocol.signing import sha256
from protocol.trust import lots_audited
from protocol.vectors import MAX_ASK_BYTES, PAGE_BYTES, AskVector, step_asked, vectors_asked
from tests.claimed import made

CLAIM = sha256(b"claim")


def claimed(lots: int, steps: int, *, alone: bool = False, residual: bytes = b"") -> tuple[Claim, Records]:
    signed, records = made(lots, steps)
    told = tuple(
        StepRecord(number, 16, sha256(b"s%d" % number), sha256(b"v%d" % number), sha256(b"%c%d" % (b"vm"[not alone], number)))
        for number in range(steps if steps > 1 else 0)
    )
    return replace(signed.open(), residual=residual), replace(records, steps=told)


def asked(beacon: bytes, claim: Claim, records: Records, *, whole: int = 0, lots: int = 1) -> tuple[bytes, ...]:
    return vectors_asked(Trust(AUDITED, whole_percent=whole, audit_lots=lots), beacon, CLAIM, claim, records)


@given(st.binary(min_size=32, max_size=32))
def test_one_step_is_drawn_of_those_that_there_are(beacon: bytes) -> None:
    assert 0 <= step_asked(beacon, CLAIM, 7) < 7
    assert step_asked(beacon, CLAIM, 1) == 0


def test_every_step_is_drawn_sometimes() -> None:
    assert {step_asked(sha256(b"%d" % number), CLAIM, 4) for number in range(64)} == {0, 1, 2, 3}


@given(st.binary(min_size=32, max_size=32))
def test_what_leads_to_the_step_that_is_looked_at_is_asked_for_and_no_more(beacon: bytes) -> None:
    claim, records = claimed(12, 5, residual=sha256(b"r"))
    step = step_asked(beacon, CLAIM, 5)
    (place,) = lots_audited(Trust(AUDITED), beacon, CLAIM, claim.lots)
    lot_step = records.lots[place].step
    expected = {sha256(b"m%d" % each) for each in range(step + 1)} | {sha256(b"v%d" % step), claim.vector, claim.residual}
    if lot_step:
        expected.add(sha256(b"s%d" % lot_step))
    found = asked(beacon, claim, records)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_of_a_claim_that_is_looked_at_whole_all_means_and_vectors_are() -> None:
    claim, records = claimed(12, 5)
    found = asked(sha256(b"beacon"), claim, records, whole=100)
    assert {each.mean for each in records.steps} | {each.vector for each in records.steps} < set(found)


def test_a_step_that_was_taken_alone_has_one_vector() -> None:
    claim, records = claimed(12, 5, alone=True)
    found = asked(sha256(b"beacon"), claim, records, whole=100, lots=8)
    assert len(found) == len(set(found))
    assert {each.vector for each in records.steps} < set(found)


def test_with_one_step_it_is_the_vector_and_the_residual_if_one_was_used() -> None:
    claim, records = claimed(3, 1)
    assert asked(sha256(b"beacon"), claim, records, whole=100) == (claim.vector,)
    claim, records = claimed(3, 1, residual=sha256(b"r"))
    assert asked(sha256(b"beacon"), claim, records) == (claim.vector, sha256(b"r"))


def test_a_question_is_for_a_page_and_short() -> None:
    ask = AskVector(CLAIM, sha256(b"vector"), 3 * PAGE_BYTES)
    assert len(pack(replace(ask, first=(1 << 40) - PAGE_BYTES))) <= MAX_ASK_BYTES
    assert unpack(AskVector, pack(ask), max_bytes=MAX_ASK_BYTES) == ask
    for wrong in ({"first": 1}, {"first": -PAGE_BYTES}, {"first": 1 << 40}, {"claim": b"c"}, {"digest": b""}):
        with pytest.raises(ValueError, match=r"a page begins|digest|claim"):
            replace(ask, **wrong)
    with pytest.raises(EncodingError):
        unpack(AskVector, pack(ask)[:-1], max_bytes=MAX_ASK_BYTES)
