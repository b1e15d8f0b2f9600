"""``/metrics``: what is seen, in Prometheus' text format, version 0.0.4. Pure; docs/grafana-dashboard.json asks for these names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from aggregator.log.witnessed import Witnessed
from aggregator.monitor.people import STATES
from aggregator.monitor.present import Present
from aggregator.monitor.sight import Sight
from aggregator.rounds.refusals import REASONS
from protocol.signing import peer_name
from protocol.verdicts import Outcome

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KINDS = ("fork", "divergence", "stalled", "silent", "unreadable")

_MAX_WITNESSES = 64
Labels = Mapping[str, str]
Samples = Sequence[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    kind: str  # "gauge" | "counter": the latter's name ends with _total
    help: str
    samples: Samples


def metrics_text(sight: Sight, present: Present, *, streams: int, streams_refused: int, now: int) -> str:
    """Return the text."""
    metrics = [
        *_of_log(sight),
        *_of_trust(sight, now),
        *_of_aggregator(sight, present, now),
        *_of_monitor(sight, streams, streams_refused, now),
    ]
    return "".join(_text(metric) for metric in metrics if metric.samples)


def _of_log(sight: Sight) -> list[_Metric]:
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
        _one("manta_info", "gauge", "What the run is.", 1, about),
        _one("manta_round", "gauge", "The newest committed round.", view.round),
        _one("manta_rounds_planned", "gauge", "Rounds of the whole run.", manifest.num_rounds),
        _one("manta_finished", "gauge", "1 once the last round is committed.", int(view.is_finished)),
        _one("manta_ledger_entries", "gauge", "Entries under the newest signed tree head.", sight.size),
        _one("manta_samples_counted_total", "counter", "Samples of all tables, as claimed.", rounds.counted_total),
        _one("manta_credit_paid_total", "counter", "Credit units that were paid.", view.pool_paid),
        _one("manta_round_samples", "gauge", "Samples of the newest table, as claimed.", row.counted if row else None),
        _one("manta_round_contributions", "gauge", "Contributions of the newest table.", row.contributions if row else None),
        _one("manta_round_claims", "gauge", "Claims of the newest table.", row.claims if row else None),
        _one("manta_round_seconds", "gauge", "Mean time of the newest 32 rounds.", recent_ms / 1000 if recent_ms is not None else None),
        _one("manta_round_open_seconds", "gauge", "How long the open round is open.", row.open_ms / 1000 if row else None),
        _one("manta_lot_seconds", "gauge", "Median of what claims say a lot took.", row.lot_ms / 1000 if row else None),
    ]


def _of_trust(sight: Sight, now: int) -> list[_Metric]:
    """Return what audits come to, in a run that has them, and how far witnesses are."""
    witnesses = [({"witness": peer_name(one.cosignature.key)}, one) for one in sight.witnessed[:_MAX_WITNESSES]]
    ages = [(labels, max(0.0, now / 1000 - one.cosignature.time_s)) for labels, one in witnesses]
    metrics = [
        _Metric("manta_witness_entries", "gauge", "Entries of the newest head that a witness cosigned.", _sizes(witnesses)),
        _Metric("manta_witness_age_seconds", "gauge", "Since a witness last cosigned, by its own clock.", ages),
    ]
    if not sight.manifest.is_audited:
        return metrics
    audits, credits_ = sight.view.audits, sight.credits
    reputation = audits.reputation
    proven = sum(map(reputation.is_proven, sight.view.peers.keys() | reputation.given))
    keys = [({"standing": "proven"}, proven), ({"standing": "guilty"}, len(reputation.guilty))]
    counts = audits.num_claims()
    claims = [({"outcome": outcome.name.lower()}, float(counts.get(outcome, 0))) for outcome in Outcome]
    return [
        *metrics,
        _Metric("manta_keys", "gauge", "Keys by trust.", [(labels, float(count)) for labels, count in keys]),
        _one("manta_audits_drawn_total", "counter", "Contributions that were drawn to be audited.", audits.drawn),
        _one(
            "manta_audits_undecided",
            "gauge",
            "Of these, contributions of rounds not paid yet that nothing is decided of.",
            audits.num_undecided,
        ),
        _one(
            "manta_audits_unjudged_total",
            "counter",
            "Contributions that were drawn and not decided before they were paid.",
            audits.unjudged,
        ),
        _one("manta_audits_in_doubt", "gauge", "Contributions that somebody spoke against, undecided.", len(audits.in_doubt)),
        _Metric("manta_claims_audited", "gauge", "Claims that audits came to something of.", claims),
        _one("manta_audited_samples_total", "counter", "Samples of contributions that were drawn, as claimed.", audits.drawn_samples),
        _one("manta_credit_pending", "gauge", "Credit units of rounds that are not paid yet.", credits_.pending),
        _one("manta_settled", "gauge", "1 once all that the run pays is paid.", int(sight.view.is_settled)),
    ]


def _sizes(witnesses: Iterable[tuple[Labels, Witnessed]]) -> Samples:
    return [(labels, float(one.head.size)) for labels, one in witnesses]


def _of_aggregator(sight: Sight, present: Present, now: int) -> list[_Metric]:
    live, there = sight.live, present.people(now)
    states = [({"state": state}, float(there.count(state))) for state in STATES]
    metrics = [_Metric("manta_peers", "gauge", "Peers by where they stand.", states)]
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
            _Metric("manta_quality", "gauge", f"Of the newest evaluation on held-out data: {what}; random: the mean.", quality),
            _Metric("manta_held_out_loss", "gauge", "Of the same, mean cross-entropy in nats.", losses),
            _one("manta_evaluated_round", "gauge", "The round that was evaluated last.", newest.round),
        ]
    if live is None:
        return metrics
    both = [({"direction": "in"}, float(live.received_bytes)), ({"direction": "out"}, float(live.sent_bytes))]
    calls = [({"method": method}, float(one.calls)) for method, one in sorted(live.calls.items())]
    by_reason = {**dict.fromkeys(REASONS, 0), **live.refused}  # all from the start on: of a counter's first sample no rise is seen
    refused = [({"reason": reason}, float(count)) for reason, count in sorted(by_reason.items())]
    age_s = max(0, now - live.written_at) / 1000
    return [
        *metrics,
        _Metric("manta_traffic_bytes_total", "counter", "What the aggregator's node received and sent since its start.", both),
        _Metric("manta_calls_total", "counter", "Calls that the aggregator answered since its start.", calls),
        _Metric("manta_refused_total", "counter", "What the log did not take since the aggregator's start.", refused),
        _one("manta_aggregator_silent_seconds", "gauge", "Since the aggregator said something.", age_s),
    ]


def _of_monitor(sight: Sight, streams: int, streams_refused: int, now: int) -> list[_Metric]:
    on = [alarm.wrong.kind for alarm in sight.alarms.on]
    return [
        _Metric("manta_alarms", "gauge", "What is wrong now.", [({"kind": kind}, float(on.count(kind))) for kind in KINDS]),
        _one("manta_monitor_streams", "gauge", "Open event streams.", streams),
        _one("manta_monitor_streams_refused_total", "counter", "Event streams that found no place.", streams_refused),
        _one("manta_monitor_start_time_seconds", "gauge", "When the monitor started, since 1970.", sight.started_at / 1000),
    ]


def _one(name: str, kind: str, help_: str, value: float | None, labels: Labels | None = None) -> _Metric:
    return _Metric(name, kind, help_, [] if value is None else [(labels or {}, value)])


def _text(metric: _Metric) -> str:
    lines = [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
    lines += [f"{metric.name}{_labels(labels.items())} {value:.17g}" for labels, value in metric.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{shown}}}" if shown else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
