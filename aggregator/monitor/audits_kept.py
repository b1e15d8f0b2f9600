"""What a view's audits add up to, as text for ``aggregator.monitor.kept``, and the same again: JSON, keys and digests in hexadecimal."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from aggregator.monitor.audits import Audits, AuditSeen, VerdictSeen
from protocol.encoding import pack, unpack
from protocol.manifest import Manifest
from protocol.reputation import FALSE, Audit, Fault, Reputation, Work
from protocol.verdicts import MAX_VERDICT_BYTES, Outcome, Verdict


def audits_text(audits: Audits) -> str:
    """Return all of it but what was paid with the newest entry."""
    found = audits.reputation
    return json.dumps(
        {
            "round": found.round,
            "given": [key.hex() for key in sorted(found.given)],
            "good": [[key.hex(), count] for key, count in found.good.items()],
            "lost": [[key.hex(), round_] for key, round_ in found.lost.items()],
            "faults": [[key.hex(), [_plain_fault(fault) for fault in faults]] for key, faults in found.faults.items()],
            "unpaid": [[round_, [_plain_work(work) for work in works]] for round_, works in found.unpaid.items()],
            "paid": [[key.hex(), account.hex(), amount] for (key, account), amount in found.paid.items()],
            "payouts": [[key.hex(), account.hex()] for key, account in found.payouts.items()],
            "waiting": [_plain_seen(one) for one in audits.waiting.values()],
            "ended": [_plain_seen(one) for one in audits.ended.values()],
            "drawn": [audits.drawn, audits.drawn_samples, audits.samples],
            "outcomes": [[int(outcome), count] for outcome, count in audits.outcomes.items()],
        },
        separators=(",", ":"),
    )


def read_audits(text: str, manifest: Manifest) -> Audits:
    """Return what ``audits_text`` made the text of.

    Raises:
        ValueError, KeyError, TypeError, EncodingError: nothing.
    """
    plain = json.loads(text)
    audits = Audits.of(manifest)
    faults = {_key(key): tuple(map(_fault, some)) for key, some in plain["faults"]}
    waiting, ended = (list(map(_seen, plain[name])) for name in ("waiting", "ended"))
    paid = Counter({(_key(key), _key(account)): int(amount) for key, account, amount in plain["paid"]})
    earned = Counter[bytes]()
    for (key, _), amount in paid.items():
        earned[key] += amount
    audits.reputation = Reputation(
        rules=audits.reputation.rules,
        pools=audits.reputation.pools,
        round=int(plain["round"]),
        given=frozenset(map(_key, plain["given"])),
        good=Counter({_key(key): int(count) for key, count in plain["good"]}),
        lost={_key(key): int(round_) for key, round_ in plain["lost"]},
        guilty={key: next(one for one in some if one.reason == FALSE) for key, some in faults.items() if _is_false(some)},
        faults=faults,
        unpaid={int(round_): tuple(map(_work, works)) for round_, works in plain["unpaid"]},
        audits={one.audit.work.contribution: one.audit for one in waiting},
        paid=paid,
        earned=earned,
        payouts={_key(key): _key(account) for key, account in plain["payouts"]},
    )
    audits.waiting = {one.audit.work.contribution: one for one in waiting}
    audits.ended = {one.audit.work.contribution: one for one in ended}
    audits.drawn, audits.drawn_samples, audits.samples = map(int, plain["drawn"])
    audits.outcomes = Counter({Outcome(outcome): int(count) for outcome, count in plain["outcomes"]})
    return audits


def _is_false(faults: Iterable[Fault]) -> bool:
    return any(fault.reason == FALSE for fault in faults)


def _key(text: Any) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != 32:
        raise ValueError("a key or a digest of another length")
    return found


def _plain_fault(fault: Fault) -> list[Any]:
    return [fault.round, fault.reason, fault.contribution.hex()]


def _fault(plain: Any) -> Fault:
    round_, reason, contribution = plain
    return Fault(int(round_), str(reason), _key(contribution))


def _plain_work(work: Work) -> list[Any]:
    keys, payouts = [key.hex() for key in work.keys], [account.hex() for account in work.payouts]
    return [work.contribution.hex(), keys, payouts, list(work.weights), work.samples, [int(one) for one in work.proven]]


def _work(plain: Any) -> Work:
    contribution, keys, payouts, weights, samples, proven = plain
    return Work(
        contribution=_key(contribution),
        keys=tuple(map(_key, keys)),
        payouts=tuple(map(_key, payouts)),
        weights=tuple(map(int, weights)),
        samples=int(samples),
        proven=tuple(map(bool, proven)),
    )


def _plain_seen(one: AuditSeen) -> list[Any]:
    audit = one.audit
    said = [[seen.index, seen.round, pack(seen.said).hex()] for seen in one.verdicts]
    counted = [pack(verdict).hex() for verdict in audit.verdicts]
    outcomes = [None if outcome is None else int(outcome) for outcome in audit.outcomes]
    return [one.index, one.founder.hex(), audit.round, _plain_work(audit.work), audit.auditor.hex(), outcomes, counted, said]


def _seen(plain: Any) -> AuditSeen:
    index, founder, round_, work, auditor, outcomes, counted, said = plain
    decided = tuple(None if outcome is None else Outcome(outcome) for outcome in outcomes)
    audit = Audit(int(round_), _work(work), _key(auditor), tuple(map(_verdict, counted)), decided)
    verdicts = tuple(VerdictSeen(int(place), None if with_ is None else int(with_), _verdict(text)) for place, with_, text in said)
    return AuditSeen(int(index), _key(founder), audit, verdicts)


def _verdict(text: Any) -> Verdict:
    return unpack(Verdict, bytes.fromhex(text), max_bytes=MAX_VERDICT_BYTES)
