"""What travels between a light contributor and its gateway: signed, bounded, strict."""

from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.light import (
    MAX_LEASE_BYTES,
    MAX_REQUEST_BYTES,
    MAX_WORD_BYTES,
    Lease,
    LeaseAnswer,
    LeaseRequest,
    LightReturn,
    LightWord,
    ReturnFate,
    max_return_bytes,
)
from manta_swarm.protocol.records import Claim, Contribution, InclusionPromise
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256

KEY, GATEWAY = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
RUN, BASE = sha256(b"run"), sha256(b"base")
REQUEST = LeaseRequest(RUN, GATEWAY.public_key, KEY.public_key, 100, 50)
LEASE = Lease(
    RUN, GATEWAY.public_key, KEY.public_key, 3, BASE, -32, "here", "r24 u1.0:k3e2", 4, 9_000, sha256(b"w"), 400, sha256(b"s"), 20, 1442, b""
)
CLAIM = Signed(Claim, b"p" * 300, b"s" * 64)


def test_a_request_and_a_lease_come_back_as_they_were_signed_and_fit_their_bounds() -> None:
    request, lease = Signed.sign(REQUEST, KEY), Signed.sign(LEASE, GATEWAY)
    assert unpack(Signed[LeaseRequest], pack(request), max_bytes=MAX_REQUEST_BYTES).open() == REQUEST
    answer = LeaseAnswer((lease,), "", 0, 0)
    assert unpack(LeaseAnswer, pack(answer), max_bytes=MAX_LEASE_BYTES).lease[0].open() == LEASE


def test_nobody_asks_in_anothers_name_and_nobody_leases_in_a_gateways() -> None:
    with pytest.raises(SignatureError):
        Signed.sign(REQUEST, GATEWAY).open()
    with pytest.raises(SignatureError):
        Signed.sign(LEASE, KEY).open()
    signed = Signed.sign(LEASE, GATEWAY)
    with pytest.raises(SignatureError):
        Signed(Lease, pack(replace(LEASE, microbatches_a_step=5)), signed.signature).open()


@pytest.mark.parametrize(
    "change",
    [
        {"run": b""},
        {"key": b"k"},
        {"round": 0},
        {"min_exponent": -201},
        {"min_exponent": 95},
        {"cohort": "A cohort"},
        {"microbatches_a_step": 0},
        {"microbatches_a_step": 4097},
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


@pytest.mark.parametrize("change", [{"microbatch_ms": -1}, {"microbatch_ms": 3_600_001}, {"way_ms": -1}, {"gateway": b""}])
def test_a_request_of_values_that_cannot_be_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(REQUEST, **change)


def test_a_word_has_the_inclusion_promise_exactly_if_the_log_has_the_claim() -> None:
    contribution, inclusion_promise = Signed(Contribution, b"c" * 4000, b"s" * 64), Signed(InclusionPromise, b"t" * 100, b"s" * 64)
    taken = LightWord(int(ReturnFate.TAKEN), "", (contribution,), (inclusion_promise,), 0)
    assert unpack(LightWord, pack(taken), max_bytes=MAX_WORD_BYTES) == taken
    for wrong in (
        (ReturnFate.HELD, (contribution,), (inclusion_promise,)),
        (ReturnFate.TAKEN, (), ()),
        (ReturnFate.LOST, (), (inclusion_promise,)),
        (3, (), ()),
    ):
        with pytest.raises(ValueError, match="without its meaning"):
            LightWord(int(wrong[0]), "", wrong[1], wrong[2], 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be shown"):
        LightWord(int(ReturnFate.LOST), "two\nlines", (), (), 0)


def test_a_return_is_named_by_all_of_it_and_bounded() -> None:
    back = LightReturn(CLAIM, (20,) * 5, b"b" * 1000)
    assert back.name == sha256(pack(back)) != replace(back, body=b"c" * 1000).name
    assert len(pack(back)) <= max_return_bytes(1000)
    with pytest.raises(EncodingError):
        unpack(LightReturn, pack(back), max_bytes=1000)
    for counts in ((), (2, 0), (4096, 1), (1,) * 513):
        with pytest.raises(ValueError, match="than a lease has"):
            LightReturn(CLAIM, counts, b"")


def test_the_longest_return_of_a_lease_fits_what_is_allowed_for_it() -> None:
    back = LightReturn(Signed(Claim, bytes(32_600), bytes(64)), (8,) * 512, bytes(5000))
    assert len(pack(back)) <= max_return_bytes(5000)
