"""What a log adds up to, as people want to see it: rounds, peers, their credit. A pure fold over its entries, each looked at once.

Unlike ``protocol.ledger`` it checks no signature and no rule: the aggregator did, before it committed. It hashes the entries itself: their
root can be compared with the one that the log signs for.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from aggregator.monitor.opened import Opened, opened
from aggregator.monitor.rounds import Rounds
from aggregator.monitor.tables import ClaimSeen, TableSeen, table_seen
from protocol.course import Course
from protocol.manifest import Manifest
from protocol.merkle import EMPTY_ROOT, Frontier, leaf_hash
from protocol.records import Round
from protocol.signing import peer_name

KEPT_CLAIMS = 64  # of each peer, the newest


@dataclass(slots=True)
class PeerSeen:
    """A key that has a claim in a table."""

    key: bytes
    name: str
    claims: int = 0
    lots: int = 0
    samples: int = 0
    first_round: int = 0
    earned: dict[bytes, int] = field(default_factory=dict)  # by account: what its claims earned for it, before verdicts
    newest: deque[ClaimSeen] = field(default_factory=lambda: deque(maxlen=KEPT_CLAIMS))

    @property
    def last(self) -> ClaimSeen:
        """Its newest claim."""
        return self.newest[-1]

    @property
    def credit(self) -> int:
        """What its claims earned, before verdicts."""
        return sum(self.earned.values())

    @property
    def last_round(self) -> int:
        """The newest round that has a claim of it."""
        return self.last.round

    def take(self, claim: ClaimSeen) -> None:
        """One more claim."""
        self.claims += 1
        self.lots += claim.lots
        self.samples += claim.samples
        self.earned[claim.payout] = self.earned.get(claim.payout, 0) + claim.credit
        self.first_round = self.first_round or claim.round
        self.newest.append(claim)


class View:
    """The entries so far."""

    def __init__(self, manifest: Manifest, course: Course) -> None:
        """Have none yet."""
        self.manifest = manifest
        self.rounds = Rounds()
        self.peers: dict[bytes, PeerSeen] = {}
        self.pool_paid = 0
        self.newest: TableSeen | None = None  # the newest round's
        self.settled = (0, EMPTY_ROOT)  # the entries up to the newest round's own: how many, and their root
        self._course = course
        self._frontier = Frontier()
        self._pending: list[Opened] = []  # after the newest round entry

    @classmethod
    def recalled(cls, manifest: Manifest, course: Course, frontier: Frontier, rounds: Rounds, peers: dict[bytes, "PeerSeen"]) -> "View":
        """Return the view of the entries of ``frontier``, the last of which is a round's, as far as it was kept: without ``newest``."""
        view = cls(manifest, course)
        view.rounds, view.peers, view._frontier = rounds, peers, frontier
        view.pool_paid = sum(peer.credit for peer in peers.values())
        view.settled = (frontier.size, frontier.root())
        return view

    @property
    def size(self) -> int:
        """How many entries were taken."""
        return self._frontier.size

    @property
    def round(self) -> int:
        """The newest round."""
        return self.rounds.newest

    @property
    def is_finished(self) -> bool:
        """Whether it is the manifest's last one."""
        return self.round >= self.manifest.num_rounds

    def root(self) -> bytes:
        """Return the root over the entries taken, hashed here."""
        return self._frontier.root()

    def take(self, entries: Sequence[bytes]) -> None:
        """Take the next entries.

        Raises:
            EncodingError, LedgerError: one is none of a log's; what was taken before it stays, and it may come again.
        """
        for entry in entries:
            one = opened(entry)
            if not isinstance(one.said, Round):
                self._pending.append(one)
                self._frontier.append(leaf_hash(entry))
                continue
            first = self.size - len(self._pending)
            table = table_seen(first, [*self._pending, one], self.manifest, self._course)
            self._take_round(table)  # from here on nothing is refused
            self._pending = []
            self._frontier.append(leaf_hash(entry))
            self.settled = (self.size, self.root())

    def table(self, round_: int, entries: Sequence[bytes]) -> TableSeen:
        """Return the table of a round that is here; ``entries`` are those after the round before it, its own the last.

        Raises:
            EncodingError, LedgerError: they are not.
        """
        first = self.rounds.index_of(round_ - 1) + 1
        return table_seen(first, [opened(entry) for entry in entries], self.manifest, self._course)

    def _take_round(self, table: TableSeen) -> None:
        for claim in table.claims:
            if claim.key not in self.peers:
                self.peers[claim.key] = PeerSeen(claim.key, peer_name(claim.key))
            self.peers[claim.key].take(claim)
            self.pool_paid += claim.credit
        self.rounds.append(table)
        self.newest = table
