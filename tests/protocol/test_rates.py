"""Token buckets: so many at once, so many a second, and after how long the next."""

from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.network.rates import TokenBuckets


def test_a_name_may_ask_so_often_at_once_and_then_so_often_a_second() -> None:
    rates = TokenBuckets[str](a_second=2.0, at_once=3.0, max_names=2)
    assert [rates.wait_ms("here", 0.0) for _ in range(5)] == [0, 0, 0, 500, 500]
    assert rates.wait_ms("there", 0.0) == 0
    assert [rates.wait_ms("here", 500.0) for _ in range(2)] == [0, 500]
    assert [rates.wait_ms("here", 60_000.0) for _ in range(4)] == [0, 0, 0, 500]


def test_names_that_are_forgotten_begin_anew_and_take_no_room() -> None:
    rates = TokenBuckets[int](a_second=1.0, at_once=1.0, max_names=2)
    for number in range(100):
        assert rates.wait_ms(number, 0.0) == 0
    assert len(rates._left) == 2


def test_what_costs_more_waits_longer_and_what_costs_more_than_there_ever_is_takes_all() -> None:
    rates = TokenBuckets[str](a_second=10.0, at_once=20.0)
    assert rates.wait_ms("here", 0.0, 15) == 0
    assert rates.wait_ms("here", 0.0, 15) == 1000
    assert rates.wait_ms("here", 0.0, 5) == 0
    assert rates.wait_ms("here", 0.0, 1000) == 2000
    assert rates.wait_ms("here", 2000.0, 1000) == 0


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0.5, 30)), max_size=40))
def test_who_comes_back_when_it_is_told_is_answered_and_nobody_gets_more_than_the_rate(asked: list[tuple[float, float]]) -> None:
    rates, now, answered = TokenBuckets[str](a_second=5.0, at_once=10.0), 0.0, 0.0
    for pause, cost in asked:
        now += pause
        wait_ms = rates.wait_ms("here", now, cost)
        if wait_ms:
            now += wait_ms
            assert rates.wait_ms("here", now, cost) == 0
        answered += min(cost, 10.0)
        assert answered <= 10.0 + now / 1000 * 5.0 + 1e-6
