"""Prices, weights and shares: against exact fractions, and that a round pays its pool, no more and no less."""

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.rewards import architecture_cost, claim_weight, share_out

COSTS = {"r32": 10, "r48": 30, "u0.0:k3e2": 5, "u0.0:k5e3": 20, "u0.1:k3e2": 7, "a space": 1, "": 1}
weights = st.dictionaries(st.binary(min_size=1, max_size=4), st.integers(0, 10**30), max_size=12)


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


WIDTHS = {
    "r32": 1,
    "r32 u2:w8": 2,
    "r32 u1:w8 u1.0:k3": 4,
    "r32 u1:w8 u2:w8 u2.0:k3": 8,
    "r32 u2:w8 u2.1:k3": 16,
    "r32 u2:w8 u3.0:k3": 32,
    "r32 u3.1:k3": 64,
    "u4.0:k3": 128,
}


def test_what_a_gene_costs_may_depend_on_the_last_two_widths() -> None:
    assert architecture_cost("r32 u1:w8 u1.0:k3 u2:w8 u2.0:k3 u2.1:k3 u3.0:k3 u3.1:k3 u4.0:k3", WIDTHS) == 2 + 4 + 8 + 16 + 32 + 64 + 128
    assert architecture_cost("r32 u2:w8 u2.1:k3", WIDTHS) == 2 + 16
    assert architecture_cost("r32 u1:w8 u1.0:k3", WIDTHS) == 1 + 4  # the last width prices nothing with the resolution


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("r32 u1:w16 u1.0:k3", "no price"),
        ("r32 u1.0:k3", "no price"),
        ("r32 u1.0:k3 u1:w8", "no price"),  # a width counts for what stands after it
        ("r32 u1:w8 u2:w16 u2.0:k3", "no price"),
        ("r32 u1:w8 u1:w8 u1.0:k3", "two genes"),
        ("r32 u1:w8 u1.0:k3 u3:w8 u3.1:k3", "'u3:w8', which prices nothing"),
        ("r32 u9:w1", "'u9:w1', which prices nothing"),
        ("u1:w8", "no price"),
    ],
)
def test_a_width_that_prices_nothing_and_a_gene_without_its_width_are_refused(text: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said):
        architecture_cost(text, WIDTHS)


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
    assert claim_weight((3, 4), (10, 30), 7, 1_000) == 7 * (3 * 10 + 4 * 30)
    assert claim_weight((0, 1), (10, 30), 1, 1_000) == 30
    assert claim_weight((3, 4), (0, 0), 7, 1_000) == 0


def test_a_claim_above_the_cap_weighs_as_if_scaled_down_to_it() -> None:
    assert claim_weight((3, 1), (10, 30), 5, 20) == 300  # just at it
    assert claim_weight((6, 2), (10, 30), 5, 20) == 300
    assert claim_weight((2, 1), (10, 30), 5, 10) == 166  # 250 * 10 / 15


@given(
    st.lists(st.tuples(st.integers(0, 2**32), st.integers(0, 2**62)), min_size=1, max_size=8), st.integers(1, 65_536), st.integers(1, 2**40)
)
def test_a_claim_s_weight_is_that_of_exact_fractions(work: list[tuple[int, int]], microbatch_samples: int, cap: int) -> None:
    microbatches, costs = [count for count, _ in work], [cost for _, cost in work]
    if not any(microbatches):
        microbatches[0] = 1
    scale = min(Fraction(1), Fraction(cap, sum(microbatches) * microbatch_samples))
    exact = sum((count * microbatch_samples * scale * cost for count, cost in zip(microbatches, costs, strict=True)), Fraction(0))
    assert claim_weight(microbatches, costs, microbatch_samples, cap) == int(exact)


def test_work_and_costs_are_of_the_same_architectures() -> None:
    with pytest.raises(ValueError, match="shorter"):
        claim_weight((1, 2), (10,), 16, 100)


def test_shares_are_in_proportion_and_the_rest_goes_by_largest_remainder_then_by_key() -> None:
    assert share_out(100, {b"a": 1, b"b": 1, b"c": 2}) == {b"a": 25, b"b": 25, b"c": 50}
    assert share_out(100, {b"b": 1, b"a": 1, b"c": 1}) == {b"a": 34, b"b": 33, b"c": 33}
    assert share_out(3, {b"a": 5, b"b": 3, b"c": 2}) == {b"a": 1, b"b": 1, b"c": 1}  # 1.5, 0.9 and 0.6: two more, to b and c
    assert share_out(10, {b"a": 1, b"b": 10**20}) == {b"a": 0, b"b": 10}


@pytest.mark.parametrize("nothing", [{}, {b"a": 0}, {b"a": 0, b"b": 0}])
def test_work_that_weighs_nothing_is_paid_nothing(nothing: dict[bytes, int]) -> None:
    assert share_out(100, nothing) == {}


def shares(weights: Mapping[bytes, Fraction | int], pool: int) -> dict[bytes, int]:
    """Largest remainders, by the book: one unit after the other to whom the most is missing."""
    total = sum(weights.values())
    if not total:
        return {}
    exact = {key: Fraction(pool * weight, total) for key, weight in weights.items()}
    paid = {key: int(share) for key, share in exact.items()}
    missing = {key: exact[key] - paid[key] for key in exact}
    while sum(paid.values()) < pool:
        key = min(missing, key=lambda key: (-missing[key], key))
        paid[key] += 1
        del missing[key]
    return paid


@given(weights, st.integers(1, 2**48))
def test_a_round_pays_exactly_its_pool_by_largest_remainders_whatever_the_order(round_weights: dict[bytes, int], pool: int) -> None:
    paid = share_out(pool, round_weights)
    assert paid == share_out(pool, dict(reversed(round_weights.items()))) == shares(round_weights, pool)
    assert sum(paid.values()) == (pool if any(round_weights.values()) else 0)


@given(st.integers(1, 10**6), weights, st.integers(1, 10**6))
def test_a_cap_takes_from_who_is_above_it_and_gives_to_nobody(pool: int, found: dict[bytes, int], cap: int) -> None:
    uncapped = share_out(pool, found)
    assert share_out(pool, found, cap) == {key: min(share, cap) for key, share in uncapped.items()}
    assert share_out(pool, found, pool) == uncapped
