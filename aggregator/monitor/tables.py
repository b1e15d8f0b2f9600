"""A log's entries, opened, and the tables of its rounds: who gave what to a round, and what each claim earned. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, Contribution, Header, Logged, Round, kind_of, open_entry
from manta_swarm.protocol.rewards import TrainingSpec, reward_weight, shares_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.protocol.verified import Verified

Said = Admission | Revocation | Contribution | Round | Verdict | Settlement


@dataclass(frozen=True, slots=True)
class Opened:
    """One entry of the log, opened."""

    kind: str
    said: Said
    record: Logged  # as it is stored: with a signature where it has one
    claims: tuple[Claim, ...] = ()  # of a contribution


def opened(entry: bytes, verified: Verified | None = None) -> Opened:
    """Return what an entry says; ``verified`` may know it, and what is inside.

    Raises:
        EncodingError: it is no entry.
    """
    record = open_entry(entry) if verified is None else verified.entry(entry)
    kind = kind_of(record)
    if isinstance(record, Signed):
        return Opened(kind, record.unchecked(), record)
    if not isinstance(record, Header):
        return Opened(kind, record, record)
    if verified is None:
        return Opened(kind, record.contribution.unchecked(), record, tuple(signed.unchecked() for signed in record.claims))
    return Opened(kind, verified.contribution(record.contribution), record, tuple(map(verified.claim, record.claims)))


def fields(one: Opened) -> dict[str, Any]:
    """Return an entry's record with its fields' own names, bytes in hexadecimal; signature and digest among them where it has these.

    A contribution has its claims, not their digests alone.
    """
    plain: dict[str, Any] = _plain(one.said)
    if isinstance(one.record, Header):
        claims = [_plain(said) | _signed(signed) for said, signed in zip(one.claims, one.record.claims, strict=True)]
        return plain | {"claims": claims} | _signed(one.record.contribution)
    return plain if isinstance(one.record, Round | Settlement) else plain | _signed(one.record)


def _signed(record: Signed[Any]) -> dict[str, Any]:
    return {"digest": record.digest.hex(), "signature": record.signature.hex()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim of a round."""

    key: bytes
    payout: bytes  # the account that its credit adds up to
    index: int  # of its contribution's entry
    round: int  # in which it counted
    base_round: int
    cohort: str
    founder: bytes  # of the contribution
    microbatches: int
    samples: int
    microbatch_ms: int
    weight: int  # in the pay of its round; 0: it is listed unpaid
    credit: int | None  # that its round paid for it; None: it is not paid yet, or what it paid is not in these entries

    @property
    def age(self) -> int:
        """Commits between its base and that of the round it counted in."""
        return self.round - 1 - self.base_round


@dataclass(frozen=True, slots=True)
class ContributionSeen:
    """A contribution of a round."""

    index: int
    digest: bytes
    founder: bytes
    cohort: str
    age: int
    role: int
    samples: int  # that it weighs: each claim's, capped
    body: bytes
    claims: tuple[ClaimSeen, ...]

    @property
    def round(self) -> int:
        """The round that it counted in."""
        return self.claims[0].round


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A round with its contributions."""

    index: int
    said: Round
    contributions: tuple[ContributionSeen, ...]

    @property
    def claims(self) -> list[ClaimSeen]:
        """All claims, in the order of the log."""
        return [claim for one in self.contributions for claim in one.claims]

    @property
    def microbatch_ms(self) -> int:
        """The median of what the claims say that a microbatch took."""
        return median_low(claim.microbatch_ms for claim in self.claims)

    @property
    def train_ms(self) -> int:
        """The median of what the claims say that their microbatches took together."""
        return median_low(claim.microbatch_ms * claim.microbatches for claim in self.claims)


def table_seen(
    first: int, entries: Sequence[Opened], manifest: Manifest, training_spec: TrainingSpec, listed_as: Sequence[Listed] = ()
) -> TableSeen:
    """Return the round whose entries these are, from entry ``first`` on; its round entry is the last of them.

    ``listed_as``: the same contributions as a ledger lists them; without it each claim weighs what it says.

    Raises:
        LedgerError: they are not those of one round.
    """
    *before, last = entries
    if not isinstance(last.said, Round):
        raise LedgerError("contributions without their round")
    listed: list[_Listed] = []
    for index, one in enumerate(before, first):
        if isinstance(one.record, Header) and isinstance(one.said, Contribution):
            listed.append(_Listed(index, one.record.contribution.digest, one.said, one.claims))
        elif isinstance(one.said, Round) or listed:
            raise LedgerError("entries that are not those of one round")
    if not listed:
        raise LedgerError("a round without contributions")
    if (last.said.first, last.said.contributions) != (listed[0].index, len(listed)):
        raise LedgerError("a round about other contributions than those before it")
    weights = [one.weights for one in listed_as]
    if not weights:
        weights = [tuple(reward_weight(manifest, training_spec, claim) for claim in one.claims) for one in listed]
    pairs = [(claim.key, weight) for one, of in zip(listed, weights, strict=True) for claim, weight in zip(one.claims, of, strict=True)]
    paid = None if manifest.is_audited else shares_of(manifest, dict(pairs))
    contributions = tuple(_seen(one, last.said.round, of, paid, manifest, training_spec) for one, of in zip(listed, weights, strict=True))
    return TableSeen(first + len(before), last.said, contributions)


@dataclass(frozen=True, slots=True)
class _Listed:
    index: int
    digest: bytes
    said: Contribution
    claims: Sequence[Claim]


def _seen(
    one: _Listed,
    round_: int,
    weights: Sequence[int],
    paid: Mapping[bytes, int] | None,
    manifest: Manifest,
    training_spec: TrainingSpec,
) -> ContributionSeen:
    cap, cohort = manifest.exchange.weight_cap, one.claims[0].cohort
    seen = tuple(
        ClaimSeen(
            key=claim.key,
            payout=claim.payout,
            index=one.index,
            round=round_,
            base_round=claim.round - 1,
            cohort=claim.cohort,
            founder=one.said.founder,
            microbatches=claim.microbatches,
            samples=claim.microbatches * manifest.microbatch_samples,
            microbatch_ms=claim.microbatch_ms,
            weight=weight,
            credit=None if paid is None else paid.get(claim.key, 0),
        )
        for claim, weight in zip(one.claims, weights, strict=True)
    )
    return ContributionSeen(
        index=one.index,
        digest=one.digest,
        founder=one.said.founder,
        cohort=cohort,
        age=round_ - one.said.round,
        role=training_spec.role(one.said.round, cohort),
        samples=sum(min(claim.samples, cap) for claim in seen),
        body=one.said.body,
        claims=seen,
    )
