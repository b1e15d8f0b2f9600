"""The size that a device is fast enough for, from how long its microbatches take: left at once, returned to slowly, not by a cold start."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.latency.table import Accuracy, Conditions, LatencyTable
from manta_swarm.automl.spaces.cost import cost_table, macs
from manta_swarm.automl.spaces.space import TINY, Architecture
from manta_swarm.automl.training.schedule import Plan, bound_macs
from manta_swarm.peer.train.sizing import LIGHT, PART, Sizing
from manta_swarm.protocol.cohorts import ALL, sized_name
from manta_swarm.protocol.manifest import Optimizer

PLAN = Plan("classifier-tiny", "sandwich", "model-parallel", Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, "0.9", "0.5"), 1000, 3)
OPEN_MS = 9_000
LONGEST_MS = OPEN_MS / PART
LARGEST = macs(TINY.largest(), TINY)


class Device:
    """One that takes ``largest_ms`` for a microbatch of the largest network, and less for others as they cost less."""

    def __init__(self, sizing: Sizing, largest_ms: float, plan: Plan = PLAN) -> None:
        self.sizing = sizing
        self.largest_ms = largest_ms
        self.plan = plan
        self.round = 0

    def microbatch_ms(self, architecture: Architecture) -> float:
        return self.largest_ms * macs(architecture, TINY) / LARGEST

    def work(self, rounds: int, *, alone: bool = True) -> list[int]:
        """Work for so many rounds; return the size after each. Who is not alone trains what others are fast enough for: the least."""
        sizes = []
        for _ in range(rounds):
            self.round += 1
            (architecture,) = self.plan.architectures(self.round, sized_name("here", self.sizing.size if alone else 1))
            self.sizing.worked(self.round, architecture, self.microbatch_ms(architecture), OPEN_MS)
            sizes.append(self.sizing.size)
        return sizes


def sizing(**settings: object) -> Sizing:
    return Sizing(PLAN, 32, **settings)  # type: ignore[arg-type]


def largest_ms_that_fits(size: int) -> float:
    """Return how slow a device is whose microbatches of the dearest networks of a size take just as long as they may."""
    return LONGEST_MS * LARGEST / bound_macs(TINY, size)


def test_who_knows_nothing_takes_it_that_the_device_is_fast_enough() -> None:
    assert sizing().size == ALL
    assert "not known" in sizing().why


@pytest.mark.parametrize(("size", "factor"), [(1, 0.99), (2, 0.99), (3, 0.99), (4, 0.99), (1, 100.0)])
def test_a_device_comes_to_the_largest_size_that_it_is_fast_enough_for_or_the_least_and_stays(size: int, factor: float) -> None:
    device = Device(sizing(), factor * largest_ms_that_fits(size))
    device.work(12)
    assert set(device.work(200)) == {size}
    assert "of the time that a microbatch may take" in device.sizing.why


@settings(max_examples=10)
@given(st.floats(0.01, 30.0), st.integers(0, 2**32))
def test_a_size_changes_seldom_however_fast_the_device_is_and_with_noise(share: float, seed: int) -> None:
    """The noise is durations that are off by up to a fifth."""
    rng, device = random.Random(seed), Device(sizing(), share * LONGEST_MS)
    exact = device.microbatch_ms
    device.microbatch_ms = lambda architecture: exact(architecture) * rng.uniform(0.8, 1.2)  # type: ignore[method-assign]
    sizes = device.work(200)[20:]
    assert sum(before != after for before, after in itertools.pairwise(sizes)) <= len(sizes) // 6
    fits = max((size for size in range(1, ALL + 1) if largest_ms_that_fits(size) >= device.largest_ms), default=1)
    assert set(sizes) <= {max(1, fits - 1), fits, min(fits + 1, ALL)}


def test_a_device_that_becomes_faster_goes_up_one_step_at_a_time_and_rests_in_between() -> None:
    device = Device(sizing(), 0.9 * largest_ms_that_fits(1))
    assert device.work(30)[-1] == 1
    device.largest_ms = 0.1 * LONGEST_MS
    sizes = device.work(40)
    assert sizes[-1] == ALL
    assert sizes == sorted(sizes)
    assert all(sizes.count(size) >= 4 for size in (2, 3))


def test_a_moment_in_which_the_computer_is_busy_costs_some_rounds_and_no_more() -> None:
    device = Device(sizing(), 0.2 * LONGEST_MS)
    device.work(10)
    device.largest_ms *= 100
    assert device.work(1)[0] < ALL
    device.largest_ms /= 100
    sizes = device.work(60)
    assert sizes[0] < ALL
    assert sizes[-1] == ALL


def test_the_first_microbatch_of_a_program_says_nothing() -> None:
    device = Device(sizing(), 50 * LONGEST_MS)
    assert device.work(1) == [ALL]
    device.largest_ms = 0.1 * LONGEST_MS
    assert set(device.work(20)) == {ALL}


def test_who_trains_small_networks_because_of_a_cohort_peer_does_not_take_itself_for_slow() -> None:
    device = Device(sizing(), 0.9 * LONGEST_MS)
    assert set(device.work(40, alone=False)) == {ALL}


def test_with_local_steps_each_of_them_has_its_part_of_the_round() -> None:
    plan = replace(PLAN, local_steps=4)
    device = Device(Sizing(plan, 32), 0.99 * largest_ms_that_fits(2) / 4, plan)
    device.work(12)
    assert set(device.work(50)) == {2}


def test_the_persons_word_is_the_last() -> None:
    device = Device(sizing(given=2, helped=SimpleNamespace(has_helpers=True)), 100 * LONGEST_MS)
    assert set(device.work(10)) == {2}
    assert device.sizing.why == "--size 2"


def test_while_light_contributors_are_here_the_networks_are_small() -> None:
    here = SimpleNamespace(has_helpers=False)
    own = sizing(helped=here)
    assert own.size == ALL
    here.has_helpers = True
    assert own.size == LIGHT
    assert own.why == "light contributors are here"
    here.has_helpers = False
    assert own.size == ALL


def table_of(largest_ms: float, *, batch: int = 1) -> LatencyTable:
    """Return a table by which a batch of the largest network takes so long, and others as they cost less."""
    conditions = Conditions("cpu", "a device", 1, "fp32", batch, "2")
    entries = {key: largest_ms * cost / LARGEST for key, cost in cost_table(TINY)}
    return LatencyTable("classifier-tiny", conditions, entries, 0.0, 1.0, Accuracy(1, 1, 0.0, 0.0, 1.0))


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_latency_table_is_the_first_guess(size: int, batch: int) -> None:
    """Microbatches of 32 samples, and three times an inference for each."""
    own = sizing(table=table_of(0.97 * largest_ms_that_fits(size) / 3 / 32 * batch, batch=batch))
    assert own.size == ALL
    own.opened(1, OPEN_MS)
    assert own.size == size
    assert own.why.startswith("by its latency table")
    own.opened(2, OPEN_MS // 100)
    assert own.size == size


def test_what_was_measured_is_better_than_the_table() -> None:
    device = Device(sizing(table=table_of(100 * LONGEST_MS)), 0.2 * LONGEST_MS)
    device.sizing.opened(1, OPEN_MS)
    assert device.sizing.size == 1
    assert device.work(40)[-1] == ALL


def test_in_a_phase_with_a_teacher_its_largest_network_counts_too() -> None:
    """Small networks do not help much there: what the teacher alone takes is too long for one and fits the other."""
    plan = replace(PLAN, schedule="shrinking", num_rounds=1000)
    first = next(phase for phase in plan.phases if phase.name == "kernel").first
    own = Sizing(plan, 32)
    architecture, teacher_ms = TINY.smallest(), 1.1 * LONGEST_MS
    for round_ in range(first, first + 3):
        own.worked(round_, architecture, teacher_ms, OPEN_MS)
    assert own.size == 1
