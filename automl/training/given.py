"""What an audit is about, and what comes out of it: a contribution as it stands in a table, and a finding."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from automl.training.lots import NUM_PROJECTIONS
from exact.coding import Body
from exact.residuals import Vector
from protocol.evidence import Records
from protocol.records import Claim, Contribution
from protocol.wanted import is_by_body

Vectors = Callable[[bytes, bytes], Vector]  # by the digest of a claim and its own: (N,) float32, the digest checked
NOTHING = bytes(4 * NUM_PROJECTIONS)  # the projection of what was not computed


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out here."""

    holds: bool
    projection: bytes  # of what was computed: the lot's gradient, or the mean one; zeros, where nothing was
    deviation: float  # in parts of its norm, of what was claimed
    mismatch: str = ""  # why its records or its vectors cannot be an honest peer's

    @property
    def reason(self) -> str:
        """Why, for people; nothing, where it holds."""
        return "" if self.holds else self.mismatch or f"{self.deviation:.3g} of the norm apart"


@dataclass(frozen=True, slots=True)
class Coded:
    """A body, and what it is about."""

    body: Body
    floor: int  # of its base
    coverage: NDArray[np.bool_] | None = field(repr=False, default=None)  # (N,) which weights; None: all


@dataclass(frozen=True, slots=True)
class OneClaim:
    """A claim as it stands in a contribution: as much as has to be known to compute all of its lots again."""

    claim: Claim
    digest: bytes
    records: Records
    is_alone: bool  # it is the contribution's only one
    coded: Coded | None  # where all lots are compared with the body itself (``protocol.wanted.is_by_body``)


@dataclass(frozen=True, slots=True)
class Given:
    """A contribution as it stands in a table: its body, and what the claims in it say."""

    contribution: Contribution
    data: bytes = field(repr=False)  # of the body
    body: Body
    floor: int  # of its base
    claims: tuple[Claim, ...]
    records: tuple[Records, ...]  # of each claim; of those that nobody needs, none
    coverage: NDArray[np.bool_] | None = field(repr=False, default=None)  # (N,) which weights it is about; None: all

    @property
    def is_alone(self) -> bool:
        """Whether it has one claim only."""
        return len(self.claims) == 1

    @property
    def is_sparse(self) -> bool:
        """Whether its body leaves something out."""
        return self.body.codec.is_sparse

    def one(self, claim: Claim) -> OneClaim:
        """Return a claim in it by itself."""
        by_body = is_by_body(claim, len(self.claims), is_sparse=self.is_sparse)
        coded = Coded(self.body, self.floor, self.coverage) if by_body else None
        return OneClaim(claim, self.digest_of(claim), self.records_of(claim), self.is_alone, coded)

    @property
    def in_body(self) -> list[tuple[bytes, Claim]]:
        """The claims that are in its body, each with its digest: all but those of members that dropped out."""
        every = zip(self.contribution.claims, self.claims, strict=True)
        return [one for place, one in enumerate(every) if self.contribution.counted >> place & 1]

    def place_of(self, claim: Claim) -> int:
        """Return the place of a claim in it."""
        return self.claims.index(claim)

    def digest_of(self, claim: Claim) -> bytes:
        """Return a claim's digest."""
        return self.contribution.claims[self.place_of(claim)]

    def records_of(self, claim: Claim) -> Records:
        """Return a claim's records."""
        return self.records[self.place_of(claim)]
