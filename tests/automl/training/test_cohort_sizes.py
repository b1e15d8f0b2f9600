"""What cohorts of a size train: never more than it allows, and with no size exactly what was trained before there were any."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import FAMILIES, TINY, space_named
from manta_swarm.automl.training.schedule import Plan, bound_macs, drawn
from manta_swarm.protocol.cohorts import ALL, NUM_SIZES, size_of, sized_name
from manta_swarm.protocol.manifest import ALGORITHMS, SCHEDULES, Optimizer
from tests.automl.narrow import NARROW

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
SUPERNETS = (*FAMILIES, "classifier-tiny-3x100")
ROUNDS = 100

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True).filter(lambda name: size_of(name) == ALL)
PLANS = st.builds(
    Plan,
    st.sampled_from(SUPERNETS),
    st.sampled_from(SCHEDULES),
    st.just("model-parallel"),
    st.just(ADAMW),
    st.just(ROUNDS),
    st.integers(0, 2**63 - 1),
    st.integers(1, 10),
)
RANDOM, SMALLEST = 2, 1


@settings(max_examples=300)
@given(PLANS, NAMES, st.integers(1, ROUNDS), st.integers(1, NUM_SIZES))
def test_no_cohort_trains_more_than_its_size_allows(plan: Plan, name: str, round_: int, size: int) -> None:
    cohort, space, part = sized_name(name, size), plan.space, plan.phase(round_).space
    (architecture,) = plan.architectures(round_, cohort)
    part.check(architecture)
    allowed = max(bound_macs(space, size), macs(part.smallest(), space))
    assert macs(architecture, space) <= allowed
    if macs(architecture, space) > bound_macs(space, size):
        assert architecture == part.smallest()
    assert (plan.role(round_, cohort) == 0) <= (size == ALL)
    again = Plan(plan.supernet, plan.schedule, plan.algorithm, plan.optimizer, plan.num_rounds, plan.seed, plan.local_steps)
    drawn.cache_clear()
    assert again.architectures(round_, cohort) == (architecture,)


@settings(max_examples=200)
@given(PLANS, NAMES, st.integers(1, ROUNDS))
def test_without_a_size_it_is_what_it_was_before_there_were_any(plan: Plan, name: str, round_: int) -> None:
    part = plan.phase(round_).space
    block, place = divmod(round_ - 1, 4)
    roles = ["largest", "smallest", "random", "random"]
    random.Random(f"{plan.seed}:{name}:block:{block}").shuffle(roles)
    expected = {
        "largest": (0, part.largest()),
        "smallest": (1, part.smallest()),
        "random": (2, part.sample(random.Random(f"{plan.seed}:{name}:{round_}"))),
    }
    assert (plan.role(round_, name), *plan.architectures(round_, name)) == expected[roles[place]]


@settings(max_examples=100)
@given(st.integers(0, 2**63 - 1), NAMES, st.integers(1, ROUNDS), st.integers(1, NUM_SIZES))
def test_data_parallel_knows_no_sizes(seed: int, name: str, round_: int, size: int) -> None:
    plan = Plan("classifier-tiny", "sandwich", ALGORITHMS[0], ADAMW, ROUNDS, seed)
    assert plan.architectures(round_, sized_name(name, size)) == plan.architectures(round_, name)


@pytest.mark.parametrize("size", range(1, ALL))
def test_a_cohort_of_a_lesser_size_has_the_smallest_once_in_four_rounds_and_random_ones_else(size: int) -> None:
    plan = Plan("classifier-tiny", "sandwich", "model-parallel", ADAMW, ROUNDS, 7)
    cohort, trained = sized_name("here", size), Counter()
    for block in range(ROUNDS // 4):
        roles = [plan.role(4 * block + place, cohort) for place in (1, 2, 3, 4)]
        assert sorted(roles) == [SMALLEST, RANDOM, RANDOM, RANDOM]
        trained.update(plan.architectures(4 * block + place, cohort)[0] for place in (1, 2, 3, 4))
    assert trained[TINY.smallest()] >= ROUNDS // 4
    assert len(trained) > ROUNDS // 2  # most of the others differ


def test_widths_become_smaller_where_a_draw_is_too_dear() -> None:
    part = NARROW.with_largest(kernels=1, depths=1, expansions=1, widths=3).restricted(resolutions=(48,))  # nothing but widths to lower
    seen = set()
    for seed in range(60):
        rng = random.Random(f"{seed}")
        first, bound, found = part.sample(rng), bound_macs(NARROW, 1), drawn(part, NARROW, 1, f"{seed}")
        part.check(found)
        assert macs(found, NARROW) <= max(bound, macs(part.smallest(), NARROW))
        assert all(mine is None or mine <= theirs for mine, theirs in zip(found.widths, first.widths, strict=True))
        seen.add(found.widths != first.widths)
    assert seen == {True, False}


@pytest.mark.parametrize("supernet", SUPERNETS)
def test_a_size_is_a_quarter_of_the_way_from_the_smallest_to_the_largest(supernet: str) -> None:
    space = space_named(supernet)
    least, most = macs(space.smallest(), space), macs(space.largest(), space)
    bounds = [bound_macs(space, size) for size in range(1, NUM_SIZES + 1)]
    assert bounds == [least + (most - least) * size // 4 for size in (1, 2, 3, 4)]
    assert bounds[-1] == most
    for size, seed in itertools.product(range(1, NUM_SIZES + 1), range(20)):
        assert macs(drawn(space, space, size, f"{seed}"), space) <= bounds[size - 1]
    reached = max(macs(drawn(space, space, 1, f"{seed}"), space) for seed in range(50))
    assert reached > (least + bounds[0]) // 2  # a draw that is too dear does not become the smallest


def test_where_a_phase_has_nothing_that_small_it_is_the_smallest_of_the_phase() -> None:
    plan = Plan("stereo-tiny", "shrinking", "model-parallel", ADAMW, ROUNDS, 0)
    part = plan.phase(1).space  # the full network, of the one resolution that there is
    assert plan.architectures(1, sized_name("here", 1)) == (part.smallest(),) == (part.largest(),)
    units = (replace(unit, kernels=all_.kernels) for unit, all_ in zip(part.units, plan.space.units, strict=True))
    wider = replace(part, units=tuple(units))
    assert macs(drawn(wider, plan.space, 1, "0"), plan.space) == macs(wider.smallest(), plan.space) > bound_macs(plan.space, 1)
