"""What a run's settings mean for its operator and its peers: traffic, memory, disk and time, for swarms of some sizes.

Sizes of what travels and is kept follow from the formats (``protocol.footprint``, which ``manta-peer about`` goes by, too) and are marked
``computed``. How fast peers train is the reader's guess, and what leaves the log depends on how much peers give each other: these figures
are estimates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.training.update import num_moments
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.protocol.exchange import CHUNK, MAX_COHORT, codec_named
from manta_swarm.protocol.footprint import (
    ExpectedTable,
    LogAudits,
    RoundTraffic,
    Sizes,
    entry_bytes,
    in_words,
    log_audits,
    num_brought,
    round_traffic,
)
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import AuditRules

PEERS = (10, 100, 1000)
PROGRAM_BYTES = 900e6  # resident, beside contributions: measured with classifier-tiny after some rounds and an evaluation
ENTRY_BYTES = 113  # that the database takes beside each entry, tree nodes and keys: measured over 21,000 entries
ROUND_BYTES = 300  # a round's entry, about
COPIES_LEAVE = 4  # of each body, where peers give them to each other: benchmarks/crowd_gossip.py, 1,000 peers behind 10 Mbit/s
OLDER_STATES = 3  # kept beside the newest: those from which the kept rounds are computed again, and a teacher's
AUDIT_PART = 1.12  # of the time of its training, that an audit of a contribution takes (benchmarks/audit_limits.py)
_PARSED_BYTES = 3  # a kept value of a sparse body, once it is parsed: its position and its integer
_TABLES = 2  # that are held at once: the open round's and the next one's
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Forecast:
    """A round of a swarm of peers that hand in alone. Bytes, seconds."""

    peers: int
    rows: int  # contributions of a round
    open_s: float  # estimated: how long a round is open
    samples: int  # estimated: of a round
    log_in: int  # a round, without what audits ask for
    log_out: tuple[int, int]  # a round: peers give bodies to each other, all comes from the log
    peer: RoundTraffic  # of one of them, a round
    entries: int  # bytes of the log, a round
    states_disk: int
    bodies_disk: int  # of the rounds whose contributions are kept
    audits: LogAudits  # once all peers are proven
    run_s: float


def held_bytes(codec: str, num_weights: int, max_rows: int) -> int:
    """Return how much memory the bodies may take that a log holds at a time; a dense one is read where it lies."""
    coded = codec_named(codec)
    chunks = -(-num_weights // CHUNK)
    parsed = _PARSED_BYTES * coded.kept * chunks if coded.is_sparse else 0
    return _TABLES * max_rows * (body_num_bytes(codec, num_weights) + parsed)


def sizes_of(config: RunConfig, dataset: Dataset) -> Sizes:
    """Return what a run file's settings fix.

    Raises:
        UserError: values that do not go together.
    """
    plan = config.plan(dataset)
    count = build(plan.space, "meta").num_weights
    moments = num_moments(plan.optimizer, plan.local_steps)
    return Sizes(count, body_num_bytes(config.exchange.codec, count), 4 * count * (1 + moments))


def forecast(config: RunConfig, sizes: Sizes, peers: int, samples_per_s: float) -> Forecast:
    """Return what a round is like with so many peers, each of which trains ``samples_per_s`` and hands in alone."""
    round_, exchange, rules = config.round, config.exchange_settings(), rules_of(config)
    rows = min(peers, exchange.max_rows)
    open_s = min(max(round_.target_batch / (peers * samples_per_s), round_.min_open_s), round_.max_open_s)
    listed_of_peer = min(round(samples_per_s * open_s), round_.max_claim_samples)
    table = ExpectedTable(rows, open_s)
    contribution = entry_bytes(exchange.local_steps)
    others = min(max(rows - 1, 0) * sizes.body, sizes.vector)  # a peer takes what is fewest bytes
    audits = log_audits(exchange, rules, sizes, table)
    entries = rows * (contribution + ENTRY_BYTES) + ROUND_BYTES + ENTRY_BYTES
    entries += audits.verdicts
    one = sizes.body + contribution
    return Forecast(
        peers=peers,
        rows=rows,
        open_s=open_s,
        samples=rows * listed_of_peer,
        log_in=rows * one,
        log_out=(min(COPIES_LEAVE * rows * sizes.body, peers * others), peers * others),
        peer=round_traffic(exchange, rules, sizes, table),
        entries=entries,
        states_disk=(config.snapshots + OLDER_STATES) * sizes.state,
        bodies_disk=config.bodies * rows * one,
        audits=audits,
        run_s=config.run.rounds * open_s,
    )


def lines(config: RunConfig, sizes: Sizes, samples_per_s: float, peers: Sequence[int] = PEERS) -> list[str]:
    """Return the forecast for people."""
    exchange, round_ = config.exchange, config.round
    held = held_bytes(exchange.codec, sizes.num_weights, exchange.max_rows)
    said = [
        f"{sizes.num_weights:,} weights; a contribution has {in_words(sizes.body)}, a mean {in_words(sizes.vector)}, a state "
        f"{in_words(sizes.state)} (computed)",
        f"memory: {in_words(PROGRAM_BYTES)} for the program (measured with the smallest supernet), "
        f"for contributions {in_words(held)} at most (computed)",
        f"a round aims at {round_.target_batch} samples and is open for {round_.min_open_s:g} to {round_.max_open_s:g} s",
        *_of_audits(config, sizes),
        f"estimates for peers that hand in alone, each training {samples_per_s:g} samples a second (--samples-per-s):",
    ]
    for count in peers:
        said += _said(config, forecast(config, sizes, count, samples_per_s))
    return said


def rules_of(config: RunConfig) -> AuditRules | None:
    """Return a run file's rules of audits, as if nobody but its operator were named; None: there are none.

    Raises:
        ValueError: values that do not go together.
    """
    return next(iter(config.trust.rules(Identity(bytes(32)).public_key, len(config.operators.keys))), None)


def _of_audits(config: RunConfig, sizes: Sizes) -> Iterator[str]:
    rules = rules_of(config)
    if rules is None:
        return
    brought = num_brought(config.exchange_settings()) * sizes.vector
    yield (
        f"audits: an audit of a contribution of one peer takes {in_words(brought)} (computed), which it brings and an auditor fetches, "
        f"and {AUDIT_PART:g} times its training"
    )
    yield (
        f"  {rules.audit_percent} % of proven peers' contributions are audited, and newcomers' for {rules.newcomer_percent} % of what "
        f"those train: auditors compute {_audited_percent(rules):.1f} % of the swarm's training at most"
    )
    if config.exchange.local_steps > 1:
        yield "  light contributors are not offered: with several local steps an audit needs vectors that they do not keep"


def _audited_percent(rules: AuditRules) -> float:
    return AUDIT_PART * (rules.audit_percent + rules.newcomer_percent)


def _said(config: RunConfig, one: Forecast) -> list[str]:
    in_a_day = 86_400 / one.open_s
    sent, sent_a_day = _range(*one.log_out), _range(*(each * in_a_day for each in one.log_out))
    said = [
        f"  {one.peers} {'peer' if one.peers == 1 else 'peers'}: a round takes {_time(one.open_s)}, all {config.run.rounds} of them "
        f"{_time(one.run_s)}; {one.samples} samples a round",
        f"    the aggregator: receives {in_words(one.log_in)} a round, {in_words(one.log_in * in_a_day)} a day; sends {sent} a round, "
        f"{sent_a_day} a day (the less, the more the peers give each other)",
    ]
    shown = ""
    if one.audits.brought:
        said.append(f"    for audits peers bring it {in_words(one.audits.brought)} a round on average, once all are proven")
        shown = f", and brings audits {in_words(one.peer.brought)} of each that is audited"
    said += [
        *_of_disk(config, one),
        f"    a peer: receives {in_words(one.peer.fetched)} a round, sends about {in_words(one.peer.sent)}{shown}",
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


def _of_disk(config: RunConfig, one: Forecast) -> list[str]:
    """Return what an aggregator has on its disk after as many rounds as it keeps; what is brought only as far as there is room for it."""
    audits, room = one.audits, config.aggregator.audit_disk_gb * _GB
    vectors = min(audits.vectors, room)
    parts = f"states {in_words(one.states_disk)}, contributions {in_words(one.bodies_disk)}"
    if vectors:
        parts += f", vectors for audits {in_words(vectors)} once all peers are proven"
    said = [
        f"    on its disk: {in_words(one.states_disk + one.bodies_disk + vectors)} in all ({parts}); beside it the log, "
        f"{in_words(one.entries)} a round, {in_words(one.entries * 86_400 / one.open_s)} a day"
    ]
    if audits.vectors > room:
        said.append(
            f"    peers bring {in_words(audits.vectors)} for audits, and [aggregator] audit_disk_gb leaves room for {in_words(room)}: what "
            f"has none is not audited; give them {-(-audits.vectors // _GB):.0f}, or make audit_percent smaller"
        )
    return said


def _range(least: float, most: float) -> str:
    return in_words(most) if in_words(least) == in_words(most) else f"{in_words(least)} to {in_words(most)}"


def _time(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"
