"""What a run's settings mean for its operator and its peers: traffic, memory, disk and time, for swarms of some sizes.

Sizes of what travels and is kept follow from the formats and are exact (``COMPUTED``). How fast peers train is the reader's guess, and what
leaves the log depends on how much peers give each other: such figures are marked (``ESTIMATED``), with what they stand on.
"""

from dataclasses import dataclass

from aggregator.settings.config import RunConfig
from aggregator.settings.sizes import held_bytes, in_words
from automl.data.dataset import Dataset
from automl.models.networks import build
from automl.training.update import num_moments
from exact.coding import body_num_bytes
from protocol.exchange import MAX_COHORT, codec_named
from protocol.records import Claim, Contribution, SignedClaim, SignedContribution, entry_of
from protocol.signing import Identity

PEERS = (10, 100, 1000)
PROGRAM_BYTES = 900e6  # resident, beside contributions: measured with classifier-tiny after some rounds and an evaluation
ENTRY_BYTES = 113  # that the database takes beside each entry, tree nodes and keys: measured over 21,000 entries
ROUND_BYTES = 300  # a round's entry, about
COPIES_LEAVE = 4  # of each body, where peers give them to each other: benchmarks/crowd_gossip.py, 1,000 peers behind 10 Mbit/s


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the settings fix, in bytes."""

    num_weights: int
    body: int
    mean: int
    state: int
    claim: int  # entry
    contribution: int  # entry of a contribution of one claim


@dataclass(frozen=True, slots=True)
class Forecast:
    """A round of a swarm of peers that hand in alone. Bytes, seconds."""

    peers: int
    rows: int  # contributions of a round
    open_s: float  # estimated: how long a round is open
    samples: int  # estimated: of a round
    log_in: int  # a round
    log_out: tuple[int, int]  # a round: peers give bodies to each other, all comes from the log
    peer_out: int  # a round: its own contribution, and on average one copy of all that it gets
    peer_in: int
    entries_a_day: int  # bytes of the log
    bodies_disk: int  # of the rounds whose contributions are kept
    run_s: float


def sizes_of(config: RunConfig, dataset: Dataset) -> Sizes:
    """Return what a run file's settings fix.

    Raises:
        UserError: values that do not go together.
    """
    plan = config.plan(dataset)
    count = build(plan.space, "meta").num_weights
    moments = num_moments(plan.optimizer, plan.local_steps)
    claim, contribution = _entries(plan.local_steps)
    return Sizes(count, body_num_bytes(config.exchange.codec, count), 4 * count, 4 * count * (1 + moments), claim, contribution)


def _entries(local_steps: int) -> tuple[int, int]:
    """Return the sizes of a claim's and a contribution's entry, as a run in its midst has them."""
    key, digest = Identity(bytes(32)), b"\xff" * 32
    steps = digest if local_steps > 1 else b""
    claim = Claim(
        run=digest,
        round=10_000,
        base=digest,
        key=key.public_key,
        founder=key.public_key,
        cohort="host-0123456789ab",
        local_steps=local_steps,
        work=(9,) * 4,
        lots_root=digest,
        steps_root=steps,
        vector=digest,
        residual=digest,
        lot_ms=2000,
    )
    signed = SignedClaim.sign(claim, key)
    made = Contribution(digest, 10_000, digest, key.public_key, (signed.digest,), digest, digest)
    return len(entry_of(signed)), len(entry_of(SignedContribution.sign(made, key)))


def forecast(config: RunConfig, sizes: Sizes, peers: int, samples_per_s: float) -> Forecast:
    """Return what a round is like with so many peers, each of which trains ``samples_per_s`` and hands in alone."""
    round_, exchange = config.round, config.exchange
    rows = min(peers, exchange.max_rows)
    open_s = min(max(round_.target_batch / (peers * samples_per_s), round_.min_open_s), round_.max_open_s)
    listed_of_peer = min(round(samples_per_s * open_s), round_.max_claim_samples)
    others = min(max(rows - 1, 0) * sizes.body, sizes.mean)  # a peer takes what is fewest bytes
    entries = rows * (sizes.claim + sizes.contribution + 2 * ENTRY_BYTES) + ROUND_BYTES + ENTRY_BYTES
    log_in = rows * (sizes.body + sizes.claim + sizes.contribution)
    return Forecast(
        peers=peers,
        rows=rows,
        open_s=open_s,
        samples=rows * listed_of_peer,
        log_in=log_in,
        log_out=(min(COPIES_LEAVE * rows * sizes.body, peers * others), peers * others),
        peer_out=sizes.body + sizes.claim + others,
        peer_in=others,
        entries_a_day=round(entries * 86_400 / open_s),
        bodies_disk=config.bodies * rows * (sizes.body + sizes.claim + sizes.contribution),
        run_s=config.run.rounds * open_s,
    )


def vectors_asked(config: RunConfig) -> float:
    """Return about how many vectors an audit asks of a claim: for its lots, of its steps up to the one looked at, and of the body."""
    steps, is_sparse = config.exchange.local_steps, codec_named(config.exchange.codec).is_sparse
    if not config.trust.trust().is_audited or (steps == 1 and not is_sparse):
        return 0.0
    of_steps = config.trust.audit_lots * (steps - 1) / steps + (steps + 1) / 2 if steps > 1 else 0.0
    return of_steps + 1 + is_sparse


def lines(config: RunConfig, sizes: Sizes, samples_per_s: float) -> list[str]:
    """Return the forecast for people."""
    exchange, round_ = config.exchange, config.round
    held = held_bytes(exchange.codec, sizes.num_weights, exchange.max_rows)
    states = config.snapshots + 3  # and those from which the kept rounds are computed again, and a teacher's
    said = [
        f"{sizes.num_weights:,} weights; a contribution has {in_words(sizes.body)}, a mean {in_words(sizes.mean)}, a state "
        f"{in_words(sizes.state)} (computed)",
        f"memory: {in_words(PROGRAM_BYTES)} for the program (measured with the smallest supernet), "
        f"for contributions {in_words(held)} at most (computed)",
        f"disk for states: {in_words(states * sizes.state)} (computed)",
        f"a round aims at {round_.target_batch} samples and is open for {round_.min_open_s:g} to {round_.max_open_s:g} s",
        *_of_audits(config, sizes),
        f"estimates for peers that hand in alone, each training {samples_per_s:g} samples a second (--samples-per-s):",
    ]
    for count in PEERS:
        said += _said(config, forecast(config, sizes, count, samples_per_s))
    return said


def _of_audits(config: RunConfig, sizes: Sizes) -> list[str]:
    asked = vectors_asked(config) * sizes.mean
    if not asked:
        return []
    return [
        f"audits: of a claim that is audited its peer sends about {in_words(asked)} to the aggregator (computed), of a proven one one in "
        f"{100 / config.trust.audit_percent:.0f} at the least; they take {config.follower.audit_disk_gb:g} GB of disk at most"
    ]


def _said(config: RunConfig, one: Forecast) -> list[str]:
    in_a_day = 86_400 / one.open_s
    sent, sent_a_day = _range(*one.log_out), _range(*(each * in_a_day for each in one.log_out))
    said = [
        f"  {one.peers} peers: a round takes {_time(one.open_s)}, all {config.run.rounds} of them {_time(one.run_s)}; "
        f"{one.samples} samples a round",
        f"    the aggregator: receives {in_words(one.log_in)} a round, {in_words(one.log_in * in_a_day)} a day; sends {sent} a round, "
        f"{sent_a_day} a day (the less, the more the peers give each other)",
        f"    on its disk: contributions {in_words(one.bodies_disk)}, the log {in_words(one.entries_a_day)} a day",
        f"    a peer: receives {in_words(one.peer_in)} a round, sends about {in_words(one.peer_out)}",
    ]
    if one.peers > one.rows:
        cohort = -(-one.peers // one.rows)
        fits = f"cohorts of {cohort}" if cohort <= MAX_COHORT else f"cohorts (at most {MAX_COHORT} members each)"
        said.append(
            f"    {one.rows} of {one.peers} contributions fit in a round ([exchange] max_rows): the others come later, aged, or not "
            f"at all; raise max_rows, or have {fits}"
        )
    reach = one.peers * config.round.weight_cap
    if reach < config.round.target_batch:
        said.append(f"    together they weigh {reach} samples at most ([round] weight_cap), below target_batch")
    return said


def _range(least: float, most: float) -> str:
    return in_words(most) if in_words(least) == in_words(most) else f"{in_words(least)} to {in_words(most)}"


def _time(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"
