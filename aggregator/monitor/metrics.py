"""``/metrics``: what is seen, as Prometheus' metrics; docs/grafana-dashboard.json asks for these names."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.registry import Collector

from manta_swarm.aggregator.intake.refusals import REASONS
from manta_swarm.aggregator.log.witnessed import Witnessed
from manta_swarm.aggregator.monitor.people import STATES
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.monitor.streams import Streams
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Outcome

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KINDS = ("fork", "divergence", "stalled", "silent", "unreadable")

_MAX_WITNESSES = 64
_ROUND_BUCKETS_S = (1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 3600)
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]


class RunMetrics(Collector):
    """The metrics of one run, made at each scrape of what is seen then."""

    def __init__(self, sight: Sight, present: Present, streams: Streams) -> None:
        """Make them of what these know; ``registry`` has nothing else."""
        self._sight, self._present, self._streams = sight, present, streams
        self._durations = Histogram(
            "manta_round_duration_seconds",
            "Times of rounds, from one commit to the next: of all that somebody timed.",
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
        _one("manta_info", "What the run is.", 1, about),
        _one("manta_round", "The newest committed round.", view.round),
        _one("manta_rounds_planned", "Rounds of the whole run.", manifest.num_rounds),
        _one("manta_finished", "1 once the last round is committed.", int(view.is_finished)),
        _one("manta_ledger_entries", "Entries under the newest signed tree head.", sight.size),
        _one("manta_samples_counted_total", "Samples of all tables, as claimed.", rounds.counted_total),
        _one("manta_credit_paid_total", "Credit units that were paid.", view.pool_paid),
        _one("manta_round_samples", "Samples of the newest table, as claimed.", row.counted if row else None),
        _one("manta_round_contributions", "Contributions of the newest table.", row.contributions if row else None),
        _one("manta_round_claims", "Claims of the newest table.", row.claims if row else None),
        _one("manta_round_seconds", "Mean time of the newest 32 rounds.", recent_ms / 1000 if recent_ms is not None else None),
        _one("manta_round_open_seconds", "How long the open round is open.", row.open_ms / 1000 if row else None),
        _one("manta_microbatch_seconds", "Median of what claims say a microbatch took.", row.microbatch_ms / 1000 if row else None),
    ]


def _of_trust(sight: Sight, now: int) -> list[Metric]:
    """Return what audits come to, in a run that has them, and how far witnesses are."""
    witnesses = [({"witness": peer_name(one.cosignature.key)}, one) for one in sight.witnessed[:_MAX_WITNESSES]]
    ages = [(labels, max(0.0, now / 1000 - one.cosignature.time_s)) for labels, one in witnesses]
    metrics = [
        _metric("manta_witness_entries", "Entries of the newest head that a witness cosigned.", _sizes(witnesses)),
        _metric("manta_witness_age_seconds", "Since a witness last cosigned, by its own clock.", ages),
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
        _metric("manta_keys", "Keys by trust.", [(labels, float(count)) for labels, count in keys]),
        _one("manta_audits_drawn_total", "Contributions that were drawn to be audited.", audits.drawn),
        _one("manta_audits_undecided", "Of these, contributions of rounds not paid yet that nothing is decided of.", audits.num_undecided),
        _one("manta_audits_unjudged_total", "Contributions that were drawn and not decided before they were paid.", audits.unjudged),
        _one("manta_audits_in_doubt", "Contributions that somebody spoke against, undecided.", len(audits.in_doubt)),
        _metric("manta_claims_audited", "Claims that audits came to something of.", claims),
        _one("manta_audited_samples_total", "Samples of contributions that were drawn, as claimed.", audits.drawn_samples),
        _one("manta_credit_pending", "Credit units of rounds that are not paid yet.", credits_.pending),
        _one("manta_settled", "1 once all that the run pays is paid.", int(sight.view.is_settled)),
    ]


def _sizes(witnesses: Iterable[tuple[Labels, Witnessed]]) -> Samples:
    return [(labels, float(one.head.size)) for labels, one in witnesses]


def _of_aggregator(sight: Sight, present: Present, now: int) -> list[Metric]:
    status, there = sight.status, present.people(now)
    states = [({"state": state}, float(there.count(state))) for state in STATES]
    metrics = [_metric("manta_peers", "Peers by where they stand.", states)]
    newest = sight.evaluations.newest
    if newest is not None:
        points = [(point.kind, point) for kind in ("largest", "smallest") for point in newest.of_kind(kind)[:1]]
        random = newest.of_kind("random")
        quality = [({"subnet": kind}, point.quality) for kind, point in points]
        if random:
            quality.append(({"subnet": "random"}, sum(point.quality for point in random) / len(random)))
        losses = [({"subnet": kind}, point.loss) for kind, point in points if point.loss is not None]
        what = "EPE in pixels" if sight.manifest.task == "stereo" else "accuracy, 0 to 1"
        metrics += [
            _metric("manta_quality", f"Of the newest evaluation on held-out data: {what}; random: the mean.", quality),
            _metric("manta_held_out_loss", "Of the same, mean cross-entropy in nats.", losses),
            _one("manta_evaluated_round", "The round that was evaluated last.", newest.round),
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
        _metric("manta_traffic_bytes_total", "What the aggregator's node received and sent since its start.", both),
        _metric("manta_calls_total", "Calls that the aggregator answered since its start.", calls),
        _metric("manta_refused_total", "What the log did not take since the aggregator's start.", refused),
        _one("manta_aggregator_silent_seconds", "Since the aggregator said something.", age_s),
    ]


def _of_monitor(sight: Sight, streams: Streams) -> list[Metric]:
    on = [alarm.wrong.kind for alarm in sight.alarms.on]
    return [
        _metric("manta_alarms", "What is wrong now.", [({"kind": kind}, float(on.count(kind))) for kind in KINDS]),
        _one("manta_monitor_streams", "Open event streams.", len(streams)),
        _one("manta_monitor_streams_refused_total", "Event streams that found no place.", streams.refused),
        _one("manta_monitor_start_time_seconds", "When the monitor started, since 1970.", sight.started_at / 1000),
    ]


def _one(name: str, help_: str, value: float | None, labels: Labels | None = None) -> Metric:
    return _metric(name, help_, [] if value is None else [(labels or {}, value)])


def _metric(name: str, help_: str, samples: Samples) -> Metric:
    """Return a counter where the name ends with ``_total``, else a gauge."""
    metric = Metric(name.removesuffix("_total"), help_, "counter" if name.endswith("_total") else "gauge")
    for labels, value in samples:
        metric.add_sample(name, dict(labels), value)
    return metric
