"""What a committed round's table pays to whom, from its contributions and claims alone: checked against the round's entry. Integers, pure.

A claim is paid by what it weighs (``protocol.rewards``).

Here too: the row that a contribution has in a table, and what a claim weighs in its rewards, which the ledger keeps to as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from protocol.course import Course
from protocol.manifest import Manifest
from protocol.records import Claim, Contribution, Header, Round
from protocol.rewards import claim_weight, share_out
from protocol.table import Row, TableError, claims_of_bits, table_root

# Of a table's contributions with their claims, as they travel, a page at a time.
MAX_CLAIMS_ENTRIES = 240  # of a page; a contribution is in one page with all of its claims
MAX_CLAIMS_BYTES = 2**20  # of a page, or of what is kept of a whole table


@dataclass(frozen=True, slots=True)
class TableClaims:
    """A table's contributions with their claims as they travel, in the table's order: all of them, or one page."""

    headers: tuple[Header, ...]
    unproven: tuple[int, ...] = ()  # of each row, in the same order: ``Row.unproven_claims``; empty where all of them have none


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

    ``unproven`` says as bits which of the claims are of keys that are not proven then.

    Raises:
        ValueError: there is no such row.
    """
    cohort, samples = claims[0].cohort, [capped_samples(manifest, claim) for claim in claims]
    return Row(
        contribution=digest,
        founder=contribution.founder,
        age=round - contribution.round,
        role=course.role(contribution.round, cohort),
        samples=sum(samples),
        cohort=cohort,
        body=contribution.body,
        unproven=sum(each for each, is_unproven in zip(samples, claims_of_bits(unproven, len(claims)), strict=True) if is_unproven),
        unproven_claims=unproven,
    )


def capped_samples(manifest: Manifest, claim: Claim) -> int:
    """Return how many samples of a claim weigh."""
    return min(claim.lots * manifest.lot_samples, manifest.exchange.weight_cap)


def reward_weight(manifest: Manifest, course: Course, claim: Claim) -> int:
    """Return what a claim weighs in the rewards of its round."""
    return claim_weight(claim.work, course.costs(claim.round, claim.cohort), manifest.lot_samples, manifest.exchange.weight_cap)


def shares_of(manifest: Manifest, weights: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return key -> what a table pays it, by what each key's claim weighs in its rewards."""
    return share_out(manifest.work_pool, weights, manifest.credit_cap)


def earned(manifest: Manifest, course: Course, entry: Round, found: TableClaims) -> dict[bytes, int]:
    """Return key -> what it earned in a committed round, by what is said to be its table's contributions.

    Raises:
        EncodingError, SignatureError: one of them is malformed, or its signature does not hold.
        TableError: they are not the table of ``entry``.
    """
    rows, opened = [], list[Claim]()
    for header, bits in _with_bits(found):
        contribution, claims = header.contribution.open(), [signed.open() for signed in header.claims]
        if contribution.claims != tuple(signed.digest for signed in header.claims) or not 1 <= contribution.round <= entry.round:
            raise TableError("a contribution of other claims than those that come with it, or of another round")
        if any((claim.round, claim.cohort) != (contribution.round, claims[0].cohort) for claim in claims):
            raise TableError("claims of one contribution that are not of one round and cohort")
        if any(len(claim.work) != len(course.costs(claim.round, claim.cohort)) for claim in claims):
            raise TableError("a claim of other architectures than its round asks for")
        try:
            rows.append(row_of(manifest, course, header.contribution.digest, contribution, claims, entry.round, bits))
        except ValueError as error:
            raise TableError(f"a contribution that cannot stand in this table: {error}") from error
        opened += claims
    if len(rows) != entry.rows or table_root(rows) != entry.table:
        raise TableError("these contributions are not the round's")
    return shares_of(manifest, {claim.key: reward_weight(manifest, course, claim) for claim in opened})


def _with_bits(found: TableClaims) -> Iterator[tuple[Header, int]]:
    if found.unproven and len(found.unproven) != len(found.headers):
        raise TableError("claims of unproven keys of other rows than there are")
    return zip(found.headers, found.unproven or (0,) * len(found.headers), strict=True)
