"""Whole attempts of several peers in one loop: from claims to one proposal, and what loses nothing when it fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import swarm.averager
from protocol.encoding import pack
from protocol.errors import AttemptFailed, EncodingError, Unreachable
from protocol.ledger import Ledger
from protocol.records import Claim, Proposal, SignedClaim, SignedManifest, quorum, sign_vote
from protocol.rounds import Phase, RoundMachine, Standing
from protocol.signing import Identity, PublicKey, sha256
from swarm.allreduce import Part, _Header
from swarm.averager import Averager, Expectation, _AbortMessage, _VoteMessage
from swarm.matchmaking import Group
from swarm.mean import Mean
from swarm.memory import MemoryNetwork
from swarm.rpc import Refused
from tests.swarm.members import MANIFEST, PEERS, claim_of, run, settle, sign

SIGNED = sign()
SIZE = 100
Update = Callable[[Mean], Awaitable[bytes]]
Outcome = tuple[Proposal, Mean] | BaseException


@dataclass
class MemoryGroups:
    """Everybody who looks for a group, as soon as they are ``size``; ``hold`` keeps somebody waiting for the answer."""

    size: int
    waiting: list[tuple[PublicKey, SignedClaim, "asyncio.Future[Group]"]] = field(default_factory=list)
    attempts: list[bytes] = field(default_factory=list)
    tamper: Callable[[Group], Group] = lambda group: group
    hold: dict[PublicKey, asyncio.Event] = field(default_factory=dict)

    async def find(self, key: PublicKey, claim: SignedClaim) -> Group:
        found: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.waiting.append((key, claim, found))
        if len(self.waiting) == self.size:
            attempt = sha256(b"attempt %d" % len(self.attempts))[:20]
            self.attempts.append(attempt)
            group = self.tamper(Group(attempt, tuple((key, claim) for key, claim, _ in self.waiting)))
            for _, _, future in self.waiting:
                future.set_result(group)
            self.waiting.clear()
        group = await found
        if key in self.hold:
            await self.hold[key].wait()
        return group


@dataclass(frozen=True)
class MemoryFinder:
    """One peer's ``GroupFinder``."""

    key: PublicKey
    groups: MemoryGroups

    async def find_group(self, claim: SignedClaim, round_: int, last_commit: bytes, **_: Any) -> Group:
        return await self.groups.find(self.key, claim)


class Peer:
    """An averager with its machine, whose claim is frozen."""

    def __init__(self, swarm_: "Swarm", identity: Identity, cohort: str, samples: int) -> None:
        self.identity, self.key = identity, identity.public_key
        manifest = swarm_.signed.open()
        self.claim = claim_of(identity, swarm_.signed.run, samples, cohort)
        self.machine = RoundMachine(manifest, swarm_.signed.run, self.key, Standing.start(manifest, swarm_.signed.run))
        assert self.machine.lot_trained(1, samples)
        assert self.machine.freeze(self.claim)
        self.vector = torch.randn(SIZE, generator=torch.Generator().manual_seed(len(swarm_.peers)))
        self.copy = self.vector.clone()
        self.refused_claims: set[bytes] = set()
        self.endpoint = swarm_.network.endpoint(self.key)
        finder = MemoryFinder(self.key, swarm_.groups)
        self.averager = Averager(self.endpoint, identity, manifest, self.machine, finder, self._check_claim)

    def _check_claim(self, claim: Claim) -> None:
        if claim.key in self.refused_claims:
            raise EncodingError("an architecture that is not this round's")

    async def update(self, mean: Mean) -> bytes:
        return sha256(b"state" + mean.data)

    async def attempt(self, update: Update | None = None) -> tuple[Proposal, Mean]:
        expectation = Expectation(2, 2, opened_ms=time.time_ns() // 1_000_000, matchmaking_timeout_s=10.0)
        return await self.averager.attempt(self.vector, update or self.update, expectation)


class Swarm:
    """Peers with one network; cohorts by their number."""

    def __init__(self, samples: Sequence[int] = (16, 32, 48, 16), num_cohorts: int = 2, signed: SignedManifest = SIGNED) -> None:
        self.signed = signed
        self.network = MemoryNetwork()
        self.groups = MemoryGroups(len(samples))
        self.peers: list[Peer] = []
        for number, count in enumerate(samples):
            self.peers.append(Peer(self, PEERS[number], f"cohort-{number % num_cohorts}", count))

    async def start(self) -> "Swarm":
        for peer in self.peers:
            await peer.averager.start()
        return self

    async def attempt(self, updates: dict[int, Update] | None = None) -> list[Outcome]:
        return await asyncio.gather(
            *(peer.attempt((updates or {}).get(number)) for number, peer in enumerate(self.peers)), return_exceptions=True
        )

    @property
    def expected(self) -> Tensor:
        weights = [min(peer.claim.open().samples, MANIFEST.max_claim_samples) for peer in self.peers]
        return sum(w * peer.copy.double() for w, peer in zip(weights, self.peers, strict=True)) / sum(weights)  # type: ignore[return-value]

    def check_success(self, outcomes: list[Outcome]) -> Proposal:
        """Check that everybody has the same mean, and that the log would take everybody's proposal."""
        found = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
        assert len(found) == len(self.peers), outcomes
        assert len({mean.data for _, mean in found}) == 1
        assert (found[0][1].values.double() - self.expected).abs().max() < 0.01
        for proposal, mean in found:
            assert Ledger(self.signed).proposal_entries(proposal)
            assert proposal.statement.mean == mean.digest
            assert proposal.statement.state == sha256(b"state" + mean.data)
            assert proposal.statement == found[0][0].statement
        return found[0][0]

    def check_dropped(self, peers: Sequence[Peer] | None = None) -> None:
        """Check that nothing of the attempt is left, and that nothing is lost."""
        for peer in self.peers if peers is None else peers:
            assert peer.vector.numpy().tobytes() == peer.copy.numpy().tobytes()
            assert peer.machine.phase is Phase.CLOSED
            assert peer.machine.claim == peer.claim
            assert peer.averager.members() == ()


def swarm_of(work: Callable[[Swarm], Awaitable[None]], **settings: Any) -> None:
    """Run a test's work with a swarm; nothing may be left running in the loop."""

    async def whole() -> None:
        await work(await Swarm(**settings).start())
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(whole())


@pytest.mark.parametrize(
    ("samples", "num_cohorts"), [((16, 32, 48, 16), 2), ((32,), 1), ((16, 16), 1), ((16, 16), 2), ((16,) * 7, 3), ((16, 80, 300), 2)]
)
def test_an_attempt_ends_in_one_proposal_that_the_log_takes(samples: tuple[int, ...], num_cohorts: int) -> None:
    async def work(swarm_: Swarm) -> None:
        proposal = swarm_.check_success(await swarm_.attempt())
        assert len(proposal.votes) >= quorum(len(samples))
        assert [claim.open().cohort for claim in proposal.claims] == sorted(claim.open().cohort for claim in proposal.claims)
        for peer in swarm_.peers:
            assert peer.machine.phase is Phase.PROPOSED
            assert set(peer.averager.members()) == {mate.key for mate in swarm_.peers}
            assert peer.vector.equal(peer.copy)
            await peer.averager.finish()
            assert peer.averager.members() == ()

    swarm_of(work, samples=samples, num_cohorts=num_cohorts)


@pytest.mark.parametrize("receiver", [0, 3])
def test_lost_parts_drop_the_attempt_whole_and_the_next_one_succeeds_with_the_same_claims(receiver: int) -> None:
    async def work(swarm_: Swarm) -> None:
        away = swarm_.peers[receiver].key
        swarm_.network.lost = lambda _sender, to, method: to == away and method == "part"
        outcomes = await swarm_.attempt()
        assert all(isinstance(outcome, AttemptFailed) for outcome in outcomes), outcomes
        suspects = [outcome.suspects for outcome in outcomes if isinstance(outcome, AttemptFailed)]
        assert {away} in suspects
        assert all(suspected <= {away} for suspected in suspects)
        swarm_.check_dropped()
        swarm_.network.lost = lambda *_: False
        proposal = swarm_.check_success(await swarm_.attempt())
        assert set(proposal.claims) == {peer.claim for peer in swarm_.peers}

    swarm_of(work)


def test_a_member_that_gives_up_is_heard_by_all_at_once() -> None:
    async def work(swarm_: Swarm) -> None:
        async def fail(_mean: Mean) -> bytes:
            raise AttemptFailed("this machine is too slow")

        never = asyncio.Event()

        async def wait(_mean: Mean) -> bytes:
            await never.wait()
            return b""

        outcomes = await swarm_.attempt({0: fail, 1: wait, 2: wait, 3: wait})
        assert "too slow" in str(outcomes[0])
        for outcome in outcomes[1:]:
            assert isinstance(outcome, AttemptFailed)
            assert "a group mate gave up: this machine is too slow" in str(outcome)
        swarm_.check_dropped()
        swarm_.check_success(await swarm_.attempt())

    swarm_of(work)


def test_a_member_that_votes_a_false_digest_is_outvoted() -> None:
    async def work(swarm_: Swarm) -> None:
        async def lie(mean: Mean) -> bytes:
            return sha256(b"another state" + mean.data)

        liar, honest = swarm_.peers[1], [swarm_.peers[number] for number in (0, 2, 3)]
        outcomes = await swarm_.attempt({1: lie})
        for number in (0, 2, 3):
            outcome = outcomes[number]
            assert isinstance(outcome, tuple), outcomes
            proposal, mean = outcome
            assert Ledger(swarm_.signed).proposal_entries(proposal)
            assert proposal.statement.state == sha256(b"state" + mean.data)
            assert {vote.key for vote in proposal.votes} == {peer.key for peer in honest}
            assert liar.claim in proposal.claims
        assert isinstance(outcomes[1], AttemptFailed)
        assert "no quorum" in str(outcomes[1])
        swarm_.check_dropped([liar])
        assert sum(peer.machine.votes_refused["other statement"] for peer in honest) == 3

    swarm_of(work, signed=sign(attempt_timeout_ms=700))


def test_two_that_disagree_reach_no_quorum_and_time_out() -> None:
    async def work(swarm_: Swarm) -> None:
        async def lie(mean: Mean) -> bytes:
            return sha256(b"another state" + mean.data)

        outcomes = await swarm_.attempt({1: lie})
        assert all(isinstance(outcome, AttemptFailed) and not outcome.suspects for outcome in outcomes), outcomes
        swarm_.check_dropped()

    swarm_of(work, samples=(16, 16), signed=sign(attempt_timeout_ms=300))


def test_a_silent_member_is_named_when_the_attempt_times_out() -> None:
    async def work(swarm_: Swarm) -> None:
        silent = swarm_.peers[2]

        async def swallow(_sender: PublicKey, _data: bytes) -> bytes:
            return b""

        for method in ("part", "vote", "abort"):
            await silent.endpoint.serve(method, swallow)
        silent.averager._endpoint = MemoryNetwork().endpoint(silent.key)  # what it sends reaches nobody
        outcomes = await swarm_.attempt()
        assert isinstance(outcomes[0], AttemptFailed)
        assert outcomes[0].suspects == {silent.key}  # its cohort mate
        assert all(isinstance(outcome, AttemptFailed) for outcome in outcomes)
        swarm_.check_dropped()

    swarm_of(work, signed=sign(attempt_timeout_ms=1500))


def test_a_stop_in_the_middle_leaves_nothing_behind() -> None:
    async def work(swarm_: Swarm) -> None:
        reached = asyncio.Event()

        async def wait(_mean: Mean) -> bytes:
            reached.set()
            await asyncio.Event().wait()
            return b""

        attempts = [asyncio.create_task(peer.attempt(wait)) for peer in swarm_.peers]
        await reached.wait()
        for attempt in attempts:
            attempt.cancel()
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        swarm_.check_dropped()
        swarm_.check_success(await swarm_.attempt())

    swarm_of(work)


async def held(swarm_: Swarm, check: Callable[[bytes], Awaitable[None]]) -> None:
    """Run ``check`` while everybody has the mean and nobody has voted; the attempt then succeeds."""
    everybody, go_on = asyncio.Barrier(len(swarm_.peers) + 1), asyncio.Event()

    async def hold(mean: Mean) -> bytes:
        await everybody.wait()
        await go_on.wait()
        return sha256(b"state" + mean.data)

    attempts = asyncio.create_task(swarm_.attempt(dict.fromkeys(range(len(swarm_.peers)), hold)))
    await everybody.wait()
    await check(swarm_.groups.attempts[-1])
    go_on.set()
    swarm_.check_success(await attempts)


def test_parts_votes_and_aborts_of_a_stranger_are_refused() -> None:
    async def work(swarm_: Swarm) -> None:
        stranger = swarm_.network.endpoint(PEERS[7].public_key)
        victim = swarm_.peers[0]

        async def check(attempt: bytes) -> None:
            part = Part(_Header(attempt, 0, (0,), 0), memoryview(bytes(200))).pack()
            vote = pack(_VoteMessage(attempt, bytes(64)))
            abort = pack(_AbortMessage(attempt, "stop it"))
            for method, message in (("part", part), ("vote", vote), ("abort", abort)):
                with pytest.raises(Refused, match="not a member"):
                    await stranger.call(victim.key, method, message, timeout_s=1)

        await held(swarm_, check)

    swarm_of(work)


def test_a_members_malformed_messages_are_refused_and_change_nothing() -> None:
    async def work(swarm_: Swarm) -> None:
        mate, victim = swarm_.peers[1], swarm_.peers[0]

        async def check(attempt: bytes) -> None:
            messages = [
                ("part", b""),
                ("part", Part(_Header(attempt, 0, (0,), 1), memoryview(b"x")).pack()),
                ("part", b"\xff" * 100),
                ("vote", b"garbage"),
                ("vote", pack(_VoteMessage(attempt, bytes(300)))),
                ("abort", b""),
                ("abort", pack(_AbortMessage(attempt, "x" * 2000))),
            ]
            for method, message in messages:
                with pytest.raises(Refused):
                    await mate.endpoint.call(victim.key, method, message, timeout_s=1)

        await held(swarm_, check)

    swarm_of(work)


def test_a_vote_counts_for_its_sender_only() -> None:
    async def work(swarm_: Swarm) -> None:
        async def check(attempt: bytes) -> None:
            # Peer 1 hands in what peer 2 would sign: it is peer 1's vote then, and a false one.
            mate = swarm_.peers[1]
            await mate.endpoint.call(swarm_.peers[0].key, "vote", pack(_VoteMessage(attempt, bytes(64))), timeout_s=1)

        await held(swarm_, check)
        refused = swarm_.peers[0].machine.votes_refused
        assert refused["other statement"] == 1

    swarm_of(work, samples=(16, 16, 16, 16))


def test_messages_that_come_before_the_table_wait_for_it() -> None:
    async def work(swarm_: Swarm) -> None:
        late = swarm_.peers[0]
        swarm_.groups.hold[late.key] = asyncio.Event()
        attempts = asyncio.create_task(swarm_.attempt())
        await settle()
        assert not attempts.done()
        assert all(peer.averager.members() for peer in swarm_.peers[1:])
        swarm_.groups.hold[late.key].set()
        swarm_.check_success(await attempts)

    swarm_of(work)


def test_an_abort_that_comes_before_the_table_ends_the_attempt() -> None:
    async def work(swarm_: Swarm) -> None:
        late = swarm_.peers[0]
        swarm_.groups.hold[late.key] = asyncio.Event()
        swarm_.network.lost = lambda sender, _to, method: sender == swarm_.peers[3].key and method == "part"
        attempts = asyncio.create_task(swarm_.attempt())
        await settle()
        swarm_.groups.hold[late.key].set()
        outcomes = await attempts
        assert all(isinstance(outcome, AttemptFailed) for outcome in outcomes), outcomes
        swarm_.check_dropped()
        swarm_.network.lost = lambda *_: False
        swarm_.check_success(await swarm_.attempt())

    swarm_of(work)


def test_messages_for_an_attempt_that_never_comes_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm.averager, "_EARLY_WAIT_S", 0.01)

    async def work(swarm_: Swarm) -> None:
        mate, victim = swarm_.peers[1], swarm_.peers[0]
        with pytest.raises(Refused, match="unknown here"):
            await mate.endpoint.call(victim.key, "abort", pack(_AbortMessage(b"x" * 20, "")), timeout_s=1)

    swarm_of(work)


def test_one_sender_can_leave_only_so_many_messages_for_attempts_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(swarm_: Swarm) -> None:
        victim = swarm_.peers[0]
        stranger = swarm_.network.endpoint(PEERS[7].public_key)
        waiting = [
            asyncio.create_task(stranger.call(victim.key, "abort", pack(_AbortMessage(b"%20d" % i, "")), timeout_s=1)) for i in range(200)
        ]
        await settle()
        refused = [task for task in waiting if task.done()]
        assert len(waiting) - len(refused) <= 64
        for task in refused:
            with pytest.raises(Refused, match="too many"):
                task.result()
        swarm_.check_success(await swarm_.attempt())  # the others' early messages still find room
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    swarm_of(work)


def test_messages_for_an_attempt_that_is_over_are_refused_at_once() -> None:
    async def work(swarm_: Swarm) -> None:
        swarm_.check_success(await swarm_.attempt())
        victim = swarm_.peers[0]
        await victim.averager.finish()
        vote = pack(_VoteMessage(swarm_.groups.attempts[-1], bytes(64)))
        with pytest.raises(Refused, match="over here"):
            await swarm_.peers[1].endpoint.call(victim.key, "vote", vote, timeout_s=1)

    swarm_of(work)


def without_last(group: Group) -> Group:
    return Group(group.attempt, group.members[:-1])


def with_anothers_claim(group: Group) -> Group:
    (first, claim), (second, _), *rest = group.members
    return Group(group.attempt, ((first, claim), (second, claim), *rest))


def with_a_claim_of_somebody_outside(group: Group) -> Group:
    (first, _), *rest = group.members
    return Group(group.attempt, ((first, claim_of(PEERS[6], SIGNED.run)), *rest))


def with_a_claim_of_another_round(group: Group) -> Group:
    return Group(group.attempt, (*group.members[1:], (PEERS[5].public_key, claim_of(PEERS[5], SIGNED.run, round_=2))))


def with_a_forged_claim(group: Group) -> Group:
    (key, claim), *rest = group.members
    return Group(group.attempt, ((key, SignedClaim(claim.payload, bytes(64))), *rest))


def with_a_short_id(group: Group) -> Group:
    return Group(b"short", group.members)


@pytest.mark.parametrize(
    "tamper",
    [with_anothers_claim, with_a_claim_of_somebody_outside, with_a_claim_of_another_round, with_a_forged_claim, with_a_short_id],
    ids=lambda f: f.__name__,
)
def test_a_leaders_false_table_is_refused_by_every_member(tamper: Callable[[Group], Group]) -> None:
    async def work(swarm_: Swarm) -> None:
        swarm_.groups.tamper = tamper
        outcomes = await swarm_.attempt()
        assert all(isinstance(outcome, AttemptFailed) and "refused" in str(outcome) for outcome in outcomes), outcomes
        swarm_.check_dropped()
        swarm_.groups.tamper = lambda group: group
        swarm_.check_success(await swarm_.attempt())

    swarm_of(work)


def test_who_is_not_at_the_leaders_table_takes_no_part() -> None:
    async def work(swarm_: Swarm) -> None:
        swarm_.groups.tamper = without_last
        outcomes = await swarm_.attempt()
        assert [isinstance(outcome, tuple) for outcome in outcomes] == [True, True, True, False]
        assert isinstance(outcomes[3], AttemptFailed)
        swarm_.check_dropped([swarm_.peers[3]])

    swarm_of(work)


def test_a_claim_that_the_callers_rules_refuse_makes_no_table() -> None:
    async def work(swarm_: Swarm) -> None:
        for peer in swarm_.peers:
            peer.refused_claims = {swarm_.peers[2].key}
        outcomes = await swarm_.attempt()
        assert all("not this round's" in str(outcome) for outcome in outcomes)
        swarm_.check_dropped()

    swarm_of(work)


def test_a_table_with_too_few_samples_does_not_start() -> None:
    async def work(swarm_: Swarm) -> None:
        outcomes = await swarm_.attempt()
        assert all("too few to start" in str(outcome) for outcome in outcomes)
        swarm_.check_dropped()

    swarm_of(work, samples=(16, 15))


def test_lost_votes_do_not_matter_while_there_is_a_quorum() -> None:
    async def work(swarm_: Swarm) -> None:
        mute = swarm_.peers[2].key
        swarm_.network.lost = lambda sender, _to, method: sender == mute and method == "vote"
        proposal = swarm_.check_success(await swarm_.attempt())
        assert len(proposal.votes) == 3

    swarm_of(work)


def test_a_proposal_can_be_offered_again_and_grows_with_late_votes() -> None:
    async def work(swarm_: Swarm) -> None:
        slow, go_on = swarm_.peers[2], asyncio.Event()

        async def late(mean: Mean) -> bytes:
            await go_on.wait()
            return sha256(b"state" + mean.data)

        attempts = [asyncio.create_task(peer.attempt(late if peer is slow else None)) for peer in swarm_.peers]
        await settle()
        first = swarm_.peers[0].machine.proposal
        assert first is not None
        assert len(first.votes) == 3
        go_on.set()
        outcomes = await asyncio.gather(*attempts)
        await settle()
        last = swarm_.peers[0].machine.proposal
        assert last is not None
        assert len(last.votes) == 4
        assert sign_vote(last.statement, slow.identity) in last.votes
        assert outcomes[2][0].statement == first.statement

    swarm_of(work)


def test_a_proposal_that_cannot_be_committed_is_dropped_and_the_claim_stays() -> None:
    async def work(swarm_: Swarm) -> None:
        swarm_.check_success(await swarm_.attempt())
        for peer in swarm_.peers:
            await peer.averager.drop("refused by the log")
            assert peer.machine.attempts_dropped["refused by the log"] == 1
        swarm_.check_dropped()
        swarm_.check_success(await swarm_.attempt())

    swarm_of(work)


def test_a_vote_that_cannot_be_delivered_is_no_failure() -> None:
    async def work(swarm_: Swarm) -> None:
        deaf = swarm_.peers[1].key
        swarm_.network.lost = lambda _sender, to, method: to == deaf and method == "vote"
        outcomes = await swarm_.attempt()
        assert [isinstance(outcome, tuple) for outcome in outcomes] == [True, False, True, True]
        assert isinstance(outcomes[1], AttemptFailed)
        with pytest.raises(Unreachable):
            await swarm_.peers[0].endpoint.call(deaf, "vote", b"", timeout_s=1)

    swarm_of(work, signed=sign(attempt_timeout_ms=500))
