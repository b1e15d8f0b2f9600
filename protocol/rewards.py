"""What work earns: the price of an architecture, the weight of a claim and the credits of committed rounds. Integers only, pure.

Which claims and rounds are valid is not decided here (see ``protocol.ledger``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from manta_swarm.protocol.errors import LedgerError

_LEADING_LETTERS = re.compile(r"[a-z]*")
_WIDTH = re.compile(r"[^.:]+:.*", re.DOTALL)  # a gene of a width; the place of a layer's has a dot
_WIDTHS_OF_A_GENE = 2  # on which its price may depend: of its own unit, and of the one before


def architecture_cost(text: str, costs: Mapping[str, int]) -> int:
    """Return the MACs of the architecture ``text``, genes joined by single spaces: the sum over its genes.

    What a gene costs may depend on the first one, the resolution, and on widths. A width's gene, whose place has no dot as in "u2:w24",
    has no price of its own: it says what others cost. The price of "u2.0:k5e3" after "r32", "u1:w16" and "u2:w24" is that of
    "r32 u1:w16 u2:w24 u2.0:k5e3" if there is one, else that of "r32 u2:w24 u2.0:k5e3", else of "r32 u2.0:k5e3", else of "u2.0:k5e3":
    of the widths named before it the last two count. The price of "r32" is that of "r32" and the text's last width, as in "r32 u5:w96",
    if there is one, else that of "r32". Each place of the network is paid once: of "u2.1:k5e3" the place is what stands before the
    colon, of "r32" the letters.

    Raises:
        LedgerError: a gene without a price, two genes for one place, or a width that no price depends on.
    """
    first, *others = genes = text.split(" ")
    if len({_place(gene) for gene in genes}) != len(genes):
        raise LedgerError("an architecture with two genes for one place")
    widths: list[str] = []
    counted: set[str] = set()
    total = 0
    for gene in others:
        if _WIDTH.fullmatch(gene) is not None:
            widths.append(gene)
        else:
            total += _price([*_after_widths(first, widths, gene), gene], costs, gene, counted)
    total += _price([*(f"{first} {width}" for width in widths[-1:]), first], costs, first, counted)
    if not counted.issuperset(widths):
        raise LedgerError(
            f"an architecture with the width {next(width for width in widths if width not in counted)!r}, which prices nothing"
        )
    return total


def _after_widths(first: str, widths: Sequence[str], gene: str) -> Iterator[str]:
    """Yield the keys of a gene's price after the first gene, with the most widths first."""
    for count in range(min(_WIDTHS_OF_A_GENE, len(widths)), -1, -1):
        yield " ".join((first, *widths[len(widths) - count :], gene))


def _price(keys: Sequence[str], costs: Mapping[str, int], gene: str, counted: set[str]) -> int:
    """Return the price of the first key that has one, and note the genes in that key as counted."""
    for key in keys:
        if key in costs:
            counted.update(key.split(" "))
            return costs[key]
    raise LedgerError(f"the manifest has no price for gene {gene!r} of an architecture that begins with {keys[0].split(' ')[0]!r}")


def _place(gene: str) -> str:
    place, colon, _ = gene.partition(":")
    letters = _LEADING_LETTERS.match(gene)
    return place if colon or letters is None else letters.group()


def claim_weight(work: Sequence[int], costs: Sequence[int], microbatch_samples: int, max_samples: int) -> int:
    """Return what a claim's ``work`` weighs in its round's rewards: MACs over its samples.

    A claim of more than ``max_samples`` is scaled down to them, each of its architectures alike; rounded down.

    Args:
        work: microbatches of each architecture.
        costs: MACs of each, in the same order.
        microbatch_samples: samples of a microbatch.
    """
    samples = sum(work) * microbatch_samples
    weight = sum(microbatches * cost for microbatches, cost in zip(work, costs, strict=True)) * microbatch_samples
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
