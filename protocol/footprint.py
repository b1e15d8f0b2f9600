"""What a run makes a peer fetch, send and keep, and what audits take at its log, in bytes: sums over the manifest's settings. Pure.

What the formats fix is exact. How much audits ask for is drawn, so of that it is the mean; what small calls take was measured. A peer is
one that hands in alone, and a round one of ``Table``: contributions of a claim each.
"""

from dataclasses import dataclass

from protocol.audits import Trust
from protocol.encoding import pack
from protocol.exchange import MAX_AGE, Exchange, codec_named
from protocol.manifest import Manifest
from protocol.records import Claim, ClaimStep, Contribution, Header, SignedClaim, SignedContribution, StepMean, entry_of
from protocol.signing import Identity

MAX_RECORDS_BYTES, MAX_SLIPS_BYTES = 256 << 20, 64 << 20  # that one peer keeps
VALUE_BYTES = 4
_NEW_ROUNDS = 3  # rounds whose claims have no beacon yet: that of a claim's table is known with the commit after it
_RESIDUALS = 2  # the one that holds, and what the contribution on its way leaves
_ROW_BYTES = 128  # of what a contribution weighs as it travels, about
_RECORD_BYTES = 110  # of a lot or a step, about
_SLIP_BYTES = 3000  # of a pay slip, beside the claims of its round, about
_PART_FOR_CLAIMS = 10  # a peer checks what rounds paid by their claims, for a tenth of a mean's bytes a round at most
_FINDING_BYTES = 480  # of an entry of a finding on a lot, about
# Small calls, each way: of a round commits, heads and tables, of a second announcements. Measured with 2 peers and rounds of 1 s, and with
# 3 and rounds of 10 s, soon after the start; where there are many peers it is more.
_CALLS_BYTES, _CALLS_BYTES_S = 2600, 1400


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a run's supernet and formats fix, in bytes."""

    num_weights: int
    body: int  # a contribution's
    state: int  # with its moments

    @property
    def vector(self) -> int:
        """Of a float32 for each weight: a mean, a residual, what audits ask for."""
        return VALUE_BYTES * self.num_weights


@dataclass(frozen=True, slots=True)
class Table:
    """What a round has, about."""

    rows: int  # contributions, of a claim each
    lots: int  # of a claim
    open_s: float  # how long it is open


@dataclass(frozen=True, slots=True)
class RoundTraffic:
    """What one peer fetches and sends a round."""

    fetched: int
    sent: int  # its own contribution, and one copy of all that it fetches, for others
    shown: int  # to audits, of a claim that is audited
    shown_part: float  # of a proven peer's claims that are audited, at the least; of others all are

    @property
    def shown_when_proven(self) -> int:
        """To audits, on average, once it is proven."""
        return round(self.shown * self.shown_part)


@dataclass(frozen=True, slots=True)
class PeerDisk:
    """What one peer keeps, in a run that goes on."""

    vectors: int  # that audits may ask for, about
    records: int  # of its lots, for audits, about
    residuals: int
    sealed: int  # the newest contribution
    data: int  # shards that travel
    slip: int  # for each round that counts it
    most: int  # of all, whatever audits ask for and however long the run is

    @property
    def usual(self) -> int:
        """Of all but the slips, once the run has gone on for as many rounds as audits may ask about."""
        return self.vectors + self.records + self.residuals + self.sealed + self.data


@dataclass(frozen=True, slots=True)
class LogAudits:
    """What audits take at a log."""

    fetched: int  # vectors of a round's claims, while nobody is proven
    fetched_when_proven: int  # once all are, at the least
    vectors: int  # on its disk, while nobody is proven
    vectors_when_proven: int
    records: int  # on its disk
    findings: int  # entries a round, while nobody is proven


def data_bytes(manifest: Manifest, limit_bytes: int | None) -> int:
    """Return what a peer fetches and keeps of a data set whose shards travel, within its person's limit; 0: they do not."""
    size = sum(each.size_bytes for each in manifest.shards)
    return sum(each.list_bytes for each in manifest.shards) + (size if limit_bytes is None else min(size, limit_bytes))


def round_traffic(exchange: Exchange, trust: Trust, sizes: Sizes, table: Table) -> RoundTraffic:
    """Return what one peer fetches and sends in a round."""
    contribution = entry_bytes(exchange.local_steps)
    claims = table.rows * contribution
    others = min((table.rows - 1) * sizes.body + table.rows * _ROW_BYTES, sizes.vector, sizes.state)  # whatever is fewest bytes
    records = _records_bytes(exchange, table.lots) if trust.is_audited else 0
    calls = round(_CALLS_BYTES + _CALLS_BYTES_S * table.open_s)
    return RoundTraffic(
        fetched=others + min(claims, sizes.vector // _PART_FOR_CLAIMS) + calls,
        sent=sizes.body + contribution + records + others + calls,
        shown=round(num_asked(exchange, trust) * sizes.vector),
        shown_part=trust.audit_percent / 100,
    )


def peer_disk(manifest: Manifest, sizes: Sizes, table: Table, data: int) -> PeerDisk:
    """Return what one peer keeps; ``data``: what it has of shards that travel, see ``data_bytes``."""
    exchange, trust = manifest.exchange, manifest.trust
    contribution = entry_bytes(exchange.local_steps)
    rounds = kept_rounds(trust)
    most_lots = exchange.max_claim_samples // manifest.lot_samples
    residuals = _RESIDUALS * sizes.vector if codec_named(exchange.codec).is_sparse else 0
    sealed = sizes.body + contribution
    most_slips = min(manifest.num_rounds * (_SLIP_BYTES + exchange.max_rows * contribution), MAX_SLIPS_BYTES)
    most_records = min((rounds + 1) * _records_bytes(exchange, most_lots), MAX_RECORDS_BYTES) if trust.is_audited else 0
    most_vectors = most_vectors_bytes(exchange, trust, sizes.num_weights)
    return PeerDisk(
        vectors=usual_vectors_bytes(exchange, trust, sizes.num_weights),
        records=rounds * _records_bytes(exchange, table.lots) if trust.is_audited else 0,
        residuals=residuals,
        sealed=sealed,
        data=data,
        slip=_SLIP_BYTES + table.rows * contribution,
        most=most_vectors + most_records + residuals + sealed + data + most_slips,
    )


def log_audits(exchange: Exchange, trust: Trust, sizes: Sizes, table: Table) -> LogAudits:
    """Return what audits take at a log whose rounds are like this; nothing where there are none."""
    if not trust.is_audited:
        return LogAudits(0, 0, 0, 0, 0, 0)
    asked = round(table.rows * num_asked(exchange, trust) * sizes.vector)
    rounds, part = kept_rounds(trust) - 1, trust.audit_percent / 100  # of the newest table nothing is asked yet
    return LogAudits(
        fetched=asked,
        fetched_when_proven=round(asked * part),
        vectors=asked * rounds,
        vectors_when_proven=round(asked * rounds * part),
        records=kept_rounds(trust) * table.rows * _records_bytes(exchange, table.lots),
        findings=table.rows * trust.audit_lots * _FINDING_BYTES,
    )


def kept_rounds(trust: Trust) -> int:
    """Return for how many rounds what audits may ask for is kept, by the round of its claim's base."""
    return trust.shown_rounds + MAX_AGE + 1


def num_made(exchange: Exchange, trust: Trust) -> int:
    """Return how many vectors a peer that is alone writes of a claim while it works.

    Of several steps these are the weights, each step's gradient, which is its mean as well, what was learnt, and the residual; of one its
    gradient, and with a sparse codec what was given, and the residual.
    """
    if not trust.is_audited:
        return 0
    steps, is_sparse = exchange.local_steps, codec_named(exchange.codec).is_sparse
    return 2 + is_sparse + steps if steps > 1 else 1 + 2 * is_sparse


def num_kept(exchange: Exchange, trust: Trust) -> float:
    """Return about how many of them it keeps once the beacon is known: all but the weights of most steps."""
    made = num_made(exchange, trust)
    return made - 1 + _num_states(exchange, trust) if made and exchange.local_steps > 1 else made


def num_asked(exchange: Exchange, trust: Trust) -> float:
    """Return about how many of them audits ask for, see ``protocol.vectors.vectors_asked``.

    These are the weights that a lot was computed on, the means of the steps up to the one looked at, or of all, what was learnt, and the
    residual.
    """
    if not _is_by_vectors(exchange, trust):
        return 0.0
    steps, whole = exchange.local_steps, trust.whole_percent / 100
    of_steps = whole * steps + (1 - whole) * (steps + 1) / 2 if steps > 1 else 0.0
    return _num_states(exchange, trust) + of_steps + 1 + codec_named(exchange.codec).is_sparse


def usual_vectors_bytes(exchange: Exchange, trust: Trust, num_weights: int) -> int:
    """Return about how many bytes the vectors of one peer's claims take: of rounds without a beacon all, of the others what stays."""
    rounds = num_made(exchange, trust) * _NEW_ROUNDS + num_kept(exchange, trust) * (kept_rounds(trust) - _NEW_ROUNDS)
    return round(rounds * VALUE_BYTES * num_weights)


def most_vectors_bytes(exchange: Exchange, trust: Trust, num_weights: int) -> int:
    """Return how many bytes they take at most, in a cohort too: all of each round that audits may ask about."""
    vectors = (3 * exchange.local_steps + 2) * (kept_rounds(trust) + 1)
    return vectors * VALUE_BYTES * num_weights if trust.is_audited else 0


def _num_states(exchange: Exchange, trust: Trust) -> float:
    """Return about how many steps some audited lot is of; the first one's weights are the state."""
    steps = exchange.local_steps
    return (steps - 1) * (1 - (1 - 1 / steps) ** trust.audit_lots)


def _is_by_vectors(exchange: Exchange, trust: Trust) -> bool:
    return trust.is_audited and (exchange.local_steps > 1 or codec_named(exchange.codec).is_sparse)


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
        lots_root=digest,
        steps_root=digest if local_steps > 1 else b"",
        vector=digest,
        residual=digest,
        lot_ms=2000,
    )
    signed = SignedClaim.sign(claim, key)
    made = Contribution(digest, 10_000, digest, key.public_key, (signed.digest,), 1, (StepMean(digest, 1),) * local_steps, digest, digest)
    return Header(SignedContribution.sign(made, key), (signed,))


def _records_bytes(exchange: Exchange, lots: int) -> int:
    """Return what the records of one claim have, with the claim."""
    steps = exchange.local_steps if exchange.local_steps > 1 else 0
    return len(pack(_header(exchange.local_steps).claims[0])) + _RECORD_BYTES * (lots + steps)
