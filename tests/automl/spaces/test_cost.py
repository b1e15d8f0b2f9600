import random
from collections import Counter

import pytest

from manta_swarm.automl.spaces.cost import cost_table, macs, price_keys
from manta_swarm.automl.spaces.space import BASE, STEREO_BASE, STEREO_TINY, TINY, SearchSpace
from manta_swarm.protocol.manifest import MAX_COSTS, MAX_GENE_TEXT
from manta_swarm.protocol.rewards import architecture_cost
from tests.automl.narrow import NARROW, SMALL_NARROW, WIDENED

SPACES = [TINY, BASE, STEREO_TINY, STEREO_BASE, NARROW, WIDENED]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_a_ledger_with_this_table_prices_an_architecture_at_its_macs(space: SearchSpace) -> None:
    for architecture in (space.largest(), space.smallest(), *(space.sample(random.Random(index)) for index in range(5))):
        assert architecture_cost(architecture.text, dict(cost_table(space))) == macs(architecture, space)


@pytest.mark.parametrize("space", [TINY, STEREO_TINY, STEREO_BASE], ids=lambda space: space.name)
def test_the_table_prices_every_gene_at_every_resolution(space: SearchSpace) -> None:
    resolutions, layers = [f"r{resolution}" for resolution in space.resolutions], [gene for gene in space.genes() if gene[0] == "u"]
    keys = {key for key, _ in cost_table(space)}
    assert keys == {*resolutions, *(f"{resolution} {gene}" for resolution in resolutions for gene in layers)}


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_a_table_fits_a_manifest_and_prices_nothing_twice_or_for_nothing(space: SearchSpace) -> None:
    counts = Counter(key for key, _ in cost_table(space))
    assert len(counts) <= MAX_COSTS
    assert max(map(len, counts)) <= MAX_GENE_TEXT
    assert set(counts.values()) == {1}
    assert all(cost > 0 for _, cost in cost_table(space))


def test_the_table_has_a_price_for_each_pair_of_widths_that_a_layer_is_between_and_no_other() -> None:
    used = {key for architecture in SMALL_NARROW for key in price_keys(architecture)}
    assert used == {key for key, _ in cost_table(SMALL_NARROW)}
    assert {key for key in used if key.startswith("r24") and "u3.0:k5e2" in key} == {f"r24 u3:w{width} u3.0:k5e2" for width in (8, 16, 24)}
    keys = {key for key, _ in cost_table(NARROW) if key.startswith("r32 ")}
    assert {key for key in keys if key.endswith("u4.0:k3e1")} == {f"r32 u3:w{a} u4:w{b} u4.0:k3e1" for a in (8, 16, 24) for b in (8, 16)}
    assert {key for key in keys if key.endswith("u4.1:k3e1")} == {f"r32 u4:w{width} u4.1:k3e1" for width in (8, 16)}
    assert {key for key in keys if key.endswith("u2.0:k3e2")} == {f"r32 u1:w{width} u2.0:k3e2" for width in (8, 16)}
    assert {key for key in keys if key.count(" ") == 1} == {
        "r32 u5:w24",
        "r32 u5:w40",
        *(f"r32 {g}" for g in NARROW.genes() if "u2.1" in g),
    }
