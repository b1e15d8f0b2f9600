"""A clock that jumped says that nothing ran here."""

from manta_swarm.peer.limits.limiter import Absences


def test_an_absence_is_told_once_with_its_length() -> None:
    absences = Absences(100.0)
    assert [absences.look(2.0, now_s) for now_s in (102.1, 107.0, 160.0, 162.0)] == [0.0, 0.0, 51.0, 0.0]


def test_a_busy_machine_and_a_clock_that_is_set_back_are_no_absence() -> None:
    absences = Absences(100.0)
    assert not any(absences.look(2.0, now_s) for now_s in (108.0, 50.0, 52.0))
