"""``/api/trust``: who is trusted, what audits found, and what they took, as the plain values of docs/monitor.md."""

import asyncio
import re
from collections import OrderedDict

from aggregator.attendants.live import unix_ms
from aggregator.audits.trust_file import Doubt, FaultSeen, KeyTrust
from aggregator.monitor.asking import MOST, Asked, NotAnswered
from aggregator.monitor.present import Present
from aggregator.monitor.shown import Json
from aggregator.monitor.sight import Sight
from aggregator.monitor.trust import Evidence, FindingSeen, evidence_about
from protocol.horizon import Horizon
from protocol.signing import peer_name

MAX_SHOWN = 200
_KEPT = 64
_CLAIM = re.compile(r"[0-9a-f]{64}")


class TrustAnswers:
    """Makes these answers."""

    def __init__(self, sight: Sight, present: Present) -> None:
        """Of what ``sight`` sees, and of who is there."""
        self._sight = sight
        self._present = present
        self._evidence: OrderedDict[tuple[str, int], Evidence] = OrderedDict()  # by claim and the round up to which it was looked

    async def overview(self, asked: Asked) -> Json:
        """``/api/trust``"""
        trust, newest = self._sight.manifest.trust, self._sight.trust.newest
        horizon = Horizon.of(self._sight.manifest)
        verdicts = self._sight.trust.verdicts()
        done = None if newest is None else newest.done
        computers = self._present.people(unix_ms()).computers
        of_computers = [one for key in computers if (one := self._sight.trust.of(key)) is not None]
        return {
            "mode": trust.mode,
            "round": newest.round if newest else None,
            "pending_rounds": horizon.pending_rounds,
            "num_rounds": horizon.num_rounds,
            "last_final_round": horizon.last_final,
            "proven_samples": trust.proven_samples,
            "is_finished": self._sight.view.is_finished,
            "computers": len(computers),
            "proven": sum(one.is_proven for one in of_computers),
            "guilty": newest.num_guilty if newest else 0,
            "due": newest.due if newest else 0,
            "done": done.model_dump() if done else None,
            "share": done.cpu_ms / done.claimed_ms if done and done.claimed_ms else None,
            "verdicts": len(verdicts),
            "in_doubt": [_shown_doubt(one) for one in newest.in_doubt] if newest else [],
        }

    async def keys(self, asked: Asked) -> Json:
        """``/api/trust/keys``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_SHOWN, 50)
        newest = self._sight.trust.newest
        keys = newest.keys if newest else ()
        return {
            "total": newest.num_keys if newest else 0,
            "known": len(keys),
            "offset": offset,
            "keys": [{"peer": peer_name(bytes.fromhex(one.key)), **shown_trust(one)} for one in keys[offset : offset + limit]],
        }

    async def verdicts(self, asked: Asked) -> Json:
        """``/api/trust/verdicts``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_SHOWN, 20)
        found = self._sight.trust.verdicts()
        shown = [{"peer": peer_name(bytes.fromhex(key)), **_shown_fault(fault)} for key, fault in found[offset : offset + limit]]
        return {"total": len(found), "offset": offset, "verdicts": shown}

    async def claim(self, asked: Asked, text: str) -> Json:
        """``/api/trust/claims/{claim}``"""
        if not _CLAIM.fullmatch(text):
            raise NotAnswered(404, "a claim is named by its digest, 64 hexadecimal digits")
        seen, view = self._sight.trust, self._sight.view
        last = seen.last_round_about(text)
        if last is None:
            raise NotAnswered(404, "there is no verdict on that claim, nor is it in doubt")
        place = text, min(last, view.round)
        if place not in self._evidence:
            kept_rounds = self._sight.manifest.trust.kept_rounds
            found = await asyncio.to_thread(evidence_about, self._sight.log, view.rounds, bytes.fromhex(text), place[1], kept_rounds)
            self._evidence[place] = found
            while len(self._evidence) > _KEPT:
                self._evidence.popitem(last=False)
        evidence = self._evidence[place]
        return {
            "claim": text,
            "index": evidence.index,
            "verdicts": [
                {"peer": peer_name(bytes.fromhex(key)), **_shown_fault(fault)} for key, fault in seen.verdicts() if fault.claim == text
            ],
            "findings": list(map(_shown_finding, evidence.findings)),
        }


def shown_trust(one: KeyTrust) -> Json:
    """Return what is said of a key, also in ``/api/peers/{peer}``."""
    return {
        "is_proven": one.is_proven,
        "is_guilty": one.is_guilty,
        "samples_good": one.samples,
        "final": one.final,
        "pending": one.pending,
        "until": one.until,
        "stays_pending": one.stays,
        "void": one.void,
        "faults": list(map(_shown_fault, one.faults)),
    }


def _shown_fault(fault: FaultSeen) -> Json:
    return {"round": fault.round, "reason": fault.reason, "claim": fault.claim, "amount": fault.amount}


def _shown_doubt(one: Doubt) -> Json:
    votes = [
        {"auditor": peer_name(bytes.fromhex(vote.auditor)), "outcome": vote.outcome, "round": vote.round, "is_named": vote.is_named}
        for vote in one.votes
    ]
    peer = peer_name(bytes.fromhex(one.key))
    return {"claim": one.claim, "peer": peer, "round": one.round, "check": one.check, "lot": one.lot, "votes": votes}


def _shown_finding(one: FindingSeen) -> Json:
    said, record = one.said, one.shown_record
    claimed = None
    if record is not None:
        claimed = {
            "architecture": record.architecture,
            "samples": record.samples,
            "loss": record.loss,
            "projection": record.projection.hex(),
        }
    return {
        "index": one.index,
        "round": one.round,
        "auditor": peer_name(said.auditor),
        "table": said.round,
        "row": said.row,
        "check": said.check,
        "lot": said.lot,
        "outcome": said.outcome,
        "found": said.projection.hex() or None,
        "claimed": claimed,
    }
