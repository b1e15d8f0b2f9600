"""``/api/trust``: who is proven, what was audited and what it came to, and what was found, as values of docs/reference/api.md."""

import re

from manta_swarm.aggregator.monitor.asking import MOST, NotAnswered, RequestParameters
from manta_swarm.aggregator.monitor.audits import AuditSeen, VerdictSeen
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.shown import Json
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.reputation import Fault, Reputation, paid_with
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Outcome

MAX_SHOWN, MAX_IN_DOUBT = 200, 64
UNDECIDED = "undecided"
_CONTRIBUTION = re.compile(r"[0-9a-f]{64}")


class TrustAnswers:
    """Makes the answers of ``/api/trust``; a method raises ``NotAnswered`` where a request has none."""

    def __init__(self, sight: Sight, present: Present) -> None:
        """Answer from what ``sight`` sees and from who is there."""
        self._sight = sight
        self._present = present

    async def overview(self, asked: RequestParameters) -> Json:
        """``/api/trust``"""
        view, manifest = self._sight.view, self._sight.manifest
        audits, reputation = view.audits, view.reputation
        computers = self._present.people(unix_ms()).computers
        lost = [key for key in reputation.faults if not reputation.is_proven(key)]
        return {
            "mode": "audited" if manifest.is_audited else "unaudited",
            "round": view.round,
            "is_finished": view.is_finished,
            "is_settled": view.is_settled,
            "settlement": view.settlement,
            **_shown_rules(manifest),
            **_paid_up_to(reputation, manifest),
            "computers": len(computers),
            "proven": sum(map(reputation.is_proven, computers)),
            "guilty": len(reputation.guilty),
            "demoted": len(lost) - len(reputation.guilty),
            "drawn": audits.drawn,
            "undecided": audits.num_undecided,
            "unjudged": audits.unjudged,
            "claims": {_word(outcome): count for outcome, count in sorted(audits.num_claims().items(), key=lambda one: str(one[0]))},
            "share": audits.drawn_samples / audits.samples if audits.samples else None,
            "faults": sum(map(len, reputation.faults.values())),
            "in_doubt": list(map(self._shown_audit, audits.in_doubt[:MAX_IN_DOUBT])),
        }

    async def keys(self, asked: RequestParameters) -> Json:
        """``/api/trust/keys``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_SHOWN, 50)
        reputation, credits_ = self._sight.view.reputation, self._sight.credits
        keys = self._sight.view.peers.keys() | reputation.given | credits_.by_key.keys() if self._sight.manifest.is_audited else ()
        ordered = sorted(keys, key=lambda key: (key not in reputation.faults, -credits_.by_key.get(key, 0), key))
        shown = [{"peer": peer_name(key), **shown_trust(self._sight, key)} for key in ordered[offset : offset + limit]]
        return {"total": len(ordered), "offset": offset, "keys": shown}

    async def audits(self, asked: RequestParameters) -> Json:
        """``/api/trust/audits``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_SHOWN, 20)
        found = list(self._sight.view.audits.waiting.values())[::-1]
        return {"total": len(found), "offset": offset, "audits": list(map(self._shown_audit, found[offset : offset + limit]))}

    async def faults(self, asked: RequestParameters) -> Json:
        """``/api/trust/faults``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_SHOWN, 20)
        found = self._sight.view.audits.faults()
        shown = [{"peer": peer_name(key), **_shown_fault(fault)} for key, fault in found[offset : offset + limit]]
        return {"total": len(found), "offset": offset, "faults": shown}

    async def contribution(self, asked: RequestParameters, text: str) -> Json:
        """``/api/trust/contributions/{contribution}``"""
        if not _CONTRIBUTION.fullmatch(text):
            raise NotAnswered(404, "a contribution is named by its digest, 64 hexadecimal digits")
        seen = self._sight.view.audits.find(bytes.fromhex(text))
        if seen is None:
            raise NotAnswered(404, "that contribution is not audited, or its round is paid, and nobody spoke against it")
        return {**self._shown_audit(seen), "verdicts": list(map(_shown_verdict, seen.verdicts))}

    def _shown_audit(self, seen: AuditSeen) -> Json:
        audit, rules = seen.audit, self._sight.view.reputation.rules
        outcomes = audit.outcomes or (None,) * len(audit.work.keys)
        return {
            "contribution": audit.work.contribution.hex(),
            "index": seen.index,
            "round": audit.round,
            "founder": peer_name(seen.founder),
            "samples": audit.work.samples,
            "auditor": peer_name(audit.auditor),
            "claims": [{"peer": peer_name(key), "outcome": _word(outcome)} for key, outcome in zip(audit.work.keys, outcomes, strict=True)],
            "num_verdicts": len(audit.verdicts),
            "may_be_brought_until": audit.round + rules.kept_rounds if rules is not None else None,
        }


def shown_trust(sight: Sight, key: bytes) -> Json:
    """Return what is said of a key in an audited run, also in ``/api/peers/{peer}``."""
    reputation, manifest = sight.view.reputation, sight.manifest
    standing = reputation.standing(key)
    return {
        "is_proven": reputation.is_proven(key),
        "is_guilty": key in reputation.guilty,
        "found_good": reputation.good[key],
        "paid": standing.paid,
        "pending": sum(amount for _, amount in standing.pending),
        "all_paid_with": paid_with(manifest.audit_rules, manifest.num_rounds, standing.pending[-1][0]) if standing.pending else None,
        "faults": list(map(_shown_fault, standing.faults)),
    }


def _shown_rules(manifest: Manifest) -> Json:
    rules = manifest.audit_rules
    return {
        "auditors": [] if rules is None else [peer_name(key) for key in rules.named],
        "quorum": None if rules is None else rules.quorum,
        "proven_after": None if rules is None else rules.proven_after,
        "audit_percent": None if rules is None else rules.audit_percent,
        "newcomer_percent": None if rules is None else rules.newcomer_percent,
        "kept_rounds": None if rules is None else rules.kept_rounds,
        "pending_rounds": 0 if rules is None else rules.pending_rounds,
        "num_rounds": manifest.num_rounds,
    }


def _paid_up_to(reputation: Reputation, manifest: Manifest) -> Json:
    """Return up to where the run is paid, and from which round on the settlement pays."""
    pending_rounds = 0 if reputation.rules is None else reputation.rules.pending_rounds
    return {
        "last_paid_round": min(reputation.pending, default=reputation.round + 1) - 1,
        "last_before_settlement": max(0, manifest.num_rounds - pending_rounds),
    }


def _word(outcome: Outcome | None) -> str:
    return UNDECIDED if outcome is None else outcome.name.lower()


def _shown_fault(fault: Fault) -> Json:
    return {"round": fault.round, "reason": fault.reason, "contribution": fault.contribution.hex()}


def _shown_verdict(seen: VerdictSeen) -> Json:
    return {
        "index": seen.index,
        "round": seen.round,
        "auditor": peer_name(seen.said.auditor),
        "by": peer_name(seen.said.by),
        "outcomes": [_word(Outcome(outcome)) for outcome in seen.said.outcomes],
    }
