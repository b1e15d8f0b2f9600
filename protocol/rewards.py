"""Computes what work earns: the cost of an architecture, the weight of a claim, and what a committed round pays. Integers only, pure.

Which claims and rounds are valid is not decided here (see ``protocol.ledger``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.merkle import leaf_hash, verify_range
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Claim, Contribution, Header, open_entry
from manta_swarm.protocol.table import TableError, Weighing

_LEADING_LETTERS = re.compile(r"[a-z]*")
_WIDTH = re.compile(r"[^.:]+:.*", re.DOTALL)  # a gene of a width; the place of a layer's has a dot
_WIDTHS_OF_A_GENE = 2  # on which its price may depend: of its own unit, and of the one before

MAX_CLAIMS_BYTES = 2**20  # of the entries of one answer, or of what is kept of a whole round
MAX_RANGE_HASHES = 128  # of a proof: two paths


class TrainingSpec(Protocol):
    """A run's training as its manifest fixes it: a pure function of its arguments, the same everywhere."""

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        """Return the MACs of each architecture that a round asks of a cohort, in the order that claims count them in."""
        ...

    def role(self, round: int, cohort: str) -> int:
        """Return which contributions of a round are like enough to be clipped by one threshold: those of the same number."""
        ...

    def sorts_after(self, round: int) -> bool:
        """Return whether the update that ends a round reorders the weights: gradients from before do not fit after it."""
        ...


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


@dataclass(frozen=True, slots=True)
class RoundContributions:
    """A round's contributions as the log has them, all or some of them, and the proof that all of them are under a tree head."""

    entries: tuple[bytes, ...]  # packed, in the log's order
    proof: tuple[bytes, ...]  # see ``protocol.merkle.verify_range``

    def __post_init__(self) -> None:
        if len(self.proof) > MAX_RANGE_HASHES:
            raise ValueError("a proof of more hashes than two paths have")


def weighing_of(
    manifest: Manifest, training_spec: TrainingSpec, contribution: Contribution, claims: Sequence[Claim], round: int, proven: Sequence[bool]
) -> Weighing:
    """Return what the weight of a contribution of these claims follows from in ``round``; ``proven`` says which of their keys are."""
    samples = [capped_samples(manifest, claim) for claim in claims]
    return Weighing(
        age=round - contribution.round,
        role=training_spec.role(contribution.round, claims[0].cohort),
        samples=sum(samples),
        unproven=sum(each for each, is_proven in zip(samples, proven, strict=True) if not is_proven),
    )


def capped_samples(manifest: Manifest, claim: Claim) -> int:
    """Return how many samples of a claim weigh."""
    return min(claim.microbatches * manifest.microbatch_samples, manifest.exchange.weight_cap)


def reward_weight(manifest: Manifest, training_spec: TrainingSpec, claim: Claim) -> int:
    """Return what a claim weighs in the rewards of its round."""
    return claim_weight(
        claim.work, training_spec.costs(claim.round, claim.cohort), manifest.microbatch_samples, manifest.exchange.weight_cap
    )


def shares_of(manifest: Manifest, weights: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return key -> what a round pays it, by what each key's claim weighs in its rewards."""
    return share_out(manifest.work_pool, weights, manifest.credit_cap)


def claims_of(training_spec: TrainingSpec, proven: ProvenRound, found: RoundContributions) -> list[Claim]:
    """Return all claims of a round, by what is said to be its contributions.

    Raises:
        EncodingError, SignatureError: one of them is malformed, or its signature does not hold.
        ProofError: they are not under the tree head that proves the round.
        TableError: they are no contributions that a round may have.
    """
    entry, head = proven.round, proven.tree_head
    if len(found.entries) != entry.contributions:
        raise TableError("another number of contributions than the round has")
    verify_range(list(map(leaf_hash, found.entries)), entry.first, head.size, found.proof, head.root)
    opened = list[Claim]()
    for header in map(open_entry, found.entries):
        if not isinstance(header, Header):
            raise TableError("an entry that is no contribution")
        contribution, claims = header.contribution.open(), [signed.open() for signed in header.claims]
        if contribution.claims != tuple(signed.digest for signed in header.claims) or not 1 <= contribution.round <= entry.round:
            raise TableError("a contribution of other claims than those that come with it, or of another round")
        if any((claim.round, claim.cohort) != (contribution.round, claims[0].cohort) for claim in claims):
            raise TableError("claims of one contribution that are not of one round and cohort")
        if any(len(claim.work) != len(training_spec.costs(claim.round, claim.cohort)) for claim in claims):
            raise TableError("a claim of other architectures than its round asks for")
        opened += claims
    return opened


def earned(manifest: Manifest, training_spec: TrainingSpec, proven: ProvenRound, found: RoundContributions) -> dict[bytes, int]:
    """Return key -> what it earned in a round of an unaudited run, by what is said to be the round's contributions.

    Raises:
        RemoteFault: as ``claims_of``.
        TableError: claims are audited in this run: what a round paid follows from the whole log.
    """
    if manifest.is_audited:
        raise TableError("what a round of an audited run paid follows from its log, not from the round's claims alone")
    return shares_by(manifest, training_spec, claims_of(training_spec, proven, found))


def shares_by(manifest: Manifest, training_spec: TrainingSpec, claims: Sequence[Claim]) -> dict[bytes, int]:
    """Return key -> what a round of an unaudited run pays it, by all of the round's claims."""
    return shares_of(manifest, {claim.key: reward_weight(manifest, training_spec, claim) for claim in claims})
