"""What work earns: the price of an architecture, the weight of a claim and the credits of committed rounds. Integers only, pure.

Which claims and rounds are valid is not decided here (see ``protocol.ledger``).
"""

import re
from collections.abc import Mapping, Sequence

from protocol.errors import LedgerError

_LEADING_LETTERS = re.compile(r"[a-z]*")


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


def claim_weight(work: Sequence[int], costs: Sequence[int], lot_samples: int, max_samples: int) -> int:
    """Return what a claim's ``work`` weighs in its round's rewards: MACs over its samples.

    A claim of more than ``max_samples`` is scaled down to them, each of its architectures alike; rounded down.

    Args:
        work: lots of each architecture.
        costs: MACs of each, in the same order.
        lot_samples: samples of a lot.
    """
    samples = sum(work) * lot_samples
    weight = sum(lots * cost for lots, cost in zip(work, costs, strict=True)) * lot_samples
    return weight if samples <= max_samples else weight * max_samples // samples


def share_out(pool: int, weights: Mapping[bytes, int], cap: int | None = None) -> dict[bytes, int]:
    """Return ``pool`` in shares in proportion to ``weights``: rounded down, then one more each by largest remainder, ties by key.

    A round in which nobody's work weighs anything pays nothing. What a share has beyond ``cap`` is paid to nobody: were it given to the
    others, a second key would be a way around the cap of the first.
    """
    total = sum(weights.values())
    if not total:
        return {}
    shares = {key: pool * weight // total for key, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda key: (-(pool * weights[key] % total), key))
    for key in by_remainder[: pool - sum(shares.values())]:
        shares[key] += 1
    return shares if cap is None else {key: min(share, cap) for key, share in shares.items()}
