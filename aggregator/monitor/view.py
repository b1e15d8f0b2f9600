"""What a log adds up to, as people want to see it: rounds, peers, their credit, audits. A pure fold over its entries, each looked at once.

In a run without audits it checks no signature and no rule: the aggregator did, before it committed. Where contributions are audited, who is
paid what follows from the whole log: a ledger follows it (``aggregator.monitor.audits``). It hashes the entries itself: their root can be
compared with the one that the log signs for.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from manta_swarm.aggregator.monitor.audits import AuditTotals
from manta_swarm.aggregator.monitor.tables import ClaimSeen, ContributionSeen, OpenedEntry, RoundColumns, TableSeen, opened, table_seen
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import EMPTY_ROOT, Frontier, leaf_hash
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.reputation import PayableWork, Reputation
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Settlement

KEPT_CLAIMS = 64  # of each peer, the newest


@dataclass(slots=True)
class PeerSeen:
    """A key that has a claim in a table."""

    key: bytes
    name: str
    claims: int = 0
    microbatches: int = 0
    samples: int = 0
    first_round: int = 0
    newest: deque[ClaimSeen] = field(default_factory=lambda: deque(maxlen=KEPT_CLAIMS))

    @property
    def last(self) -> ClaimSeen:
        """The key's newest claim."""
        return self.newest[-1]

    @property
    def last_round(self) -> int:
        """The newest round that has a claim of the key."""
        return self.last.round

    def take(self, claim: ClaimSeen) -> None:
        """Add one more claim."""
        self.claims += 1
        self.microbatches += claim.microbatches
        self.samples += claim.samples
        self.first_round = self.first_round or claim.round
        self.newest.append(claim)

    def paid(self, round_: int, amount: int) -> None:
        """A round was paid: to this key so much for its claim, which stands in one contribution that is paid."""
        for place, claim in enumerate(self.newest):
            if claim.round == round_:
                self.newest[place] = replace(claim, credit=amount if claim.weight else 0)


class View:
    """What the log's entries add up to so far."""

    def __init__(self, signed: SignedManifest, training_spec: TrainingSpec) -> None:
        """Have none yet."""
        self.manifest = signed.open()
        self.rounds = RoundColumns()
        self.peers: dict[bytes, PeerSeen] = {}
        self.newest: TableSeen | None = None  # the newest round's
        self.audits = AuditTotals(signed, training_spec)
        self.folded = (0, EMPTY_ROOT)  # the entries up to the newest round's own, or to the settlement: how many, and their root
        self._training_spec = training_spec
        self._frontier = Frontier()
        self._pending: list[OpenedEntry] = []  # after the newest round entry

    def recall(self, frontier: Frontier, audits: AuditTotals, rounds: RoundColumns, peers: dict[bytes, "PeerSeen"]) -> None:
        """Take, in place of the entries of ``frontier``, what they add up to; the last of them is a round's, or the settlement."""
        self._frontier, self.audits, self.rounds, self.peers = frontier, audits, rounds, peers
        self.folded = (frontier.size, frontier.root())

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
        """Whether the newest round is the manifest's last one."""
        return self.round >= self.manifest.num_rounds

    @property
    def is_settled(self) -> bool:
        """Whether all that the run pays is paid."""
        return self.settlement is not None if self.manifest.is_audited else self.is_finished

    @property
    def settlement(self) -> int | None:
        """The place of the settlement's entry; None: it is not there."""
        return self.audits.settlement

    @property
    def reputation(self) -> Reputation:
        """Who is proven, what was found out, and what everybody has. To be read only."""
        return self.audits.reputation

    @property
    def pool_paid(self) -> int:
        """What was paid to everybody."""
        return sum(self.reputation.earned.values())

    def credit_of(self, claim: ClaimSeen) -> int | None:
        """Return what a claim was paid, or would be if nothing more were found; None: it is too old to say."""
        if claim.credit is not None:
            return claim.credit
        newest = self.peers[claim.key].newest if claim.key in self.peers else ()
        known = next((one for one in newest if (one.round, one.index) == (claim.round, claim.index)), None)
        if claim.round in self.reputation.pending:
            return self.reputation.expected(claim.round).get(claim.key, 0) if known is None or known.weight else 0
        return None if known is None else known.credit or 0

    def root(self) -> bytes:
        """Return the root over the entries taken, hashed here."""
        return self._frontier.root()

    def take(self, entries: Sequence[bytes]) -> None:
        """Take the next entries.

        Raises:
            EncodingError, LedgerError: one is none of a log's; what was taken before it stays, and it may come again.
        """
        ledger = self.audits.ledger
        for entry in entries:
            if ledger is None:
                self._take(entry, opened(entry), ())
            else:
                listed = self.audits.follow(entry)
                self._take(entry, opened(entry, ledger.verified), listed)

    def _take(self, entry: bytes, one: OpenedEntry, listed: Sequence[Listed]) -> None:
        if isinstance(one.said, Round):
            first = self.size - len(self._pending)
            self._take_round(
                table_seen(first, [*self._pending, one], self.manifest, self._training_spec, listed)
            )  # nothing is refused any more
        elif isinstance(one.said, Settlement):
            self._note_paid()
        else:
            self._pending.append(one)
        self._frontier.append(leaf_hash(entry))
        if isinstance(one.said, Round | Settlement):
            self._pending = []
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
        return table_seen(self.span(round_)[0], [opened(entry) for entry in entries], self.manifest, self._training_spec)

    def _take_round(self, table: TableSeen) -> None:
        if not self.manifest.is_audited:
            self.audits.paid_at_once(table.said.round, list(map(_work, table.contributions)))
        for claim in table.claims:
            if claim.key not in self.peers:
                self.peers[claim.key] = PeerSeen(claim.key, peer_name(claim.key))
            self.peers[claim.key].take(claim)
        self._note_paid()
        self.rounds.append(table)
        self.newest = table

    def _note_paid(self) -> None:
        for paid in self.reputation.paid_now if self.manifest.is_audited else ():
            for key, amount in paid.shares.items():
                self.peers[key].paid(paid.round, amount)


def _work(one: ContributionSeen) -> PayableWork:
    """Return what the pay goes by where nothing is audited."""
    return PayableWork(
        contribution=one.digest,
        keys=tuple(claim.key for claim in one.claims),
        payouts=tuple(claim.payout for claim in one.claims),
        weights=tuple(claim.weight for claim in one.claims),
        samples=one.samples,
        proven=(True,) * len(one.claims),
    )
