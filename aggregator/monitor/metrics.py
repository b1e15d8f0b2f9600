"""``/metrics``: what is seen, as Prometheus' metrics; docs/grafana-dashboard.json asks for these names."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.registry import Collector

from manta_swarm.aggregator.intake.refusals import REASONS
from manta_swarm.aggregator.log.witnessed import Witnessed
from manta_swarm.aggregator.monitor.people import STATES
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.monitor.streams import EventStreams
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Outcome

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KINDS = ("fork", "divergence", "stalled", "silent", "unreadable")

_DURATIONS = "manta_round_duration_seconds"
_MAX_WITNESSES = 64
_ROUND_BUCKETS_S = (1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 3600)
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Described:
    """What a metric says, and the names of its labels."""

    help: str
    labels: tuple[str, ...] = ()


METRICS = {
    "manta_info": Described("1; the labels say what the run is.", ("run", "name", "task", "supernet", "program")),
    "manta_round": Described("The newest committed round."),
    "manta_rounds_planned": Described("Rounds of the whole run."),
    "manta_finished": Described("1 once the last round is committed."),
    "manta_ledger_entries": Described("Entries under the newest signed tree head."),
    "manta_samples_counted_total": Described("Samples of all tables, as claimed."),
    "manta_credit_paid_total": Described("Credit units that were paid."),
    "manta_round_samples": Described("Samples of the newest table, as claimed."),
    "manta_round_contributions": Described("Contributions of the newest table."),
    "manta_round_claims": Described("Claims of the newest table."),
    "manta_round_duration_seconds": Described("Histogram of the times from one commit to the next, each once it stays as it is."),
    "manta_round_seconds": Described("Mean time of the newest 32 rounds that were timed."),
    "manta_round_open_seconds": Described("Time for which the open round takes contributions."),
    "manta_microbatch_seconds": Described("Median time of a microbatch, as the newest claims say."),
    "manta_witness_entries": Described("Entries of the newest head that the witness cosigned.", ("witness",)),
    "manta_witness_age_seconds": Described("Time since the witness cosigned, by its own clock.", ("witness",)),
    "manta_keys": Described("Keys by what audits found.", ("reputation",)),
    "manta_audits_drawn_total": Described("Contributions that were drawn to be audited."),
    "manta_audits_undecided": Described("Drawn contributions of pending rounds that nothing is decided of."),
    "manta_audits_unjudged_total": Described("Drawn contributions that were paid undecided."),
    "manta_audits_in_doubt": Described("Undecided contributions that somebody spoke against."),
    "manta_claims_audited": Described("Audited claims by what came of them.", ("outcome",)),
    "manta_audited_samples_total": Described("Samples of drawn contributions, as claimed."),
    "manta_credit_pending": Described("Credit units of pending rounds."),
    "manta_settled": Described("1 once all that the run pays is paid."),
    "manta_peers": Described("Peers by state.", ("state",)),
    "manta_quality": Described("Accuracy (0 to 1), or in stereo EPE in pixels, of the newest evaluation; random: the mean.", ("subnet",)),
    "manta_held_out_loss": Described("Mean cross-entropy of the newest evaluation, in nats.", ("subnet",)),
    "manta_evaluated_round": Described("The round of the newest evaluation."),
    "manta_traffic_bytes_total": Described("Bytes that the aggregator's node moved since its start.", ("direction",)),
    "manta_calls_total": Described("Calls that the aggregator answered since its start.", ("method",)),
    "manta_refused_total": Described("What the log refused since the aggregator's start.", ("reason",)),
    "manta_aggregator_silent_seconds": Described("Time since the aggregator wrote its status."),
    "manta_alarms": Described("Alarms that are on.", ("kind",)),
    "manta_monitor_streams": Described("Open event streams."),
    "manta_monitor_streams_refused_total": Described("Event streams that were refused because all were taken."),
    "manta_monitor_start_time_seconds": Described("Start of the monitor, in seconds since 1970."),
}


class RunMetrics(Collector):
    """The metrics of one run, made at each scrape of what is seen then."""

    def __init__(self, sight: Sight, present: Present, streams: EventStreams) -> None:
        """Make them of what these know; ``registry`` has nothing else."""
        self._sight, self._present, self._streams = sight, present, streams
        self._durations = Histogram(
            _DURATIONS,
            METRICS[_DURATIONS].help,
            buckets=_ROUND_BUCKETS_S,
            registry=None,
        )
        self._timed = 0  # the newest round in the histogram, which has each once
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield what there is something to say of."""
        now = unix_ms()
        self._observe_rounds()
        yield from (
            metric
            for metrics in (
                _of_log(self._sight),
                self._durations.collect(),
                _of_trust(self._sight, now),
                _of_aggregator(self._sight, self._present, now),
                _of_monitor(self._sight, self._streams),
            )
            for metric in metrics
            if metric.samples
        )

    def _observe_rounds(self) -> None:
        """Count the rounds whose times stay as they are: the aggregator's own word on the newest may still come."""
        rounds = self._sight.view.rounds
        last = rounds.newest if self._sight.view.is_finished else rounds.newest - 1
        for round_ in range(self._timed + 1, last + 1):
            round_ms = rounds.row(round_).round_ms
            if round_ms is not None:
                self._durations.observe(round_ms / 1000)
                self._timed = round_


def _of_log(sight: Sight) -> list[Metric]:
    view, rounds = sight.view, sight.view.rounds
    manifest, row = view.manifest, rounds.row(view.round) if view.round else None
    about = {
        "run": sight.signed.run.hex(),
        "name": manifest.name,
        "task": manifest.task,
        "supernet": manifest.supernet,
        "program": version("manta-swarm"),
    }
    recent_ms = rounds.recent_ms()
    return [
        _one("manta_info", 1, about),
        _one("manta_round", view.round),
        _one("manta_rounds_planned", manifest.num_rounds),
        _one("manta_finished", int(view.is_finished)),
        _one("manta_ledger_entries", sight.size),
        _one("manta_samples_counted_total", rounds.counted_total),
        _one("manta_credit_paid_total", view.pool_paid),
        _one("manta_round_samples", row.counted if row else None),
        _one("manta_round_contributions", row.contributions if row else None),
        _one("manta_round_claims", row.claims if row else None),
        _one("manta_round_seconds", recent_ms / 1000 if recent_ms is not None else None),
        _one("manta_round_open_seconds", row.open_ms / 1000 if row else None),
        _one("manta_microbatch_seconds", row.microbatch_ms / 1000 if row else None),
    ]


def _of_trust(sight: Sight, now: int) -> list[Metric]:
    """Return what audits come to, in a run that has them, and how far witnesses are."""
    witnesses = [({"witness": peer_name(one.cosignature.key)}, one) for one in sight.witnessed[:_MAX_WITNESSES]]
    ages = [(labels, max(0.0, now / 1000 - one.cosignature.time_s)) for labels, one in witnesses]
    metrics = [
        _metric("manta_witness_entries", _sizes(witnesses)),
        _metric("manta_witness_age_seconds", ages),
    ]
    if not sight.manifest.is_audited:
        return metrics
    audits, credits_ = sight.view.audits, sight.credits
    reputation = audits.reputation
    proven = sum(map(reputation.is_proven, sight.view.peers.keys() | reputation.given))
    keys = [({"reputation": "proven"}, proven), ({"reputation": "guilty"}, len(reputation.guilty))]
    counts = audits.num_claims()
    claims = [({"outcome": outcome.name.lower()}, float(counts.get(outcome, 0))) for outcome in Outcome]
    return [
        *metrics,
        _metric("manta_keys", [(labels, float(count)) for labels, count in keys]),
        _one("manta_audits_drawn_total", audits.drawn),
        _one("manta_audits_undecided", audits.num_undecided),
        _one("manta_audits_unjudged_total", audits.unjudged),
        _one("manta_audits_in_doubt", len(audits.in_doubt)),
        _metric("manta_claims_audited", claims),
        _one("manta_audited_samples_total", audits.drawn_samples),
        _one("manta_credit_pending", credits_.pending),
        _one("manta_settled", int(sight.view.is_settled)),
    ]


def _sizes(witnesses: Iterable[tuple[Labels, Witnessed]]) -> Samples:
    return [(labels, float(one.head.size)) for labels, one in witnesses]


def _of_aggregator(sight: Sight, present: Present, now: int) -> list[Metric]:
    status, there = sight.status, present.people(now)
    states = [({"state": state}, float(there.count(state))) for state in STATES]
    metrics = [_metric("manta_peers", states)]
    newest = sight.evaluations.newest
    if newest is not None:
        points = [(point.kind, point) for kind in ("largest", "smallest") for point in newest.of_kind(kind)[:1]]
        random = newest.of_kind("random")
        quality = [({"subnet": kind}, point.quality) for kind, point in points]
        if random:
            quality.append(({"subnet": "random"}, sum(point.quality for point in random) / len(random)))
        losses = [({"subnet": kind}, point.loss) for kind, point in points if point.loss is not None]
        metrics += [
            _metric("manta_quality", quality),
            _metric("manta_held_out_loss", losses),
            _one("manta_evaluated_round", newest.round),
        ]
    if status is None:
        return metrics
    both = [({"direction": "in"}, float(status.received_bytes)), ({"direction": "out"}, float(status.sent_bytes))]
    calls = [({"method": method}, float(one.calls)) for method, one in sorted(status.calls.items())]
    by_reason = {**dict.fromkeys(REASONS, 0), **status.refused}  # all from the start on: of a counter's first sample no rise is seen
    refused = [({"reason": reason}, float(count)) for reason, count in sorted(by_reason.items())]
    age_s = max(0, now - status.written_at) / 1000
    return [
        *metrics,
        _metric("manta_traffic_bytes_total", both),
        _metric("manta_calls_total", calls),
        _metric("manta_refused_total", refused),
        _one("manta_aggregator_silent_seconds", age_s),
    ]


def _of_monitor(sight: Sight, streams: EventStreams) -> list[Metric]:
    on = [alarm.cause.kind for alarm in sight.alarms.on]
    return [
        _metric("manta_alarms", [({"kind": kind}, float(on.count(kind))) for kind in KINDS]),
        _one("manta_monitor_streams", len(streams)),
        _one("manta_monitor_streams_refused_total", streams.refused),
        _one("manta_monitor_start_time_seconds", sight.started_at / 1000),
    ]


def _one(name: str, value: float | None, labels: Labels | None = None) -> Metric:
    return _metric(name, [] if value is None else [(labels or {}, value)])


def kind_of(name: str) -> str:
    """Return the type of a metric: a counter's name ends with ``_total``; one is a histogram; all others are gauges."""
    if name == _DURATIONS:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


def _metric(name: str, samples: Samples) -> Metric:
    """Return one of ``METRICS``."""
    metric = Metric(name.removesuffix("_total"), METRICS[name].help, kind_of(name))
    for labels, value in samples:
        metric.add_sample(name, dict(labels), value)
    return metric
