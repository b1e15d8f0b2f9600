"""Prices, weights and shares: against exact fractions, and that a round pays its pool, no more and no less."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LedgerError
from protocol.rewards import RewardedRound, architecture_cost, claim_weight, credits

COSTS = {"r32": 10, "r48": 30, "u0.0:k3e2": 5, "u0.0:k5e3": 20, "u0.1:k3e2": 7, "a space": 1, "": 1}
weights = st.dictionaries(st.binary(min_size=1, max_size=4), st.integers(0, 10**30), max_size=12)


def rewarded(round_weights: dict[bytes, int], equivocators: frozenset[bytes] = frozenset()) -> RewardedRound:
    return RewardedRound(tuple(round_weights.items()), equivocators)


def test_an_architecture_costs_the_sum_of_its_genes() -> None:
    assert architecture_cost("r32", COSTS) == 10
    assert architecture_cost("r32 u0.0:k5e3 u0.1:k3e2", COSTS) == 37


def test_what_a_gene_costs_may_depend_on_the_first_one() -> None:
    costs = COSTS | {"r48 u0.0:k3e2": 50, "r48 u0.1:k3e2": 70}
    assert architecture_cost("r32 u0.0:k3e2 u0.1:k3e2", costs) == 10 + 5 + 7
    assert architecture_cost("r48 u0.0:k3e2 u0.1:k3e2", costs) == 30 + 50 + 70
    assert architecture_cost("r48 u0.0:k5e3 u0.1:k3e2", costs) == 30 + 20 + 70  # the same at every resolution: listed alone


def test_a_gene_that_is_only_priced_after_a_first_one_has_no_price_alone_or_after_another() -> None:
    costs = {"r32": 10, "r48": 30, "r32 u0.0:k3e2": 5, "r32 u0.1:k3e2": 7}
    assert architecture_cost("r32 u0.0:k3e2 u0.1:k3e2", costs) == 22
    for text in ("r48 u0.0:k3e2", "u0.0:k3e2", "u0.0:k3e2 r32", "u0.0:k3e2 u0.1:k3e2"):
        with pytest.raises(LedgerError, match="no price"):
            architecture_cost(text, costs)
    with pytest.raises(LedgerError, match="two genes for one place"):
        architecture_cost("r32 u0.0:k3e2 u0.0:k3e2", costs)


@given(st.data())
def test_a_table_with_a_price_for_each_first_gene_adds_up_like_any_other(data: st.DataObject) -> None:
    firsts, places, kinds = ("r32", "r48"), ("u0.0", "u0.1", "u1.0"), ("k3e2", "k5e3")
    genes = [f"{place}:{kind}" for place in places for kind in kinds]
    price = st.integers(0, 10**6)
    costs = {first: data.draw(price) for first in firsts} | {gene: data.draw(price) for gene in genes}
    costs |= {f"{first} {gene}": data.draw(price) for first in firsts for gene in genes if data.draw(st.booleans())}
    first = data.draw(st.sampled_from(firsts))
    chosen = [f"{place}:{data.draw(st.sampled_from(kinds))}" for place in places if data.draw(st.booleans())]
    expected = costs[first] + sum(costs[key] if (key := f"{first} {gene}") in costs else costs[gene] for gene in chosen)
    assert architecture_cost(" ".join([first, *chosen]), costs) == expected


@pytest.mark.parametrize("text", ["r32 u9.9:k3e2", "r32  u0.0:k3e2", " r32", "r32 ", "R32", "r32\nu0.0:k3e2", "a space"])
def test_an_architecture_of_unknown_genes_has_no_price(text: str) -> None:
    with pytest.raises(LedgerError):
        architecture_cost(text, {gene: cost for gene, cost in COSTS.items() if gene})


@pytest.mark.parametrize(
    "text", ["r32 r32", "r32 r48", "r32 u0.0:k3e2 u0.0:k3e2", "r32 u0.0:k3e2 u0.0:k5e3", "r32 u0.1:k3e2 u0.0:k3e2 r32"]
)
def test_no_place_of_a_network_is_paid_twice(text: str) -> None:
    with pytest.raises(LedgerError):
        architecture_cost(text, COSTS)


def test_a_claim_weighs_the_cost_of_its_samples() -> None:
    assert claim_weight((("r32", 3), ("r32 u0.0:k5e3", 4)), COSTS, 7) == 3 * 10 + 4 * 30


@given(
    st.lists(st.tuples(st.sampled_from(["r32", "r48", "u0.0:k3e2"]), st.integers(1, 10**6)), min_size=1, max_size=3), st.integers(1, 10**6)
)
def test_a_claim_above_the_cap_weighs_as_if_scaled_down_to_it(work: list[tuple[str, int]], cap: int) -> None:
    samples = sum(count for _, count in work)
    scale = min(Fraction(1), Fraction(cap, samples))
    exact = sum((Fraction(count) * scale * COSTS[text] for text, count in work), Fraction(0))
    assert claim_weight(work, COSTS, cap) == int(exact)


def test_shares_are_in_proportion_and_the_rest_goes_by_largest_remainder_then_by_key() -> None:
    assert credits([rewarded({b"a": 1, b"b": 1, b"c": 2})], 100) == {b"a": 25, b"b": 25, b"c": 50}
    assert credits([rewarded({b"b": 1, b"a": 1, b"c": 1})], 100) == {b"a": 34, b"b": 33, b"c": 33}
    assert credits([rewarded({b"a": 5, b"b": 3, b"c": 2})], 3) == {b"a": 1, b"b": 1, b"c": 1}  # 1.5, 0.9 and 0.6: two more, to b and c
    assert credits([rewarded({b"a": 1, b"b": 10**20})], 10) == {b"b": 10}


@given(weights, st.integers(1, 10**12))
def test_a_round_pays_exactly_its_pool_and_everybody_within_one_of_the_exact_share(round_weights: dict[bytes, int], pool: int) -> None:
    total = sum(round_weights.values())
    paid = credits([rewarded(round_weights)], pool)
    assert sum(paid.values()) == (pool if total else 0)
    for key, weight in round_weights.items():
        exact = Fraction(pool * weight, total) if total else Fraction(0)
        assert abs(paid.get(key, 0) - exact) < 1
        assert weight or key not in paid


@given(weights, st.integers(1, 10**6))
def test_the_order_of_a_table_does_not_matter(round_weights: dict[bytes, int], pool: int) -> None:
    turned = dict(sorted(round_weights.items(), reverse=True))
    assert credits([rewarded(round_weights)], pool) == credits([rewarded(turned)], pool)


@given(weights, weights, st.integers(1, 10**6))
def test_rounds_add_up(first: dict[bytes, int], second: dict[bytes, int], pool: int) -> None:
    alone = [credits([rewarded(one)], pool) for one in (first, second)]
    together = credits([rewarded(first), rewarded(second)], pool)
    assert together == {key: alone[0].get(key, 0) + alone[1].get(key, 0) for key in sorted({*alone[0], *alone[1]})}
    assert list(together) == sorted(together)


@given(weights, st.integers(1, 10**6), st.data())
def test_an_equivocator_earns_nothing_and_the_others_share_the_whole_pool(
    round_weights: dict[bytes, int], pool: int, data: st.DataObject
) -> None:
    cheats = frozenset(data.draw(st.sets(st.sampled_from(sorted(round_weights))) if round_weights else st.just(set())))
    honest = {key: weight for key, weight in round_weights.items() if key not in cheats}
    paid = credits([rewarded(round_weights, cheats)], pool)
    assert paid == credits([rewarded(honest)], pool)
    assert not cheats & set(paid)


def test_no_rounds_no_credits() -> None:
    assert credits([], 100) == {}
