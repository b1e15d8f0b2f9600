"""A clock that jumped says that nothing ran here."""

from manta_swarm.peer.limits.absence import Absences


def test_an_absence_is_told_once_with_its_length() -> None:
    times = iter([100.0, 102.1, 107.0, 160.0, 162.0])
    told: list[float] = []
    absences = Absences(told.append, lambda: next(times))
    for _ in range(4):
        absences.look(2.0)
    assert told == [51.0]


def test_a_busy_machine_and_a_clock_that_is_set_back_are_no_absence() -> None:
    times = iter([100.0, 108.0, 50.0, 52.0])
    told: list[float] = []
    absences = Absences(told.append, lambda: next(times))
    for _ in range(3):
        absences.look(2.0)
    assert told == []
