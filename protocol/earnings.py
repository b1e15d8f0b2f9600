"""What a committed round pays to whom, from its contributions and claims alone: checked against the round's entry. Integers, pure.

A claim is paid by what it weighs (``protocol.rewards``). Where claims are audited that is not all: whose keys are proven, and what audits
found, is known to the fold over the whole log (``protocol.reputation``).

Here too: what a contribution weighs in the mean, and a claim in the rewards, which the ledger keeps to as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.merkle import leaf_hash, verify_range
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Claim, Contribution, Header, open_entry
from manta_swarm.protocol.rewards import claim_weight, share_out
from manta_swarm.protocol.table import TableError, Weighing
from manta_swarm.protocol.training_spec import TrainingSpec

MAX_CLAIMS_BYTES = 2**20  # of the entries of one answer, or of what is kept of a whole round
MAX_RANGE_HASHES = 128  # of a proof: two paths


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
    """Return key -> what it earned in a round of an open run, by what is said to be the round's contributions.

    Raises:
        RemoteFault: as ``claims_of``.
        TableError: claims are audited in this run: what a round paid follows from the whole log.
    """
    if manifest.is_audited:
        raise TableError("what a round of an audited run paid follows from its log, not from the round's claims alone")
    return shares_by(manifest, training_spec, claims_of(training_spec, proven, found))


def shares_by(manifest: Manifest, training_spec: TrainingSpec, claims: Sequence[Claim]) -> dict[bytes, int]:
    """Return key -> what a round of an open run pays it, by all of the round's claims."""
    return shares_of(manifest, {claim.key: reward_weight(manifest, training_spec, claim) for claim in claims})
