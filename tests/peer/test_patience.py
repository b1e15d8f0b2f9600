from itertools import pairwise

from peer.crew.processes import Patience


def test_a_worker_that_ended_once_is_started_at_once_and_then_more_and_more_seldom() -> None:
    rests_s = [Patience().rest_s(ends) for ends in range(1, 20)]
    assert rests_s[:3] == [0.0, 0.5, 1.0]
    assert all(one <= other for one, other in pairwise(rests_s))
    assert rests_s[-1] == Patience().rest_s(100_000) == 60.0
