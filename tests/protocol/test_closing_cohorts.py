"""The log's rounds with cohorts: a member's work is in the table once, by its cohort's contribution or by its own, whoever dies when."""

import pytest

from manta_swarm.protocol.closing import Closing, NotTaken, Stage
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.signing import sha256
from tests.protocol.closings import (
    DEADLINE,
    GRACE,
    OPEN_MS,
    START,
    A,
    B,
    C,
    D,
    E,
    F,
    bring,
    claims,
    cohort,
    hand_in,
    header,
    opened,
    restore,
    work,
)

# A cohort's contribution, and those of its members alone.


def test_both_may_be_in_and_the_cohort_s_stands() -> None:
    for is_cohort_first in (False, True):
        closing = opened()
        together = work(A, 9)
        if is_cohort_first:
            cohort(closing, A, B, C)
        for member in (A, B):
            hand_in(closing, member)
        if not is_cohort_first:
            cohort(closing, A, B, C)
        assert not closing.is_superseded(work(B))
        bring(closing, together)
        assert [closing.is_superseded(one) for one in (work(A), work(B), together)] == [True, True, False]
        assert closing.tick(DEADLINE) == (together,)
        assert (closing.take_gone(), closing.dropped) == ([], {})
        assert closing.round_of(work(B)) == 7  # whoever has an inclusion promise for it still hears so
        closing.open(8, OPEN_MS, frozenset({A, B, C}), DEADLINE)
        assert closing.round_of(work(B)) is None


@pytest.mark.parametrize("fate", ["no body", "a bad body", "a body too late"])
def test_where_the_cohort_s_body_never_becomes_good_the_members_who_came_alone_stand(fate: str) -> None:
    closing = opened(A, B, C)
    together = cohort(closing, A, B, C)
    for member in (B, C):
        hand_in(closing, member)
    assert closing.tick(DEADLINE) is None  # it is waited for
    if fate == "a bad body":
        closing.arrived(together, DEADLINE)
        closing.bad(together)
    if fate == "a body too late":
        with pytest.raises(NotTaken):
            closing.arrived(together, DEADLINE + GRACE)
    assert closing.tick(DEADLINE + GRACE) == (work(B), work(C))
    assert closing.take_gone() == [(A, "bad body" if fate == "a bad body" else "no body")]


def test_a_member_s_body_that_is_on_its_way_or_being_checked_is_not_waited_for_once_the_cohort_s_is_good() -> None:
    closing = opened(A, B, C)
    for member in (B, C):
        header(closing, member, work(member), START)
    closing.arrived(work(C), START)
    together = bring(closing, cohort(closing, A, B, C))
    assert closing.round_of(work(B)) is None  # no need to send it
    with pytest.raises(NotTaken):
        closing.arrived(work(B), START)
    closing.good(work(C))
    assert closing.tick(DEADLINE) == (together,)
    assert (closing.take_gone(), closing.dropped) == ([], {})


def test_a_member_s_bad_body_costs_the_cohort_nothing() -> None:
    closing = opened()
    header(closing, B, work(B), START)
    closing.arrived(work(B), START)
    together = bring(closing, cohort(closing, A, B))
    closing.bad(work(B))
    assert closing.tick(DEADLINE) == (together,)
    assert closing.take_gone() == [(B, "bad body")]


def test_a_member_whose_cohort_s_is_good_need_not_hand_in_and_hears_later_that_it_is_listed() -> None:
    closing = opened()
    together = bring(closing, cohort(closing, A, B))
    with pytest.raises(NotTaken, match="another contribution") as raised:
        header(closing, B, work(B), START)
    assert raised.value.keys == (B,)
    assert closing.tick(DEADLINE) == (together,)


def test_any_member_may_bring_what_the_founder_signed_and_who_brings_nothing_is_named() -> None:
    closing = opened()
    hand_in(closing, D)
    closing.header(A, claims(A, B), 7, work(A, 9), START, B)
    assert closing.tick(DEADLINE) == (work(D),)
    assert closing.take_gone() == [(B, "no body by the deadline")]


# Keys that stand in another contribution.


def test_a_key_is_in_no_second_cohort_and_the_others_hear_who_it_is() -> None:
    closing = opened()
    cohort(closing, A, B, C)
    with pytest.raises(NotTaken) as raised:
        cohort(closing, D, B, C, E)
    assert raised.value.keys == tuple(sorted((B, C)))
    assert cohort(closing, D, E)


def test_work_on_two_bases_is_not_in_one_round() -> None:
    for first, second in ((6, 7), (7, 6)):
        closing = opened()
        bring(closing, cohort(closing, A, B, base=first))
        with pytest.raises(NotTaken):
            header(closing, B, work(B), START, second)
        closing = opened()
        header(closing, B, work(B), START, first)
        with pytest.raises(NotTaken) as raised:
            cohort(closing, A, B, base=second)
        assert raised.value.keys == (B,)
        assert cohort(closing, A, C, base=second)


@pytest.mark.parametrize("is_good", [False, True])
def test_an_inclusion_promise_for_another_claim_on_the_same_base_keeps_the_cohorts_out(is_good: bool) -> None:
    """The cohort's row would not keep it: that has the claim of other work."""
    closing = opened()
    closing.header(B, claims(B, number=1), 7, work(B), START)
    if is_good:
        bring(closing, work(B))
    with pytest.raises(NotTaken) as raised:
        cohort(closing, A, B, C)
    assert raised.value.keys == (B,)
    together = bring(closing, cohort(closing, A, C))
    bring(closing, work(B))
    assert closing.tick(DEADLINE) == tuple(sorted((together, work(B)), key=lambda one: A if one == together else B))


def test_who_is_in_with_the_cohort_may_not_hand_in_other_work_on_that_base_alone_before_it_came_to_nothing() -> None:
    closing = opened(A, B)
    together = cohort(closing, A, B)
    with pytest.raises(NotTaken) as raised:
        closing.header(B, claims(B, number=1), 7, work(B), START)
    assert raised.value.keys == (B,)
    closing.arrived(together, START)
    closing.bad(together)
    assert closing.header(B, claims(B, number=1), 7, work(B), START) == 7


def test_other_work_of_a_member_takes_the_place_of_its_cohorts_whose_body_does_not_come() -> None:
    """Else nobody could hand anything in where the founder is gone and the round waits for a first body."""
    closing = opened(A, B)
    cohort(closing, A, B)
    mine = claims(B, number=1)
    assert closing.tick(DEADLINE) is None  # the round is open once more
    assert closing.header(B, mine, 7, work(B), DEADLINE) == 7
    bring(closing, work(B), DEADLINE)
    with pytest.raises(NotTaken):
        cohort(closing, A, B, now=DEADLINE)
    assert closing.tick(DEADLINE + OPEN_MS) == (work(B),)


def test_a_founder_that_hands_in_other_work_alone_has_given_its_cohorts_up() -> None:
    closing = opened(A, B)
    cohort(closing, A, B)
    assert closing.header(A, claims(A, number=1), 7, work(A), START) == 7
    bring(closing, work(A))
    assert closing.tick(DEADLINE) == (work(A),)


def test_a_key_in_the_round_being_closed_is_not_in_the_next_one() -> None:
    """Its work may be listed there, and its residual with it."""
    closing = opened(A, B)
    hand_in(closing, D)
    bring(closing, cohort(closing, A, B))
    header(closing, C, work(C), START)
    header(closing, E, work(E), START)
    closing.arrived(work(E), START)
    for now in (DEADLINE, DEADLINE + GRACE):  # WAITING for E's check, or CLOSED
        for base in (7, 8):
            with pytest.raises(NotTaken):
                header(closing, B, work(B, 2), now, base)
            with pytest.raises(NotTaken) as raised:
                cohort(closing, F, A, D, now=now, base=base)
            assert raised.value.keys == tuple(sorted((A, D)))
        if closing.stage is Stage.WAITING:
            closing.good(work(E))
            assert closing.tick(DEADLINE + GRACE) is not None
    assert cohort(closing, F, C, now=DEADLINE + GRACE)


def test_a_cohort_that_is_late_for_the_round_goes_on_without_the_member_who_was_in_it_alone() -> None:
    closing = opened()
    hand_in(closing, B)
    with pytest.raises(NotTaken) as raised:
        cohort(closing, A, B, C, now=DEADLINE)
    assert raised.value.keys == (B,)
    together = bring(closing, cohort(closing, A, C, now=DEADLINE), DEADLINE)
    assert closing.tick(DEADLINE) == (work(B),)
    closing.open(8, OPEN_MS, frozenset({B}), DEADLINE)
    assert closing.tick(DEADLINE + OPEN_MS) == (together,)


# Founders.


def test_a_founder_may_hand_in_fewer_or_others_while_it_brought_no_body() -> None:
    closing = opened()
    first = cohort(closing, A, B, C)
    second = cohort(closing, A, B, D, number=10)
    assert (closing.round_of(first), closing.round_of(second)) == (None, 7)
    header(closing, C, work(C), START)  # it is free again
    bring(closing, second)
    with pytest.raises(NotTaken):
        cohort(closing, A, E, number=11)


def test_a_founder_back_after_a_crash_hands_in_alone_beside_what_its_cohort_hands_in() -> None:
    closing = opened(A, B)
    together = cohort(closing, A, B)
    hand_in(closing, A)
    assert closing.tick(DEADLINE) is None
    assert closing.round_of(together) == 7
    bring(closing, together, DEADLINE)
    assert closing.tick(DEADLINE) == (together,)


def test_a_founder_back_after_the_deadline_does_not_push_out_what_its_members_are_sending() -> None:
    closing = opened(A, B)
    hand_in(closing, D)
    together = cohort(closing, A, B)
    with pytest.raises(NotTaken):
        header(closing, A, work(A), DEADLINE + 1)
    bring(closing, together, DEADLINE + 2)
    assert closing.tick(DEADLINE + 2) == (together, work(D)) if A < D else (work(D), together)


# Who is waited for.


@pytest.mark.parametrize("expected", [A, B, C])
def test_a_cohort_is_waited_for_if_any_of_its_keys_was_in_the_last_table(expected: bytes) -> None:
    closing = opened(expected)
    hand_in(closing, D)
    together = cohort(closing, A, B, C)
    assert closing.tick(DEADLINE) is None
    bring(closing, together, DEADLINE + GRACE - 1)
    assert closing.tick(DEADLINE + GRACE) == tuple(one for _, one in sorted(((A, together), (D, work(D)))))


def test_a_member_alone_is_waited_for_if_it_was_in_the_last_table_with_its_cohort() -> None:
    closing = opened(A, B, C)
    hand_in(closing, D)
    header(closing, B, work(B), START)
    assert closing.tick(DEADLINE) is None
    bring(closing, work(B), DEADLINE + 1)
    assert closing.tick(DEADLINE + 1) is not None


# Places.


def test_what_is_superseded_takes_no_place_from_others() -> None:
    closing = opened(max_rows=4)
    for member in (A, B, C):
        hand_in(closing, member)
    together = cohort(closing, A, B, C)
    with pytest.raises(NotTaken, match="full"):
        header(closing, D, work(D), START)
    bring(closing, together)
    for newcomer in (D, E, F):
        hand_in(closing, newcomer)
    with pytest.raises(NotTaken, match="full"):
        header(closing, sha256(b"another"), work(sha256(b"another")), START)
    assert set(closing.tick(DEADLINE) or ()) == {together, work(D), work(E), work(F)}


def test_what_is_superseded_is_no_way_to_keep_more_at_the_log_than_two_tables() -> None:
    keys = sorted(sha256(b"%d" % number) for number in range(100))
    closing, taken = opened(max_rows=8), 0
    for one, other in zip(keys[:10:2], keys[1:10:2], strict=True):
        for member in (one, other):
            hand_in(closing, member)
        bring(closing, cohort(closing, one, other))
        taken += 3
    hand_in(closing, keys[10])
    assert taken + 1 == 2 * 8
    with pytest.raises(NotTaken, match="full"):
        header(closing, keys[11], work(keys[11]), START)
    assert len(closing.tick(DEADLINE) or ()) == 6  # five cohorts, and one who is alone


def test_every_key_of_the_last_table_has_a_place_kept_for_it_alone() -> None:
    closing = opened(A, B, C, max_rows=4)  # who were one row
    header(closing, D, work(D), START)
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, E, work(E), START)
    for member in (A, B, C):
        hand_in(closing, member)


def test_a_cohort_of_newcomers_is_one_newcomer() -> None:
    closing = opened(A, B, max_rows=4)
    cohort(closing, C, D, E)
    header(closing, F, work(F), START)
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, sha256(b"another"), work(sha256(b"another")), START)
    another = sha256(b"another")
    assert closing.header(another, claims(another, A), 7, work(another), START) == 7  # with one who was in the last table


def test_what_takes_the_place_of_something_else_needs_no_other_one() -> None:
    closing = opened(A, B, C, max_rows=4)
    cohort(closing, D, E)
    cohort(closing, D, F, number=10)
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, E, work(E), START + grace_ms(OPEN_MS) - 1)


# Restart of the log.


@pytest.mark.parametrize("order", ["alone first", "cohort first"])
def test_after_a_crash_what_is_superseded_still_is(order: str) -> None:
    closing = Closing(8)
    closing.open(7, OPEN_MS, frozenset(), START)
    together = work(A, 9)
    if order == "alone first":
        restore(closing, B, work(B), 7, START)
    closing.restore(A, claims(A, B), 7, together, 7, START)
    if order == "cohort first":
        restore(closing, B, work(B), 7, START)
    assert closing.is_superseded(work(B))
    assert (closing.is_good(work(B)), closing.is_good(together)) == (True, True)
    assert header(closing, B, work(B), START) == 7
    assert closing.tick(DEADLINE) == (together,)


# Where local steps are audited.


def test_where_local_steps_are_audited_no_work_of_a_member_elsewhere_keeps_its_cohort_s_out() -> None:
    closing = opened(shares_keys=True)
    closing.header(C, claims(C, number=1), 7, work(C), START)  # other work than it gave its cohort
    bring(closing, work(C))
    bring(closing, cohort(closing, D, C, E))
    together = bring(closing, cohort(closing, A, B, C))
    assert closing.tick(DEADLINE) == (together, work(C), work(D, 9))  # nothing is superseded: the round pays C once


def test_where_local_steps_are_audited_a_cohort_s_may_come_a_round_after_its_member_s_own() -> None:
    closing = opened(shares_keys=True)
    hand_in(closing, B)
    assert closing.tick(DEADLINE) == (work(B),)
    together = bring(closing, cohort(closing, A, B, now=DEADLINE), DEADLINE)
    assert closing.round_of(together) == 8


def test_where_local_steps_are_audited_a_founder_s_own_work_stands_nowhere_else_and_nor_does_a_lone_member_s_after_its_cohort_s() -> None:
    closing = opened(shares_keys=True)
    together = bring(closing, cohort(closing, A, B, C))
    for founder in (B, C):
        with pytest.raises(NotTaken) as raised:
            cohort(closing, founder, D)
        assert raised.value.keys == (founder,)
        with pytest.raises(NotTaken):
            header(closing, founder, work(founder), START)
    assert closing.tick(DEADLINE) == (together,)


def test_where_local_steps_are_audited_the_same_claim_alone_is_superseded_as_everywhere() -> None:
    closing = opened(shares_keys=True)
    hand_in(closing, B)
    together = bring(closing, cohort(closing, A, B, C))
    assert closing.is_superseded(work(B))
    assert closing.tick(DEADLINE) == (together,)
