"""The log's rounds and the peers' under chance: real keys, signatures and ledger, in memory, and an abstract gradient.

A lot is a number of its own, a body and a state are digests of what they came from. Headers, bodies, answers and commits are lost, doubled,
late and out of order; peers and the log crash, where something becomes durable too, and return with what was durable; one key cheats with
several contributions on one base and with bodies that it copied. ``Peer`` and ``Log`` do what the real programs do, and no more.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.closing import Closing, NotTaken
from protocol.errors import LedgerError
from protocol.exchange import MAX_AGE
from protocol.ledger import Ledger, entries_of
from protocol.records import (
    Claim,
    Contribution,
    Header,
    Round,
    SignedClaim,
    SignedContribution,
    SignedManifest,
    Ticket,
    commit_digest,
    entry_of,
)
from protocol.rounds import Phase, RoundMachine, Standing
from protocol.signing import Digest, Identity, sha256
from protocol.table import table_root
from protocol.verified import Verified
from tests.runs import FixedCourse, manifest_of

OPERATOR = Identity(sha256(b"operator"))
IDENTITIES = [Identity(sha256(b"peer %d" % i)) for i in range(6)]
CHEAT = Identity(sha256(b"cheat"))
SIGNED_MANIFEST = SignedManifest.sign(manifest_of(OPERATOR, num_rounds=1_000), OPERATOR)
MANIFEST, RUN = SIGNED_MANIFEST.open(), SIGNED_MANIFEST.run
COURSE = FixedCourse(sorts=frozenset(range(9, 1_000, 10)))
VERIFIED = Verified()


def opened(header: Header) -> Contribution:
    """The contribution of a header, its signature checked once."""
    return VERIFIED.contribution(header.contribution)


def next_state(state: bytes, table: bytes) -> Digest:
    """The abstract state after a round."""
    return sha256(state + table)


def body_of(work: bytes) -> bytes:
    """The abstract body that comes of some work."""
    return b"body" + work


def header_of(identity: Identity, base: Standing, lots: int, body: bytes) -> Header:
    """The header of some lots on ``base``."""
    root, key = sha256(b"lots" + body), identity.public_key
    claim = Claim(RUN, base.round + 1, base.commit, key, key, "home", 1, (lots, 0), root, root, b"", 10)
    signed = SignedClaim.sign(claim, identity)
    contribution = Contribution(RUN, base.round + 1, base.commit, key, (signed.digest,), sha256(body), (b"",))
    return Header(SignedContribution.sign(contribution, identity), (signed,))


@dataclass
class Answer:
    """What the log says to a header or a body."""

    contribution: bytes
    ticket: Ticket | None = None
    wants_body: bool = False
    is_listed: bool = False
    refused: str = ""  # for good; all else may be tried again


@dataclass
class Kept:
    """A contribution as the log stores it."""

    round: int
    header: Header
    body: bytes


@dataclass
class Books:
    """The test's own record of what the log did over all its lives; the log never looks at it."""

    tickets: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))  # contribution -> rounds
    told: set[bytes] = field(default_factory=set)  # commits that peers may have heard of


class Log:
    """Intake and commits of the one log. What it keeps in memory dies with a crash; ``entries``, ``rounds`` and ``stored`` do not."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.rounds: list[Round] = []
        self.tables: list[dict[bytes, Header]] = []  # by contribution
        self.stored: list[Kept] = []
        self.books = Books()
        self.now = 1_000
        self.start()

    def start(self) -> None:
        self.alive = True
        self.ledger = Ledger(SIGNED_MANIFEST, COURSE, VERIFIED)
        for entry in self.entries:
            self.ledger.append(entry)
        self.closing = Closing(MANIFEST.exchange.max_rows)
        self.handed: dict[bytes, Kept] = {}  # with its body once that came
        self.checking: list[bytes] = []
        self.unsynced: list[bytes] = []
        self.closed: tuple[bytes, ...] | None = None
        self.open()
        for kept in self.stored:
            if kept.round > self.ledger.round:
                digest = kept.header.contribution.digest
                self.handed[digest] = kept
                self.closing.restore(opened(kept.header).founder, digest, kept.round, self.now)

    def crash(self) -> None:
        self.alive = False

    def open(self) -> None:
        round_ = self.ledger.round + 1
        self.closing.open(round_, self.ledger.open_ms, self.ledger.last_founders, self.now if round_ > 1 else None)

    def take_header(self, header: Header) -> Answer:
        digest = header.contribution.digest
        if any(digest in table for table in self.tables):
            return Answer(digest, is_listed=True)
        round_ = self.closing.round_for_header(digest, self.now)
        try:
            listed = self.ledger.listed(header, round_)
            self.check_body_is_new(listed.row.body, digest)
        except LedgerError as error:
            return Answer(digest, refused=str(error))
        try:
            assert self.closing.header(listed.row.founder, digest, self.now) == round_  # for which it was checked
        except NotTaken:
            return Answer(digest)
        if self.closing.is_good(digest) and digest not in self.unsynced:
            return self.ticket(digest)
        if digest not in self.handed or not self.handed[digest].body:
            self.handed[digest] = Kept(round_, header, b"")
        return Answer(digest, wants_body=True)

    def check_body_is_new(self, body: bytes, digest: bytes) -> None:
        for other, kept in self.handed.items():
            if other != digest and self.closing.round_of(other) and opened(kept.header).body == body:
                raise LedgerError("another contribution of the round names this body")

    def take_body(self, digest: bytes, body: bytes) -> Answer:
        kept = self.handed.get(digest)
        if kept is None:
            return Answer(digest)
        try:
            self.closing.arrived(digest, self.now)
        except NotTaken:
            return Answer(digest)
        if not kept.body:
            kept.body = body
            self.checking.append(digest)
        return Answer(digest)  # the ticket follows after the sync

    def check(self, place: int) -> None:
        """A body's check is over."""
        digest = self.checking.pop(place)
        kept = self.handed[digest]
        if sha256(kept.body) == opened(kept.header).body:
            self.closing.good(digest)
            self.unsynced.append(digest)
        else:
            self.closing.bad(digest)
            del self.handed[digest]

    def sync(self) -> list[bytes]:
        """A sync is over: what waited is durable from here on, and has a ticket."""
        synced, self.unsynced = self.unsynced, []
        for digest in synced:
            round_ = self.closing.round_of(digest)
            assert round_ is not None
            self.handed[digest].round = round_
            self.stored.append(self.handed[digest])
        return synced

    def ticket(self, digest: bytes) -> Answer:
        round_ = self.closing.round_of(digest)
        assert round_ is not None
        self.books.tickets[digest].add(round_)
        return Answer(digest, Ticket(RUN, round_, digest))

    def tick(self) -> None:
        closed = self.closing.tick(self.now)
        assert closed is None or self.closed is None
        self.closed = closed or self.closed

    def commit(self) -> Round:
        """The transaction of a closed round; the ledger takes all of it, whatever the contributions are."""
        assert self.closed is not None
        headers = [self.handed[digest].header for digest in self.closed]
        listed = [self.ledger.listed(header, self.ledger.round + 1) for header in headers]
        rows = [one.row for one in listed]
        table, counted, open_ms = table_root(rows), sum(one.counted for one in listed), self.ledger.next_open_ms(listed)
        state, floor = next_state(self.ledger.state, table), self.ledger.floor_at(self.ledger.round)
        round_ = Round(RUN, self.ledger.round + 1, self.ledger.last_commit, table, len(rows), table, state, counted, (), floor, open_ms)
        entries, ledger = [*entries_of(headers), entry_of(round_)], self.ledger.copy()
        for entry in entries:
            ledger.append(entry)
        self.entries += entries
        self.rounds.append(round_)
        self.tables.append(dict(zip(self.closed, headers, strict=True)))
        self.ledger, self.closed = ledger, None
        return round_

    def after_commit(self) -> None:
        self.open()
        for digest in [digest for digest in self.handed if self.closing.round_of(digest) is None]:
            del self.handed[digest]

    def standing(self, round: int) -> Standing:
        return Standing.after(self.rounds[round - 1]) if round else Standing.start(MANIFEST, RUN)


@dataclass
class History:
    """The test's own record of a peer, over all its lives; the peer never looks at it."""

    states: set[bytes] = field(default_factory=set)
    stored: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))  # contributions by the round of their base
    refused: set[bytes] = field(default_factory=set)


class Peer:
    """A peer's loop. What it keeps in memory dies with a crash; ``kept`` and ``snapshots`` do not."""

    def __init__(self, identity: Identity) -> None:
        self.identity, self.key = identity, identity.public_key
        self.kept: tuple[Header, bytes] | None = None  # the contribution, with its body
        self.snapshots = [Standing.start(MANIFEST, RUN)]
        self.history = History()
        self.num_lots = self.life = 0
        self.start(self.snapshots[0])

    def start(self, held: Standing | None) -> None:
        self.alive = True
        self.life += 1
        self.machine = RoundMachine(MANIFEST, RUN, self.key, COURSE, held)
        self.state = held.state if held else None  # stands for the weights themselves
        self.lots: list[int] = []  # trained, not sealed
        self.lot: Standing | None = None  # what the lot under way is trained on
        if self.kept is not None:
            self.machine.restore(self.kept[0])

    def crash(self) -> None:
        self.alive = False

    @property
    def may_begin_lot(self) -> bool:
        machine = self.machine
        may = machine.phase is Phase.WORKING and not machine.is_overdue
        return self.lot is None and (may or machine.may_work_ahead)

    def begin_lot(self) -> None:
        self.lot = self.machine.lot_started()
        assert self.lot.state == self.state
        assert not self.lots or self.lot == self.machine.base

    def end_lot(self, is_done: bool = True) -> None:
        self.lot = None
        self.num_lots += 1
        if self.machine.lot_trained(MANIFEST.lot_samples if is_done else 0):
            self.lots.append(self.num_lots)

    @property
    def may_seal(self) -> bool:
        return self.lot is None and self.machine.phase is Phase.WORKING and bool(self.lots)

    def draft(self) -> tuple[Header, bytes]:
        assert self.machine.base is not None
        body = body_of(self.key + repr(self.lots).encode())
        return header_of(self.identity, self.machine.base, len(self.lots), body), body

    def seal(self, draft: tuple[Header, bytes], *, may_store: bool = True) -> None:
        """Seal a draft; a crash before it is stored loses it."""
        if not self.machine.seal(draft[0]):
            assert not self.lots
            return
        self.lots = []
        if may_store:
            self.kept = draft  # durable from here on
            self.history.stored[opened(draft[0]).round].add(draft[0].contribution.digest)
        else:
            self.crash()

    @property
    def handing_in(self) -> bytes | None:
        sealed = self.machine.sealed
        return sealed.header.contribution.digest if sealed else None

    def hear(self, answer: Answer, then: Callable[[], None] | None = None) -> None:
        """Take the log's answer; ``then`` if it wants the body."""
        if answer.contribution != self.handing_in:
            return  # of something that is settled
        if answer.ticket is not None:
            self.machine.ticketed(answer.ticket)
        elif answer.is_listed:
            self.machine.is_listed()
        elif answer.refused and self.machine.ticket is None:
            self.history.refused.add(answer.contribution)
            assert "commits old" in answer.refused or "another order" in answer.refused
            self.machine.refused(answer.refused)
        if answer.wants_body and then is not None:
            then()

    def learn(self, round_: Round, log: Log) -> None:
        """Take a commit that was checked against the log."""
        samples, ticket, handing_in = self.machine.samples, self.machine.ticket, self.handing_in
        commit = self.machine.committed(round_)
        if not commit.is_news:
            return
        assert self.machine.newest == log.standing(round_.round)
        if commit.promised is not None:
            digest = commit.promised.header.contribution.digest
            assert ticket is not None
            assert (digest, ticket.contribution) == (handing_in, handing_in)
            assert digest in log.tables[ticket.round - 1]
        if ticket is not None:
            assert commit.promised is not None or self.machine.ticket == ticket
            assert commit.samples_lost <= samples
        if not self.machine.samples:
            self.lots = []

    def catch_up(self, log: Log) -> None:
        """Compute the next state, or fetch it where more than a round is missing."""
        held, missing = self.machine.held, self.machine.missing
        assert missing is not None
        state = missing.state
        if held is not None and held.round + 1 == missing.round and self.state is not None:
            state = next_state(self.state, log.rounds[missing.round - 1].table)
        self.hold(state, missing)

    def fetched(self, standing: Standing) -> None:
        """Take a state that was the newest one's when it was asked for."""
        held = self.machine.held
        if held is None or held.round < standing.round:
            self.hold(standing.state, standing)

    def hold(self, state: bytes, standing: Standing) -> None:
        self.machine.caught_up(state)
        self.state = state
        self.snapshots.append(standing)
        self.history.states.add(state)


Message: TypeAlias = tuple[Peer | Log, Callable[[], None]]  # the addressee, and what happens there


class Swarm(RuleBasedStateMachine):
    """The peers, their mail and the log. ``something_happens`` draws one of ``HAPPENINGS``, each a method below.

    They are not rules of their own, for hypothesis leaves out half of the rules in every run, and a swarm whose log never commits shows
    little. Here a run leaves out only some kinds of *faults*.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.peers: list[Peer] = []
        self.mail: list[Message] = []
        self.cheats = False
        self.num_cheats = 0
        self.cheated: list[tuple[Header, bytes]] = []

    @initialize(size=st.integers(2, 6), absent=st.sets(st.integers(0, 6)), cheats=st.booleans())
    def gather(self, size: int, absent: set[int], cheats: bool) -> None:
        self.peers = [Peer(identity) for identity in IDENTITIES[:size]]
        self.cheats = cheats
        faults = [fault for place, fault in enumerate(FAULTS) if place not in absent]
        self.happenings = [*PROGRESS, *faults * 2, *CHEATS * cheats]

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.happenings))(self, data)

    def some(self, data: st.DataObject, may: Callable[[Peer], bool]) -> Peer | None:
        peers = [peer for peer in self.peers if peer.alive and may(peer)]
        return peers[data.draw(st.integers(0, len(peers) - 1))] if peers else None

    # Peers.

    def most_work(self, data: st.DataObject) -> None:
        self.all_work_but(data.draw(st.integers(0, 8)))

    def all_work_but(self, idle: int) -> None:
        for place, peer in enumerate(self.peers):
            if peer.alive and place != idle:
                self.work(peer)
                if peer.machine.may_work_ahead and peer.may_begin_lot:
                    peer.begin_lot()

    def rounds_go_by_while_one_trains_a_lot(self, data: st.DataObject) -> None:
        idle = data.draw(st.integers(0, len(self.peers) - 1))
        if self.peers[idle].alive and self.peers[idle].may_begin_lot:
            self.peers[idle].begin_lot()
        for _ in range(data.draw(st.integers(1, MAX_AGE + 2))):
            self.all_work_but(idle)
            self.the_log_moves_on(data)
            self.all_messages_arrive(data)

    def work(self, peer: Peer) -> None:
        """All that a peer can do by itself, up to one contribution."""
        if peer.machine.phase is Phase.BEHIND:
            peer.catch_up(self.log)
        if peer.may_begin_lot and not peer.machine.may_work_ahead:
            peer.begin_lot()
        if peer.lot is not None:
            peer.end_lot()
        if peer.may_seal:
            peer.seal(peer.draft())
        if peer.machine.phase is Phase.SEALED:
            self.hand_in(peer)

    def a_lot_begins(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_begin_lot):
            peer.begin_lot()

    def a_lot_ends(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.lot is not None):
            peer.end_lot(data.draw(st.integers(0, 5)) > 0)

    def a_contribution_is_sealed(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_seal):
            peer.seal(peer.draft())

    def commits_come_while_a_contribution_is_made(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_seal):
            draft = peer.draft()
            for round_ in self.log.rounds:
                peer.learn(round_, self.log)
            peer.seal(draft)

    def a_peer_catches_up(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.phase is Phase.BEHIND):
            peer.catch_up(self.log)

    def a_state_is_fetched(self, data: st.DataObject) -> None:
        """And commits may come before it is there."""
        if peer := self.some(data, lambda peer: peer.machine.phase is Phase.BEHIND):
            life, missing = peer.life, peer.machine.missing
            assert missing is not None
            self.mail.append((peer, lambda: peer.fetched(missing) if peer.life == life else None))

    def a_header_is_sent(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.phase is Phase.SEALED):
            self.hand_in(peer)

    def hand_in(self, peer: Peer) -> None:
        sealed = peer.machine.sealed
        assert sealed is not None
        assert peer.kept is not None
        header, body = peer.kept
        assert header == sealed.header

        def send_body() -> None:
            digest = header.contribution.digest
            self.mail.append((self.log, lambda: self.tell(peer, self.log.take_body(digest, body))))

        self.mail.append((self.log, lambda: self.tell(peer, self.log.take_header(header), send_body)))

    def tell(self, peer: Peer, answer: Answer, then: Callable[[], None] | None = None) -> None:
        self.mail.append((peer, lambda: peer.hear(answer, then)))

    def a_peer_asks_where_the_run_stands(self, data: st.DataObject) -> None:
        if self.log.alive and self.log.rounds and (peer := self.some(data, lambda _: True)):
            back = data.draw(st.integers(1, len(self.log.rounds)))
            peer.learn(self.log.rounds[-1 if data.draw(st.booleans()) else -back], self.log)

    # The log.

    def time_passes(self, data: st.DataObject) -> None:
        self.log.now += data.draw(st.integers(1, 400))

    def the_log_looks(self, data: st.DataObject) -> None:
        """Time passes until something is due, or nearly."""
        if self.log.alive:
            self.log.now += max(0, (self.log.closing.next_ms(self.log.now) or 0) - data.draw(st.integers(0, 1)))
            self.log.tick()

    def a_check_is_over(self, data: st.DataObject) -> None:
        if self.log.alive and self.log.checking:
            self.log.check(data.draw(st.integers(0, len(self.log.checking) - 1)))

    def a_sync_is_over(self, data: st.DataObject) -> None:
        if self.log.alive:
            self.tell_tickets(self.log.sync())

    def tell_tickets(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            answer = self.log.ticket(digest)
            for peer in self.peers:
                if peer.kept is not None and peer.kept[0].contribution.digest == digest:
                    self.tell(peer, answer)

    def the_log_commits(self, data: st.DataObject) -> None:
        if self.log.alive:
            self.commit()

    def commit(self) -> None:
        if self.log.closed is not None:
            self.tell_tickets(self.log.sync())  # no table has what is not on the disk
            self.announce(self.log.commit())
            self.log.after_commit()

    def announce(self, round_: Round) -> None:
        self.mail += [(peer, lambda peer=peer: peer.learn(round_, self.log)) for peer in self.peers]

    def the_log_moves_on(self, data: st.DataObject) -> None:
        """All messages arrive, and a round is closed and committed if there is anything in it; or nearly so."""
        if self.log.alive:
            left_out = data.draw(st.integers(0, 9))
            self.all_messages_arrive(data)
            while self.log.checking and left_out != 0:
                self.log.check(0)
            self.the_log_looks(data)
            if left_out not in (1, 2):
                self.the_log_commits(data)

    def more_comes_between_the_close_and_the_commit(self, data: st.DataObject) -> None:
        if self.log.alive:
            self.all_messages_arrive(data)
            while self.log.checking:
                self.log.check(0)
            self.the_log_looks(data)
            self.most_work(data)
            if self.cheats:
                self.a_cheat_hands_in(data)
            self.all_messages_arrive(data)
            while self.log.checking:
                self.log.check(0)
            self.a_sync_is_over(data)
            if Swarm.the_log_crashes in self.happenings and not data.draw(st.integers(0, 3)):
                self.log.crash()

    # Messages.

    def a_message_arrives(self, data: st.DataObject) -> None:
        if self.mail:
            self.deliver(self.mail.pop(data.draw(st.integers(0, len(self.mail) - 1))))

    def all_messages_arrive(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from([0, -1]))
        for _ in range(60):
            if self.mail:
                self.deliver(self.mail.pop(place))

    def deliver(self, message: Message) -> None:
        addressee, happens = message
        if addressee.alive:
            happens()

    def a_message_is_lost(self, data: st.DataObject) -> None:
        if self.mail:
            self.mail.pop(data.draw(st.integers(0, len(self.mail) - 1)))

    def a_message_is_doubled(self, data: st.DataObject) -> None:
        if self.mail:
            self.mail.append(self.mail[data.draw(st.integers(0, len(self.mail) - 1))])

    # Crashes.

    def a_peer_crashes(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda _: True):
            peer.crash()

    def a_peer_crashes_before_its_contribution_is_stored(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_seal):
            peer.seal(peer.draft(), may_store=False)

    def a_peer_returns(self, data: st.DataObject) -> None:
        dead = [peer for peer in self.peers if not peer.alive]
        if dead:
            peer = dead[data.draw(st.integers(0, len(dead) - 1))]
            peer.start(data.draw(st.sampled_from([*peer.snapshots[::-1], None])))

    def the_log_crashes(self, data: st.DataObject) -> None:
        if self.log.alive:
            self.log.crash()

    def the_log_crashes_between_a_sync_and_its_tickets(self, data: st.DataObject) -> None:
        if self.log.alive and self.log.unsynced:
            self.log.sync()
            self.log.crash()

    def the_log_crashes_between_a_commit_and_its_news(self, data: st.DataObject) -> None:
        if self.log.alive and self.log.closed is not None:
            self.log.sync()
            self.log.commit()
            self.log.crash()

    def the_log_returns(self, data: st.DataObject) -> None:
        if not self.log.alive:
            self.log.now += data.draw(st.integers(0, 5_000))
            self.log.start()

    # The cheat.

    def a_cheat_hands_in(self, data: st.DataObject) -> None:
        """Something new on any base, with a body of its own, one that it copied, or one that is not what the header says."""
        if not self.log.alive:
            return
        self.num_cheats += 1
        rounds = len(self.log.rounds)
        base = self.log.standing(max(0, rounds - data.draw(st.sampled_from([0, 0, 0, 1, 1, *range(2, MAX_AGE + 2)]))))
        shown = [*[body_of(b"cheat %d" % self.num_cheats)] * 9, *(kept.body for kept in self.log.stored[:-9:-1])]
        body = data.draw(st.sampled_from(shown))
        header = header_of(CHEAT, base, data.draw(st.integers(1, 9)), body)
        self.log.take_header(header)
        self.cheated.append((header, body if data.draw(st.integers(0, 5)) else b"another"))
        if data.draw(st.integers(0, 2)):
            self.log.take_body(header.contribution.digest, body)

    def a_cheat_s_body_comes(self, data: st.DataObject) -> None:
        if self.log.alive and self.cheated:
            header, body = self.cheated[-data.draw(st.integers(1, min(3, len(self.cheated))))]
            self.log.take_body(header.contribution.digest, body)

    # What always holds.

    @invariant()
    def each_round_has_one_commit_upon_the_one_before(self) -> None:
        last, state = bytes(RUN), MANIFEST.initial_state
        for number, round_ in enumerate(self.log.rounds, 1):
            assert (round_.round, round_.base, round_.state) == (number, last, next_state(state, round_.table))
            last, state = commit_digest(entry_of(round_)), round_.state

    @invariant()
    def a_key_s_work_on_a_base_and_a_body_are_in_the_log_once(self) -> None:
        claims = [VERIFIED.claim(claim) for table in self.log.tables for header in table.values() for claim in header.claims]
        bodies = [opened(header).body for table in self.log.tables for header in table.values()]
        assert all(count == 1 for count in Counter((claim.key, claim.base) for claim in claims).values())
        assert all(count == 1 for count in Counter(bodies).values())

    @invariant()
    def what_has_a_ticket_is_in_the_table_that_the_ticket_names(self) -> None:
        for contribution, rounds in self.log.books.tickets.items():
            (round_,) = rounds
            assert round_ > len(self.log.tables) or contribution in self.log.tables[round_ - 1]

    @invariant()
    def every_state_ever_held_is_the_first_or_a_committed_one(self) -> None:
        committed = {MANIFEST.initial_state, *(round_.state for round_ in self.log.rounds)}
        for peer in self.peers:
            assert peer.history.states <= committed
            if peer.alive:
                held = peer.machine.held
                assert (held.state if held else None) == peer.state
                assert peer.machine.samples == MANIFEST.lot_samples * len(peer.lots)

    @invariant()
    def a_peer_makes_one_contribution_on_a_base(self) -> None:
        for peer in self.peers:
            assert all(len(stored - peer.history.refused) <= 1 for stored in peer.history.stored.values())

    # With the faults over, rounds commit with everybody in.

    def teardown(self) -> None:
        if self.peers:
            self.the_faults_end()
            for _ in range(MAX_AGE + 2):
                self.a_fair_step()
            before = len(self.log.rounds)
            for _ in range(3):
                self.a_fair_step()
            assert len(self.log.rounds) == before + 3
            for table in self.log.tables[-3:]:
                founders = [opened(header).founder for header in table.values()]
                assert {peer.key for peer in self.peers} <= set(founders) <= {CHEAT.public_key, *(peer.key for peer in self.peers)}
            for peer in self.peers:
                assert (peer.machine.phase, peer.state) == (Phase.WORKING, self.log.ledger.state)
            self.each_round_has_one_commit_upon_the_one_before()
            self.a_key_s_work_on_a_base_and_a_body_are_in_the_log_once()
            self.what_has_a_ticket_is_in_the_table_that_the_ticket_names()
            self.every_state_ever_held_is_the_first_or_a_committed_one()
            self.a_peer_makes_one_contribution_on_a_base()

    def the_faults_end(self) -> None:
        if not self.log.alive:
            self.log.start()
        for peer in self.peers:
            if not peer.alive:
                peer.start(peer.snapshots[-1])

    def a_fair_step(self) -> None:
        """Everybody does what there is to do, every message arrives, and then time passes until the round is committed."""
        for _ in range(4):
            for peer in self.peers:
                self.work(peer)
            self.the_log_works()
        rounds = len(self.log.rounds)
        for _ in range(3):
            if len(self.log.rounds) == rounds:
                self.log.now += self.log.closing.next_ms(self.log.now) or 0
                self.the_log_works()
        for peer in self.peers:
            for round_ in self.log.rounds[-1:]:
                peer.learn(round_, self.log)
            if peer.machine.phase is Phase.BEHIND:
                peer.catch_up(self.log)

    def the_log_works(self) -> None:
        while self.mail or self.log.checking:
            while self.mail:
                self.deliver(self.mail.pop(0))
            while self.log.checking:
                self.log.check(0)
            self.tell_tickets(self.log.sync())
        self.log.tick()
        self.commit()


PROGRESS = (
    *[Swarm.most_work, Swarm.the_log_moves_on, Swarm.the_log_returns] * 5,
    *[Swarm.more_comes_between_the_close_and_the_commit, Swarm.a_peer_returns] * 4,
    *[Swarm.a_lot_begins, Swarm.a_message_arrives, Swarm.a_check_is_over, Swarm.the_log_commits] * 3,
    *[Swarm.all_messages_arrive, Swarm.the_log_looks, Swarm.a_sync_is_over, Swarm.rounds_go_by_while_one_trains_a_lot] * 2,
    *[Swarm.a_header_is_sent, Swarm.a_lot_ends, Swarm.a_contribution_is_sealed, Swarm.a_peer_asks_where_the_run_stands] * 2,
    *[Swarm.a_state_is_fetched, Swarm.a_peer_catches_up, Swarm.commits_come_while_a_contribution_is_made, Swarm.time_passes],
)
FAULTS = (
    Swarm.a_message_is_lost,
    Swarm.a_message_is_doubled,
    Swarm.a_peer_crashes,
    Swarm.a_peer_crashes_before_its_contribution_is_stored,
    Swarm.the_log_crashes,
    Swarm.the_log_crashes_between_a_sync_and_its_tickets,
    Swarm.the_log_crashes_between_a_commit_and_its_news,
)
CHEATS = (Swarm.a_cheat_hands_in, Swarm.a_cheat_s_body_comes) * 2
TestSwarm = Swarm.TestCase
TestSwarm.settings = settings(max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=[*HealthCheck])
