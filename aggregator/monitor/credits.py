"""What everybody has, by one rule for all that the monitor shows. Pure.

In an open run it is what the log's claims earned. Where claims are audited it is what is final or pending, so without what verdicts took
back, and with what audits paid: as the aggregator says, since the monitor repeats no verdict. Of a log to which it says
nothing, as in a copy, and of keys for which its file has no room, it is what their claims earned, before verdicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.audits.trust_file import Trust
from aggregator.monitor.view import View

LOG, UNJUDGED, AGGREGATOR = "log", "log, before verdicts", "aggregator"


@dataclass(frozen=True, slots=True)
class Credits:
    """At a moment."""

    by_key: Mapping[bytes, int]  # of all who earned something once
    ranked: tuple[bytes, ...]  # who has most first; ties by key
    total: int
    said_by: str  # LOG, UNJUDGED or AGGREGATOR


def credits_of(view: View, trust: Trust | None) -> Credits:
    """Return what everybody has; ``trust`` is what the aggregator said last, None: nothing."""
    by_key = {key: peer.credit for key, peer in view.peers.items()}
    said_by = UNJUDGED if view.manifest.trust.is_audited else LOG
    if trust is not None:
        said_by = AGGREGATOR
        said = {bytes.fromhex(one.key): one.final + one.pending for one in trust.keys}
        by_key.update((key, credit) for key, credit in said.items() if credit or key in by_key)
    return Credits(by_key, tuple(sorted(by_key, key=lambda key: (-by_key[key], key))), sum(by_key.values()), said_by)
