"""What rounds train, and what cohorts of a size train: never more than the size allows."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import BASE, FAMILIES, TINY, space_named
from manta_swarm.automl.training.schedule import Plan, bound_macs, drawn
from manta_swarm.protocol.cohorts import ALL, NUM_SIZES, size_of, sized_name
from manta_swarm.protocol.manifest import ALGORITHMS, SCHEDULES, Optimizer, Recipe
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.records import MAX_ARCHITECTURES
from manta_swarm.protocol.signing import sha256
from tests.automl.narrow import NARROW

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
PLAN = Plan("classifier-tiny", "sandwich", "data-parallel", ADAMW, 100, seed=7)
SHRINKING = replace(PLAN, schedule="shrinking")

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


def test_data_parallel_trains_the_sandwich_of_the_round_in_every_cohort() -> None:
    for round_ in range(1, 20):
        largest, smallest, *others = PLAN.architectures(round_, "a")
        assert (largest, smallest, len(others)) == (TINY.largest(), TINY.smallest(), 2)
        assert PLAN.architectures(round_, "b") == (largest, smallest, *others)
    assert PLAN.architectures(1, "a") != PLAN.architectures(2, "a")
    assert PLAN.architectures(1, "a") != replace(PLAN, seed=8).architectures(1, "a")


@pytest.mark.parametrize(("local_steps", "sweeps"), [(1, 1), (2, 2), (8, 8), (10, 8), (500, 8)])
def test_with_local_steps_a_round_of_data_parallel_has_a_sandwich_for_each_of_the_first_eight(local_steps: int, sweeps: int) -> None:
    plan = replace(PLAN, local_steps=local_steps)
    architectures = plan.architectures(3, "a")
    assert architectures == plan.architectures(3, "b")
    assert len(architectures) == 4 * sweeps <= MAX_ARCHITECTURES
    assert architectures[:4] == PLAN.architectures(3, "a")
    for sweep in range(sweeps):
        assert architectures[4 * sweep : 4 * sweep + 2] == (TINY.largest(), TINY.smallest())
    others = [one for place, one in enumerate(architectures) if place % 4 > 1]
    assert len(set(others)) == 2 * sweeps
    model_parallel = replace(plan, algorithm="model-parallel")
    assert model_parallel.architectures(3, "a") == replace(model_parallel, local_steps=1).architectures(3, "a")


def test_in_four_rounds_a_cohort_has_the_random_role_twice_and_the_others_once_and_each_cohort_in_its_own_order() -> None:
    plan = replace(PLAN, algorithm="model-parallel")
    orders = {tuple(plan.role(4 * block + place, cohort) for place in (1, 2, 3, 4)) for cohort in ("a", "b") for block in range(25)}
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2, 2)}
    assert len(orders) == 12  # all there are
    pairs = [[plan.architectures(round_, cohort) for cohort in ("a", "b")] for round_ in range(1, 41)]
    assert sum(a != b for a, b in pairs) > 20


def test_data_parallel_has_one_role() -> None:
    assert {PLAN.role(round_, cohort) for round_ in range(1, 101) for cohort in ("a", "b")} == {0}


def test_a_peers_microbatches_take_the_architectures_in_turn_from_a_place_of_its_own_on_each_base() -> None:
    firsts = Counter()
    for base in (sha256(b"base %d" % number) for number in range(40)):
        for key in (sha256(b"key %d" % number) for number in range(40)):
            places = [place_of_microbatch(4, base, key, index) for index in range(9)]
            assert all((after - before) % 4 == 1 for before, after in pairwise(places))
            assert place_of_microbatch(1, base, key, 3) == 0
            firsts[places[0]] += 1
    assert set(firsts) == {0, 1, 2, 3}
    assert all(300 < count < 500 for count in firsts.values())
    assert len({place_of_microbatch(4, sha256(b"base %d" % number), bytes(32), 0) for number in range(40)}) == 4  # of one key, too


def test_what_the_manifest_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="round"):
        PLAN.architectures(0, "a")
    with pytest.raises(ValueError, match="schedule"):
        replace(PLAN, schedule="none")


def test_a_sandwich_is_one_phase_without_a_teacher() -> None:
    (phase,) = PLAN.phases
    assert (phase.first, phase.last, phase.space, phase.distils) == (1, 100, TINY, False)
    assert PLAN.teacher_round is None
    assert not any(PLAN.sorts_after(round_) for round_ in range(1, 101))


@pytest.mark.parametrize(("percent", "first"), [(1, 100), (50, 51), (100, 1)])
def test_the_last_part_of_a_taught_sandwich_learns_from_the_state_that_each_round_begins_with(percent: int, first: int) -> None:
    taught = replace(PLAN, recipe=replace(PLAN.recipe, taught_percent=percent))
    assert [round_ for round_ in range(1, 101) if taught.phase(round_).distils] == list(range(first, 101))
    assert all(phase.teaches_itself == phase.distils for phase in taught.phases)
    assert taught.teacher_round is None
    assert not any(taught.sorts_after(round_) for round_ in range(1, 101))
    for round_ in range(1, 101):  # all else is as without
        assert taught.learning_rate(round_) == PLAN.learning_rate(round_)
        assert taught.architectures(round_, "a") == PLAN.architectures(round_, "a")


def test_shrinking_has_no_part_that_teaches_itself() -> None:
    assert not any(phase.teaches_itself for phase in SHRINKING.phases)
    with pytest.raises(ValueError, match="a teacher of their own"):
        replace(SHRINKING, recipe=replace(SHRINKING.recipe, taught_percent=1))


def test_shrinking_goes_from_the_full_network_to_kernels_depths_and_widths() -> None:
    assert [(phase.name, phase.first, phase.last) for phase in SHRINKING.phases] == [
        ("full", 1, 35),
        ("kernel", 36, 50),
        ("depth", 51, 70),
        ("width", 71, 85),
        ("width", 86, 100),
    ]
    assert [phase.distils for phase in SHRINKING.phases] == [False, True, True, True, True]
    assert SHRINKING.teacher_round == 35
    assert [round_ for round_ in range(1, 101) if SHRINKING.sorts_after(round_)] == [70]
    sizes = [phase.space.size() for phase in SHRINKING.phases]
    assert sizes[0] == len(TINY.resolutions)
    assert sizes == sorted(sizes)
    assert SHRINKING.phases[-1].space == TINY


def test_a_larger_space_shrinks_in_more_steps_and_each_unit_by_its_own_choices() -> None:
    phases = replace(SHRINKING, supernet="classifier-base", num_rounds=1000).phases
    assert [phase.name for phase in phases] == ["full", "kernel", "depth", "depth", "depth", "width", "width"]
    first, fourth = ([phase.space.units[unit] for phase in phases] for unit in (0, 3))
    assert [unit.depths[0] for unit in fourth] == [6, 6, 5, 4, 3, 3, 3]
    assert [unit.depths[0] for unit in first] == [2, 2, 1, 1, 1, 1, 1]
    assert [unit.expansions[0] for unit in fourth] == [6, 6, 6, 6, 6, 4, 3]
    assert [unit.expansions[0] for unit in first] == [2, 2, 2, 2, 2, 1, 1]
    assert [unit.kernels[0] for unit in first] == [5, 3, 3, 3, 3, 3, 3]
    assert [unit.widths for unit in fourth] == [(112,)] * 5 + [(96, 112), (80, 96, 112)]  # what units hand on narrows with what is inside
    assert [unit.widths for unit in first] == [(16,)] * 5 + [(8, 16)] * 2
    assert phases[-1].space == BASE


def test_a_phase_trains_only_what_it_has_reached() -> None:
    for round_ in range(1, 101):
        space = SHRINKING.phase(round_).space
        architectures = SHRINKING.architectures(round_, "a")
        assert architectures[:2] == (space.largest(), space.smallest())
        for architecture in architectures:
            space.check(architecture)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 6, 7, 11, 20, 200])
def test_phases_follow_each_other_through_all_rounds_whatever_their_number(rounds: int) -> None:
    phases = replace(SHRINKING, num_rounds=rounds).phases
    assert phases[0].first == 1
    assert phases[-1].last == rounds
    assert all(after.first == before.last + 1 for before, after in pairwise(phases))
    assert all(phase.first <= phase.last for phase in phases)
    assert len(phases) == min(rounds, 5)


def test_the_rate_rises_linearly_to_its_peak_and_falls_linearly_to_one_percent() -> None:
    rates = [PLAN.learning_rate(round_) for round_ in range(1, 101)]
    assert rates[:20] == pytest.approx([0.02 * step / 20 for step in range(1, 21)])
    assert rates[20:] == pytest.approx([0.02 * (1 - 0.99 * step / 80) for step in range(1, 81)])
    assert max(rates) == rates[19] == 0.02


def test_each_phase_has_a_rise_and_a_fall_of_its_own() -> None:
    for phase in SHRINKING.phases:
        rates = [SHRINKING.learning_rate(round_) for round_ in range(phase.first, phase.last + 1)]
        peak = rates.index(max(rates))
        assert rates[: peak + 1] == sorted(rates[: peak + 1])
        assert rates[peak:] == sorted(rates[peak:], reverse=True)
        assert max(rates) == 0.02 * phase.peak
        assert rates[-1] == pytest.approx(0.01 * max(rates))


@pytest.mark.parametrize("schedule", ["sandwich", "shrinking"])
@pytest.mark.parametrize(("warmup", "rounds"), [(0, 1), (0, 7), (100, 5), (50, 1), (1, 3)])
def test_the_rate_is_defined_in_every_round_of_every_run(warmup: int, rounds: int, schedule: str) -> None:
    plan = replace(PLAN, schedule=schedule, optimizer=replace(ADAMW, warmup_percent=warmup), num_rounds=rounds)
    assert all(0 < plan.learning_rate(round_) <= 0.02 for round_ in range(1, rounds + 1))


@pytest.mark.parametrize("round_", [0, 101])
def test_a_round_outside_the_run_has_no_rate(round_: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 100"):
        PLAN.learning_rate(round_)


@pytest.mark.parametrize("schedule", ["sandwich", "shrinking"])
def test_augmentation_follows_round_and_architecture_whatever_the_resolution(schedule: str) -> None:
    plan = replace(PLAN, schedule=schedule, num_rounds=3, recipe=Recipe(100, 50, 40))
    largest = [replace(TINY.largest(), resolution=resolution) for resolution in (24, 28, 32)]
    assert [[plan.augmentation(round_, one) for one in largest] for round_ in (1, 2, 3)] == [[100] * 3, [75] * 3, [50] * 3]
    others = [TINY.smallest(), replace(TINY.smallest(), resolution=32), TINY.sample(random.Random(0))]
    assert [[plan.augmentation(round_, one) for one in others] for round_ in (1, 2, 3)] == [[40] * 3, [30] * 3, [20] * 3]


@settings(max_examples=100)
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


@settings(max_examples=100)
@given(PLANS, NAMES, st.integers(1, ROUNDS))
def test_a_cohort_without_a_size_trains_what_its_role_in_the_block_of_four_rounds_says(plan: Plan, name: str, round_: int) -> None:
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
