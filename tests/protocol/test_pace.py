"""When a peer stops working, so that its contribution is in by the deadline."""

from statistics import median_high

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.exchange import MAX_MICROBATCH_MS
from manta_swarm.protocol.pace import Pace

durations = st.lists(st.integers(1, 10**7).map(float), min_size=1, max_size=40)


def pace_of(*, left_ms: float, microbatches_ms: list[float], hand_ins_ms: list[float], now: float = 1_000.0) -> Pace:
    pace = Pace()
    pace.opened(now, left_ms)
    for duration in microbatches_ms:
        pace.microbatch_took(duration)
    for duration in hand_ins_ms:
        pace.inclusion_promise_took(duration)
    return pace


def starts(pace: Pace, now: float, microbatches: int) -> bool:
    """Whether a peer that the log does not wait for may start another microbatch."""
    return pace.may_start_microbatch(now, microbatches, is_awaited=False)


def test_the_first_microbatch_is_always_worth_doing() -> None:
    assert starts(Pace(), 0.0, 0)
    late = pace_of(left_ms=10, microbatches_ms=[1_000], hand_ins_ms=[1_000])
    assert starts(late, 5_000.0, 0)  # it counts in a later round
    assert not starts(late, 5_000.0, 1)


def test_another_microbatch_is_started_as_long_as_there_is_time_for_it_and_twice_for_handing_in() -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=[100], hand_ins_ms=[150])
    assert starts(pace, 1_600.0, 1)  # done at 1700, in at 1850 as usual, at 2000 at worst
    assert not starts(pace, 1_600.1, 1)
    assert not starts(pace, 1_600.1, 50)


def test_before_anything_was_measured_a_quarter_of_the_round_is_kept_for_handing_in() -> None:
    pace = pace_of(left_ms=800, microbatches_ms=[100], hand_ins_ms=[])
    assert starts(pace, 1_500.0, 1)
    assert not starts(pace, 1_500.1, 1)


def test_who_is_awaited_needs_to_have_the_header_in_by_the_deadline_and_not_the_body() -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=[100], hand_ins_ms=[150])
    pace.header_took(50)
    assert pace.may_start_microbatch(1_800.0, 1, is_awaited=True)
    assert not pace.may_start_microbatch(1_800.1, 1, is_awaited=True)
    assert not pace.may_start_microbatch(1_600.1, 1, is_awaited=False)


def test_steps_share_the_time_that_is_left_evenly() -> None:
    """Ten microbatches' time in three steps, alone: 3, 3 and 4 microbatches."""
    pace = pace_of(left_ms=1_000, microbatches_ms=[100], hand_ins_ms=[0])
    assert microbatches_of_steps(pace, 1_000.0, 100, steps=3) == [3, 3, 4]
    assert microbatches_of_steps(pace, 1_000.0, 100, steps=1) == [10]
    assert microbatches_of_steps(pace, 1_000.0, 100, steps=10) == [1] * 10


def test_in_a_cohort_a_step_ends_when_the_founder_says_and_never_after_the_work() -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=[100], hand_ins_ms=[150])  # work ends at 1700

    def starts_in_cohort(now: float, ends: float) -> bool:
        return pace.may_start_microbatch(now, 1, is_awaited=False, step=0, steps=5, ends=ends)

    assert starts_in_cohort(1_200.0, 1_300.0)
    assert not starts_in_cohort(1_200.1, 1_300.0)
    assert starts_in_cohort(1_600.0, 5_000.0)
    assert not starts_in_cohort(1_600.1, 5_000.0)


@given(st.integers(0, 20_000), st.integers(1, 500), st.integers(1, 30))
def test_steps_of_microbatches_that_take_what_they_always_did_end_in_time_and_leave_no_microbatch_s_time(
    left_ms: int, microbatch_ms: int, steps: int
) -> None:
    pace = pace_of(left_ms=left_ms, microbatches_ms=[microbatch_ms], hand_ins_ms=[0])
    microbatches = microbatches_of_steps(pace, 1_000.0, microbatch_ms, steps=steps)
    assert max(microbatches) - min(microbatches) <= 1
    assert sum(microbatches) == max(steps, left_ms // microbatch_ms)


def microbatches_of_steps(pace: Pace, now: float, microbatch_ms: float, *, steps: int) -> list[int]:
    """How many microbatches a peer alone trains in each step, each of which takes ``microbatch_ms``."""
    counts = []
    for step in range(steps):
        microbatches = 0
        while pace.may_start_microbatch(now, microbatches, is_awaited=False, step=step, steps=steps):
            microbatches, now = microbatches + 1, now + microbatch_ms
        counts.append(microbatches)
    return counts


def test_each_worker_starts_a_microbatch_only_if_its_own_are_done_in_time() -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=[], hand_ins_ms=[0])
    for worker, microbatch_ms in ((0, 50.0), (1, 600.0)):
        for _ in range(5):
            pace.microbatch_took(microbatch_ms, worker)
    assert (pace.usual_ms(0), pace.usual_ms(1), pace.longest_ms(1), pace.usual_ms(2)) == (50.0, 600.0, 600.0, 0.0)

    def starts_at(now: float, worker: int) -> bool:
        return pace.may_start_microbatch(now, 3, is_awaited=False, worker=worker, workers=(0, 1))

    assert starts_at(1_400.0, 1)
    assert not starts_at(1_400.1, 1)
    assert starts_at(1_950.0, 0)
    assert not starts_at(1_950.1, 0)


@pytest.mark.parametrize(("microbatches_ms", "each"), [({0: 100.0}, 2), ({0: 100.0, 1: 100.0}, 4), ({0: 100.0, 1: 100.0, 2: 100.0}, 6)])
def test_equal_workers_do_a_step_s_microbatches_side_by_side_and_the_steps_share_the_time(
    microbatches_ms: dict[int, float], each: int
) -> None:
    assert steps_of_workers(microbatches_ms, steps=5) == [each] * 5


def test_a_slow_worker_adds_what_it_can_and_makes_no_step_late() -> None:
    steps = steps_of_workers({0: 10.0, 1: 100.0}, steps=4)
    assert max(steps) - min(steps) <= 3
    assert 100 <= sum(steps) <= 110


def steps_of_workers(microbatches_ms: dict[int, float], *, steps: int) -> list[int]:
    """How many microbatches workers train in each step, alone, from 1000 on; no step ends after 2000."""
    pace = pace_of(left_ms=1_000, microbatches_ms=[], hand_ins_ms=[0])
    for worker, microbatch_ms in microbatches_ms.items():
        pace.microbatch_took(microbatch_ms, worker)
    now, counts = 1_000.0, []
    workers = tuple(microbatches_ms)
    for step in range(steps):
        started, until = 0, dict.fromkeys(workers, now)
        waiting = set(workers)
        while waiting:
            worker = min(waiting, key=lambda each: (until[each], microbatches_ms[each]))
            if pace.may_start_microbatch(until[worker], started, is_awaited=False, step=step, steps=steps, worker=worker, workers=workers):
                started, until[worker] = started + 1, until[worker] + microbatches_ms[worker]
            else:
                waiting.discard(worker)
        counts.append(started)
        now = max(until.values())
    assert now <= 2_000.0
    return counts


def test_a_new_round_has_a_new_deadline_and_what_was_measured_stays() -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=[100], hand_ins_ms=[150])
    assert pace.left_ms(1_000.0) == 1_000
    assert pace.left_ms(2_500.0) == -500
    pace.opened(2_500.0, 600)
    assert pace.left_ms(2_500.0) == 600
    assert starts(pace, 2_700.0, 1)
    assert not starts(pace, 2_700.1, 1)


@given(durations, durations, st.integers(0, 10**7), st.integers(0, 10**7), st.integers(1, 9))
def test_a_microbatch_that_is_started_and_is_among_the_longer_ones_leaves_the_time_to_hand_in(
    microbatches_ms: list[float], hand_ins_ms: list[float], left_ms: float, now: float, microbatches: int
) -> None:
    pace = pace_of(left_ms=left_ms, microbatches_ms=microbatches_ms, hand_ins_ms=hand_ins_ms)
    longest_first = sorted(microbatches_ms[-16:], reverse=True)
    long_ms = max(median_high(longest_first), longest_first[min(2, len(longest_first) - 1)])
    needed = long_ms + 2 * median_high(hand_ins_ms[-16:])
    assert starts(pace, now, microbatches) == (now + needed <= 1_000 + left_ms)


@given(durations)
def test_a_claim_may_name_the_usual_duration_of_a_microbatch(microbatches_ms: list[float]) -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=microbatches_ms, hand_ins_ms=[])
    assert pace.microbatch_ms == min(max(round(median_high(microbatches_ms[-16:])), 1), MAX_MICROBATCH_MS)


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    pace = pace_of(left_ms=1_000, microbatches_ms=[10] * 100 + [500] * 9, hand_ins_ms=[])
    assert pace.microbatch_ms == 500


def test_before_the_first_microbatch_its_duration_is_the_least_that_a_claim_may_name() -> None:
    assert Pace().microbatch_ms == 1
    assert pace_of(left_ms=1_000, microbatches_ms=[0.2], hand_ins_ms=[]).microbatch_ms == 1
    assert pace_of(left_ms=1_000, microbatches_ms=[1e9], hand_ins_ms=[]).microbatch_ms == MAX_MICROBATCH_MS


def test_a_round_in_which_nothing_was_in_is_open_again_for_as_long_and_there_is_no_time_while_its_commit_may_come() -> None:
    pace = pace_of(left_ms=6_000, microbatches_ms=[], hand_ins_ms=[], now=0.0)
    left = {now: pace.left_again_ms(now, 6_000, 500) for now in (0, 5_999, 6_000, 6_499, 6_500, 11_999, 12_000, 12_500)}
    assert left == {0: 6_000, 5_999: 1, 6_000: 0, 6_499: 0, 6_500: 5_500, 11_999: 1, 12_000: 0, 12_500: 5_500}
