"""Whether a claim that leaves out cheap microbatches is asked about one, however it says that they are left out."""

import pytest

from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.audited_step import skipped_cheap
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.protocol.microbatches import place_of_microbatch, work_of
from manta_swarm.protocol.records import Claim, ClaimStep
from manta_swarm.protocol.rewards import architecture_cost
from manta_swarm.protocol.signing import Identity, sha256
from tests.runs import manifest_of

MANIFEST = manifest_of(Identity(b"\x0b" * 32), costs=cost_table(space_named("classifier-tiny")))
PLAN = Plan.of(MANIFEST)
BASE, KEY = sha256(b"base"), Identity(b"\x05" * 32).public_key
ASKED = PLAN.architectures(1, "home")
COSTS = [architecture_cost(each.text, MANIFEST.cost_table()) for each in ASKED]


def claim_of(step: ClaimStep) -> Claim:
    work = work_of(len(ASKED), BASE, KEY, [step])
    return Claim(bytes(32), 1, BASE, KEY, KEY, KEY, "home", (step,), work, bytes(32), b"", 10)


def only(cost: int) -> int:
    """Return the first index of a microbatch whose architecture costs so much."""
    return next(index for index in range(len(ASKED)) if COSTS[place_of_microbatch(len(ASKED), BASE, KEY, index)] == cost)


@pytest.mark.parametrize("says", ["that it skipped them", "every second"])
def test_who_trains_the_dearest_alone_is_asked_about_a_cheaper_one_and_who_trains_the_cheapest_is_not(says: str) -> None:
    for cost in (max(COSTS), min(COSTS)):
        first, count = only(cost), len(ASKED)
        last = first + 20 * count
        trained = range(first, last + 1, count)
        if says == "every second":
            step = ClaimStep(first, last, (), bytes(32), count)
        else:
            step = ClaimStep(first, last, tuple(sorted(set(range(first, last)) - set(trained))), bytes(32))
        asked = skipped_cheap(MANIFEST, PLAN, claim_of(step), 0)
        assert (asked is None) is (cost == min(COSTS))
        if asked is not None:
            assert asked not in step
            assert COSTS[place_of_microbatch(count, BASE, KEY, asked)] < cost


def test_indices_may_be_any_numbers() -> None:
    first, count = only(max(COSTS)), len(ASKED)
    far = ClaimStep(first, first + count * 2**31, (), bytes(32), count)
    assert skipped_cheap(MANIFEST, PLAN, claim_of(far), 0) is not None
