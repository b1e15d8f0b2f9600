"""Pages of a claim's records: together they are the claim's or they are refused, and what a page may be is bounded."""

from dataclasses import replace

import pytest

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.evidence import (
    MAX_ASK_BYTES,
    MAX_LOT_BYTES,
    MAX_PAGE_BYTES,
    MAX_STEP_BYTES,
    PAGE_LOTS,
    AskRecords,
    RecordsPage,
    check_page,
    num_pages,
    pages,
    records_of,
)
from protocol.exchange import MAX_LOCAL_STEPS
from protocol.merkle import leaf_hash, root
from protocol.records import StepRecord
from tests.claimed import made


@pytest.mark.parametrize(("lots", "steps", "count"), [(1, 1, 1), (PAGE_LOTS, 2, 1), (PAGE_LOTS + 1, 3, 2), (3 * PAGE_LOTS, 1, 3)])
def test_the_pages_of_a_claim_travel_and_are_its_records_again(lots: int, steps: int, count: int) -> None:
    signed, records = made(lots, steps)
    claim = signed.open()
    found = [unpack(RecordsPage, pack(page), max_bytes=MAX_PAGE_BYTES) for page in pages(signed, records)]
    for page in found:
        check_page(page, claim)
    assert len(found) == num_pages(claim) == count
    assert records_of(found, claim) == records


def test_pages_that_are_missing_or_of_other_records_are_not_the_claims() -> None:
    signed, records = made(PAGE_LOTS + 5, 2)
    claim = signed.open()
    first, second = pages(signed, records)
    for wrong in (
        [first],
        [second, first],
        [first, second, second],
        [first, replace(second, lots=second.lots[::-1])],
        [replace(first, steps=()), second],
        [replace(first, steps=first.steps[::-1]), second],
    ):
        with pytest.raises(EncodingError):
            records_of(wrong, claim)


def test_a_page_has_the_size_that_its_claim_gives_it_and_an_only_page_its_roots() -> None:
    signed, records = made(5, 2)
    claim = signed.open()
    (page,) = pages(signed, records)
    check_page(page, claim)
    for wrong in (
        replace(page, lots=page.lots[:4]),
        replace(page, lots=(*page.lots, page.lots[0])),
        replace(page, steps=page.steps[:1]),
        replace(page, first=PAGE_LOTS, steps=()),
        replace(page, lots=(*page.lots[:4], replace(page.lots[4], loss="1"))),
    ):
        with pytest.raises(EncodingError):
            check_page(wrong, claim)


@pytest.mark.parametrize("lots", [PAGE_LOTS + 1, 2 * PAGE_LOTS, 3 * PAGE_LOTS + 5, 5 * PAGE_LOTS])
def test_each_page_alone_is_the_claims_or_refused(lots: int) -> None:
    signed, records = made(lots)
    claim, found = signed.open(), pages(signed, records)
    for number, page in enumerate(found):
        check_page(page, claim)
        last = page.lots[-1]
        for wrong in (
            replace(page, lots=(*page.lots[:-1], replace(last, loss="1"))),
            replace(page, lots=found[number - 1].lots[: len(page.lots)]),
            replace(page, proof=page.proof[1:]),
            replace(page, proof=(*page.proof, bytes(32))),
            replace(page, proof=(b"short",)),
            replace(page, first=page.first + PAGE_LOTS),
        ):
            with pytest.raises(EncodingError):
                check_page(wrong, claim)


def test_the_largest_page_fits_its_bound_and_larger_records_are_refused() -> None:
    step = StepRecord(MAX_LOCAL_STEPS - 1, 2**40, bytes(32), bytes(32), bytes(32))
    assert len(pack(step)) <= MAX_STEP_BYTES
    signed, records = made(1)
    long = replace(records.lots[0], architecture="x" * MAX_LOT_BYTES)
    claim = replace(signed.open(), lots_root=root([leaf_hash(pack(long))]))
    with pytest.raises(EncodingError):
        records_of([RecordsPage(signed, 0, (long,), (), ())], claim)


@pytest.mark.parametrize("first", [-1, 1, PAGE_LOTS - 1])
def test_pages_begin_at_multiples_of_their_size(first: int) -> None:
    signed, records = made(1)
    with pytest.raises(ValueError, match="multiple"):
        AskRecords(signed.digest, first)
    with pytest.raises(ValueError, match="multiple"):
        RecordsPage(signed, first, records.lots, (), ())


def test_a_question_for_a_page_is_short() -> None:
    assert len(pack(AskRecords(bytes(32), 2**40 * PAGE_LOTS))) <= MAX_ASK_BYTES
