"""Where each peer of a run stands at a moment, and what it has: paid, or not paid yet. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from manta_swarm.aggregator.log.credits import AccountCredit, earned_by_account, together
from manta_swarm.aggregator.monitor.view import PeerSeen, View
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.protocol.reputation import Reputation
from manta_swarm.protocol.signing import peer_name

PRESENT_ROUNDS, LEAST_PRESENT_MS, MOST_PRESENT_MS = 5, 10_000, 60_000  # heard of in so many rounds' time, within these bounds
LATE_MS = 1_000  # since the deadline: nobody could see a shorter state, and short rounds would flicker
RECENT_ROUNDS = 2  # or counted in one of the newest so many
STATES = ("counted", "present", "late", "away")
_BODIES = ("none", "header", "body", "good")  # in this order


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Where one peer stands."""

    key: bytes
    name: str
    seen: PeerSeen | None  # None: heard of, but in no table yet
    state: str  # of STATES
    open: str | None  # of _BODIES, for the open round; None: nobody says
    heard_ms: int | None  # since it was heard of
    refused: int


@dataclass(frozen=True, slots=True)
class People:
    """Where all peers stand."""

    by_key: Mapping[bytes, PeerRow]
    expected: int
    handed: int  # keys, in the open round
    good: int
    late: tuple[str, ...]  # names
    present: int  # how many take part or could; once the run is finished: how many were heard of lately
    computers: frozenset[bytes]  # whom the page counts: who takes part now; once the run is finished, who took part in it

    def count(self, state: str) -> int:
        """Return how many are in a state."""
        return sum(one.state == state for one in self.by_key.values())


def present_ms(round_ms: float | None) -> int:
    """Return how long ago a peer may have been heard of and still count as there; ``round_ms`` is what rounds take, None: nobody knows."""
    return MOST_PRESENT_MS if round_ms is None else round(min(max(PRESENT_ROUNDS * round_ms, LEAST_PRESENT_MS), MOST_PRESENT_MS))


def people(view: View, status: AggregatorStatus | None, now: int) -> People:
    """Return where everybody stands at ``now``, in milliseconds since 1970.

    Of a finished run no round is open, whatever the aggregator said last; and whoever was in its last tables has left since, as far as
    nobody has heard of them lately.
    """
    says = status if not view.is_finished else None  # of an open round
    open_round = says.open if says is not None else None
    handed = _handed(says)
    expected = set(open_round.expected) if open_round is not None else set()
    is_over = says is not None and _is_long_over(says)
    counted = {claim.key for claim in view.newest.claims} if view.newest is not None else set()
    heard = {bytes.fromhex(key): at for key, at in status.heard.items()} if status is not None else {}
    refused = {name: sum(reasons.values()) for name, reasons in status.refused_of.items()} if status is not None else {}
    within_ms = present_ms(view.rounds.recent_ms())
    lately = {key for key, at in heard.items() if now - at <= within_ms}
    rows = {}
    for key in view.peers.keys() | lately:
        seen, digits = view.peers.get(key), key.hex()
        is_recent = not view.is_finished and seen is not None and seen.last_round > view.round - RECENT_ROUNDS
        if is_over and digits in expected and digits not in handed:
            state = "late"
        elif key in counted:
            state = "counted"
        else:
            state = "present" if key in lately or is_recent else "away"
        name = seen.name if seen is not None else peer_name(key)
        rows[key] = PeerRow(
            key=key,
            name=name,
            seen=seen,
            state=state,
            open=None if open_round is None else handed.get(digits, "none"),
            heard_ms=max(0, now - heard[key]) if key in heard else None,
            refused=refused.get(name, 0),
        )
    late = tuple(sorted(one.name for one in rows.values() if one.state == "late"))
    good = sum(body == "good" for body in handed.values())
    there = lately if view.is_finished else {key for key, one in rows.items() if one.state != "away"}
    computers = frozenset(view.peers if view.is_finished else there)
    return People(rows, len(expected), len(handed), good, late, len(there), computers)


def _is_long_over(status: AggregatorStatus) -> bool:
    """Return whether the deadline of the open round was over for long when the aggregator told who had handed in.

    Not whether it is over now: what was told before it says nothing of who came in time.
    """
    one = status.open
    return one is not None and one.deadline_at is not None and one.stage != "idle" and one.deadline_at + LATE_MS <= status.written_at


def _handed(status: AggregatorStatus | None) -> dict[str, str]:
    """Return key -> how far its contribution to the open round is; of several the one that is farthest."""
    if status is None or status.open is None:
        return {}
    found: dict[str, str] = {}
    for one in status.open.handed:
        if one.round == status.open.round and one.body in _BODIES:
            for key in one.keys:
                found[key] = max(found.get(key, "none"), one.body, key=_BODIES.index)
    return found


@dataclass(frozen=True, slots=True)
class Credits:
    """What every key and every account has earned at one moment."""

    by_key: Mapping[bytes, int]  # what all who earned something once have, for whichever accounts
    ranked: tuple[bytes, ...]  # these keys, who has most first; ties by key
    by_account: Mapping[bytes, AccountCredit]  # what adds up to each account; which has most first, ties by key
    earners: Mapping[bytes, tuple[bytes, ...]]  # by account: the keys that earned something for it once, who has most first
    paid: int
    pending: int

    @property
    def total(self) -> int:
        """The credit of all together."""
        return self.paid + self.pending


def credits_of(reputation: Reputation) -> Credits:
    """Return what every key and every account has earned."""
    found = earned_by_account(reputation)
    by_key = Counter[bytes]()
    for of_keys in found.values():
        for key, earned in of_keys.items():
            by_key[key] += earned.credit
    by_account = {account: together(of_keys.values()) for account, of_keys in found.items()}
    return Credits(
        by_key=by_key,
        ranked=tuple(sorted(by_key, key=lambda key: (-by_key[key], key))),
        by_account=by_account,
        earners={account: tuple(of_keys) for account, of_keys in found.items()},
        paid=sum(earned.paid for earned in by_account.values()),
        pending=sum(earned.pending for earned in by_account.values()),
    )
