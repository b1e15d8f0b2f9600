"""What everybody has, by one rule for all that the monitor shows. Pure.

In an open run it is what the log's claims earned. Where claims are audited it is what is final or pending, so without what verdicts took
back, and with what audits paid: as the aggregator says, since the monitor repeats no verdict. Of a log to which it says
nothing, as in a copy, and of keys for which its file has no room, it is what their claims earned, before verdicts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.audits.trust_file import Trust
from aggregator.monitor.view import View

LOG, UNJUDGED, AGGREGATOR = "log", "log, before verdicts", "aggregator"


@dataclass(frozen=True, slots=True)
class Credits:
    """At a moment."""

    by_key: Mapping[bytes, int]  # what all who earned something once have earned, for whichever accounts
    ranked: tuple[bytes, ...]  # these keys, who has most first; ties by key
    by_account: Mapping[bytes, int]  # what adds up to each account
    accounts: tuple[bytes, ...]  # these, which has most first; ties by key
    earners: Mapping[bytes, tuple[bytes, ...]]  # by account: the keys that earned something for it once, in order
    total: int
    said_by: str  # LOG, UNJUDGED or AGGREGATOR


def credits_of(view: View, trust: Trust | None) -> Credits:
    """Return what everybody has; ``trust`` is what the aggregator said last, None: nothing."""
    earned: dict[bytes, Mapping[bytes, int]] = {key: peer.earned for key, peer in view.peers.items()}
    said_by = UNJUDGED if view.manifest.trust.is_audited else LOG
    if trust is not None:
        said_by = AGGREGATOR
        for one in trust.keys:
            if any(one.credits.values()) or bytes.fromhex(one.key) in earned:
                earned[bytes.fromhex(one.key)] = {bytes.fromhex(account): credit for account, credit in one.credits.items()}
    by_key = {key: sum(of_key.values()) for key, of_key in earned.items()}
    by_account, earners = Counter[bytes](), dict[bytes, list[bytes]]()
    for key in sorted(earned):
        for account, credit in earned[key].items():
            by_account[account] += credit
            earners.setdefault(account, []).append(key)
    return Credits(
        by_key=by_key,
        ranked=_ranked(by_key),
        by_account=by_account,
        accounts=_ranked(by_account),
        earners={account: tuple(keys) for account, keys in earners.items()},
        total=sum(by_key.values()),
        said_by=said_by,
    )


def _ranked(credits_: Mapping[bytes, int]) -> tuple[bytes, ...]:
    return tuple(sorted(credits_, key=lambda key: (-credits_[key], key)))
