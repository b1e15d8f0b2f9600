"""What a committed round's table pays to whom, from its contributions and claims alone: checked against the round's entry. Integers, pure.

Here too: the row that a contribution has in a table, and what a claim weighs in its rewards, which the ledger keeps to as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.course import Course
from protocol.manifest import Manifest
from protocol.records import Claim, Contribution, Header, Round
from protocol.rewards import claim_weight, share_out
from protocol.table import Row, TableError, table_root

MAX_CLAIMS_BYTES = 2**20  # of a table's contributions with their claims, as they travel: about 1,500 claims


@dataclass(frozen=True, slots=True)
class TableClaims:
    """A table's contributions with their claims as they travel, in the table's order."""

    headers: tuple[Header, ...]
    unproven: tuple[int, ...] = ()  # of each row, in the same order: ``Row.unproven``; empty where all of them have none


def row_of(
    manifest: Manifest,
    course: Course,
    digest: bytes,
    contribution: Contribution,
    claims: Sequence[Claim],
    round: int,
    unproven: int = 0,
) -> Row:
    """Return the row of a contribution, which has this ``digest`` and lists these claims, in the table of ``round``.

    ``unproven`` are its samples of keys that are not proven then.
    """
    cohort = claims[0].cohort
    return Row(
        contribution=digest,
        founder=contribution.founder,
        age=round - contribution.round,
        role=course.role(contribution.round, cohort),
        samples=sum(capped_samples(manifest, claim) for claim in claims),
        cohort=cohort,
        body=contribution.body,
        unproven=unproven,
    )


def capped_samples(manifest: Manifest, claim: Claim) -> int:
    """Return how many samples of a claim weigh."""
    return min(claim.lots * manifest.lot_samples, manifest.exchange.weight_cap)


def reward_weight(manifest: Manifest, course: Course, claim: Claim) -> int:
    """Return what a claim weighs in the rewards of its round."""
    return claim_weight(claim.work, course.costs(claim.round, claim.cohort), manifest.lot_samples, manifest.exchange.weight_cap)


def earned(manifest: Manifest, course: Course, entry: Round, found: TableClaims) -> dict[bytes, int]:
    """Return what each key earned in a committed round, by what is said to be its table's contributions.

    Raises:
        EncodingError, SignatureError: one of them is malformed, or its signature does not hold.
        TableError: they are not the table of ``entry``.
    """
    rows, weights = [], dict[bytes, int]()
    if found.unproven and len(found.unproven) != len(found.headers):
        raise TableError("samples of unproven keys of other rows than there are")
    for header, unproven in zip(found.headers, found.unproven or (0,) * len(found.headers), strict=True):
        contribution, claims = header.contribution.open(), [signed.open() for signed in header.claims]
        if contribution.claims != tuple(signed.digest for signed in header.claims) or not 1 <= contribution.round <= entry.round:
            raise TableError("a contribution of other claims than those that come with it, or of another round")
        if any((claim.round, claim.cohort) != (contribution.round, claims[0].cohort) for claim in claims):
            raise TableError("claims of one contribution that are not of one round and cohort")
        if any(len(claim.work) != len(course.costs(claim.round, claim.cohort)) for claim in claims):
            raise TableError("a claim of other architectures than its round asks for")
        try:
            rows.append(row_of(manifest, course, header.contribution.digest, contribution, claims, entry.round, unproven))
        except ValueError as error:
            raise TableError(f"a contribution that cannot stand in this table: {error}") from error
        weights.update((claim.key, reward_weight(manifest, course, claim)) for claim in claims)
    if len(rows) != entry.rows or table_root(rows) != entry.table:
        raise TableError("these contributions are not the round's")
    return share_out(manifest.work_pool, weights, manifest.credit_cap)
