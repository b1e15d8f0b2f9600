"""The log's rounds and the peers' under chance, alone and in cohorts.

Headers, bodies, claims, answers and commits are lost, doubled, late and out of order; peers and the log crash, where something becomes
durable too, and return with what was durable; peers name whomever as their founder, who may be away or leave them out; one key cheats with
several contributions on one base, bodies that it copied, claims in several cohorts, residuals out of nothing, and as a founder.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.ledger import KEPT_TABLES
from manta_swarm.protocol.records import Claim, Header, Round, commit_digest, entry_of
from manta_swarm.protocol.rounds import PeerStage
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import sha256
from tests.protocol.simulation import (
    CHEAT,
    IDENTITIES,
    MANIFEST,
    RUN,
    TRAINING_SPEC,
    VERIFIED,
    Answer,
    Log,
    Peer,
    body_of,
    claim_of,
    claims_in,
    listing,
    next_state,
    opened,
)

Message: TypeAlias = tuple[Peer | Log, Callable[[], None]]  # the addressee, and what happens there


class Swarm(RuleBasedStateMachine):
    """The peers, their mail and the log. ``something_happens`` draws one of ``happenings``, each a method below.

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
        self.shown: list[Signed[Claim]] = []  # to the cheat, as a founder
        self.joins: str | None = None  # what the cheat offers to founders
        self.num_checked = 0  # tables that were found to be as they should

    @initialize(size=st.integers(2, 6), steps=st.sampled_from([1, 1, 2]), absent=st.sets(st.integers(0, 6)), cheats=st.booleans())
    def gather(self, size: int, steps: int, absent: set[int], cheats: bool) -> None:
        self.peers = [Peer(identity, steps) for identity in IDENTITIES[:size]]
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
                if peer.machine.may_work_ahead and peer.may_begin_microbatch:
                    peer.begin_microbatch()

    def rounds_go_by_while_one_trains_a_microbatch(self, data: st.DataObject) -> None:
        idle = data.draw(st.integers(0, len(self.peers) - 1))
        if self.peers[idle].alive and self.peers[idle].may_begin_microbatch:
            self.peers[idle].begin_microbatch()
        for _ in range(data.draw(st.integers(1, MAX_AGE + 2))):
            self.all_work_but(idle)
            self.the_log_moves_on(data)
            self.all_messages_arrive(data)

    def rounds_go_by_while_one_fetches_a_state(self, data: st.DataObject) -> None:
        """One at a slow line lacks states for some rounds, and then works on what it reached."""
        place = data.draw(st.integers(0, len(self.peers) - 1))
        slow, missing = self.peers[place], None
        life = slow.life
        for _ in range(data.draw(st.integers(2, MAX_AGE + 1))):
            self.all_work_but(place)
            self.the_log_moves_on(data)
            self.all_messages_arrive(data)
            if missing is None and slow.machine.stage is PeerStage.BEHIND:
                missing = slow.machine.missing
        if missing is not None and slow.alive and slow.life == life:
            slow.fetched(missing, took_long=True)

    def work(self, peer: Peer) -> None:
        """All that a peer can do by itself, up to one contribution: first with its cohort, and if it is asked again, alone too."""
        if peer.machine.stage is PeerStage.BEHIND:
            peer.catch_up(self.log)
        for _ in range(peer.steps):
            if peer.may_begin_microbatch and not peer.machine.may_work_ahead:
                peer.begin_microbatch()
            if peer.microbatch is not None:
                peer.end_microbatch()
        if peer.may_sign:
            peer.sign(peer.draft())
        if peer.machine.stage is PeerStage.SIGNED:
            if self.joins is not None and not peer.has_tried_cohort:
                self.join(peer)
            self.hand_in_with_cohort(peer)
            if peer.has_tried_cohort:
                self.hand_in(peer)
            peer.has_tried_cohort = True

    def a_microbatch_begins(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_begin_microbatch):
            peer.begin_microbatch()

    def a_microbatch_ends(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.microbatch is not None):
            peer.end_microbatch(data.draw(st.integers(0, 5)) > 0)

    def a_contribution_is_signed(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_sign):
            peer.sign(peer.draft())

    def commits_come_while_a_contribution_is_made(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.may_sign):
            draft = peer.draft()
            for round_ in self.log.rounds:
                peer.learn(round_, self.log)
            peer.sign(draft)

    def a_peer_catches_up(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.stage is PeerStage.BEHIND):
            peer.catch_up(self.log)

    def a_state_is_fetched(self, data: st.DataObject) -> None:
        """The state arrives later; commits may come before."""
        if peer := self.some(data, lambda peer: peer.machine.stage is PeerStage.BEHIND):
            life, missing, took_long = peer.life, peer.machine.missing, data.draw(st.booleans())
            assert missing is not None
            self.mail.append((peer, lambda: peer.fetched(missing, took_long=took_long) if peer.life == life else None))

    def a_header_is_sent(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.stage is PeerStage.SIGNED):
            self.hand_in(peer)

    def hand_in(self, peer: Peer) -> None:
        """Hand a peer's work in alone."""
        signed = peer.machine.signed
        assert signed is not None
        assert peer.kept is not None
        assert peer.kept[0] == signed.header
        self.send(peer, *peer.kept)

    def send(self, peer: Peer, header: Header, body: bytes) -> None:
        digest = header.contribution.digest

        def send_body() -> None:
            self.mail.append((self.log, lambda: self.tell(peer, self.log.take_body(digest, body))))

        self.mail.append((self.log, lambda: self.tell(peer, self.log.take_header(header, peer.key), send_body)))

    def tell(self, peer: Peer, answer: Answer, then: Callable[[], None] | None = None) -> None:
        self.mail.append((peer, lambda: self.hears(peer, answer, then)))

    def hears(self, peer: Peer, answer: Answer, then: Callable[[], None] | None) -> None:
        peer.hear(answer, self.log, then)
        left_out = peer.together.get(answer.contribution) if answer.without else None
        if left_out is not None and peer.machine.stage is PeerStage.SIGNED:
            assert peer.key not in answer.without
            if peer.leave_out(opened(left_out[0]).base, answer.without):
                self.hand_in_with_cohort(peer)

    # Cohorts.

    def some_agree_on_a_founder(self, data: st.DataObject) -> None:
        """Or some do, and some on another one: who is named in the claims that are signed next."""
        keys = [peer.key for peer in self.peers] + [CHEAT.public_key] * self.cheats
        for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2)):
            for peer in self.peers:
                if data.draw(st.integers(0, 3)):
                    peer.names = key

    def hand_in_with_cohort(self, peer: Peer) -> None:
        """Member: send the claim to the founder whom it names. Founder: hand in what consents came."""
        founder = VERIFIED.claim(peer.claim).founder
        if founder == CHEAT.public_key:
            self.shown.append(peer.claim)
        for other in self.peers:
            if founder == other.key != peer.key:
                claim = peer.claim
                self.mail.append((other, lambda other=other, claim=claim: other.take_claim(claim)))
        digest = peer.make_together()
        if digest is not None:
            self.send(peer, *peer.together[digest])

    def a_cohort_hands_in(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.stage is PeerStage.SIGNED):
            self.hand_in_with_cohort(peer)

    def a_founder_shows_what_it_handed_in(self, data: st.DataObject) -> None:
        """Show its members what the founder handed in; each of them may bring it."""
        if peer := self.some(data, lambda peer: bool(peer.together)):
            header, body = peer.together[sorted(peer.together)[-1]]
            for other in self.peers:
                if other.key in [claim.key for claim in claims_in(header)] and other is not peer:
                    self.mail.append((other, lambda other=other: other.take_together(header, body)))

    def a_member_brings_what_its_founder_handed_in(self, data: st.DataObject) -> None:
        if peer := self.some(data, lambda peer: peer.machine.stage is PeerStage.SIGNED and bool(peer.together)):
            self.send(peer, *peer.together[data.draw(st.sampled_from(sorted(peer.together)))])

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
            self.tell_inclusion_promises(self.log.sync())

    def tell_inclusion_promises(self, digests: Sequence[bytes]) -> None:
        """Tell inclusion promises to whoever handed these in, and to the members, as their founder would."""
        for digest in digests:
            answer = self.log.inclusion_promise(digest)
            header = self.log.handed[digest].header
            for peer in self.peers:
                if peer.kept is not None and peer.kept[0].claims[0].digest in opened(header).claims:
                    if len(header.claims) > 1:
                        peer.together.setdefault(digest, (header, self.log.handed[digest].body))
                    self.tell(peer, answer)

    def the_log_commits(self, data: st.DataObject) -> None:
        if self.log.alive:
            self.commit()

    def commit(self) -> None:
        if self.log.closed is not None:
            self.tell_inclusion_promises(self.log.sync())  # no table has what is not on the disk
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
        if peer := self.some(data, lambda peer: peer.may_sign):
            peer.sign(peer.draft(), may_store=False)

    def a_peer_returns(self, data: st.DataObject) -> None:
        dead = [peer for peer in self.peers if not peer.alive]
        if dead:
            peer = dead[data.draw(st.integers(0, len(dead) - 1))]
            peer.start(data.draw(st.sampled_from([*peer.snapshots[::-1], None])))

    def the_log_crashes(self, data: st.DataObject) -> None:
        if self.log.alive:
            self.log.crash()

    def the_log_crashes_between_a_sync_and_its_inclusion_promises(self, data: st.DataObject) -> None:
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
        base = self.log.commit_ref(max(0, rounds - data.draw(st.sampled_from([0, 0, 0, 1, 1, *range(2, MAX_AGE + 2)]))))
        shown = [*[body_of(b"cheat %d" % self.num_cheats)] * 9, *(kept.body for kept in self.log.stored[:-9:-1])]
        body = data.draw(st.sampled_from(shown))
        header = listing([claim_of(CHEAT, base, data.draw(st.integers(1, 9)))], CHEAT, body)
        self.cheat(header, body if data.draw(st.integers(0, 5)) else b"another", may_bring=bool(data.draw(st.integers(0, 2))))

    def cheat(self, header: Header, body: bytes, *, may_bring: bool) -> None:
        self.log.take_header(header, CHEAT.public_key)
        self.cheated.append((header, body))
        if may_bring:
            self.log.take_body(header.contribution.digest, body)

    def a_cheat_s_body_comes(self, data: st.DataObject) -> None:
        if self.log.alive and self.cheated:
            header, body = self.cheated[-data.draw(st.integers(1, min(3, len(self.cheated))))]
            self.log.take_body(header.contribution.digest, body)

    def a_cheat_joins_cohorts(self, data: st.DataObject) -> None:
        """Have a cheat join every founder's cohort from now on, with work that may be in the log already, or with too much of it."""
        self.joins = data.draw(st.sampled_from([None, "as it should", "too much", "alone too"]))

    def join(self, peer: Peer) -> None:
        base = self.log.commit_ref(VERIFIED.claim(peer.claim).round - 1)
        microbatches = 1_000 if self.joins == "too much" else 1
        claim = claim_of(CHEAT, base, microbatches, founder=peer.key, residual=sha256(b"nothing"))
        peer.take_claim(claim)
        if self.joins == "alone too" and self.log.alive:
            self.num_cheats += 1
            body = body_of(b"cheat %d" % self.num_cheats)
            self.cheat(listing([claim], CHEAT, body), body, may_bring=self.num_cheats % 2 == 0)

    def a_cheat_founds_a_cohort(self, data: st.DataObject) -> None:
        """Have a cheat hand in for those who named it, and leave some out; it may bring no body, or another one, and tells nobody."""
        if not self.log.alive or not self.shown:
            return
        self.num_cheats += 1
        base = VERIFIED.claim(self.shown[-1]).base
        claims = {VERIFIED.claim(signed).key: signed for signed in self.shown if VERIFIED.claim(signed).base == base}
        listed = [claims[key] for key in sorted(claims) if data.draw(st.integers(0, 4))]
        commit_ref = self.log.commit_ref(VERIFIED.claim(self.shown[-1]).round - 1)
        body = body_of(b"cheat %d" % self.num_cheats)
        header = listing([*listed, claim_of(CHEAT, commit_ref, 1)], CHEAT, body)
        self.cheat(header, body if data.draw(st.booleans()) else b"another", may_bring=data.draw(st.booleans()))

    # What always holds.

    @invariant()
    def each_round_has_one_commit_upon_the_one_before(self) -> None:
        last, state = bytes(RUN), MANIFEST.initial_state
        for number, round_ in enumerate(self.log.rounds, 1):
            assert (round_.round, round_.base, round_.state) == (number, last, next_state(state, round_.weights))
            last, state = commit_digest(entry_of(round_)), round_.state

    @invariant()
    def tables_are_as_they_should(self) -> None:
        """Check the tables once for each new one, as what is in the log does not change."""
        if len(self.log.tables) > self.num_checked:
            self.a_key_s_work_on_a_base_is_in_the_log_once_and_a_key_in_a_table()
            self.every_claim_of_what_has_an_inclusion_promise_is_in_the_table_that_the_inclusion_promise_names()
            self.honest_residuals_follow_each_other()
            self.num_checked = len(self.log.tables)

    def a_key_s_work_on_a_base_is_in_the_log_once_and_a_key_in_a_table(self) -> None:
        tables = [[claim for header in table.values() for claim in claims_in(header)] for table in self.log.tables]
        assert all(count == 1 for count in Counter((claim.key, claim.base) for table in tables for claim in table).values())
        assert all(count == 1 for table in tables for count in Counter(claim.key for claim in table).values())

    def every_claim_of_what_has_an_inclusion_promise_is_in_the_table_that_the_inclusion_promise_names(self) -> None:
        for contribution, rounds in self.log.record.inclusion_promises.items():
            (round_,) = rounds
            header = self.log.record.headers[contribution]
            if not self.num_checked < round_ <= len(self.log.tables):
                continue
            table = self.log.tables[round_ - 1]
            assert contribution in table or len(header.claims) == 1
            listed = {signed.digest: claim for one in table.values() for signed, claim in zip(one.claims, claims_in(one), strict=True)}
            for signed, claim in zip(header.claims, claims_in(header), strict=True):
                is_kept = len(self.log.tables) - round_ < KEPT_TABLES
                assert self.log.ledger.claim_listed(claim.key, claim.round) == (round_ if is_kept else None)
                # Who signs two claims on one base has one of them there.
                assert signed.digest in listed or claim.key == CHEAT.public_key
                assert (claim.key, claim.base) in [(one.key, one.base) for one in listed.values()]

    def honest_residuals_follow_each_other(self) -> None:
        left: dict[bytes, bytes] = {}
        for number, table in enumerate(self.log.tables, 1):
            for header in table.values():
                for claim in claims_in(header):
                    assert claim.key == CHEAT.public_key or claim.residual in (b"", left.get(claim.key))
            left |= {claim.key: opened(header).residual for header in table.values() for claim in claims_in(header)}
            if TRAINING_SPEC.sorts_after(number):
                left = {}

    @invariant()
    def every_state_ever_held_is_the_first_or_a_committed_one(self) -> None:
        committed = {MANIFEST.initial_state, *(round_.state for round_ in self.log.rounds)}
        for peer in self.peers:
            assert peer.history.states <= committed
            if peer.alive:
                held = peer.machine.held
                assert (held.state if held else None) == peer.state
                assert peer.machine.samples == MANIFEST.microbatch_samples * len(peer.microbatches)

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
                keys = {claim.key for header in table.values() for claim in claims_in(header)}
                assert {peer.key for peer in self.peers} <= keys <= {CHEAT.public_key, *(peer.key for peer in self.peers)}
            for peer in self.peers:
                assert (peer.machine.stage, peer.state) == (PeerStage.WORKING, self.log.ledger.state)
            self.each_round_has_one_commit_upon_the_one_before()
            self.tables_are_as_they_should()
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
            if peer.machine.stage is PeerStage.BEHIND:
                peer.catch_up(self.log)

    def the_log_works(self) -> None:
        while self.mail or self.log.checking:
            while self.mail:
                self.deliver(self.mail.pop(0))
            while self.log.checking:
                self.log.check(0)
            self.tell_inclusion_promises(self.log.sync())
        self.log.tick()
        self.commit()


PROGRESS = (
    *[Swarm.most_work, Swarm.the_log_moves_on, Swarm.the_log_returns] * 5,
    *[Swarm.more_comes_between_the_close_and_the_commit, Swarm.a_peer_returns] * 4,
    *[Swarm.a_microbatch_begins, Swarm.a_message_arrives, Swarm.a_check_is_over, Swarm.the_log_commits] * 3,
    *[Swarm.all_messages_arrive, Swarm.the_log_looks, Swarm.a_sync_is_over, Swarm.rounds_go_by_while_one_trains_a_microbatch] * 2,
    *[Swarm.rounds_go_by_while_one_fetches_a_state] * 2,
    *[Swarm.a_header_is_sent, Swarm.a_microbatch_ends, Swarm.a_contribution_is_signed, Swarm.a_peer_asks_where_the_run_stands] * 2,
    *[Swarm.some_agree_on_a_founder, Swarm.a_cohort_hands_in] * 3,
    *[Swarm.a_founder_shows_what_it_handed_in, Swarm.a_member_brings_what_its_founder_handed_in],
    *[Swarm.a_state_is_fetched, Swarm.a_peer_catches_up, Swarm.commits_come_while_a_contribution_is_made, Swarm.time_passes],
)
FAULTS = (
    Swarm.a_message_is_lost,
    Swarm.a_message_is_doubled,
    Swarm.a_peer_crashes,
    Swarm.a_peer_crashes_before_its_contribution_is_stored,
    Swarm.the_log_crashes,
    Swarm.the_log_crashes_between_a_sync_and_its_inclusion_promises,
    Swarm.the_log_crashes_between_a_commit_and_its_news,
)
CHEATS = (Swarm.a_cheat_hands_in, Swarm.a_cheat_s_body_comes, Swarm.a_cheat_joins_cohorts, Swarm.a_cheat_founds_a_cohort) * 2
TestSwarm = Swarm.TestCase
TestSwarm.settings = settings(max_examples=80, stateful_step_count=60, suppress_health_check=[*HealthCheck])
