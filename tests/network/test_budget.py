"""What strangers did wrong: counted, forgiven a few times, and in bounded memory."""

import pytest

from manta_swarm.network.rates import FAULTS_FORGIVEN, FORGET_S, MAX_KEYS, CallerFaults
from tests.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults(clock: ManualClock) -> CallerFaults:
    return CallerFaults(clock)


def test_faults_are_counted_by_reason_and_by_key(faults: CallerFaults) -> None:
    for key, reason in ((b"a", "malformed"), (b"a", "malformed"), (b"b", "signature"), (b"a", "signature")):
        faults.note(key, reason)
    assert faults.by_reason == {"malformed": 2, "signature": 2}
    assert faults.by_key() == {b"b": {"signature": 1}, b"a": {"malformed": 2, "signature": 1}}


def test_a_few_are_forgiven_and_then_it_is_too_much_for_that_key_alone(faults: CallerFaults) -> None:
    for _ in range(FAULTS_FORGIVEN):
        faults.note(b"a", "malformed")
        assert not faults.is_too_much(b"a")
    faults.note(b"a", "signature")
    assert faults.is_too_much(b"a")
    assert not faults.is_too_much(b"b")


def test_a_minute_later_it_is_listened_to_again_from_the_beginning(faults: CallerFaults, clock: ManualClock) -> None:
    for _ in range(FAULTS_FORGIVEN + 1):
        faults.note(b"a", "malformed")
    clock.advance(FORGET_S)
    assert faults.is_too_much(b"a")
    clock.advance(0.001)
    assert not faults.is_too_much(b"a")
    faults.note(b"a", "malformed")
    assert not faults.is_too_much(b"a")
    assert faults.by_reason == {"malformed": FAULTS_FORGIVEN + 2}  # what was counted stays counted


def test_who_does_a_little_wrong_all_the_time_is_listened_to(faults: CallerFaults, clock: ManualClock) -> None:
    for _ in range(100):
        faults.note(b"a", "no body")
        assert not faults.is_too_much(b"a")
        clock.advance(FORGET_S / (FAULTS_FORGIVEN - 1))


def test_any_number_of_keys_takes_no_more_memory_and_the_newest_are_known(faults: CallerFaults) -> None:
    for _ in range(FAULTS_FORGIVEN + 1):
        faults.note(b"first", "malformed")
    for number in range(MAX_KEYS - 1):
        faults.note(b"key %d" % number, "malformed")
    assert faults.is_too_much(b"first")
    faults.note(b"first", "malformed")  # the newest of all again
    for number in range(10 * MAX_KEYS):
        faults.note(b"other %d" % number, "malformed")
        if number == MAX_KEYS - 2:
            assert faults.is_too_much(b"first")
    assert len(faults.by_key()) == MAX_KEYS
    assert not faults.is_too_much(b"first")
    assert faults.by_reason["malformed"] == FAULTS_FORGIVEN + 1 + MAX_KEYS - 1 + 1 + 10 * MAX_KEYS
