"""Cohort names are names that a claim may carry; a proof of a token is of use between two peers of one cohort in one run only."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.cohorts import cohort_name, cohort_peer_proof, is_cohort_peer_proof
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.fields import check_name
from manta_swarm.protocol.signing import PublicKey


@given(st.text())
def test_any_host_gives_a_name_that_a_claim_may_carry(host: str) -> None:
    name = cohort_name(None, host)
    check_name(name, "a cohort")
    assert name == cohort_name(None, host)


def test_a_host_name_that_is_not_utf8_gives_a_name_too() -> None:
    check_name(cohort_name(None, b"h\xff".decode(errors="surrogateescape")), "a cohort")


def test_hosts_differ_and_are_not_shown() -> None:
    assert cohort_name(None, "annas-laptop") != cohort_name(None, "bobs-laptop")
    assert "anna" not in cohort_name(None, "annas-laptop")


def test_a_label_decides() -> None:
    assert cohort_name("berlin", "annas-laptop") == "berlin"


@pytest.mark.parametrize(
    ("label", "advice"), [("Berlin Office", "berlin-office"), ("_a", "'a'"), ("a" * 64, "a" * 63), ("", ""), ("é", "")]
)
def test_a_label_that_is_no_name_is_the_user_s_error_with_a_way_out(label: str, advice: str) -> None:
    with pytest.raises(UserError, match="lower-case") as raised:
        cohort_name(label, "host")
    assert "\n" not in str(raised.value)
    assert advice in str(raised.value)
    assert advice or "try" not in str(raised.value)


@pytest.mark.parametrize("label", ["lab.size-1", "lab.size-3", "a.size-2.size-2"])
def test_a_label_does_not_say_a_size(label: str) -> None:
    with pytest.raises(UserError, match="give --size"):
        cohort_name(label, "host")
    for allowed in ("size-1", "lab.size-4", "lab.size-1x", "lab-size-1"):
        assert cohort_name(allowed, "host") == allowed


TOKEN, RUN = b"t" * 32, b"r" * 32
ANNA, BOB, CAROL = (PublicKey(name.encode().ljust(32, b".")) for name in ("anna", "bob", "carol"))
PROOF = cohort_peer_proof(TOKEN, RUN, "here", ANNA, BOB)


def test_a_proof_is_the_hmac_that_the_protocol_names() -> None:
    message = b"manta/cohort_peer/v1" + RUN + b"here" + ANNA + BOB
    assert hmac.new(TOKEN, message, hashlib.sha256).digest() == PROOF


def test_a_proof_holds_where_it_was_made_for() -> None:
    assert is_cohort_peer_proof(PROOF, TOKEN, RUN, "here", ANNA, BOB)


@pytest.mark.parametrize(
    ("token", "run", "cohort", "caller", "callee"),
    [
        (b"T" * 32, RUN, "here", ANNA, BOB),
        (TOKEN, b"R" * 32, "here", ANNA, BOB),
        (TOKEN, RUN, "there", ANNA, BOB),
        (TOKEN, RUN, "here", CAROL, BOB),  # who overheard it
        (TOKEN, RUN, "here", ANNA, CAROL),  # shown to another
        (TOKEN, RUN, "here", BOB, ANNA),  # thrown back
    ],
)
def test_a_proof_is_of_no_use_elsewhere(token: bytes, run: bytes, cohort: str, caller: PublicKey, callee: PublicKey) -> None:
    assert not is_cohort_peer_proof(PROOF, token, run, cohort, caller, callee)


@given(st.binary(max_size=64))
def test_no_other_bytes_are_a_proof(data: bytes) -> None:
    assert is_cohort_peer_proof(data, TOKEN, RUN, "here", ANNA, BOB) == (data == PROOF)
