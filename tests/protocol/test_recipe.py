"""How strongly a microbatch's images are changed, and what a recipe may say."""

import pytest

from manta_swarm.protocol.manifest import MAX_PERCENT, Recipe


def test_strength_goes_evenly_from_the_first_round_to_the_last() -> None:
    recipe = Recipe(100, 20, 50)
    assert [recipe.strength(round_, 5, is_largest=True) for round_ in range(1, 6)] == [100, 80, 60, 40, 20]
    assert [recipe.strength(round_, 5, is_largest=False) for round_ in range(1, 6)] == [50, 40, 30, 20, 10]


def test_a_run_of_one_round_has_the_first_strength() -> None:
    assert Recipe(70, 0).strength(1, 1, is_largest=True) == 70


def test_strength_may_grow_too_and_ends_where_it_should() -> None:
    recipe = Recipe(0, MAX_PERCENT)
    strengths = [recipe.strength(round_, 7, is_largest=True) for round_ in range(1, 8)]
    assert strengths == sorted(strengths)
    assert (strengths[0], strengths[-1]) == (0, MAX_PERCENT)


@pytest.mark.parametrize("values", [(-1, 0, 0), (0, MAX_PERCENT + 1, 0), (0, 0, 201)])
def test_percentages_out_of_range_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="0 to 200 percent"):
        Recipe(*values)


def test_what_decays_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="matrices"):
        Recipe(decay="biases")
