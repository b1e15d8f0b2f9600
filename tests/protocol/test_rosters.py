"""Who convenes a roster, who fits in, how long anybody waits, and whose vector is left out."""

from math import inf, nan, sqrt

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manta_swarm.protocol.exchange import MICROBATCHES_A_STEP
from manta_swarm.protocol.rosters import (
    MAX_CONVENING_MS,
    SILENT_ROUNDS,
    PassedOver,
    Timetable,
    choose_founder,
    convening_ms,
    fits,
    outliers,
)
from manta_swarm.protocol.signing import PublicKey

KEYS = [PublicKey(bytes([number]) * 32) for number in range(6)]
keys = st.sampled_from(KEYS)


# The founder.


@given(st.sets(keys, min_size=1), st.integers(1, 100))
def test_all_who_know_each_other_choose_the_same(members: set[PublicKey], round_: int) -> None:
    chosen = {choose_founder(own, members - {own}, PassedOver(), round_) for own in members}
    assert chosen == {min(members)}


def test_who_was_silent_is_passed_over_for_eight_rounds_and_forgiven_once_it_speaks() -> None:
    silent = PassedOver()
    silent.note(KEYS[0], 10)
    passed_over = [round_ for round_ in range(10, 30) if choose_founder(KEYS[2], KEYS[:2], silent, round_) != KEYS[0]]
    assert passed_over == list(range(10, 10 + SILENT_ROUNDS + 1))
    assert SILENT_ROUNDS == 8
    silent.note(KEYS[0], 10)
    silent.forgive(KEYS[0])
    assert choose_founder(KEYS[2], KEYS[:2], silent, 11) == KEYS[0]


def test_who_is_late_again_and_again_is_passed_over_for_longer_and_longer() -> None:
    silent, passed_over = PassedOver(), []
    for round_ in range(1, 40):
        if silent.covers(KEYS[0], round_):
            passed_over.append(round_)
        else:
            silent.note_late(KEYS[0], round_)
    assert passed_over == [2, 4, 5, *range(7, 11), *range(12, 20), *range(21, 29), *range(30, 38), 39]
    silent.forgive(KEYS[0])
    silent.note_late(KEYS[0], 50)
    assert [silent.covers(KEYS[0], round_) for round_ in (50, 51, 52)] == [True, True, False]


def test_whoever_thinks_that_all_were_silent_founds_itself() -> None:
    silent = PassedOver()
    for key in KEYS[:5]:
        silent.note(key, 3)
    assert choose_founder(KEYS[5], KEYS[:5], silent, 4) == KEYS[5]


def test_silence_long_ago_takes_no_room() -> None:
    silent = PassedOver()
    for round_ in range(1000):
        silent.note(PublicKey(round_.to_bytes(32, "big")), round_)
    assert len(silent._until) <= SILENT_ROUNDS + 1


# Time.


@pytest.mark.parametrize(("microbatch_ms", "left_ms", "steps", "does"), [(100, 225, 1, True), (101, 225, 1, False), (100, 2250, 10, True)])
def test_a_microbatch_takes_at_most_a_third_of_a_step(microbatch_ms: int, left_ms: float, steps: int, does: bool) -> None:
    """Three quarters of a round are left for the work, so 225 ms of work are a round of 300 ms, and a third of it is 100 ms."""
    assert fits(microbatch_ms, left_ms, steps) == does


@given(st.integers(1, 10**6), st.integers(1, 100))
def test_the_median_peer_of_the_shortest_round_fits(microbatch_ms: int, steps: int) -> None:
    open_ms = MICROBATCHES_A_STEP * steps * microbatch_ms
    assert fits(microbatch_ms, open_ms * 3 / 4, steps)


@given(st.floats(-1e6, 1e9))
def test_convening_takes_an_eighth_of_the_time_and_two_seconds_at_most(left_ms: float) -> None:
    assert 0 <= convening_ms(left_ms) <= min(max(left_ms, 0) / 8, MAX_CONVENING_MS)


timetables = st.builds(
    lambda start, total, steps, averaging, gathering: Timetable(start + total, steps, averaging, gathering, start),
    st.floats(0, 1e6),
    st.floats(1, 1e7),
    st.integers(1, 50),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
)


@given(timetables, st.data())
def test_steps_end_one_after_the_other_before_the_end(timetable: Timetable, data: st.DataObject) -> None:
    """However long each takes: a step never ends before it begins, nor after the time for work, unless it begins after it."""
    now_ms, work_end_ms = timetable.start_ms, timetable.start_ms + timetable.step_ms * timetable.local_steps
    assert work_end_ms <= timetable.last_ms + 1e-6
    for step in range(timetable.local_steps):
        ends_ms = timetable.ends_ms(step, now_ms)
        assert now_ms <= ends_ms <= max(work_end_ms, now_ms) + 1e-3
        now_ms = ends_ms + data.draw(st.floats(0, 2 * timetable.step_ms))


@given(timetables)
def test_nobody_is_waited_for_longer_than_a_third_of_a_step_or_what_a_busy_machine_needs(timetable: Timetable) -> None:
    work_ms = timetable.step_ms * timetable.local_steps
    assert timetable.step_ms / 3 <= timetable.timeout_ms <= max(timetable.step_ms / 3, 200) + 1e-9
    assert timetable.timeout_ms <= max(timetable.step_ms / 3, work_ms / 8) + 1e-9
    assert timetable.last_adding_ms < timetable.last_timeout_ms <= timetable.timeout_ms


@given(timetables)
def test_averaging_takes_at_most_a_third_of_a_step_from_the_work(timetable: Timetable) -> None:
    worked_ms = timetable.ends_ms(0, timetable.start_ms) - timetable.start_ms
    assert worked_ms >= timetable.step_ms * 2 / 3 - 1e-3


def test_steps_that_were_on_time_are_equally_long() -> None:
    timetable = Timetable(1600.0, 4, 30.0, 100.0, 0.0)
    assert timetable.step_ms == 375
    assert [timetable.ends_ms(step, 375.0 * step) for step in range(4)] == [345, 720, 1095, 1470]


def test_a_round_of_one_step_leaves_time_to_gather_and_none_to_average() -> None:
    assert Timetable(1600.0, 1, 30.0, 0.0, 0.0).ends_ms(0, 0.0) == 1400  # nothing measured: 200 ms
    assert Timetable(16_000.0, 1, 30.0, 0.0, 0.0).ends_ms(0, 0.0) == 15_000  # or a sixteenth
    assert Timetable(16_000.0, 1, 30.0, 50.0, 0.0).ends_ms(0, 0.0) == 15_950


# Outliers.

norms = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=32)


@given(norms, st.integers(1, 1000))
def test_with_equal_samples_who_is_larger_than_four_times_the_lower_median_is_left_out(values: list[float], samples: int) -> None:
    limit = 4 * sorted(values)[(len(values) - 1) // 2]
    assert outliers(values, [samples] * len(values)) == tuple(place for place, norm in enumerate(values) if norm > limit)


@given(norms, st.data())
def test_at_least_half_of_a_roster_stays(values: list[float], data: st.DataObject) -> None:
    samples = data.draw(st.lists(st.integers(1, 1000), min_size=len(values), max_size=len(values)))
    assert len(outliers(values, samples)) <= len(values) // 2


@given(st.integers(1, 100), st.floats(1, 1e3))
def test_few_samples_make_a_large_norm(few: int, usual: float) -> None:
    """Norms as they are where gradients are noise: those of fewer samples are larger by the root of that, and stay."""
    many = 100 * few
    assume(usual > 0)
    assert outliers([usual, usual, usual * sqrt(many / few)], [many, many, few]) == ()
    assert outliers([usual, usual, usual * 4.01 * sqrt(many / few)], [many, many, few]) == (2,)


@given(st.integers(1, 100), st.floats(1, 1e3), st.integers(1, 3))
def test_one_microbatch_beside_many_stays_however_few_there_are(few: int, usual: float, pairs: int) -> None:
    """The usual norm is that of many samples: it must not be held against few with the samples of somebody else."""
    norms, samples = [usual, 6 * usual] * pairs, [100 * few, few] * pairs
    assert outliers(norms, samples) == ()
    assert outliers(norms[::-1], samples[::-1]) == ()
    assert outliers([usual, 41 * usual], [100 * few, few]) == (1,)


@given(st.integers(1, 100), st.floats(1, 1e3))
def test_samples_that_one_claims_beyond_all_others_excuse_nobody(few: int, usual: float) -> None:
    assert outliers([usual, usual, usual, 4.01 * usual], [few, 10**6 * few, few, few]) == (3,)
    assert outliers([usual / 2, usual, 4.01 * usual], [few, 10**6 * few, few]) == (2,)


def test_vectors_of_nothing_leave_nobody_out() -> None:
    assert outliers([0.0, 0.0, 5.0], [16] * 3) == ()


def test_what_is_not_a_number_is_left_out_of_it() -> None:
    assert outliers([1.0, 1.0, inf], [16] * 3) == (2,)
    assert 1 in outliers([1.0, nan, 1.0], [16] * 3)
