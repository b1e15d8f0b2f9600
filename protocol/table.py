"""The table of one attempt: the claims of its group, verified and in canonical order, settled before the first byte travels.

It refuses every claim that the log would refuse: one bad claim costs the whole group its attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import RemoteFault
from protocol.records import MAX_GROUP, Claim, Manifest, SignedClaim, sort_table, table_digest
from protocol.rewards import architecture_cost
from protocol.signing import Digest

MIN_ATTEMPT_BYTES, MAX_ATTEMPT_BYTES = 16, 32


class TableError(RemoteFault):
    """Claims that do not make a table."""


@dataclass(frozen=True, slots=True)
class Table:
    """The claims of one attempt in canonical order, verified; made by ``settle``."""

    attempt: bytes
    claims: tuple[SignedClaim, ...]
    opened: tuple[Claim, ...]  # the same, opened
    weights: tuple[int, ...]  # of each claim in the mean: its samples, capped by the manifest

    @classmethod
    def settle(
        cls, attempt: bytes, claims: Sequence[SignedClaim], *, manifest: Manifest, run: bytes, round: int, last_commit: bytes
    ) -> "Table":
        """Return the table of ``claims``, given in any order.

        Raises:
            EncodingError, SignatureError: a claim is malformed or not signed by its key.
            LedgerError: an architecture has no price.
            TableError: the attempt's id, the number of claims, their run, round, last commit or keys do not make a table.
        """
        if not MIN_ATTEMPT_BYTES <= len(attempt) <= MAX_ATTEMPT_BYTES:
            raise TableError(f"an attempt's id has {MIN_ATTEMPT_BYTES} to {MAX_ATTEMPT_BYTES} bytes, not {len(attempt)}")
        if not 1 <= len(claims) <= MAX_GROUP:
            raise TableError(f"a table has 1 to {MAX_GROUP} claims, not {len(claims)}")
        costs = manifest.cost_table()
        pairs = sort_table([(claim, claim.open()) for claim in claims])
        for _, opened in pairs:
            if (opened.run, opened.round, opened.last_commit) != (run, round, last_commit):
                raise TableError(f"a claim is for another run, round or commit than round {round}'s")
            for architecture, _ in opened.work:
                architecture_cost(architecture, costs)
        if len({opened.key for _, opened in pairs}) != len(pairs):
            raise TableError("a key claims twice in one table")
        signed, claimed = zip(*pairs, strict=True)
        return cls(attempt, signed, claimed, tuple(min(claim.samples, manifest.max_claim_samples) for claim in claimed))

    @property
    def digest(self) -> Digest:
        """What a statement names the table by."""
        return table_digest(tuple(claim.digest for claim in self.claims))

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The members, in order."""
        return tuple(claim.key for claim in self.opened)

    @property
    def samples(self) -> int:
        """The sum of the weights."""
        return sum(self.weights)
