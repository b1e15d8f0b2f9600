"""What work earns: the price of an architecture, the weight of a claim and the credits of committed rounds. Integers only, pure.

Which claims and rounds are valid is not decided here (see ``protocol.ledger``).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.errors import LedgerError

_LEADING_LETTERS = re.compile(r"[a-z]*")


@dataclass(frozen=True, slots=True)
class RewardedRound:
    """What a committed round is paid for."""

    weights: tuple[tuple[bytes, int], ...]  # key -> ``claim_weight`` of its claim in the round
    equivocators: frozenset[bytes]  # keys that signed two claims for the round: they earn nothing


def architecture_cost(text: str, costs: Mapping[str, int]) -> int:
    """Return the MACs of the architecture ``text``, genes joined by single spaces: the sum over its genes.

    What a gene costs may depend on the first one, the resolution: after "r32" the price of "u2.1:k5e3" is that of "r32 u2.1:k5e3" if
    there is one, else that of "u2.1:k5e3"; the first gene's own price stands alone. Each place of the network is paid once: of
    "u2.1:k5e3" the place is what stands before the colon, of "r32" the letters.

    Raises:
        LedgerError: a gene without a price, or two genes for one place.
    """
    first, *others = genes = text.split(" ")
    if len({_place(gene) for gene in genes}) != len(genes):
        raise LedgerError("an architecture with two genes for one place")
    prices = [costs.get(first), *(costs.get(f"{first} {gene}", costs.get(gene)) for gene in others)]
    total = 0
    for gene, price in zip(genes, prices, strict=True):
        if price is None:
            raise LedgerError(f"the manifest has no price for gene {gene!r} of an architecture that begins with {first!r}")
        total += price
    return total


def _place(gene: str) -> str:
    place, colon, _ = gene.partition(":")
    letters = _LEADING_LETTERS.match(gene)
    return place if colon or letters is None else letters.group()


def claim_weight(work: Iterable[tuple[str, int]], costs: Mapping[str, int], max_samples: int) -> int:
    """Return what a claim's ``work`` weighs in its round's rewards: MACs over its samples.

    A claim of more than ``max_samples`` is scaled down to them, each of its architectures alike; rounded down.

    Raises:
        LedgerError: as ``architecture_cost``.
    """
    priced = [(samples, architecture_cost(text, costs)) for text, samples in work]
    samples = sum(count for count, _ in priced)
    weight = sum(count * cost for count, cost in priced)
    return weight if samples <= max_samples else weight * max_samples // samples


def credits(rounds: Iterable[RewardedRound], pool: int) -> dict[bytes, int]:
    """Return key -> credit over all ``rounds``, each of which shares out ``pool``; keys in order, who earned nothing is not in it.

    A round in which nobody's work weighs anything pays nothing.
    """
    earned: Counter[bytes] = Counter()
    for round_ in rounds:
        earned.update(_share_out(pool, {key: weight for key, weight in round_.weights if key not in round_.equivocators}))
    return {key: earned[key] for key in sorted(earned) if earned[key]}


def _share_out(pool: int, weights: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return ``pool`` in shares in proportion to ``weights``: rounded down, then one more each by largest remainder, ties by key."""
    total = sum(weights.values())
    if not total:
        return {}
    shares = {key: pool * weight // total for key, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda key: (-(pool * weights[key] % total), key))
    for key in by_remainder[: pool - sum(shares.values())]:
        shares[key] += 1
    return shares
