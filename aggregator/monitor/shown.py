"""What is seen, as the plain values of docs/reference/api.md: the parts of answers that the API, the events and the metrics share. Pure."""

import math
from collections.abc import Sequence
from typing import Any

from manta_swarm.aggregator.commit.timeline import Times
from manta_swarm.aggregator.features.front_file import MembersFront
from manta_swarm.aggregator.log.witnessed import Witnessed
from manta_swarm.aggregator.monitor.alarms import Alarm
from manta_swarm.aggregator.monitor.people import PeerRow, People
from manta_swarm.aggregator.monitor.quality import EvaluationSeen, QualityPoint
from manta_swarm.aggregator.monitor.sight import HeadSeen
from manta_swarm.aggregator.monitor.tables import ClaimSeen, ContributionSeen, RoundSeen, TableSeen
from manta_swarm.aggregator.monitor.view import View
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.protocol.cosignatures import witness_key, witness_name
from manta_swarm.protocol.signing import peer_name

Json = dict[str, Any]
SWARM_LETTERS = 12
MAX_NOT_BELIEVED = 20


def shown_round(one: RoundSeen) -> Json:
    """Return an element of ``/api/rounds``."""
    return {
        "round": one.round,
        "index": one.index,
        "contributions": one.contributions,
        "claims": one.claims,
        "counted": one.counted,
        "open_ms": one.open_ms,
        "committed_at": one.committed_at,
        "round_ms": one.round_ms,
        "state": one.state.hex(),
        "mean": one.mean.hex(),
        "weights": one.weights.hex(),
        "min_exponent": one.min_exponent,
    }


def shown_contribution(one: ContributionSeen, view: View) -> Json:
    """Return an element of ``contributions_list`` of ``/api/rounds/{round}``."""
    is_paid = one.round not in view.reputation.pending
    return {
        "founder": peer_name(one.founder),
        "cohort": one.cohort,
        "index": one.index,
        "age": one.age,
        "role": one.role,
        "samples": one.samples,
        "body": one.body.hex(),
        "contribution": one.digest.hex(),
        "is_audited": _is_audited(one, view),
        "is_paid": is_paid,
        "claims": [
            {
                "peer": peer_name(claim.key),
                "microbatches": claim.microbatches,
                "samples": claim.samples,
                "microbatch_ms": claim.microbatch_ms,
                "credit": view.credit_of(claim),
                "outcome": outcome_of(claim, one.digest, view),
            }
            for claim in one.claims
        ],
    }


def _is_audited(one: ContributionSeen, view: View) -> bool | None:
    """Return whether a contribution was drawn; None: that is not known yet, or not any more."""
    if view.manifest.is_audited and view.audits.find(one.digest) is None:
        is_between = one.round in view.reputation.pending and one.round < view.round
        return False if is_between else None
    return view.manifest.is_audited


def outcome_of(claim: ClaimSeen, contribution: bytes, view: View) -> str | None:
    """Return what an audit of a claim has come to; None: nothing yet, or it is not audited, or not known any more."""
    seen = view.audits.find(contribution)
    if seen is None or not seen.audit.outcomes:
        return None
    outcome = seen.audit.outcomes[seen.audit.work.keys.index(claim.key)]
    return None if outcome is None else outcome.name.lower()


def shown_claim(claim: ClaimSeen, view: View) -> Json:
    """Return an element of ``/api/peers/{peer}``'s claims."""
    return {
        "round": claim.round,
        "base_round": claim.base_round,
        "index": claim.index,
        "microbatches": claim.microbatches,
        "samples": claim.samples,
        "credit": view.credit_of(claim),
        "is_paid": claim.round not in view.reputation.pending,
        "age": claim.age,
        "cohort": claim.cohort,
        "founder": peer_name(claim.founder),
    }


def shown_peer(one: PeerRow, credit: int) -> Json:
    """Return an element of ``/api/peers``, of a peer that has so much credit."""
    seen = one.seen
    return {
        "peer": one.name,
        "key": one.key.hex(),
        "cohort": seen.last.cohort if seen else None,
        "founder": peer_name(seen.last.founder) if seen else None,
        "state": one.state,
        "claims": seen.claims if seen else 0,
        "microbatches": seen.microbatches if seen else 0,
        "samples": seen.samples if seen else 0,
        "credit": credit,
        "first_round": seen.first_round if seen else None,
        "last_round": seen.last_round if seen else None,
        "last_samples": seen.last.samples if seen else None,
        "microbatch_ms": seen.last.microbatch_ms if seen else None,
        "heard_ms": one.heard_ms,
        "open": one.open,
        "refused": one.refused,
    }


def shown_head(seen: HeadSeen) -> Json:
    """Return ``/api/ledger/head``."""
    return {"size": seen.head.size, "root": seen.head.root.hex(), "note": seen.note, "seen_at": seen.seen_at}


def shown_witness(one: Witnessed) -> Json:
    """Return an element of ``witnesses`` of ``/api/ledger/heads``."""
    key = one.cosignature.key
    return {
        "peer": peer_name(key),
        "name": witness_name(key),
        "key": witness_key(key),
        "size": one.head.size,
        "signed_at": one.cosignature.time_s * 1000,
    }


def shown_alarm(alarm: Alarm) -> Json:
    """Return an element of ``now.alarms``."""
    cause = alarm.cause
    return {"kind": cause.kind, "level": cause.level, "since": alarm.since, "round": cause.round, "text": cause.text}


def shown_quality(one: EvaluationSeen) -> Json:
    """Return ``now.quality`` of an evaluation."""

    def of(kind: str) -> tuple[float | None, float | None]:
        points = one.of_kind(kind)
        return (points[0].quality, points[0].loss) if points else (None, None)

    (largest, loss_largest), (smallest, loss_smallest) = of("largest"), of("smallest")
    return {
        "round": one.round,
        "largest": largest,
        "smallest": smallest,
        "random": [point.quality for point in one.of_kind("random")],
        "loss_largest": loss_largest,
        "loss_smallest": loss_smallest,
        "is_final": False,
    }


def shown_final(status: AggregatorStatus | None) -> Json | None:
    """Return ``final`` of ``/api/quality``: the aggregator's own full evaluation; None: there is none, or a figure is no number."""
    if status is None or status.quality is None:
        return None
    quality = status.quality
    if not all(map(math.isfinite, (quality.largest, quality.smallest, *quality.random))):
        return None  # the error of a network that diverged: JSON has no word for that
    figures = {"largest": quality.largest, "smallest": quality.smallest, "random": list(quality.random)}
    return {"round": status.quality_round, **figures}


def shown_point(point: QualityPoint, on_front: bool) -> Json:
    """Return a point of ``/api/fronts``."""
    return {
        "macs": point.macs,
        "latency_ms": point.latency_ms,
        "quality": point.quality,
        "kind": point.kind,
        "on_front": on_front,
    }


def shown_members_front(newest: MembersFront | None, metric: str) -> Json:
    """Return ``/api/members-front``."""
    if newest is None:
        return {"metric": metric, "round": None, "measured": 0, "members": 0, "samples": 0, "not_believed": [], "points": []}
    return {
        "metric": metric,
        "round": newest.round,
        "measured": newest.measured,
        "members": newest.members,
        "samples": newest.samples,
        "not_believed": list(newest.not_believed[:MAX_NOT_BELIEVED]),
        "points": [
            {"text": one.text, "macs": one.macs, "quality": quality, "loss": one.loss}
            for one in newest.front
            if (quality := one.accuracy if metric == "accuracy" else one.epe) is not None
        ],
    }


def shown_timeline(times: Times, train_ms: int | None) -> Json:
    """Return an element of ``/api/timeline``; ``train_ms``: what the round's claims say that training took."""
    start = times.opened_at

    def span(name: str, begin: int | None, end: int | None) -> Json:
        if start is None or begin is None or end is None:
            return {"name": name, "start_ms": None, "end_ms": None, "known": "unknown"}
        return {"name": name, "start_ms": max(0, begin - start), "end_ms": max(0, end - start), "known": "measured"}

    train: Json = {"name": "train", "start_ms": None, "end_ms": None, "known": "unknown"}
    if train_ms is not None:
        train = {"name": "train", "start_ms": 0, "end_ms": train_ms, "known": "claimed"}
    is_fetched = times.first_fetch_at is not None and times.last_fetch_at is not None
    spans = [
        train,
        span("average", None, None),
        span("publish", times.first_header_at, times.last_body_at),
        span("close", times.deadline_at, times.closed_at),
        span("commit", times.closed_at, times.committed_at),
        span("fetch", times.first_fetch_at, times.last_fetch_at if is_fetched else None),
        span("update", None, None),
    ]
    length = times.committed_at - start if times.committed_at is not None and start is not None else None
    return {"round": times.round, "opened_at": start, "length_ms": length, "spans": spans}


def shown_swarm(view: View, rows: Sequence[PeerRow], total: int) -> Json:
    """Return ``/api/swarm`` of these peers, in columns. Of their ids the ends: whole ones of a thousand would be 35 kB."""
    cohorts = sorted({one.seen.last.cohort for one in rows if one.seen})
    places = {cohort: place for place, cohort in enumerate(cohorts)}
    ordered = sorted(rows, key=lambda one: (places[one.seen.last.cohort] if one.seen else len(places), one.name))
    return {
        "round": view.round,
        "is_finished": view.is_finished,
        "total": total,
        "shown": len(ordered),
        "cohorts": cohorts,
        "peer": [one.name[-SWARM_LETTERS:] for one in ordered],
        "cohort": [places[one.seen.last.cohort] if one.seen else None for one in ordered],
        "state": [one.state for one in ordered],
        "open": [one.open for one in ordered],
        "is_founder": [one.seen is not None and one.seen.last.founder == one.key for one in ordered],
        "last_samples": [one.seen.last.samples if one.seen else None for one in ordered],
    }


def shown_people(people: People) -> Json:
    """Return ``now.peers``."""
    cohorts = {one.seen.last.cohort for one in people.by_key.values() if one.seen and one.state != "away"}
    return {
        "known": len(people.by_key),
        "took_part": sum(one.seen is not None for one in people.by_key.values()),
        "present": people.present,
        "counted": people.count("counted"),
        "late": people.count("late"),
        "away": people.count("away"),
        "cohorts": len(cohorts),
    }


def shown_table(view: View, table: TableSeen, offset: int, limit: int) -> Json:
    """Return ``/api/rounds/{round}`` but for its timeline: that round, and a part of who gave what to it."""
    shown = [shown_contribution(one, view) for one in table.contributions[offset : offset + limit]]
    of_round = shown_round(view.rounds.row(table.said.round))
    return {**of_round, "total": len(table.contributions), "offset": offset, "contributions_list": shown}
