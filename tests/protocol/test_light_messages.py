"""What travels between a light contributor and its gateway: signed, bounded, strict."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, SignatureError
from protocol.light import (
    MAX_LEASE_BYTES,
    MAX_REQUEST_BYTES,
    MAX_WORD_BYTES,
    Fate,
    Lease,
    LeaseAnswer,
    LeaseRequest,
    LightReturn,
    LightWord,
    LotNote,
    SignedLease,
    SignedLeaseRequest,
    StepNote,
    lot_records,
    max_return_bytes,
    step_records,
)
from protocol.records import LotRecord, SignedClaim, SignedContribution, SignedTicket, StepRecord
from protocol.signing import Identity, sha256

KEY, GATEWAY = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
RUN, BASE = sha256(b"run"), sha256(b"base")
REQUEST = LeaseRequest(RUN, GATEWAY.public_key, KEY.public_key, 100, 50)
LEASE = Lease(
    RUN, GATEWAY.public_key, KEY.public_key, 3, BASE, -32, "here", "r24 u1.0:k3e2", 4, 9_000, sha256(b"w"), 400, sha256(b"s"), 20, 1442, b""
)
NOTE = LotNote("2.30259", bytes(32))
CLAIM = SignedClaim(b"p" * 300, b"s" * 64)


def test_a_request_and_a_lease_come_back_as_they_were_signed_and_fit_their_bounds() -> None:
    request, lease = SignedLeaseRequest.sign(REQUEST, KEY), SignedLease.sign(LEASE, GATEWAY)
    assert unpack(SignedLeaseRequest, pack(request), max_bytes=MAX_REQUEST_BYTES).open() == REQUEST
    answer = LeaseAnswer((lease,), "", 0, 0)
    assert unpack(LeaseAnswer, pack(answer), max_bytes=MAX_LEASE_BYTES).lease[0].open() == LEASE


def test_nobody_asks_in_anothers_name_and_nobody_leases_in_a_gateways() -> None:
    with pytest.raises(SignatureError):
        SignedLeaseRequest.sign(REQUEST, GATEWAY).open()
    with pytest.raises(SignatureError):
        SignedLease.sign(LEASE, KEY).open()
    signed = SignedLease.sign(LEASE, GATEWAY)
    with pytest.raises(SignatureError):
        SignedLease(pack(replace(LEASE, lots_a_step=5)), signed.signature).open()


@pytest.mark.parametrize(
    "change",
    [
        {"run": b""},
        {"key": b"k"},
        {"round": 0},
        {"floor": -201},
        {"floor": 95},
        {"cohort": "A cohort"},
        {"lots_a_step": 0},
        {"lots_a_step": 4097},
        {"architecture": "x" * 1025},
        {"good_ms": -1},
        {"weights": b""},
        {"weights_bytes": 0},
        {"weights_bytes": 2**26 + 1},
        {"samples_bytes": 2**26 + 1},
        {"num_train": 0},
        {"residual": b"r"},
    ],
)
def test_a_lease_of_values_that_cannot_be_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(LEASE, **change)


@pytest.mark.parametrize("change", [{"lot_ms": -1}, {"lot_ms": 3_600_001}, {"way_ms": -1}, {"gateway": b""}])
def test_a_request_of_values_that_cannot_be_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(REQUEST, **change)


@pytest.mark.parametrize("note", [("", bytes(32)), ("1" * 17, bytes(32)), ("1é", bytes(32)), ("1", bytes(31))])
def test_a_note_of_a_lot_is_short(note: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match="no record"):
        LotNote(*note)


def test_a_word_has_the_ticket_exactly_if_the_log_has_the_claim() -> None:
    contribution, ticket = SignedContribution(b"c" * 4000, b"s" * 64), SignedTicket(b"t" * 100, b"s" * 64)
    taken = LightWord(int(Fate.TAKEN), "", (contribution,), (ticket,), 0)
    assert unpack(LightWord, pack(taken), max_bytes=MAX_WORD_BYTES) == taken
    for wrong in ((Fate.HELD, (contribution,), (ticket,)), (Fate.TAKEN, (), ()), (Fate.LOST, (), (ticket,)), (3, (), ())):
        with pytest.raises(ValueError, match="without its meaning"):
            LightWord(int(wrong[0]), "", wrong[1], wrong[2], 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be shown"):
        LightWord(int(Fate.LOST), "two\nlines", (), (), 0)


def test_a_return_is_named_by_all_of_it_and_bounded() -> None:
    back = LightReturn(CLAIM, (20,) * 5, (NOTE,) * 100, (StepNote(RUN, BASE),) * 5, b"b" * 1000)
    assert back.name == sha256(pack(back)) != replace(back, body=b"c" * 1000).name
    assert len(pack(back)) <= max_return_bytes(100, 1000)
    with pytest.raises(EncodingError):
        unpack(LightReturn, pack(back), max_bytes=1000)
    with pytest.raises(ValueError, match="more lots"):
        LightReturn(CLAIM, (4097,), (NOTE,) * 4097, (), b"")
    for counts in ((), (1,), (3,), (2, 0)):
        with pytest.raises(ValueError, match="other lots than it counts"):
            LightReturn(CLAIM, counts, (NOTE,) * 2, (), b"")


def test_the_longest_return_of_a_lease_fits_what_is_allowed_for_it() -> None:
    note = LotNote("-1.23457e-123", bytes(range(32)))
    back = LightReturn(SignedClaim(bytes(32_600), bytes(64)), (1,) * 512, (note,) * 512, (StepNote(RUN, BASE),) * 512, bytes(5000))
    assert len(pack(back)) <= max_return_bytes(512, 5000)


def test_the_records_of_a_lease_follow_from_its_notes() -> None:
    assert lot_records((NOTE, NOTE), ((0, 2), (1, 6)), "r24", 16) == [
        LotRecord(0, 2, "r24", 16, "2.30259", bytes(32)),
        LotRecord(1, 6, "r24", 16, "2.30259", bytes(32)),
    ]
    assert step_records((StepNote(RUN, BASE),), (32,)) == [StepRecord(0, 32, RUN, BASE, BASE)]
