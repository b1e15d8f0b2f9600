"""Cohort names are names that a claim may carry; a table falls into cohorts in its own order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cohorts import cohort_name
from protocol.errors import UserError
from protocol.records import check_name


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
