"""A cohort's size in its name: read as it was written, whatever the name, and never longer than a name may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.cohorts import ALL, NUM_SIZES, is_size, size_of, sized_name
from manta_swarm.protocol.fields import check_name

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)
SIZES = st.integers(1, NUM_SIZES)


@given(NAMES, SIZES)
def test_a_name_with_a_size_is_a_name_and_says_that_size(name: str, size: int) -> None:
    sized = sized_name(name, size)
    check_name(sized, "a cohort")
    assert size_of(sized) == (size_of(name) if size == ALL else size)
    assert sized.startswith(name[:56])


@given(NAMES)
def test_a_cohort_that_trains_all_has_the_name_that_it_always_had(name: str) -> None:
    assert sized_name(name, ALL) == name


@given(st.lists(NAMES.filter(lambda name: len(name) <= 56 and size_of(name) == ALL), min_size=2, max_size=2, unique=True), SIZES, SIZES)
def test_cohorts_of_usual_names_are_told_apart(names: list[str], one: int, other: int) -> None:
    assert sized_name(names[0], one) != sized_name(names[1], other)
    assert (sized_name(names[0], one) == sized_name(names[0], other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["", ".size-1", "size-1", "a.size-0", "a.size-4", "a.size-", "a.size-1 ", "a.size-1\n", "a.Size-1", "a.size-11"]
)
def test_what_is_nearly_a_size_is_none(name: str) -> None:
    assert size_of(name) == ALL


@pytest.mark.parametrize("size", [-1, 0, 5, 100])
def test_another_size_there_is_not(size: int) -> None:
    assert not is_size(size)
    with pytest.raises(ValueError, match="1 to 4"):
        sized_name("a", size)
