import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.search.constraints import Constraint, Cost, LatencyCost, Region, cheapest
from manta_swarm.automl.spaces.space import TINY, Architecture, SearchSpace
from manta_swarm.protocol.errors import UserError
from tests.automl.narrow import SMALL_NARROW
from tests.automl.search.synthetic import SMALL, latency_of, macs_of, weights_of


class SmallIsSlow:
    """A device on which what has fewer MACs takes longer."""

    def latency_ms(self, architecture: Architecture) -> float:
        return 1e6 / MACS.of(architecture)


WHOLE = list(SMALL)
SEEDS = st.integers(0, 2**32)
MACS, WEIGHTS = macs_of(SMALL), weights_of(SMALL)


def feasible(constraints: list[Constraint]) -> list[Architecture]:
    return [each for each in WHOLE if all(constraint.cost.of(each) <= constraint.limit for constraint in constraints)]


@pytest.mark.parametrize("space", [SMALL, SMALL_NARROW], ids=["one width", "several"])
def test_the_cheapest_architecture_is_what_brute_force_finds(space: SearchSpace) -> None:
    for cost in (macs_of(space), weights_of(space), *map(latency_of, range(20))):
        assert cost.of(cheapest(space, cost)) == pytest.approx(min(map(cost.of, space)), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_region_of_several_widths_is_sampled_and_returned_to(seed: int) -> None:
    cost, rng = latency_of(seed), random.Random(seed)
    costs = sorted(map(cost.of, SMALL_NARROW))
    region = Region(SMALL_NARROW, [Constraint(cost, costs[len(costs) // 50])])
    found = [*region.sample_new(10, rng), *(region.repaired(SMALL_NARROW.sample(rng), rng) for _ in range(20))]
    assert all(each in region for each in found)
    assert len({each.widths for each in found}) > 1


def test_a_repair_may_change_a_width_alone() -> None:
    cost = macs_of(SMALL_NARROW)
    narrowest = replace(SMALL_NARROW.largest(), widths=SMALL_NARROW.smallest().widths)
    part = SMALL_NARROW.restricted(resolutions=(32,)).with_largest(kernels=1, depths=1, expansions=1, widths=3)
    repaired = Region(part, [Constraint(cost, cost.of(narrowest))]).repaired(part.largest(), random.Random(0))
    assert repaired.widths != part.largest().widths
    assert cost.of(repaired) <= cost.of(narrowest)


def test_the_smallest_architecture_has_the_fewest_macs_and_weights() -> None:
    assert cheapest(TINY, macs_of(TINY)) == TINY.smallest()
    assert macs_of(TINY).of(TINY.smallest()) == macs_of(TINY).of(cheapest(TINY, macs_of(TINY)))
    assert weights_of(TINY).of(TINY.smallest()) == weights_of(TINY).of(cheapest(TINY, weights_of(TINY)))


@given(SEEDS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=30)
def test_nothing_that_comes_out_of_a_region_violates_a_constraint(seed: int, macs_share: float, latency_share: float) -> None:
    latency = latency_of(seed % 7)
    constraints = []
    for cost, share in ((MACS, macs_share), (latency, latency_share)):
        lowest, highest = cost.of(cheapest(SMALL, cost)), max(map(cost.of, WHOLE))
        constraints.append(Constraint(cost, lowest + share * (highest - lowest)))
    possible = feasible(constraints)
    if not possible:
        with pytest.raises(UserError, match="all of them at once"):
            Region(SMALL, constraints)
        return
    try:
        region = Region(SMALL, constraints)
    except UserError:
        assert len(possible) < 3, "only a corner of the space may be missed"
        return
    rng = random.Random(seed)
    for architecture in [*region.sample_new(10, rng), region.repaired(SMALL.largest(), rng)]:
        assert architecture in possible
        assert architecture in region


@given(SEEDS)
@settings(max_examples=15)
def test_a_limit_at_the_very_minimum_is_kept(seed: int) -> None:
    cost = latency_of(seed % 20)
    region = Region(SMALL, [Constraint(cost, cost.of(cheapest(SMALL, cost)))])
    chosen = region.sample_new(3, random.Random(seed))
    assert chosen
    assert all(architecture in region for architecture in chosen)


@pytest.mark.parametrize(("cost", "option"), [(MACS, "--macs"), (WEIGHTS, "--weights"), (latency_of(3), "--latency-ms")])
def test_an_infeasible_limit_names_the_nearest_that_can_be_kept(cost: Cost, option: str) -> None:
    with pytest.raises(UserError, match="nearest feasible value") as caught:
        Region(SMALL, [Constraint(cost, 0.01)])
    match = re.search(rf"{option} ([0-9.]+)$", str(caught.value))
    assert match is not None
    limit = float(match[1])
    assert limit == pytest.approx(min(map(cost.of, WHOLE)), rel=1e-5)
    assert Region(SMALL, [Constraint(cost, limit)]).sample(random.Random(0)) in WHOLE


def test_limits_that_exclude_each_other_name_ones_that_can_be_kept_together() -> None:
    fast = LatencyCost(SmallIsSlow())
    limits = [Constraint(fast, 1e6 / max(map(MACS.of, WHOLE))), Constraint(MACS, min(map(MACS.of, WHOLE)))]
    with pytest.raises(UserError, match="all of them at once") as caught:
        Region(SMALL, limits)
    match = re.search(r"--latency-ms ([0-9.]+) --macs ([0-9]+)$", str(caught.value))
    assert match is not None
    assert Region(SMALL, [Constraint(fast, float(match[1])), Constraint(MACS, float(match[2]))])


def test_a_wide_region_is_sampled_uniformly() -> None:
    limit = sorted(map(MACS.of, WHOLE))[len(WHOLE) // 2]
    region = Region(SMALL, [Constraint(MACS, limit)])
    rng = random.Random(0)
    counts = dict.fromkeys(feasible([Constraint(MACS, limit)]), 0)
    for _ in range(2000):
        counts[region.sample(rng)] += 1
    # A unit of depth 1 is as likely as one of depth 2, of which there are twice as many.
    by_depths = {0: [], 1: [], 2: []}
    for architecture, count in counts.items():
        by_depths[sum(len(unit) == 2 for unit in architecture.units)].append(count)
    means = [sum(each) / len(each) for each in by_depths.values()]
    assert means[0] == pytest.approx(2 * means[1], rel=0.25)
    assert means[1] == pytest.approx(2 * means[2], rel=0.25)


def test_a_region_runs_out_of_architectures_without_an_endless_loop() -> None:
    limit = sorted(map(MACS.of, WHOLE))[4]
    region = Region(SMALL, [Constraint(MACS, limit)])
    chosen = region.sample_new(50, random.Random(0))
    assert set(chosen) == set(feasible([Constraint(MACS, limit)]))
    assert region.sample_new(50, random.Random(1), known=chosen) == []


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_is_above_zero(limit: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Constraint(MACS, limit)
