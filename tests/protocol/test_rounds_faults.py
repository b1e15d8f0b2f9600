"""The round's state machine under chance: a swarm in memory, with real keys, signatures and ledger, and an abstract gradient.

A lot is a number of its own, a mean and a state are digests of what they came from. Messages are lost, doubled, late and out of
order; peers crash and return, from an older snapshot or without their lots; groups split and overlap; the log goes away; one peer
votes for false digests. ``Peer`` does what a real loop does: it keeps lots, copy and state, and obeys the machine's answers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.errors import AttemptFailed, LedgerError, Unreachable
from protocol.ledger import Ledger
from protocol.records import (
    Claim,
    Proposal,
    Round,
    SignedClaim,
    SignedManifest,
    Vote,
    commit_digest,
    open_entry,
    quorum,
    round_entry,
    sign_vote,
)
from protocol.rounds import CommitKind, Phase, RoundMachine, Standing, VoteError
from protocol.signing import Digest, Identity, sha256
from tests.runs import manifest_of

OPERATOR = Identity(sha256(b"operator"))
IDENTITIES = [Identity(sha256(b"peer %d" % i)) for i in range(6)]
STRANGER = Identity(sha256(b"stranger"))
SIGNED_MANIFEST = SignedManifest.sign(
    manifest_of(OPERATOR, name="faults", num_rounds=1_000, max_claim_samples=64, swarm_codec="fp32", costs=(("r32", 10),)), OPERATOR
)
MANIFEST, RUN = SIGNED_MANIFEST.open(), SIGNED_MANIFEST.run
PAST_DEADLINE = (MANIFEST.round_deadline_ms, 0)  # now_ms, opened_ms
ALL = 10**6  # commits


def reduce_lots(table: bytes) -> Digest:
    """The abstract mean of a table's lots."""
    return sha256(b"mean" + table)


def update(state: bytes, mean: bytes) -> Digest:
    """The abstract next state."""
    return sha256(b"state" + state + mean)


class Log:
    """The one log: the real ledger, behind the check that the operator's follower makes of a proposal's digests."""

    def __init__(self) -> None:
        self.ledger = Ledger(SIGNED_MANIFEST)
        self.rounds: list[Round] = []
        self.outage = 0  # how many more requests it will not answer

    def offer(self, proposal: Proposal) -> Round:
        self.be_asked()
        entries = self.ledger.proposal_entries(proposal)
        statement = proposal.statement
        if statement.mean != reduce_lots(statement.table) or statement.state != update(self.ledger.state, statement.mean):
            raise LedgerError("the follower reaches other digests")
        for entry in entries:
            self.ledger.append(entry)
        round_ = open_entry(entries[-1])
        assert isinstance(round_, Round)
        self.rounds.append(round_)
        return round_

    def last(self, count: int) -> list[Round]:
        self.be_asked()
        return self.rounds[-count:]

    def be_asked(self) -> None:
        if self.outage:
            self.outage -= 1
            raise Unreachable("the log does not answer")


@dataclass(frozen=True)
class Lot:
    """One lot, told apart from every other by its number."""

    number: int
    round: int
    trained_on: bytes  # the commit whose state it was trained on
    samples: int


@dataclass
class Store:
    """What of a peer survives a crash."""

    snapshots: list[Standing] = field(default_factory=lambda: [Standing.start(MANIFEST, RUN)])
    claim: SignedClaim | None = None
    lots: list[Lot] = field(default_factory=list)  # the claim's


@dataclass
class History:
    """The test's own record of a peer, over all its lives; the invariants look at it, the peer never does."""

    states: set[bytes] = field(default_factory=set)
    claims: dict[int, set[SignedClaim]] = field(default_factory=lambda: defaultdict(set))  # by round
    begun: set[Lot] = field(default_factory=set)
    claimed: dict[bytes, list[Lot]] = field(default_factory=dict)  # by claim digest
    lost: set[Lot] = field(default_factory=set)


class Peer:
    """A peer's loop. What it keeps in memory dies with a crash, its store does not."""

    def __init__(self, identity: Identity, is_liar: bool) -> None:
        self.identity, self.key = identity, identity.public_key
        self.is_liar = self.lies = is_liar
        self.store, self.history = Store(), History()
        self.start(self.store.snapshots[0], lots_kept=True)

    def start(self, held: Standing | None, *, lots_kept: bool) -> None:
        self.alive = True
        self.machine = RoundMachine(MANIFEST, RUN, self.key, held)
        self.state = held.state if held else None  # stands for the weights themselves
        self.copy: bytes | None = None
        self.lots: list[Lot] = []  # trained, not claimed
        self.in_training: list[Lot] = []
        self.has_lots = lots_kept  # those of the claim in the store
        if self.store.claim is not None:
            self.machine.restore(self.store.claim, lots_kept=lots_kept)

    def crash(self) -> None:
        self.alive = False
        self.history.lost.update(self.lots, self.in_training)

    def begin_lot(self, number: int, samples: int) -> None:
        lot = Lot(number, self.machine.round, self.machine.last_commit, samples)
        self.in_training.append(lot)
        self.history.begun.add(lot)

    def end_lot(self, lot: Lot) -> None:
        self.in_training.remove(lot)
        if self.machine.lot_trained(lot.round, lot.samples):
            assert (self.machine.phase, self.machine.last_commit) == (Phase.TRAINING, lot.trained_on)
            self.lots.append(lot)
        else:
            self.history.lost.add(lot)

    def draft(self) -> SignedClaim:
        root = sha256(b"".join(lot.number.to_bytes(8, "big") for lot in self.lots))
        work = (("r32", sum(lot.samples for lot in self.lots)),)
        claim = Claim(RUN, self.machine.round, self.machine.last_commit, self.key, "home", work, len(self.lots), root)
        return SignedClaim.sign(claim, self.identity)

    def freeze(self, claim: SignedClaim, lots: list[Lot]) -> bool:
        if not self.machine.freeze(claim):
            return False
        opened = claim.open()
        assert all((lot.round, lot.trained_on) == (opened.round, opened.last_commit) for lot in lots)
        self.store.claim, self.store.lots, self.lots, self.has_lots = claim, lots, [], True
        self.history.claims[opened.round].add(claim)
        self.history.claimed[claim.digest] = lots
        return True

    def retrain(self) -> None:
        self.machine.retrained()
        self.has_lots = True

    def agree(self) -> Vote:
        table = self.machine.table
        assert table is not None
        assert self.state is not None
        mean = reduce_lots(table.digest)
        self.copy = update(self.state, mean)
        if self.lies:
            self.copy = sha256(b"false" + self.copy)
        return sign_vote(self.machine.agree(table.attempt, mean, self.copy), self.identity)

    def drop(self, reason: str) -> None:
        attempt = self.machine.attempt
        assert attempt is not None
        assert self.machine.fail(attempt, reason)
        self.copy = None

    def learn(self, round_: Round) -> None:
        """Take a commit that was checked against the log; the test's own books must agree with what the machine says of it."""
        number, counted, lost = round_.statement.round, False, list(self.lots)
        claimed_round = self.store.claim.open().round if self.store.claim is not None else 0
        is_skipped = self.machine.round <= claimed_round < number
        if self.store.claim is not None and claimed_round == number >= self.machine.round:
            counted = self.store.claim.digest in round_.claims
            lost += [] if counted else self.store.lots
        commit = self.machine.committed(round_)
        if commit.kind is CommitKind.STALE:
            return
        assert commit.counted == (None if is_skipped else counted)
        assert commit.samples_lost == sum(lot.samples for lot in lost)
        self.history.lost.update(lost)
        self.lots = []
        if commit.kind is CommitKind.APPLY:
            assert self.copy is not None
            self.hold(self.copy, commit.standing)
        self.copy = None

    def catch_up(self, standing: Standing) -> None:
        """Fetch the state of a missing commit by its digest, or its mean, if that leads there from the state held."""
        held = self.machine.held
        if held is not None and self.state is not None and standing.mean is not None and standing.round == held.round + 1:
            assert update(self.state, standing.mean) == standing.state
        self.machine.caught_up(standing.state)
        self.hold(standing.state, standing)

    def hold(self, state: bytes, standing: Standing) -> None:
        self.state = state
        self.history.states.add(state)
        self.store.snapshots.append(standing)


May: TypeAlias = Callable[[Peer], bool]
Message: TypeAlias = tuple[Peer, Callable[[Peer], None]]  # the addressee, and what happens there


def is_alive(peer: Peer) -> bool:
    return True  # the dead are never asked


def is_training(peer: Peer) -> bool:
    return peer.machine.phase is Phase.TRAINING


def has_lot_in_training(peer: Peer) -> bool:
    return bool(peer.in_training)


def should_close(peer: Peer) -> bool:
    return peer.machine.should_close(0, *PAST_DEADLINE)


def can_join(peer: Peer) -> bool:
    return peer.machine.can_join


def lacks_its_lots(peer: Peer) -> bool:
    return peer.machine.phase is Phase.CLOSED and not peer.machine.can_join


def is_reducing(peer: Peer) -> bool:
    return peer.machine.phase is Phase.REDUCING


def has_voted(peer: Peer) -> bool:
    return peer.machine.phase is Phase.PROPOSED


def has_quorum(peer: Peer) -> bool:
    return peer.machine.proposal is not None


def is_in_attempt(peer: Peer) -> bool:
    return peer.machine.attempt is not None


def is_behind(peer: Peer) -> bool:
    return peer.machine.phase is Phase.BEHIND


class Swarm(RuleBasedStateMachine):
    """The peers, their mail and the log. ``something_happens`` draws one of ``HAPPENINGS``, each a method below.

    They are not rules of their own, for hypothesis leaves out half of the rules in every run, and a swarm that never votes, or whose
    dead never return, shows little. Here a run leaves out only some kinds of *faults*.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.peers: list[Peer] = []
        self.mail: list[Message] = []
        self.proposals: list[Proposal] = []
        self.num_lots = self.num_attempts = 0

    @initialize(size=st.integers(3, 6), liar=st.integers(0, 8), absent=st.sets(st.integers(0, 6)))
    def gather(self, size: int, liar: int, absent: set[int]) -> None:
        self.peers = [Peer(identity, place == liar) for place, identity in enumerate(IDENTITIES[:size])]
        self.happenings = [*PROGRESS, *(fault for place, fault in enumerate(FAULTS) if place not in absent)]

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.happenings))(self, data)

    def those(self, may: May) -> list[Peer]:
        return [peer for peer in self.peers if peer.alive and may(peer)]

    def some(self, data: st.DataObject, may: May) -> Peer | None:
        peers = self.those(may)
        return peers[data.draw(st.integers(0, len(peers) - 1))] if peers else None

    # Lots and claims.

    def begin_lot(self, peer: Peer, samples: int) -> None:
        self.num_lots += 1
        peer.begin_lot(self.num_lots, samples)

    def a_lot_begins(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_training):
            self.begin_lot(peer, data.draw(st.integers(1, 40)))

    def a_lot_ends(self, data: st.DataObject) -> None:
        if peer := self.some(data, has_lot_in_training):
            peer.end_lot(peer.in_training[0])

    def freeze(self, peer: Peer) -> None:
        if should_close(peer):
            assert peer.freeze(peer.draft(), list(peer.lots))

    def a_claim_is_frozen(self, data: st.DataObject) -> None:
        if peer := self.some(data, should_close):
            self.freeze(peer)

    def a_commit_comes_while_a_claim_is_made(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_training):
            self.begin_lot(peer, 8)
            peer.end_lot(peer.in_training[-1])
            claim, lots, is_due, round_ = peer.draft(), list(peer.lots), should_close(peer), peer.machine.round
            self.ask(peer, ALL)
            if is_due or peer.machine.round > round_:
                assert peer.freeze(claim, lots) == (peer.machine.round == round_)

    def a_second_claim_is_tried(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.claim is not None):
            machine = peer.machine
            work = Claim(RUN, machine.round, machine.last_commit, peer.key, "home", (("r32", 1),), 1, sha256(b"other lots"))
            with pytest.raises(RuntimeError):
                machine.freeze(SignedClaim.sign(work, peer.identity))

    def lost_lots_are_trained_anew(self, data: st.DataObject) -> None:
        if peer := self.some(data, lacks_its_lots):
            peer.retrain()

    # Groups and attempts.

    def most_get_ready(self, data: st.DataObject) -> None:
        dawdler = data.draw(st.integers(0, 8))
        for peer in self.those(is_behind):
            peer.catch_up(peer.machine.missing[-1])
        for place, peer in enumerate(self.peers):
            if peer.alive and is_training(peer):
                self.begin_lot(peer, 16 + place)
                peer.end_lot(peer.in_training[-1])
                if place != dawdler:
                    self.freeze(peer)

    def most_form_a_group(self, data: st.DataObject) -> None:
        self.most_get_ready(data)
        if first := self.some(data, can_join):
            left_out = data.draw(st.integers(0, 11))
            self.form([peer for place, peer in enumerate(self.mates(first)) if place != left_out] or [first])

    def mates(self, first: Peer) -> list[Peer]:
        return self.those(lambda peer: can_join(peer) and peer.machine.last_commit == first.machine.last_commit)

    def most_vote(self, data: st.DataObject) -> None:
        if not self.those(is_reducing):
            self.most_form_a_group(data)
        silent = data.draw(st.integers(0, 11))
        for place, peer in enumerate(self.those(is_reducing)):
            if place != silent:
                self.agree(peer)

    def any_group_forms(self, data: st.DataObject) -> None:
        if first := self.some(data, can_join):
            mates = self.mates(first)
            places = data.draw(st.lists(st.integers(0, len(mates) - 1), min_size=1, unique=True))
            self.form([mates[place] for place in places], dead=data.draw(st.integers(0, 11)))

    def form(self, group: Sequence[Peer], dead: int | None = None) -> None:
        """Settle a table of ``group``; the ``dead`` one has sent its part and is not heard of again."""
        self.num_attempts += 1
        claims = [peer.machine.claim for peer in group]
        table = group[0].machine.settled_table(self.num_attempts.to_bytes(16, "big"), [claim for claim in claims if claim])
        assert sorted(table.keys) == sorted(peer.key for peer in group)
        for place, peer in enumerate(group):
            if place != dead:
                assert peer.has_lots
                assert peer.machine.may_start(table, *PAST_DEADLINE)
                peer.machine.settle(table)

    def a_member_agrees(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_reducing):
            self.agree(peer)

    def agree(self, peer: Peer) -> None:
        table = peer.machine.table
        assert table is not None
        vote = peer.agree()
        for other in self.peers:
            if other.key in table.keys and other is not peer:
                self.mail.append((other, lambda to: self.receive(to, table.attempt, vote)))
        self.receive(peer, table.attempt, vote)

    def receive(self, peer: Peer, attempt: bytes, vote: Vote) -> None:
        try:
            proposal = peer.machine.receive_vote(attempt, vote)
        except VoteError:
            assert peer.is_liar or vote.key in [other.key for other in self.peers if other.is_liar]
            return
        if proposal is not None:
            self.offer(peer, proposal)

    def an_attempt_fails(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_in_attempt):
            attempt = peer.machine.attempt
            assert attempt is not None
            assert not peer.machine.fail(sha256(b"an attempt long gone"), "timeout")
            assert peer.machine.attempt == attempt
            peer.drop("timeout")
            with pytest.raises(AttemptFailed):
                peer.machine.agree(attempt, sha256(b""), sha256(b""))

    def all_attempts_time_out(self, data: st.DataObject) -> None:
        for peer in self.those(is_in_attempt):
            if peer.machine.proposal is not None:
                self.offer(peer, peer.machine.proposal)
            if is_in_attempt(peer):
                peer.drop("timeout")

    def a_stranger_votes(self, data: st.DataObject) -> None:
        if peer := self.some(data, has_voted):
            machine = peer.machine
            assert machine.statement is not None
            assert machine.attempt is not None
            before = machine.proposal
            with pytest.raises(VoteError):
                machine.receive_vote(machine.attempt, sign_vote(machine.statement, STRANGER))
            assert machine.proposal == before

    # The log.

    def offer(self, peer: Peer, proposal: Proposal) -> None:
        self.proposals.append(proposal)
        try:
            self.announce(self.log.offer(proposal))
        except Unreachable:
            return
        except LedgerError:  # the log has that round already, or refuses the digests
            self.ask(peer, ALL)
            if is_in_attempt(peer):
                peer.drop("refused by the log")

    def announce(self, round_: Round) -> None:
        self.mail += [(peer, lambda to: to.learn(round_)) for peer in self.peers]

    def an_offer_is_made_again(self, data: st.DataObject) -> None:
        if (peer := self.some(data, has_quorum)) and peer.machine.proposal:
            self.offer(peer, peer.machine.proposal)

    def an_old_offer_reaches_the_log(self, data: st.DataObject) -> None:
        if self.proposals:
            try:
                self.announce(self.log.offer(data.draw(st.sampled_from(self.proposals))))
            except (LedgerError, Unreachable):
                pass

    def the_log_goes_away(self, data: st.DataObject) -> None:
        self.log.outage = data.draw(st.integers(1, 12))

    def ask(self, peer: Peer, count: int) -> None:
        try:
            rounds = self.log.last(count)
        except Unreachable:
            return
        for round_ in rounds:
            peer.learn(round_)

    def a_peer_asks_the_log_for_the_last_commits(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_alive):
            self.ask(peer, data.draw(st.integers(1, 4)))

    def a_peer_fetches_what_it_misses(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_behind):
            peer.catch_up(data.draw(st.sampled_from(peer.machine.missing)))

    # Messages and crashes.

    def a_message_arrives(self, data: st.DataObject) -> None:
        if self.mail:
            self.deliver(self.mail.pop(data.draw(st.integers(0, len(self.mail) - 1))))

    def a_message_is_doubled(self, data: st.DataObject) -> None:
        if self.mail:
            self.mail.append(self.mail[data.draw(st.integers(0, len(self.mail) - 1))])

    def a_message_is_lost(self, data: st.DataObject) -> None:
        if self.mail:
            self.mail.pop(data.draw(st.integers(0, len(self.mail) - 1)))

    def all_messages_arrive(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from([0, -1]))
        while self.mail:
            self.deliver(self.mail.pop(place))

    def deliver(self, message: Message) -> None:
        peer, happens = message
        if peer.alive:
            happens(peer)

    def a_peer_crashes(self, data: st.DataObject) -> None:
        if peer := self.some(data, is_alive):
            peer.crash()

    def a_peer_returns(self, data: st.DataObject) -> None:
        dead = [peer for peer in self.peers if not peer.alive]
        if dead:
            peer = dead[data.draw(st.integers(0, len(dead) - 1))]
            held = data.draw(st.sampled_from([*peer.store.snapshots[::-1], None]))
            peer.start(held, lots_kept=data.draw(st.booleans()))

    # What always holds.

    @invariant()
    def each_round_has_one_commit_upon_the_one_before(self) -> None:
        last = bytes(RUN)
        for number, round_ in enumerate(self.log.rounds, 1):
            assert (round_.statement.round, round_.statement.last_commit) == (number, last)
            last = commit_digest(round_entry(round_))

    @invariant()
    def every_state_ever_held_is_the_first_or_a_committed_one(self) -> None:
        committed = [MANIFEST.initial_state, *(round_.statement.state for round_ in self.log.rounds)]
        for peer in self.peers:
            assert peer.history.states <= set(committed)
            if peer.alive:
                held = peer.machine.held
                assert peer.machine.state == peer.state == (committed[held.round] if held else None)

    @invariant()
    def a_lot_is_counted_once_or_not_at_all_and_never_again_used(self) -> None:
        claimed = {digest: lots for peer in self.peers for digest, lots in peer.history.claimed.items()}
        uses = Counter(lot for lots in claimed.values() for lot in lots)
        counted = Counter(lot for round_ in self.log.rounds for digest in round_.claims for lot in claimed[digest])
        assert all(count == 1 for count in (*uses.values(), *counted.values()))
        assert not set(counted) & {lot for peer in self.peers for lot in peer.history.lost}

    @invariant()
    def a_peer_s_claims_for_a_round_are_the_same_bytes(self) -> None:
        for peer in self.peers:
            assert all(len(claims) == 1 for claims in peer.history.claims.values())

    @invariant()
    def the_machine_knows_how_many_samples_the_peer_has(self) -> None:
        for peer in self.those(is_alive):
            claim = peer.machine.claim
            lots = peer.lots if claim is None else peer.store.lots
            assert claim in (None, peer.store.claim)
            assert peer.machine.samples == sum(lot.samples for lot in lots) or (claim is not None and peer.machine.samples == 0)

    # With the faults over the next round commits.

    def teardown(self) -> None:
        if self.peers:
            self.the_faults_end()
            self.the_next_round_commits()
            self.no_lot_went_astray()

    def the_faults_end(self) -> None:
        self.log.outage = 0
        for peer in self.peers:
            peer.lies = False
            if not peer.alive:
                peer.start(peer.store.snapshots[-1], lots_kept=True)
        while self.mail:
            self.deliver(self.mail.pop(0))
        for peer in self.peers:
            self.ask(peer, ALL)
            if is_in_attempt(peer):
                peer.drop("timeout")
            while peer.machine.missing:
                peer.catch_up(peer.machine.missing[0])
            if lacks_its_lots(peer):
                peer.retrain()
            if is_training(peer):
                self.begin_lot(peer, 16)
                peer.end_lot(peer.in_training[-1])
                self.freeze(peer)

    def the_next_round_commits(self) -> None:
        self.mail.clear()
        done = len(self.log.rounds)
        self.form(self.peers)
        for peer in self.peers[: quorum(len(self.peers))]:
            self.agree(peer)
        while self.mail:
            self.deliver(self.mail.pop(0))
        assert len(self.log.rounds) == done + 1
        assert set(self.log.rounds[-1].claims) == {peer.store.claim.digest for peer in self.peers if peer.store.claim}
        for peer in self.those(is_behind):  # the members whose vote was not needed
            peer.catch_up(peer.machine.missing[-1])
        for peer in self.peers:
            assert (peer.state, peer.machine.phase) == (self.log.ledger.state, Phase.TRAINING)
            assert (peer.machine.round, peer.machine.last_commit) == (done + 2, self.log.ledger.last_commit)

    def no_lot_went_astray(self) -> None:
        """Every lot ever begun was claimed or reported as lost; both, only if the log left its claim out."""
        counted = {digest for round_ in self.log.rounds for digest in round_.claims}
        for peer in self.peers:
            for lot in list(peer.in_training):
                peer.end_lot(lot)
            claimed = {lot for lots in peer.history.claimed.values() for lot in lots}
            left_out = {lot for digest, lots in peer.history.claimed.items() if digest not in counted for lot in lots}
            assert peer.history.begun == claimed | peer.history.lost
            assert claimed & peer.history.lost <= left_out


PROGRESS = (
    *[Swarm.most_vote, Swarm.a_message_arrives, Swarm.all_messages_arrive, Swarm.a_peer_fetches_what_it_misses] * 4,
    *[Swarm.most_get_ready, Swarm.most_form_a_group, Swarm.any_group_forms, Swarm.a_peer_returns] * 2,
    *[Swarm.a_lot_begins, Swarm.a_lot_ends, Swarm.a_commit_comes_while_a_claim_is_made] * 2,
    *[Swarm.a_claim_is_frozen, Swarm.lost_lots_are_trained_anew, Swarm.a_second_claim_is_tried],
    *[Swarm.a_member_agrees, Swarm.an_offer_is_made_again, Swarm.all_attempts_time_out],
    Swarm.a_peer_asks_the_log_for_the_last_commits,
)
FAULTS = (
    Swarm.a_peer_crashes,
    Swarm.an_attempt_fails,
    Swarm.a_message_is_lost,
    Swarm.a_message_is_doubled,
    Swarm.the_log_goes_away,
    Swarm.an_old_offer_reaches_the_log,
    Swarm.a_stranger_votes,
)
TestSwarm = Swarm.TestCase
TestSwarm.settings = settings(max_examples=120, stateful_step_count=60, deadline=None, suppress_health_check=[*HealthCheck])
