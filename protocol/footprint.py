"""What a run makes a peer fetch, send and keep, and what audits take at its log, in bytes: sums over the manifest's settings. Pure.

What the formats fix is exact. How much audits take is drawn, so of that it is the mean; what small calls take was measured. A peer is
one that hands in alone, and a round one of ``ExpectedTable``: contributions of a claim each.
"""

from dataclasses import dataclass

from manta_swarm.protocol.exchange import MAX_AGE, Exchange, codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, Header, StepMean, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import AuditRules

MAX_RECEIPTS_BYTES = 64 << 20  # that one peer keeps
VALUE_BYTES = 4
_NEW_ROUNDS = 3  # rounds whose claims have no beacon yet: that of a claim's table is known with the commit after it
_RESIDUALS = 2  # the one that holds, and what the contribution on its way leaves
_ROW_BYTES = 128  # of what a contribution weighs as it travels, about
_RECEIPT_BYTES = 3000  # of a payout receipt, beside the claims of its round, about
_PART_FOR_CLAIMS = 10  # a peer checks what rounds paid by their claims, for a tenth of a mean's bytes a round at most
_VERDICT_BYTES = 330  # of an entry of a verdict on a contribution of one claim, about
# Small calls, each way: of a round commits, heads and tables, of a second announcements. Measured with 2 peers and rounds of 1 s, and with
# 3 and rounds of 10 s, soon after the start; where there are many peers it is more.
_CALLS_BYTES, _CALLS_BYTES_S = 2600, 1400


def in_words(num_bytes: float) -> str:
    """Return a number of bytes as people read it."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a run's supernet and formats fix, in bytes."""

    num_weights: int
    body: int  # a contribution's
    state: int  # with its moments

    @property
    def vector(self) -> int:
        """The bytes of a float32 for each weight: a mean, a residual, what audits ask for."""
        return VALUE_BYTES * self.num_weights


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """About how many contributions a round has, and how long it is open."""

    rows: int  # contributions, of a claim each
    open_s: float  # how long it is open


@dataclass(frozen=True, slots=True)
class RoundTraffic:
    """What one peer fetches and sends a round."""

    fetched: int
    sent: int  # its own contribution, and one copy of all that it fetches, for others
    brought: int  # to an operator, of a contribution that is audited
    brought_part: float  # of a proven peer's contributions that are audited

    @property
    def brought_when_proven(self) -> int:
        """The bytes that a proven peer brings for audits, on average."""
        return round(self.brought * self.brought_part)


@dataclass(frozen=True, slots=True)
class PeerDisk:
    """What one peer keeps, in a run that goes on."""

    vectors: int  # that audits may ask for, about
    residuals: int
    signed: int  # the newest contribution
    data: int  # shards that travel
    payout_receipt: int  # for each round that counts it
    most: int  # of all, whatever audits ask for and however long the run is

    @property
    def usual(self) -> int:
        """The bytes of all but the payout receipts, once the run has gone on for as many rounds as audits may ask about."""
        return self.vectors + self.residuals + self.signed + self.data


@dataclass(frozen=True, slots=True)
class LogAudits:
    """What audits take at an operator, once all peers are proven."""

    brought: int  # a round
    vectors: int  # on its disk
    verdicts: int  # entries a round


def data_bytes(manifest: Manifest, limit_bytes: int | None) -> int:
    """Return what a peer fetches and keeps of a data set whose shards travel, within its person's limit; 0: they do not."""
    size = sum(each.size_bytes for each in manifest.shards)
    return sum(each.list_bytes for each in manifest.shards) + (size if limit_bytes is None else min(size, limit_bytes))


def round_traffic(exchange: Exchange, rules: AuditRules | None, sizes: Sizes, table: ExpectedTable) -> RoundTraffic:
    """Return what one peer fetches and sends in a round; ``rules``: of audits, None: there are none."""
    contribution = entry_bytes(exchange.local_steps)
    claims = table.rows * contribution
    others = min((table.rows - 1) * sizes.body + table.rows * _ROW_BYTES, sizes.vector, sizes.state)  # whatever is fewest bytes
    calls = round(_CALLS_BYTES + _CALLS_BYTES_S * table.open_s)
    return RoundTraffic(
        fetched=others + min(claims, sizes.vector // _PART_FOR_CLAIMS) + contribution + calls,
        sent=sizes.body + contribution + others + calls,
        brought=0 if rules is None else num_brought(exchange) * sizes.vector,
        brought_part=0.0 if rules is None else rules.audit_percent / 100,
    )


def peer_disk(manifest: Manifest, sizes: Sizes, table: ExpectedTable, data: int) -> PeerDisk:
    """Return what one peer keeps; ``data``: what it has of shards that travel, see ``data_bytes``."""
    exchange, rules = manifest.exchange, manifest.audit_rules
    contribution = entry_bytes(exchange.local_steps)
    residuals = _RESIDUALS * sizes.vector if codec_named(exchange.codec).is_sparse else 0
    signed = sizes.body + contribution
    most_payout_receipts = min(manifest.num_rounds * (_RECEIPT_BYTES + exchange.max_rows * contribution), MAX_RECEIPTS_BYTES)
    return PeerDisk(
        vectors=usual_vectors_bytes(exchange, rules, sizes.num_weights),
        residuals=residuals,
        signed=signed,
        data=data,
        payout_receipt=_RECEIPT_BYTES + table.rows * contribution,
        most=most_vectors_bytes(exchange, rules, sizes.num_weights) + residuals + signed + data + most_payout_receipts,
    )


def log_audits(exchange: Exchange, rules: AuditRules | None, sizes: Sizes, table: ExpectedTable) -> LogAudits:
    """Return what audits take at an operator whose rounds are like this; nothing where there are none."""
    if rules is None:
        return LogAudits(0, 0, 0)
    drawn = table.rows * rules.audit_percent / 100
    brought = round(drawn * num_brought(exchange) * sizes.vector)
    return LogAudits(brought, brought * rules.pending_rounds, round(drawn * _VERDICT_BYTES))


def vectors_rounds(rules: AuditRules | None) -> int:
    """Return for how many rounds what may have to be brought is kept, by the round of its claim's base."""
    return 0 if rules is None else rules.kept_rounds + MAX_AGE + 1


def num_brought(exchange: Exchange) -> int:
    """Return how many vectors have to be brought of a contribution of one claim: the means of its steps, and its residual."""
    return exchange.local_steps + codec_named(exchange.codec).is_sparse


def usual_vectors_bytes(exchange: Exchange, rules: AuditRules | None, num_weights: int) -> int:
    """Return about how many bytes the vectors of one proven peer's claims take, which is alone: of rounds without a beacon all, of the
    others what is audited. Of one step and a sparse codec it keeps what it learnt beside what it gave.
    """
    if rules is None:
        return 0
    num_kept = num_brought(exchange) + (exchange.local_steps == 1 and codec_named(exchange.codec).is_sparse)
    rounds = _NEW_ROUNDS + rules.kept_rounds * rules.audit_percent / 100
    return round(rounds * num_kept * VALUE_BYTES * num_weights)


def most_vectors_bytes(exchange: Exchange, rules: AuditRules | None, num_weights: int) -> int:
    """Return how many bytes they take at most, in a cohort too: each step's mean and own vector, the residual, and what was given."""
    return (2 * exchange.local_steps + 2) * (vectors_rounds(rules) + 1) * VALUE_BYTES * num_weights if rules is not None else 0


def entry_bytes(local_steps: int) -> int:
    """Return the size of the entry of a contribution of one claim, as a run in its midst has it."""
    return len(entry_of(_header(local_steps)))


def _header(local_steps: int) -> Header:
    key, digest = Identity(bytes(32)), b"\xff" * 32
    each = tuple(ClaimStep(100 * step, 100 * step + 99, (), digest) for step in range(local_steps))
    claim = Claim(
        run=digest,
        round=10_000,
        base=digest,
        key=key.public_key,
        payout=key.public_key,
        founder=key.public_key,
        cohort="host-0123456789ab",
        steps=each,
        work=(25 * local_steps,) * 4,
        given=digest,
        residual=digest,
        microbatch_ms=2000,
    )
    signed = Signed.sign(claim, key)
    made = Contribution(digest, 10_000, digest, key.public_key, (signed.digest,), 1, (StepMean(digest, 1),) * local_steps, digest, digest)
    return Header(Signed.sign(made, key), (signed,))
