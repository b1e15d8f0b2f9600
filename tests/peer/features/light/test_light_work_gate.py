"""A person's word and limits, as the thread of a light contributor's microbatches meets them."""

import threading
from collections.abc import Callable

import pytest
import torch

from manta_swarm.peer.features.light.work_gate import LeaseOver, WorkGate
from tests.clocks import ManualClock
from tests.memory_log import DEADLINE_S


class Working(threading.Thread):
    """A thread that does something which the work gate may hold up."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.problem: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except LeaseOver as error:
            self.problem = error

    def ends(self) -> None:
        self.join(DEADLINE_S)
        assert not self.is_alive()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_paused_contributor_begins_no_microbatch_until_it_is_resumed_and_who_leaves_does_not_wait_for_the_lease(leaves: bool) -> None:
    work_gate = WorkGate(ManualClock(100.0))
    work_gate.pause(is_paused=True)
    working = Working(lambda: work_gate.before_microbatch(until_s=100 + DEADLINE_S))
    assert work_gate.is_paused
    assert working.is_alive()
    if leaves:
        work_gate.leave()
    else:
        work_gate.pause(is_paused=False)
    working.ends()
    assert str(working.problem) == ("you left while it was paused" if leaves else "None")


def test_a_lease_that_is_over_before_the_pause_is_given_up() -> None:
    clock = ManualClock(100.0)
    work_gate = WorkGate(clock)
    work_gate.pause(is_paused=True)
    with pytest.raises(LeaseOver, match="paused until the lease was over"):
        work_gate.before_microbatch(until_s=clock.now_s())


def test_a_lease_under_way_is_brought_back_before_the_person_has_left() -> None:
    work_gate = WorkGate()
    with work_gate.at_work():
        assert work_gate.leave()
        work_gate.before_microbatch(until_s=0)  # it is not paused: its microbatches go on
    assert not work_gate.leave()
    assert work_gate.is_leaving


@pytest.mark.parametrize(("duty", "rest_ms"), [(100, 0.0), (50, 2.0), (80, 0.5)])
def test_after_a_microbatch_it_rests_as_the_duty_says(duty: int, rest_ms: float) -> None:
    clock = ManualClock(100.0)
    work_gate = WorkGate(clock)
    work_gate.limit(duty, None)
    assert work_gate.after_microbatch(2.0, samples=32) == pytest.approx(rest_ms)
    clock.advance(10)  # for a lease: time in which nothing was computed is rest as well, but makes up for nothing to come
    assert work_gate.after_microbatch(2.0, samples=32) == pytest.approx(rest_ms)
    assert work_gate.num_samples == 64


def test_a_rest_ends_where_the_duty_is_another_one() -> None:
    work_gate = WorkGate(ManualClock(100.0))
    work_gate.limit(1, None)
    working = Working(lambda: work_gate.after_microbatch(1e9, samples=1))  # three years of rest
    while not work_gate.num_samples:
        working.join(0.001)
    work_gate.limit(100, None)
    working.ends()


def test_threads_are_set_in_the_thread_that_computes_and_only_where_they_change() -> None:
    work_gate, everything = WorkGate(), torch.get_num_threads()
    set_to: list[int] = []

    def compute() -> None:
        work_gate.before_microbatch(until_s=0)
        set_to.append(torch.get_num_threads())

    try:
        torch.set_num_threads(everything + 1)
        compute()
        work_gate.limit(100, everything + 3)
        assert (set_to, work_gate.threads, torch.get_num_threads()) == ([everything + 1], everything + 3, everything + 1)
        compute()
        torch.set_num_threads(everything + 1)
        compute()
        work_gate.limit(100, None)
        compute()
    finally:
        torch.set_num_threads(everything)
    assert set_to == [everything + 1, everything + 3, everything + 1, everything]


def test_whoever_waits_is_woken_by_the_persons_word() -> None:
    work_gate = WorkGate()
    working = Working(lambda: work_gate.wait(1000 * DEADLINE_S))
    while working.is_alive():
        work_gate.pause(is_paused=True)
        working.join(0.001)
    work_gate.leave()
    work_gate.wait(1000 * DEADLINE_S)  # at once: there is nothing to wait for any more
