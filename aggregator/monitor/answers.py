"""The JSON API: for each route its answer, bounded, from what is seen; see docs/reference/api.md. It knows no HTTP but its statuses."""

import asyncio
import re
from base64 import b64encode
from collections import OrderedDict
from importlib.metadata import version
from typing import Any

from manta_swarm.aggregator.commit.timeline import KEPT as KEPT_TIMES
from manta_swarm.aggregator.monitor.asking import MOST, NotAnswered, RequestParameters, number_in_path
from manta_swarm.aggregator.monitor.ledger_answers import MAX_ENTRIES
from manta_swarm.aggregator.monitor.people import STATES, PeerRow
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.quality import COSTS, evenly, spread
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.monitor.shown import (
    Json,
    shown_claim,
    shown_final,
    shown_members_front,
    shown_peer,
    shown_point,
    shown_quality,
    shown_round,
    shown_swarm,
    shown_table,
    shown_timeline,
)
from manta_swarm.aggregator.monitor.sight import KEPT_HEADS, Sight
from manta_swarm.aggregator.monitor.tables import TableSeen
from manta_swarm.aggregator.monitor.trusted import shown_trust
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signing import peer_name

MAX_PEERS, MAX_ROUNDS, MAX_CONTRIBUTIONS = 200, 200, 100
MAX_POINTS, MAX_FRONTS, MAX_SWARM = 2000, 12, 2000
_KEPT_TABLES = 8
_LEAST_ENDING, _LEAST_PART = 6, 3  # letters of a peer's name
_ORDERS = ("asc", "desc")
_PEER_TEXT = re.compile(r"[0-9A-Za-z]{1,128}")
_PURPOSE = "One training makes thousands of networks, ready to use, one for every device. What they learn: to {what}, from {source}."
_WHAT = {"classification": "tell what a picture shows", "stereo": "see how far away things are, with two cameras side by side"}
_SORTS: dict[str, Any] = {
    "samples": lambda one: one.seen.samples if one.seen else -1,
    "claims": lambda one: one.seen.claims if one.seen else -1,
    "last_round": lambda one: one.seen.last_round if one.seen else -1,
    "peer": lambda one: one.name,
}


class Answers:
    """Makes the answer of each route; a method raises ``NotAnswered`` where a request has none."""

    def __init__(self, sight: Sight, present: Present, settings: MonitorSection) -> None:
        """Answer of what ``sight`` sees."""
        self._sight = sight
        self._present = present
        self._settings = settings
        self._tables: OrderedDict[int, TableSeen] = OrderedDict()

    # The run, now, and curves.

    async def run(self, asked: RequestParameters) -> Json:
        """``/api/run``"""
        sight, manifest, settings = self._sight, self._sight.manifest, self._settings
        is_stereo = manifest.task == "stereo"
        first = sight.first_head
        return {
            "run": sight.signed.run.hex(),
            "name": manifest.name,
            "purpose": settings.purpose or _purpose(manifest),
            "task": manifest.task,
            "dataset": manifest.dataset,
            "supernet": manifest.supernet,
            "algorithm": manifest.algorithm,
            "schedule": manifest.schedule,
            "cohorts": manifest.cohorts,
            "data": manifest.data,
            "num_rounds": manifest.num_rounds,
            "local_steps": manifest.exchange.local_steps,
            "codec": manifest.exchange.codec,
            "microbatch_samples": manifest.microbatch_samples,
            "target_batch": manifest.exchange.target_batch,
            "reward_pool": manifest.reward_pool,
            "is_private": manifest.is_private,
            "program": version("manta-swarm"),
            "metric": {"name": "epe" if is_stereo else "accuracy", "unit": "px" if is_stereo else "", "higher_is_better": not is_stereo},
            "classes": list(manifest.private[0].classes) if manifest.is_private else [],
            "join": list(sight.status.join) if sight.status is not None else [],
            "is_audited": manifest.is_audited,
            "evaluate_share": settings.evaluate_share,
            "ledger": {
                "origin": sight.operators.name,
                "operator": sight.operator.hex(),
                "operators": [key.hex() for key in manifest.operators],
                "quorum": manifest.quorum,
                "first_seen": {"size": first.head.size, "root": first.head.root.hex()} if first is not None else None,
            },
            "limits": {
                "peers": MAX_PEERS,
                "rounds": MAX_ROUNDS,
                "entries": MAX_ENTRIES,
                "contributions": MAX_CONTRIBUTIONS,
                "points": MAX_POINTS,
                "heads": KEPT_HEADS,
                "timeline": KEPT_TIMES,
                "streams": settings.streams,
            },
        }

    async def manifest(self, asked: RequestParameters) -> Json:
        """``/api/manifest``"""
        signed = self._sight.signed
        return {"run": signed.run.hex(), "manifest": b64encode(signed.payload).decode(), "signature": signed.signature.hex()}

    async def now(self, asked: RequestParameters) -> Json:
        """``/api/now``"""
        return self._present.now(unix_ms())

    async def traffic(self, asked: RequestParameters) -> Json:
        """``/api/traffic``"""
        return self._present.traffic(unix_ms())

    async def series(self, asked: RequestParameters) -> Json:
        """``/api/series``"""
        first, last = self._span(asked)
        series = self._sight.view.rounds.series(first, last, asked.number("points", 2, MAX_POINTS, 400))
        return {"from": first, "to": last, **{name: getattr(series, name) for name in series.__slots__}}

    async def quality(self, asked: RequestParameters) -> Json:
        """``/api/quality``"""
        first, last = _span(asked, 0)
        evaluations = self._sight.evaluations
        chosen = evaluations.chosen(first, last, asked.number("points", 2, MAX_POINTS, 400))
        each = [(shown_quality(one), spread(one.of_kind("random"))) for one in chosen]
        newest = evaluations.newest
        return {
            "metric": self._metric,
            "held_out": newest.held_out if newest else None,
            "baseline": newest.baseline if newest else None,
            "round": [one.round for one in chosen],
            "largest": [one["largest"] for one, _ in each],
            "smallest": [one["smallest"] for one, _ in each],
            "random_least": [random[0] for _, random in each],
            "random_median": [random[1] for _, random in each],
            "random_most": [random[2] for _, random in each],
            "loss_largest": [one["loss_largest"] for one, _ in each],
            "loss_smallest": [one["loss_smallest"] for one, _ in each],
            "final": shown_final(self._sight.status),
        }

    async def fronts(self, asked: RequestParameters) -> Json:
        """``/api/fronts``"""
        limit, cost = asked.number("limit", 1, MAX_FRONTS, 6), asked.choice("cost", COSTS, "macs")
        higher, fronts = self._metric == "accuracy", []
        seen = self._sight.evaluations.seen
        for one in reversed(evenly(seen, limit)):
            points = one.timed_by(seen[-1]).front(higher, cost)
            fronts.append({"round": one.round, "points": [shown_point(*each) for each in points]})
        return {"metric": self._metric, "cost": cost, "fronts": [one for one in fronts if one["points"]]}

    async def members_front(self, asked: RequestParameters) -> Json:
        """``/api/members-front``"""
        return shown_members_front(self._sight.members_front.newest, self._metric)

    async def pictures(self, asked: RequestParameters) -> Json:
        """``/api/pictures``"""
        return self._sight.pictures.index.model_dump()

    # Peers.

    async def peers(self, asked: RequestParameters) -> Json:
        """``/api/peers``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_PEERS, 50)
        credits_ = self._sight.credits
        sorts = {"credit": lambda one: credits_.by_key.get(one.key, -1), **_SORTS}
        sort, order = asked.choice("sort", tuple(sorts), "credit"), asked.choice("order", _ORDERS, "")
        state, cohort, query = asked.choice("state", STATES, ""), asked.text("cohort"), asked.text("query")
        found = list(self._present.people(unix_ms()).by_key.values())
        if state:
            found = [one for one in found if one.state == state]
        if cohort:
            found = [one for one in found if one.seen is not None and one.seen.last.cohort == cohort]
        if query:
            found = [one for one in found if _fits(one.name, query)]
        found.sort(key=lambda one: one.key)
        found.sort(key=sorts[sort], reverse=(order or ("asc" if sort == "peer" else "desc")) == "desc")
        shown = [shown_peer(one, credits_.by_key.get(one.key, 0)) for one in found[offset : offset + limit]]
        return {"total": len(found), "offset": offset, "is_finished": self._sight.view.is_finished, "peers": shown}

    async def peer(self, asked: RequestParameters, text: str) -> Json:
        """``/api/peers/{peer}``"""
        before, limit = asked.optional("before", 1, MOST), asked.number("limit", 1, 64, 20)
        one = self._the_peer(text)
        credits_ = self._sight.credits
        claims = list(reversed(one.seen.newest)) if one.seen is not None else []
        below = [claim for claim in claims if before is None or claim.round < before]
        credit = credits_.by_key.get(one.key, 0)
        return {
            **shown_peer(one, credit),
            "is_finished": self._sight.view.is_finished,
            "credit_share": credit / credits_.total if credits_.total else 0.0,
            "rank": 1 + credits_.ranked.index(one.key) if one.key in credits_.by_key else None,
            "claims_list": [shown_claim(claim, self._sight.view) for claim in below[:limit]],
            "more_before": below[limit - 1].round if len(below) > limit else None,
            "account": peer_name(account) if (account := claims[0].payout if claims else one.key) != one.key else None,
            "trust": shown_trust(self._sight, one.key) if self._sight.manifest.is_audited else None,
        }

    async def swarm(self, asked: RequestParameters) -> Json:
        """``/api/swarm``"""
        everybody = list(self._present.people(unix_ms()).by_key.values())
        if len(everybody) > MAX_SWARM:
            everybody.sort(key=lambda one: (-(one.seen.last_round if one.seen else 0), one.key))
        return shown_swarm(self._sight.view, everybody[:MAX_SWARM], len(everybody))

    def _the_peer(self, text: str) -> PeerRow:
        if not _PEER_TEXT.fullmatch(text):
            raise NotAnswered(404, "a peer is named by its id, its key in hexadecimal, or the end of its id")
        everybody = self._present.people(unix_ms()).by_key.values()
        found = [one for one in everybody if text in (one.name, one.key.hex())]
        if not found and len(text) >= _LEAST_ENDING:
            found = [one for one in everybody if one.name.endswith(text)]
        if not found:
            raise NotAnswered(
                404, f"no peer {text[:60]} is in this log, nor was one heard of; give its id, or at least 6 letters of its end"
            )
        if len(found) > 1:
            names = sorted(one.name for one in found)[:10]
            raise NotAnswered(409, f"several peers end with {text[:60]}: give more of it", candidates=names)
        return found[0]

    # Rounds.

    async def rounds(self, asked: RequestParameters) -> Json:
        """``/api/rounds``"""
        rounds = self._sight.view.rounds
        before, limit = asked.number("before", 1, MOST, MOST), asked.number("limit", 1, MAX_ROUNDS, 50)
        last = min(before - 1, rounds.newest)
        first = max(1, last - limit + 1)
        shown = [shown_round(rounds.row(round_)) for round_ in range(last, first - 1, -1)]
        return {"rounds": shown, "more_before": first if first > 1 and shown else None}

    async def round(self, asked: RequestParameters, text: str) -> Json:
        """``/api/rounds/{round}``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_CONTRIBUTIONS, 50)
        round_ = number_in_path(text, "a round")
        newest = self._sight.view.round
        if not 1 <= round_ <= newest:
            raise NotAnswered(404, f"there is no round {round_}: the newest is {newest}")
        table = await self._table(round_)
        timeline = next((one for one in self._timelines() if one["round"] == round_), None)
        return {**shown_table(self._sight.view, table, offset, limit), "timeline": timeline}

    async def timeline(self, asked: RequestParameters) -> Json:
        """``/api/timeline``"""
        return {"timelines": self._timelines()[: asked.number("limit", 1, KEPT_TIMES, 16)]}

    def _timelines(self) -> list[Json]:
        status, rounds = self._sight.status, self._sight.view.rounds
        times = [one for one in status.times if 1 <= one.round <= rounds.newest] if status is not None else []
        return [shown_timeline(one, rounds.row(one.round).train_ms) for one in reversed(times)]

    async def _table(self, round_: int) -> TableSeen:
        view = self._sight.view
        if view.newest is not None and view.round == round_:
            return view.newest
        if round_ not in self._tables:
            entries = await asyncio.to_thread(self._sight.log.entries, *view.span(round_))
            self._tables[round_] = await asyncio.to_thread(view.table, round_, entries)
            while len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        return self._tables[round_]

    # What they share.

    @property
    def _metric(self) -> str:
        return "epe" if self._sight.manifest.task == "stereo" else "accuracy"

    def _span(self, asked: RequestParameters) -> tuple[int, int]:
        first, last = _span(asked, 1)
        return first, max(min(last, self._sight.view.round), first - 1)


def _span(asked: RequestParameters, least: int) -> tuple[int, int]:
    """Return the first and the last round that are asked for."""
    first, last = asked.number("from", least, MOST, least), asked.number("to", least, MOST, MOST)
    if first > last:
        raise NotAnswered(400, f"from is {first} and to is {last}: rounds go from the earlier to the later one")
    return first, last


def _purpose(manifest: Manifest) -> str:
    source = "pictures that stay on the volunteers’ computers" if manifest.is_private else f"the data set {manifest.dataset}"
    return _PURPOSE.format(what=_WHAT[manifest.task], source=source)


def _fits(name: str, query: str) -> bool:
    return name.startswith(query) or name.endswith(query) or (len(query) >= _LEAST_PART and query.lower() in name.lower())
