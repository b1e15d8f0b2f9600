"""The log's rounds, case by case: peers alone. Cohorts are in test_closing_cohorts.py, any order of events in test_closing_events.py."""

import pytest

from manta_swarm.protocol.closing import Closing, NotTaken, Stage
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.signing import sha256
from tests.protocol.closings import DEADLINE, GRACE, OPEN_MS, START, A, B, C, D, E, F, hand_in, header, opened, restore, table, work

# Opening and closing.


def test_the_first_round_opens_at_the_first_header() -> None:
    closing = Closing(8)
    assert closing.stage is Stage.CLOSED
    closing.open(1, OPEN_MS, frozenset(), None)
    assert (closing.stage, closing.left_ms(START), closing.next_ms(START), closing.tick(10**9)) == (Stage.IDLE, OPEN_MS, None, None)
    assert header(closing, A, work(A), START) == 1
    assert (closing.round, closing.stage) == (1, Stage.OPEN)
    assert (closing.left_ms(START), closing.next_ms(START + 1)) == (OPEN_MS, OPEN_MS - 1)


def test_a_round_closes_at_its_deadline_with_all_that_is_good_sorted_by_founder() -> None:
    closing = opened()
    for founder in (C, A, B):
        assert hand_in(closing, founder) == 7
    assert closing.tick(DEADLINE - 1) is None
    assert closing.next_ms(DEADLINE - 1) == 1
    assert closing.tick(DEADLINE) == table(A, B, C)
    assert (closing.stage, closing.left_ms(DEADLINE), closing.next_ms(DEADLINE)) == (Stage.CLOSED, 0, None)
    assert closing.tick(DEADLINE + 1) is None  # once
    assert not closing.dropped


def test_a_round_that_nobody_is_in_is_open_for_all_of_its_time_again() -> None:
    closing = opened()
    late = DEADLINE + 7
    assert closing.tick(late) is None
    assert (closing.round, closing.stage, closing.left_ms(late)) == (7, Stage.OPEN, OPEN_MS)
    assert hand_in(closing, A, late) == 7
    assert closing.tick(late + OPEN_MS - 1) is None
    assert closing.tick(late + OPEN_MS) == table(A)


def test_headers_alone_do_not_close_a_round_and_who_was_in_the_last_table_keeps_its_place_meanwhile() -> None:
    closing = opened(A)
    header(closing, A, work(A), START)
    header(closing, B, work(B), START)
    assert closing.tick(DEADLINE) is None
    assert (closing.stage, closing.left_ms(DEADLINE)) == (Stage.OPEN, OPEN_MS)
    assert closing.take_gone() == [(B, "no body by the deadline")]
    assert closing.arrived(work(A), DEADLINE + 1) == 7
    with pytest.raises(NotTaken, match="hand it in again"):
        closing.arrived(work(B), DEADLINE + 1)
    assert hand_in(closing, B, DEADLINE + 2) == 7
    closing.good(work(A))
    assert closing.tick(DEADLINE + OPEN_MS) == table(A, B)


def test_a_round_is_left_open_while_its_only_body_is_being_checked() -> None:
    closing = opened()
    header(closing, A, work(A), START)
    closing.arrived(work(A), DEADLINE - 1)
    assert closing.tick(DEADLINE) is None
    assert (closing.stage, closing.left_ms(DEADLINE), closing.next_ms(DEADLINE)) == (Stage.OPEN, 0, None)
    assert hand_in(closing, B, DEADLINE + 1) == 7  # this round may come to nothing yet, so none counts in the next
    closing.good(work(A))
    assert closing.next_ms(DEADLINE + 2) == 0
    assert closing.tick(DEADLINE + 2) == table(A, B)


def test_a_round_whose_only_body_is_bad_is_open_again() -> None:
    closing = opened()
    header(closing, A, work(A), START)
    closing.arrived(work(A), DEADLINE - 1)
    assert closing.tick(DEADLINE + 5) is None
    closing.bad(work(A))
    assert closing.tick(DEADLINE + 6) is None
    assert (closing.stage, closing.left_ms(DEADLINE + 6)) == (Stage.OPEN, OPEN_MS)


# Bodies.


def waiting(*expected: bytes, open_ms: int = OPEN_MS) -> Closing:
    """Past the deadline of a round with D's contribution, and headers of all others: A, B and C, whose bodies are missing."""
    closing = opened(*expected, open_ms=open_ms)
    hand_in(closing, D)
    for founder in (A, B, C):
        header(closing, founder, work(founder), START)
    assert closing.tick(START + open_ms) is None or not set(expected) & {A, B, C}
    return closing


@pytest.mark.parametrize(("open_ms", "grace"), [(OPEN_MS, GRACE), (50_000, 5_000)])
def test_founders_of_the_last_table_are_waited_for_a_tenth_of_the_time_within_bounds(open_ms: int, grace: int) -> None:
    closing = waiting(A, open_ms=open_ms)
    over = START + open_ms + grace
    assert closing.stage is Stage.WAITING
    assert closing.next_ms(START + open_ms) == grace
    assert closing.tick(over - 1) is None
    assert closing.tick(over) == table(D)


def test_only_founders_of_the_last_table_are_waited_for() -> None:
    closing = waiting(A, B, E)
    assert closing.dropped == {"no body by the deadline": 1}
    assert closing.take_gone() == [(C, "no body by the deadline")]
    assert closing.take_gone() == []
    with pytest.raises(NotTaken):
        closing.arrived(work(C), DEADLINE)
    closing.arrived(work(A), DEADLINE + 1)
    closing.good(work(A))
    assert closing.tick(DEADLINE + GRACE) == table(A, D)
    assert closing.take_gone() == [(B, "no body")]
    assert waiting().stage is Stage.CLOSED


def test_nobody_is_waited_for_once_all_bodies_are_in() -> None:
    closing = waiting(A)
    assert closing.arrived(work(A), DEADLINE + 9) == 7
    assert closing.tick(DEADLINE + 9) is None
    closing.good(work(A))
    assert closing.next_ms(DEADLINE + 10) == 0
    assert closing.tick(DEADLINE + 10) == table(A, D)


def test_a_body_that_came_in_time_is_waited_for_as_long_as_its_check_takes() -> None:
    for founder in (A, F):  # F was not in the last table, and has to bring it by the deadline
        closing = opened(A, B)
        hand_in(closing, D)
        header(closing, founder, work(founder), START)
        header(closing, B, work(B), START)
        closing.arrived(work(founder), DEADLINE - 1 if founder == F else DEADLINE + GRACE - 1)
        hours_later = DEADLINE + 10**7
        assert closing.tick(hours_later) is None
        assert closing.next_ms(hours_later) is None  # it closes when the check is over, and at no other time
        closing.good(work(founder))
        assert closing.tick(hours_later) == table(founder, D)


def test_a_body_that_comes_too_late_is_refused_and_counts_when_it_is_handed_in_again() -> None:
    closing = waiting(A)
    with pytest.raises(NotTaken, match="hand it in again"):
        closing.arrived(work(A), DEADLINE + GRACE)
    assert closing.round_for_header(work(A), DEADLINE + GRACE - 1) == 7
    assert closing.round_for_header(work(A), DEADLINE + GRACE) == 8
    assert hand_in(closing, A, DEADLINE + GRACE) == 8
    assert closing.tick(DEADLINE + GRACE) == table(D)
    closing.open(8, OPEN_MS, frozenset({D}), DEADLINE + 400)
    assert closing.is_good(work(A))
    assert closing.tick(DEADLINE + 400 + OPEN_MS) == table(A)


def test_a_late_header_that_came_again_is_in_once() -> None:
    closing = waiting(A)
    assert hand_in(closing, A, DEADLINE + GRACE) == 8
    closing.tick(DEADLINE + GRACE)
    closing.open(8, OPEN_MS, frozenset({D}), DEADLINE + 400)
    closing.tick(DEADLINE + 400 + OPEN_MS)
    closing.open(9, OPEN_MS, frozenset({A}), DEADLINE + 2_000)
    assert hand_in(closing, A, DEADLINE + 2_000, number=2) == 9


def test_a_newcomer_s_body_is_refused_from_the_deadline_on_whoever_looks_first() -> None:
    with pytest.raises(NotTaken):
        opened().arrived(work(A), START)  # without a header
    for now in (DEADLINE - 1, DEADLINE):
        closing = opened()
        hand_in(closing, D)
        header(closing, A, work(A), START)
        if now < DEADLINE:
            assert closing.arrived(work(A), now) == 7
        else:
            with pytest.raises(NotTaken):
                closing.arrived(work(A), now)


def test_a_bad_body_takes_its_header_with_it_and_another_try_is_welcome() -> None:
    closing = waiting(A)
    closing.arrived(work(A), DEADLINE + 1)
    closing.bad(work(A))
    assert closing.dropped["bad body"] == 1
    assert (A, "bad body") in closing.take_gone()
    assert (closing.round_of(work(A)), closing.is_good(work(A))) == (None, False)
    assert hand_in(closing, A, DEADLINE + 2) == 8
    assert closing.tick(DEADLINE + 2) == table(D)


def test_the_same_body_again_changes_nothing_even_after_the_close() -> None:
    closing = opened()
    hand_in(closing, A)
    assert closing.arrived(work(A), START + 1) == 7
    assert closing.is_good(work(A))
    assert closing.tick(DEADLINE) == table(A)
    assert closing.arrived(work(A), DEADLINE + GRACE) == 7
    assert closing.is_good(work(A))


# Headers.


def test_the_same_header_again_is_welcome_at_any_time() -> None:
    closing = opened(A)
    for now in (START, DEADLINE - 1):
        assert header(closing, A, work(A), now) == 7
    hand_in(closing, D)
    assert header(closing, A, work(A), DEADLINE + 1) == 7
    closing.arrived(work(A), DEADLINE + 2)
    closing.good(work(A))
    assert header(closing, A, work(A), DEADLINE + 3) == 7
    assert closing.is_good(work(A))
    assert closing.tick(DEADLINE + 3) == table(A, D)
    assert header(closing, A, work(A), DEADLINE + 4) == 7


def test_another_header_of_a_founder_takes_the_place_of_one_without_a_body() -> None:
    closing = opened()
    header(closing, A, work(A), START)
    assert header(closing, A, work(A, 2), START + 1) == 7
    assert (closing.round_of(work(A)), closing.round_of(work(A, 2))) == (None, 7)
    with pytest.raises(NotTaken):
        closing.arrived(work(A), START + 2)
    closing.arrived(work(A, 2), START + 2)
    closing.good(work(A, 2))
    assert closing.tick(DEADLINE) == (work(A, 2),)


@pytest.mark.parametrize("is_checked", [False, True])
def test_another_contribution_of_a_founder_is_refused_until_the_first_is_in_the_log(is_checked: bool) -> None:
    closing = opened(B)
    hand_in(closing, D)
    header(closing, A, work(A), START)
    header(closing, B, work(B), START)
    closing.arrived(work(A), START)
    if is_checked:
        closing.good(work(A))
    for now in (START, DEADLINE, DEADLINE + 1):  # OPEN, and WAITING for B
        with pytest.raises(NotTaken, match="another contribution"):
            header(closing, A, work(A, 2), now)
    closing.is_good(work(A)) or closing.good(work(A))
    assert closing.tick(DEADLINE + GRACE) == table(A, D)
    with pytest.raises(NotTaken, match="another contribution"):  # it may stand on the same base, and then no table can have both
        header(closing, A, work(A, 2), DEADLINE + GRACE)
    closing.open(8, OPEN_MS, frozenset({A, D}), DEADLINE + 300)
    assert hand_in(closing, A, DEADLINE + 300, number=2) == 8


def test_headers_after_the_deadline_count_in_the_next_round_and_so_do_their_bodies() -> None:
    closing = waiting(A)
    assert closing.round_for_header(work(E), DEADLINE) == 8
    assert hand_in(closing, E, DEADLINE) == 8
    assert header(closing, F, work(F), DEADLINE + 1) == 8
    assert (closing.round_of(work(E)), closing.round_of(work(F))) == (8, 8)
    assert closing.tick(DEADLINE + GRACE) == table(D)
    assert hand_in(closing, B, DEADLINE + GRACE) == 8  # CLOSED by now
    assert closing.arrived(work(F), DEADLINE + GRACE) == 8
    now = DEADLINE + 2 * GRACE
    closing.open(8, 2 * OPEN_MS, frozenset({D}), now)
    assert (closing.round, closing.left_ms(now), header(closing, E, work(E), now)) == (8, 2 * OPEN_MS, 8)
    closing.good(work(F))
    assert closing.tick(now + 2 * OPEN_MS - 1) is None
    assert closing.tick(now + 2 * OPEN_MS) == table(B, E, F)


def test_a_header_that_waits_for_its_body_moves_to_the_next_round_when_another_takes_its_place() -> None:
    closing = waiting(A)
    assert header(closing, A, work(A, 2), DEADLINE + 1) == 8
    assert closing.round_of(work(A)) is None
    assert closing.tick(DEADLINE + 1) == table(D)


# Places.


def test_newcomers_do_not_take_the_places_of_those_in_the_last_table() -> None:
    closing = opened(A, B, C, max_rows=4)
    assert header(closing, D, work(D), START) == 7
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, E, work(E), START)
    for founder in (A, B, C):
        header(closing, founder, work(founder), START)
    header(closing, D, work(D, 2), START)  # in the place that it has


def test_there_is_a_place_for_a_newcomer_even_if_the_last_table_was_full() -> None:
    closing = opened(A, B, C, D, max_rows=4)
    hand_in(closing, E)
    for founder in (A, B, C):
        hand_in(closing, founder)
    with pytest.raises(NotTaken, match="full"):
        header(closing, D, work(D), START)


def test_the_place_of_a_newcomer_without_a_body_is_free_after_the_deadline() -> None:
    closing = opened(A, B, C, max_rows=4)
    header(closing, D, work(D), START)
    assert hand_in(closing, E, DEADLINE) == 7  # the round is open again
    assert closing.tick(DEADLINE + OPEN_MS) == table(E)


def test_headers_alone_keep_no_newcomer_out_for_longer_than_a_grace() -> None:
    closing = opened(A, B, C, max_rows=4)
    header(closing, D, work(D), START)
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, E, work(E), START + grace_ms(OPEN_MS) - 1)
    assert hand_in(closing, E, START + grace_ms(OPEN_MS)) == 7
    assert closing.take_gone() == [(D, "no body while others wait")]
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, D, work(D, 2), DEADLINE - 1)  # the body is there: nobody takes this place


def test_early_newcomers_do_not_take_the_places_of_those_in_the_table_that_is_closing() -> None:
    closing = opened(max_rows=4)
    for founder in (A, B, C):
        hand_in(closing, founder)
    assert closing.tick(DEADLINE) == table(A, B, C)
    assert hand_in(closing, D, DEADLINE) == 8
    with pytest.raises(NotTaken, match="newcomers"):
        header(closing, E, work(E), DEADLINE)
    closing.open(8, OPEN_MS, frozenset({A, B, C}), DEADLINE)
    for founder in (A, B, C):
        assert hand_in(closing, founder, DEADLINE, number=2) == 8


def test_those_who_turn_to_the_next_round_find_no_more_places_than_it_has() -> None:
    founders = [sha256(b"one of the last table %d" % i) for i in range(16)]
    newcomers = [sha256(b"newcomer %d" % i) for i in range(2)]
    closing = opened(*founders, max_rows=16)
    hand_in(closing, founders[0])
    for founder in founders[1:]:
        header(closing, founder, work(founder), START)
    for newcomer in newcomers:
        assert header(closing, newcomer, work(newcomer), DEADLINE) == 8
    for founder in founders[1:15]:
        assert header(closing, founder, work(founder, 2), DEADLINE) == 8
    with pytest.raises(NotTaken, match="full"):
        header(closing, founders[15], work(founders[15], 2), DEADLINE)
    assert closing.round_of(work(founders[15])) == 7  # it has its place in this round yet


# Restart of the log.


def test_what_has_an_inclusion_promise_is_in_the_table_that_it_names_after_a_crash() -> None:
    closing = Closing(8)
    closing.open(7, OPEN_MS, frozenset({A}), START)
    restore(closing, A, work(A), 7, START)
    restore(closing, B, work(B), 8, START)  # came early, before the crash
    assert (header(closing, A, work(A), START), header(closing, B, work(B), START)) == (7, 8)
    assert (closing.is_good(work(A)), closing.is_good(work(B))) == (True, True)
    assert hand_in(closing, C) == 7
    assert closing.tick(DEADLINE) == table(A, C)
    closing.open(8, OPEN_MS, frozenset({A, C}), DEADLINE)
    assert closing.tick(DEADLINE + OPEN_MS) == table(B)


def test_an_inclusion_promise_from_before_a_crash_opens_the_first_round() -> None:
    closing = Closing(8)
    closing.open(1, OPEN_MS, frozenset(), None)
    restore(closing, A, work(A), 1, START)
    assert (closing.stage, closing.left_ms(START)) == (Stage.OPEN, OPEN_MS)
    assert closing.tick(DEADLINE) == table(A)
