"""Draws of audits: how many, of whom, and what a crowd of keys can do to others' chances."""

from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.auditing import AuditCandidate, auditor_of, drawn
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import AuditRules

NAMED = tuple(sorted(Identity(sha256(b"auditor %d" % number)).public_key for number in range(4)))
RULES = AuditRules(NAMED, audit_percent=5, newcomer_percent=10)
BEACONS = [sha256(b"beacon %d" % number) for number in range(400)]


def candidate(name: str, *, samples: int = 1000, has_proven: bool = False, is_known: bool = False) -> AuditCandidate:
    return AuditCandidate(sha256(name.encode()), samples, has_proven, is_known)


PROVEN = [candidate(f"proven {number}", has_proven=True) for number in range(20)]


def rate(one: AuditCandidate, others: list[AuditCandidate], rules: AuditRules = RULES) -> float:
    """Return how often a contribution is drawn beside others."""
    return sum(one.contribution in drawn(rules, beacon, [*others, one]) for beacon in BEACONS) / len(BEACONS)


def test_proven_keys_are_drawn_at_the_rate_of_the_run() -> None:
    total = sum(len(drawn(RULES, beacon, PROVEN)) for beacon in BEACONS)
    assert 0.04 < total / len(BEACONS) / len(PROVEN) < 0.06


def test_newcomers_cost_at_most_their_part_of_what_the_proven_trained() -> None:
    crowd = [candidate(f"new {number}", samples=300) for number in range(100)]
    draws = [drawn(RULES, beacon, [*PROVEN, *crowd]) for beacon in BEACONS]
    costs = [sum(each.samples for each in crowd if each.contribution in found) for found in draws]
    assert max(costs) <= 2000 + 2 * 300  # what is paid in part is drawn whole, with that probability
    assert 1900 < sum(costs) / len(costs) < 2100


def test_what_newcomers_that_were_found_good_cost_is_not_there_for_the_others() -> None:
    crowd = [candidate(f"new {number}", samples=300, is_known=number % 2 == 0) for number in range(100)]
    draws = [drawn(RULES, beacon, [*PROVEN, *crowd]) for beacon in BEACONS]
    costs = [sum(each.samples for each in crowd if each.contribution in found) for found in draws]
    assert max(costs) <= 2000 + 2 * 300
    assert 1900 < sum(costs) / len(costs) < 2100


def test_one_newcomer_among_few_proven_is_drawn_as_often_as_the_budget_pays_for_it() -> None:
    newcomer = candidate("new")
    assert 0.25 < rate(newcomer, PROVEN[:3]) < 0.45  # 300 of 1,000 samples, and what both halves of the budget leave over
    assert rate(candidate("known", is_known=True), PROVEN[:3]) > 0.25


def test_a_crowd_that_never_works_does_not_keep_one_that_does_from_being_looked_at_again() -> None:
    crowd = [candidate(f"new {number}") for number in range(100)]
    assert rate(candidate("known", is_known=True), [*PROVEN, *crowd]) > 0.9
    assert rate(candidate("unknown"), [*PROVEN, *crowd]) < 0.06


def test_where_nobody_is_proven_newcomers_are_drawn_all_the_same() -> None:
    crowd = [candidate(f"new {number}") for number in range(10)]
    total = sum(len(drawn(RULES, beacon, crowd)) for beacon in BEACONS)
    assert 0.8 < total / len(BEACONS) < 1.2


def test_a_large_contribution_of_a_newcomer_is_drawn_seldom_but_it_is_drawn() -> None:
    assert 0.05 < rate(candidate("large", samples=20_000), PROVEN) < 0.15


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.booleans()), max_size=12), st.binary(min_size=32, max_size=32))
def test_a_draw_is_a_function_of_the_beacon_whatever_the_order(shapes: list[tuple[int, bool, bool]], beacon: bytes) -> None:
    candidates = [candidate(f"{place}", samples=s, has_proven=p, is_known=k) for place, (s, p, k) in enumerate(shapes)]
    found = drawn(RULES, beacon, candidates)
    assert found == drawn(RULES, beacon, candidates[::-1])
    assert found <= {each.contribution for each in candidates}


def test_each_named_auditor_has_its_part_and_none_judges_its_own_work() -> None:
    shares = [sum(auditor_of(beacon, PROVEN[0].contribution, (), NAMED) == key for beacon in BEACONS) for key in NAMED]
    assert min(shares) > 60
    own = {auditor_of(beacon, PROVEN[0].contribution, NAMED[:3], NAMED) for beacon in BEACONS}
    assert own == {NAMED[3]}
    assert auditor_of(BEACONS[0], PROVEN[0].contribution, NAMED, NAMED) is None
