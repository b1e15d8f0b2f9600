"""Which claims of work are taken: exactly those that the round asks for, in every schedule."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automl.claims import WorkError, check_work
from automl.schedule import Plan
from protocol.records import ALGORITHMS, SCHEDULES, Claim
from protocol.signing import Identity, sha256
from tests.runs import manifest_of

PEER = Identity(b"\x0b" * 32)
LOT = 16
PLANS = [
    Plan.of(manifest_of(PEER, algorithm=algorithm, schedule=schedule, num_rounds=40, supernet=supernet))
    for algorithm in ALGORITHMS
    for schedule in SCHEDULES
    for supernet in ("classifier-tiny", "stereo-tiny")
]


def claim_of(lots_of: Counter[str], round_: int = 1, cohort: str = "home") -> Claim:
    work = tuple((text, LOT * count) for text, count in sorted(lots_of.items()))
    return Claim(sha256(b"run"), round_, sha256(b"run"), PEER.public_key, cohort, work, lots_of.total(), sha256(b"lots"))


@settings(deadline=None)
@given(st.sampled_from(PLANS), st.integers(1, 40), st.sampled_from(["home", "away"]), st.data())
def test_lots_of_the_round_s_architectures_are_taken_and_of_any_other_are_not(
    plan: Plan, round_: int, cohort: str, data: st.DataObject
) -> None:
    asked = [one.text for one in plan.architectures(round_, cohort)]
    lots_of = Counter(data.draw(st.lists(st.sampled_from(asked), min_size=1, max_size=20)))
    check_work(plan, LOT, claim_of(lots_of, round_, cohort))
    other = plan.space.smallest().text
    if other not in asked:
        with pytest.raises(WorkError, match="does not train"):
            check_work(plan, LOT, claim_of(lots_of + Counter([other]), round_, cohort))


def test_lots_that_are_not_whole_or_not_all_stated_are_refused() -> None:
    honest = claim_of(Counter([PLANS[0].architectures(1, "home")[0].text]))
    with pytest.raises(WorkError, match="not whole lots"):
        check_work(PLANS[0], LOT, replace(honest, work=((honest.work[0][0], LOT + 1),)))
    with pytest.raises(WorkError, match="2 lots of 16 are not 16 samples"):
        check_work(PLANS[0], LOT, replace(honest, lots=2))


def test_a_claim_for_a_round_after_the_last_one_is_refused() -> None:
    for round_ in (41, 2**40):
        with pytest.raises(WorkError, match="of 40"):
            check_work(PLANS[0], LOT, claim_of(Counter(["r32"]), round_))
