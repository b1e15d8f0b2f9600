"""Limits in a person's words, and what follows from them at each state of a computer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from manta_swarm.peer.limits.limits import COOLER_C, LEAST_RATE, Limits, Readings, reasons

NOON = 12 * 60


def why(limits: Limits, was_hot: bool = False, **now: Any) -> dict[str, str]:
    return reasons(limits, Readings(**{"minute": NOON, **now}), was_hot=was_hot)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("duty", "60%", 60),
        ("duty", "1 %", 1),
        ("duty", "none", 100),
        ("cpu_threads", "all", None),
        ("gpu_memory", "1.5GB", 1_500_000_000),
        ("gpu_memory", "2GiB", 2 * 2**30),
        ("max_temperature", "80°C", 80),
        ("max_upload", "10Mbit/s", 1_250_000),
        ("max_upload", "800kbit", LEAST_RATE),
        ("max_download", "1GB", 10**9),
        ("when_idle", "5m", 300),
        ("schedule", "22:00-07:00, 12:30-13:00", ((1320, 420), (750, 780))),
        ("schedule", "08:00-24:00", ((480, 0),)),
        ("schedule", "none", None),
        ("on_ac", "none", False),
        ("evaluation", "0%", 0),
        ("evaluation", "35", 35),
        ("evaluation", "none", 10),
    ],
)
def test_what_a_person_writes(name: str, text: str, value: Any) -> None:
    assert getattr(Limits(**{name: text}), name) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("duty", "0"),
        ("duty", "101%"),
        ("duty", 0.6),
        ("duty", True),
        ("gpu_memory", "6"),
        ("gpu_memory", True),
        ("max_temperature", "hot"),
        ("max_temperature", "200"),
        ("max_upload", "10"),
        ("max_upload", "10Mb"),
        ("max_upload", "1kB"),
        ("max_download", "-1MB"),
        ("when_idle", "5"),
        ("when_idle", "1s"),
        ("when_idle", 5.5),
        ("schedule", "22-7"),
        ("schedule", "07:00-24:30"),
        ("schedule", "07:00-07:00"),
        ("schedule", ""),
        ("on_ac", "perhaps"),
        ("evaluation", "101%"),
        ("evaluation", 0.5),
    ],
)
def test_what_is_no_limit(name: str, bad: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Limits(**{name: bad})
    assert caught.value.errors()[0]["loc"][0] == name


@given(
    st.builds(
        Limits,
        duty=st.integers(1, 100),
        cpu_threads=st.none() | st.integers(1, 64),
        gpu_memory=st.none() | st.integers(300 * 10**6, 10**12),
        max_temperature=st.none() | st.integers(30, 120),
        max_upload=st.none() | st.integers(LEAST_RATE, 10**10),
        when_idle=st.none() | st.integers(10, 86_400),
        schedule=st.none() | st.lists(st.sampled_from(["22:00-07:00", "01:02-03:04"]), min_size=1, max_size=3).map(",".join),
        on_ac=st.booleans(),
        evaluation=st.integers(0, 100),
    )
)
def test_the_words_of_limits_mean_the_same_limits(limits: Limits) -> None:
    assert Limits(**limits.words()) == limits  # type: ignore[arg-type]


def test_without_limits_nothing_is_asked_of_the_computer() -> None:
    assert why(Limits(), on_battery=None) == {}
    assert why(Limits(duty=5, max_upload="1MB", cpu_threads=1)) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "inside", "outside"),
    [
        ("22:00-07:00", ["22:00", "23:59", "00:00", "06:59"], ["07:00", "12:00", "21:59"]),
        ("09:00-17:30", ["09:00", "17:29"], ["08:59", "17:30", "00:00"]),
        ("00:00-24:00", ["00:00", "12:00", "23:59"], []),
        ("01:00-02:00,03:00-04:00", ["01:30", "03:30"], ["02:30"]),
    ],
)
def test_a_schedule(schedule: str, inside: list[str], outside: list[str]) -> None:
    limits = Limits(schedule=schedule)  # type: ignore[arg-type]
    for text, is_in in [*((each, True) for each in inside), *((each, False) for each in outside)]:
        hour, minute = map(int, text.split(":"))
        found = why(limits, minute=60 * hour + minute)
        assert found == ({} if is_in else {"schedule": f"it is {text}, outside of {schedule}"})


def test_a_computer_in_use_or_on_battery() -> None:
    limits = Limits(when_idle=300, on_ac=True)
    assert why(limits, idle_s=299.0, on_battery=True) == {"when_idle": "this computer is in use", "on_ac": "on battery"}
    assert why(limits, idle_s=300.0, on_battery=False) == {}


def test_a_hot_computer_goes_on_when_it_is_some_degrees_cooler() -> None:
    limits = Limits(max_temperature=80)
    assert why(limits, celsius=80.0) == {}
    assert why(limits, celsius=80.5) == {"max_temperature": "hot: 80.5 of 80 degrees"}
    assert why(limits, celsius=79.0, was_hot=True) == {"max_temperature": "hot: 79 of 80 degrees"}
    assert why(limits, celsius=80.0 - COOLER_C, was_hot=True) == {}


def test_what_is_not_known_keeps_from_computing() -> None:
    limits = Limits(when_idle=300, on_ac=True, max_temperature=80)
    assert set(why(limits, on_battery=None)) == {"when_idle", "on_ac", "max_temperature"}
