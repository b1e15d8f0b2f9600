"""What a log adds up to, as people want to see it: rounds, peers, their credit, audits. A pure fold over its entries, each looked at once.

Unlike ``protocol.ledger`` it checks no signature and no rule: the aggregator did, before it committed. It hashes the entries itself: their
root can be compared with the one that the log signs for.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from aggregator.monitor.audits import Audits
from aggregator.monitor.opened import Opened, opened
from aggregator.monitor.rounds import Rounds
from aggregator.monitor.tables import ClaimSeen, TableSeen, table_seen
from protocol.admission import MAX_ADMISSION_BYTES, PROVEN, Admission, Invitation
from protocol.course import Course
from protocol.encoding import unpack
from protocol.errors import LedgerError
from protocol.manifest import Manifest
from protocol.merkle import EMPTY_ROOT, Frontier, leaf_hash
from protocol.records import Round, commit_digest
from protocol.signing import peer_name
from protocol.verdicts import Settlement, Verdict

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
    newest: deque[ClaimSeen] = field(default_factory=lambda: deque(maxlen=KEPT_CLAIMS))

    @property
    def last(self) -> ClaimSeen:
        """Its newest claim."""
        return self.newest[-1]

    @property
    def last_round(self) -> int:
        """The newest round that has a claim of it."""
        return self.last.round

    def take(self, claim: ClaimSeen) -> None:
        """One more claim."""
        self.claims += 1
        self.lots += claim.lots
        self.samples += claim.samples
        self.first_round = self.first_round or claim.round
        self.newest.append(claim)

    def paid(self, round_: int, amount: int) -> None:
        """A round was paid: to this key so much for its claim."""
        for place, claim in enumerate(self.newest):
            if claim.round == round_:
                self.newest[place] = replace(claim, credit=amount)


class View:
    """The entries so far."""

    def __init__(self, manifest: Manifest, course: Course) -> None:
        """Have none yet."""
        self.manifest = manifest
        self.rounds = Rounds()
        self.peers: dict[bytes, PeerSeen] = {}
        self.newest: TableSeen | None = None  # the newest round's
        self.audits = Audits.of(manifest)
        self.settlement: int | None = None  # the place of its entry
        self.folded = (0, EMPTY_ROOT)  # the entries up to the newest round's own, or to the settlement: how many, and their root
        self._course = course
        self._frontier = Frontier()
        self._pending: list[Opened] = []  # after the newest round entry

    @classmethod
    def recalled(
        cls,
        manifest: Manifest,
        course: Course,
        frontier: Frontier,
        rounds: Rounds,
        peers: dict[bytes, "PeerSeen"],
        audits: Audits,
        settlement: int | None,
    ) -> "View":
        """Return the view of the entries of ``frontier``, the last of which is a round's or the settlement, but for ``newest``."""
        view = cls(manifest, course)
        view.rounds, view.peers, view._frontier, view.audits, view.settlement = rounds, peers, frontier, audits, settlement
        view.folded = (frontier.size, frontier.root())
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

    @property
    def is_settled(self) -> bool:
        """Whether all that the run pays is paid."""
        return self.settlement is not None if self.manifest.is_audited else self.is_finished

    @property
    def pool_paid(self) -> int:
        """What was paid to everybody."""
        return sum(self.audits.reputation.earned.values())

    def credit_of(self, claim: ClaimSeen) -> int | None:
        """Return what a claim was paid, or would be if nothing more were found; None: it is too old to say."""
        if claim.round in self.audits.reputation.unpaid:
            return self.audits.reputation.expected(claim.round).get(claim.key, 0)
        if claim.credit is None and (peer := self.peers.get(claim.key)) is not None and claim.round >= peer.newest[0].round:
            return next((one.credit or 0 for one in peer.newest if one.round == claim.round), 0)
        return claim.credit

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
            if not isinstance(one.said, Round | Settlement):
                self._pending.append(one)
                self._frontier.append(leaf_hash(entry))
                continue
            first = self.size - len(self._pending)
            if isinstance(one.said, Round):
                table = table_seen(first, [*self._pending, one], self.manifest, self._course)
                self._take_round(table, commit_digest(entry), self._verdicts(first))  # from here on nothing is refused
            else:
                self.audits.settle(self._verdicts(first))
                self._note_paid()
                self.settlement = self.size
            self._pending = []
            self._frontier.append(leaf_hash(entry))
            self.folded = (self.size, self.root())

    def span(self, round_: int) -> tuple[int, int]:
        """Return where the contributions of a round that is here begin in the log, and where its entry ends: what ``table`` takes."""
        row = self.rounds.row(round_)
        return row.index - row.contributions, row.index + 1

    def table(self, round_: int, entries: Sequence[bytes]) -> TableSeen:
        """Return the contributions of a round that is here; ``entries`` are those of ``span``.

        Raises:
            EncodingError, LedgerError: they are not.
        """
        return table_seen(self.span(round_)[0], [opened(entry) for entry in entries], self.manifest, self._course)

    def _verdicts(self, first: int) -> list[tuple[int, Verdict]]:
        """Return the verdicts since the newest round, each with its place; entry ``first`` is the first since then.

        Raises:
            LedgerError: one is on a contribution that waits for none.
        """
        found = [(index, one.said) for index, one in enumerate(self._pending, first) if isinstance(one.said, Verdict)]
        if any(said.contribution not in self.audits.waiting for _, said in found):
            raise LedgerError("a verdict on a contribution that is not audited, or not any more")
        return found

    def _take_round(self, table: TableSeen, commit: bytes, verdicts: list[tuple[int, Verdict]]) -> None:
        said = [one.said for one in self._pending]
        for key in [each.key for each in said if isinstance(each, Admission) and _role(each) == PROVEN]:
            self.audits.reputation.admit(key)
        before = () if self.newest is None else self.newest.contributions
        self.audits.turn(table.said.round, commit, verdicts, table.contributions, before)
        for claim in table.claims:
            if claim.key not in self.peers:
                self.peers[claim.key] = PeerSeen(claim.key, peer_name(claim.key))
            self.peers[claim.key].take(claim)
        self._note_paid()
        self.rounds.append(table)
        self.newest = table

    def _note_paid(self) -> None:
        for paid in self.audits.reputation.paid_now if self.manifest.is_audited else ():
            for key, amount in paid.shares.items():
                self.peers[key].paid(paid.round, amount)


def _role(admission: Admission) -> str:
    return unpack(Invitation, admission.invitation.payload, max_bytes=MAX_ADMISSION_BYTES).role
