import random
from collections import Counter

import pytest

from automl.spaces.cost import cost_table, macs
from automl.spaces.space import BASE, STEREO_BASE, STEREO_TINY, TINY, SearchSpace
from protocol.rewards import architecture_cost

SPACES = [TINY, BASE, STEREO_TINY, STEREO_BASE]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_a_ledger_with_this_table_prices_an_architecture_at_its_macs(space: SearchSpace) -> None:
    for architecture in (space.largest(), space.smallest(), *(space.sample(random.Random(index)) for index in range(5))):
        assert architecture_cost(architecture.text, dict(cost_table(space))) == macs(architecture, space)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_table_prices_every_gene_at_every_resolution_once(space: SearchSpace) -> None:
    counts = Counter(key for key, _ in cost_table(space))
    resolutions, layers = [f"r{resolution}" for resolution in space.resolutions], [gene for gene in space.genes() if gene[0] == "u"]
    assert set(counts) == {*resolutions, *(f"{resolution} {gene}" for resolution in resolutions for gene in layers)}
    assert set(counts.values()) == {1}
    assert all(cost > 0 for _, cost in cost_table(space))
