import random

import pytest

from manta_swarm.automl.search.evolution import crossed, mutated
from manta_swarm.automl.spaces.space import BASE, STEREO_BASE, STEREO_TINY, TINY, SearchSpace
from tests.automl.narrow import NARROW, SMALL_NARROW
from tests.automl.search.synthetic import SMALL

SPACES = [TINY, BASE, STEREO_TINY, STEREO_BASE, NARROW]


@pytest.mark.parametrize("space", [SMALL, SMALL_NARROW], ids=["one width", "several"])
def test_a_mutation_changes_nothing_at_probability_zero_and_reaches_everything_at_one(space: SearchSpace) -> None:
    start = space.largest()
    assert mutated(start, space, random.Random(0), 0.0) == start
    reached = {mutated(start, space, random.Random(index), 1.0).text for index in range(4000)}
    assert reached == {architecture.text for architecture in space}


def test_a_child_has_widths_of_both_parents() -> None:
    one, other = NARROW.largest(), NARROW.smallest()
    children = {crossed(one, other, random.Random(index)).widths for index in range(200)}
    assert children == {(a, None, b, c, d) for a in (8, 16) for b in (8, 24) for c in (8, 16) for d in (24, 40)}


def test_a_small_probability_changes_a_small_part() -> None:
    start = BASE.sample(random.Random(0))
    changed = [len(set(start.genes) ^ set(mutated(start, BASE, random.Random(index), 0.05).genes)) for index in range(200)]
    assert 1 < sum(changed) / len(changed) < 8


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_mutations_and_children_are_in_the_space(space: SearchSpace) -> None:
    rng = random.Random("breeding")
    for _ in range(200):
        one, other = space.sample(rng), space.sample(rng)
        space.check(mutated(one, space, rng, 0.3))
        child = crossed(one, other, rng)
        space.check(child)
        assert set(child.genes) <= set(one.genes) | set(other.genes)


def test_a_child_of_one_parent_twice_is_that_parent() -> None:
    one = BASE.sample(random.Random(3))
    assert crossed(one, one, random.Random(4)) == one
