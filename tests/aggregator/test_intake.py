"""The intake over an in-memory network: what the log takes, what it refuses, and that a refusal changes nothing."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aggregator.config import RunConfig
from aggregator.follower import Follower
from aggregator.intake import Intake
from aggregator.log import Log
from aggregator.operator import filled_shelf, open_log
from automl.space import TINY
from automl.update import State, state_bytes, state_digest
from protocol.encoding import pack, unpack
from protocol.errors import StorageError
from protocol.receipts import open_round_receipt
from protocol.records import Proposal, Receipt, SignedClaim, claim_entry, sign_vote
from protocol.signing import PublicKey, sha256
from swarm.log_client import Commitment, LogClient
from swarm.memory import MemoryEndpoint, MemoryNetwork
from swarm.rpc import Refused
from swarm.transfer import Shelf, fetch
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, PEERS, SHRINKING, Attempt, attempt, claim, signed_manifest


@dataclass
class Scene:
    """An aggregator and three peers in memory."""

    log: Log
    follower: Follower
    intake: Intake
    peer: MemoryEndpoint
    shelf: Shelf  # the peer's
    aggregator_shelf: Shelf
    network: MemoryNetwork
    commits: list[int]
    committed: asyncio.Event
    directory: Path

    @property
    def client(self) -> LogClient:
        return LogClient(self.peer, self.log.ledger.manifest, self.log.ledger.run)

    @property
    def state(self) -> State:
        assert self.follower.state is not None
        return self.follower.state

    def attempt(self, *, seed: int = 0, claims: tuple[SignedClaim, ...] | None = None) -> Attempt:
        """Return an honest attempt at the next round, its mean on the peer's shelf."""
        made = attempt(self.log.ledger, self.state, seed=seed, claims=claims)
        self.shelf.put(made.mean.data)
        return made

    async def commit(self) -> Commitment:
        """Have an honest round committed."""
        return await self.client.propose(self.attempt(seed=self.log.ledger.round).proposal())

    async def claim(self, signed: SignedClaim) -> Receipt:
        answer = await self.peer.call(OPERATOR.public_key, "claim", pack(signed), timeout_s=1)
        return unpack(Receipt, answer, max_bytes=1 << 16)

    async def assert_refused(self, handing_in: Awaitable[object], reason: str) -> None:
        """Check that the log says no, and that nothing at all has changed."""
        before = self.everything()
        with pytest.raises(Refused, match=reason):
            await handing_in
        assert self.everything() == before

    def everything(self) -> tuple[object, ...]:
        log = self.log
        snapshots = sorted(path.name for path in (self.directory / "snapshots").iterdir())
        return (log.ledger.size, log.tree_head, log.ledger.state, state_digest(self.state), tuple(self.commits), snapshots)


def in_scene(directory: Path, story: Callable[[Scene], Awaitable[None]], config: RunConfig = CONFIG) -> None:
    """Run ``story`` in an event loop with an aggregator and peers."""

    async def play() -> None:
        network = MemoryNetwork()
        endpoint = network.endpoint(OPERATOR.public_key)
        peer, _, _ = (network.endpoint(each.public_key) for each in PEERS)
        log, _, follower = open_log(config, directory, OPERATOR, DATASET)
        commits: list[int] = []
        committed = asyncio.Event()

        def on_commit() -> None:
            commits.append(log.ledger.round)
            committed.set()

        aggregator_shelf, shelf = Shelf(6), Shelf(20)
        intake = Intake(endpoint, log, follower, aggregator_shelf, on_commit)
        with log:
            await intake.start()
            await aggregator_shelf.serve(endpoint)
            await shelf.serve(peer)
            try:
                await story(Scene(log, follower, intake, peer, shelf, aggregator_shelf, network, commits, committed, directory))
            finally:
                intake.close()

    asyncio.run(play())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


def test_an_honest_proposal_is_committed_and_the_answer_proves_it(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        commitment = await scene.client.propose(made.proposal())
        assert commitment.proven.round.statement == made.statement
        assert commitment.proven.commit == scene.log.ledger.last_commit
        assert scene.log.ledger.round == 1
        assert scene.log.ledger.size == len(PEERS) + 1
        assert state_digest(scene.state) == made.statement.state
        assert scene.commits == [1]

    in_scene(directory, story)


def test_two_thirds_of_the_votes_are_enough(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.client.propose(scene.attempt().proposal(voters=2))
        assert scene.log.ledger.round == 1

    in_scene(directory, story)


def test_a_committed_state_and_its_mean_are_had_from_the_aggregator(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        await scene.client.propose(made.proposal())
        for data in (state_bytes(made.state), made.mean.data):
            found = await fetch(scene.peer, sha256(data), [PublicKey(OPERATOR.public_key)], max_bytes=len(data))
            assert found == data

    in_scene(directory, story)


def test_the_latest_commit_is_told_to_whoever_asks(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        assert await scene.client.latest() is None
        for round_ in (1, 2):
            await scene.commit()
            latest = await scene.client.latest()
            assert latest is not None
            assert latest.proven.round.statement.round == round_
            assert latest.proven.commit == scene.log.ledger.last_commit

    in_scene(directory, story)


def test_a_proposal_without_a_quorum_is_refused(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        await scene.assert_refused(scene.client.propose(made.proposal(voters=1)), "vote")
        one = made.proposal(voters=1)
        await scene.assert_refused(scene.client.propose(replace(one, votes=one.votes * 2)), "vote|key|sorted")
        assert scene.intake.refused == {"LedgerError": 2}
        await scene.client.propose(made.proposal())  # the same attempt, with its votes

    in_scene(directory, story)


def test_a_vote_for_something_else_does_not_count(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        honest, other = made.proposal(), made.proposal(state=sha256(b"another"))
        mixed = replace(honest, votes=(honest.votes[0], other.votes[1], other.votes[2]))
        await scene.assert_refused(scene.client.propose(mixed), "signature|sign")
        assert scene.intake.refused == {"SignatureError": 1}

    in_scene(directory, story)


def test_a_false_digest_of_the_state_is_refused_even_if_all_have_voted_for_it(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        await scene.assert_refused(scene.client.propose(made.proposal(state=sha256(b"another"))), "does not lead to the state")
        assert scene.intake.refused == {"LedgerError": 1}
        assert scene.aggregator_shelf.get(made.statement.mean) is None  # and nobody gets its mean from here
        await scene.client.propose(made.proposal())

    in_scene(directory, story)


def test_a_mean_that_nobody_has_is_refused_and_counted(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        await scene.assert_refused(scene.client.propose(made.proposal(mean=sha256(b"another"))), "nobody gave")
        assert scene.intake.refused == {"Unreachable": 1}

    in_scene(directory, story)


def test_a_mean_that_is_none_is_refused(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        garbage = scene.shelf.put(b"garbage")
        await scene.assert_refused(scene.client.propose(made.proposal(mean=garbage)), "mean")
        assert scene.intake.refused == {"EncodingError": 1}

    in_scene(directory, story)


def test_the_mean_is_had_from_a_voter_when_the_one_who_proposes_does_not_give_it(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        other = scene.network.endpoints[PublicKey(PEERS[1].public_key)]
        proposal = pack(made.proposal())
        await other.call(OPERATOR.public_key, "propose", proposal, timeout_s=1)  # whose own shelf is not served
        assert scene.log.ledger.round == 1

    in_scene(directory, story)


@pytest.mark.parametrize("fault", ["an architecture of no round", "another architecture", "half a lot", "more lots than samples"])
def test_work_that_the_round_does_not_ask_for_is_refused(directory: Path, fault: str) -> None:
    async def story(scene: Scene) -> None:
        honest = claim(scene.log.ledger, PEERS[0]).open()
        (name, samples), *others = honest.work
        lying = {
            "an architecture of no round": replace(honest, work=tuple(sorted([("r32", samples), *others]))),
            "another architecture": replace(honest, work=tuple(sorted([(TINY_OTHER, samples), *others]))),
            "half a lot": replace(honest, work=((name, samples // 2), *others)),
            "more lots than samples": replace(honest, lots=honest.lots + 1),
        }[fault]
        claims = (SignedClaim.sign(lying, PEERS[0]), *(claim(scene.log.ledger, peer) for peer in PEERS[1:]))
        made = scene.attempt(claims=claims)
        await scene.assert_refused(scene.client.propose(made.proposal()), "does not train|whole lots|are not")
        assert scene.intake.refused == {"WorkError": 1}

    in_scene(directory, story)


def test_too_small_a_table_is_refused_before_the_deadline(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.commit()
        alone = scene.attempt(claims=(claim(scene.log.ledger, PEERS[0]),))
        await scene.assert_refused(scene.client.propose(alone.proposal(voters=1)), r"128 samples of 384 before the round's deadline")
        assert scene.intake.refused == {"LedgerError": 1}
        await scene.commit()

    in_scene(directory, story)


def test_too_small_a_table_is_taken_after_the_deadline(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.commit()
        alone = scene.attempt(claims=(claim(scene.log.ledger, PEERS[0]),)).proposal(voters=1)

        async with asyncio.timeout(60):
            while scene.log.ledger.round == 1:
                with contextlib.suppress(Refused):
                    await scene.client.propose(alone)
        assert scene.log.ledger.round == 2

    short = CONFIG.model_copy(update={"round": CONFIG.round.model_copy(update={"deadline_s": 0.2})})
    in_scene(directory, story, short)


def test_too_small_a_table_is_taken_after_a_restart_which_may_have_missed_the_deadline(directory: Path) -> None:
    async def first_life(scene: Scene) -> None:
        await scene.commit()

    async def second_life(scene: Scene) -> None:
        alone = scene.attempt(claims=(claim(scene.log.ledger, PEERS[0]),))
        await scene.client.propose(alone.proposal(voters=1))

    in_scene(directory, first_life)
    in_scene(directory, second_life)


def test_a_caller_who_hangs_up_stops_nothing_half_way(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        asked = asyncio.Event()  # for the mean: the proposal is being decided

        def lost(_sender: PublicKey, _receiver: PublicKey, method: str) -> bool:
            if method == "fetch":
                asked.set()
            return False

        scene.network.lost = lost
        call = asyncio.create_task(scene.client.propose(made.proposal()))
        async with asyncio.timeout(60):
            await asked.wait()
            call.cancel()
            await scene.committed.wait()
        assert call.cancelled()
        assert scene.log.ledger.state == made.statement.state == state_digest(scene.state)

    in_scene(directory, story)


def test_a_proposal_for_another_run_or_another_commit_or_too_far_ahead_is_refused(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        lies: list[dict[str, bytes]] = [{"run": sha256(b"run")}, {"last_commit": sha256(b"commit")}, {"table": sha256(b"table")}]
        for lie in lies:
            await scene.assert_refused(scene.client.propose(made.proposal(**lie)), ".")
        ahead = replace(made.statement, round=2)
        proposal = Proposal(ahead, made.claims, tuple(sign_vote(ahead, peer) for peer in PEERS))
        await scene.assert_refused(scene.client.propose(proposal), "round")
        assert scene.intake.refused == {"LedgerError": 4}

    in_scene(directory, story)


def test_garbage_is_refused(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        for method in ("propose", "claim"):
            for data in (b"", b"garbage", bytes(1 << 20)):
                await scene.assert_refused(scene.peer.call(OPERATOR.public_key, method, data, timeout_s=1), ".")

    in_scene(directory, story)


def test_the_same_proposal_twice_has_the_same_receipt(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        proposal = scene.attempt().proposal()
        first = await scene.client.propose(proposal)
        again = await scene.client.propose(proposal)
        assert again.receipt == first.receipt
        assert scene.log.ledger.size == len(PEERS) + 1
        assert scene.commits == [1]

    in_scene(directory, story)


def test_the_same_proposal_from_all_members_at_once_is_committed_once(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        proposal = scene.attempt().proposal()
        commitments = await asyncio.gather(*(scene.client.propose(proposal) for _ in range(5)))
        assert len({commitment.proven.commit for commitment in commitments}) == 1
        assert scene.commits == [1]

    in_scene(directory, story)


def test_of_two_groups_at_once_one_wins_and_the_other_learns_whose_commit_it_is(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        attempts = [scene.attempt(seed=seed) for seed in range(2)]
        commitments = await asyncio.gather(*(scene.client.propose(made.proposal()) for made in attempts))
        assert commitments[0].proven == commitments[1].proven
        assert scene.log.ledger.state in {made.statement.state for made in attempts}
        assert scene.commits == [1]

    in_scene(directory, story)


def test_a_proposal_for_an_older_round_is_answered_with_that_rounds_commit(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        late = scene.attempt(seed=77).proposal()  # of a group that was slower than the one that won
        first = await scene.commit()
        await scene.commit()
        answer = await scene.client.propose(late)
        assert answer.proven.commit == first.proven.commit == scene.log.ledger.commit_at(1)
        assert open_round_receipt(answer.receipt, scene.log.ledger.run, OPERATOR.public_key) == answer.proven
        assert scene.log.ledger.round == 2

    in_scene(directory, story)


def test_after_the_last_round_nothing_more_is_taken(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        made = scene.attempt()
        for _ in range(CONFIG.run.rounds):
            await scene.commit()
        assert scene.log.ledger.finished
        statement = replace(made.statement, round=CONFIG.run.rounds + 1, last_commit=scene.log.ledger.last_commit)
        proposal = Proposal(statement, (claim(scene.log.ledger, PEERS[0], 1),), (sign_vote(statement, PEERS[0]),))
        await scene.assert_refused(scene.client.propose(proposal), "finished")

    in_scene(directory, story)


def test_the_teacher_is_served_long_after_its_round_and_after_a_restart(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        teacher_round = scene.follower.plan.teacher_round
        assert teacher_round is not None
        while scene.log.ledger.round < teacher_round + 4:
            await scene.commit()
        committed = scene.log.ledger.round_at(teacher_round)
        assert committed is not None
        digest = committed.statement.state
        data = await fetch(scene.peer, digest, [PublicKey(OPERATOR.public_key)], max_bytes=1 << 24)
        assert scene.state.teacher == digest
        restarted = filled_shelf(scene.log, scene.follower)
        assert restarted.get(digest) == data
        assert restarted.get(scene.log.ledger.state) == state_bytes(scene.state)

    in_scene(directory, story, SHRINKING)


def test_a_restarted_aggregator_goes_on_where_it_was(directory: Path) -> None:
    async def first_life(scene: Scene) -> None:
        await scene.commit()
        await scene.commit()

    async def second_life(scene: Scene) -> None:
        latest = await scene.client.latest()
        assert latest is not None
        assert latest.proven.round.statement.round == 2
        await scene.commit()
        assert scene.log.ledger.round == 3

    in_scene(directory, first_life)
    in_scene(directory, second_life)


# Single claims.


def test_a_claim_that_is_logged_has_its_receipt(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        mine = claim(scene.log.ledger, PEERS[1])
        await scene.commit()
        for _ in range(2):
            receipt = await scene.claim(mine)
            assert receipt.entry == claim_entry(mine)
            assert receipt.index == 1
        assert scene.log.ledger.size == len(PEERS) + 1

    in_scene(directory, story)


def test_a_second_claim_for_a_round_is_logged_as_evidence_once_and_costs_the_credit(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        second, third = (claim(scene.log.ledger, PEERS[1], lots=lots) for lots in (b"second", b"third"))
        await scene.commit()
        key = PEERS[1].public_key
        assert key in scene.log.ledger.credits()
        receipt = await scene.claim(second)
        assert (receipt.entry, receipt.index) == (claim_entry(second), len(PEERS) + 1)
        assert await scene.claim(second) == receipt
        assert scene.log.ledger.equivocators(1) == {key}
        assert key not in scene.log.ledger.credits()
        await scene.assert_refused(scene.claim(third), ".")
        await scene.commit()  # the run goes on
        assert key in scene.log.ledger.credits()

    in_scene(directory, story)


def test_a_first_claim_comes_with_a_proposal_only(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.assert_refused(scene.claim(claim(scene.log.ledger, PEERS[0])), "comes with its round's proposal")

    in_scene(directory, story)


def test_evidence_that_is_none_is_refused(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        second = claim(scene.log.ledger, PEERS[0], lots=b"second")
        elsewhere = SignedClaim.sign(replace(second.open(), run=sha256(b"another run")), PEERS[0])
        await scene.commit()
        framed = SignedClaim(second.payload, PEERS[1].sign("claim", second.payload))
        await scene.assert_refused(scene.claim(framed), ".")
        await scene.assert_refused(scene.claim(elsewhere), "run")
        other_work = replace(second.open(), work=(("r32", CONFIG.round.lot_samples),), lots=1)
        await scene.assert_refused(scene.claim(SignedClaim.sign(other_work, PEERS[0])), "does not train")

    in_scene(directory, story)


# A disk that fails.


def test_a_snapshot_that_cannot_be_written_stops_the_program_and_the_round_is_not_committed(directory: Path) -> None:
    async def story(scene: Scene) -> None:
        (directory / "snapshots" / "round-00000001.safetensors.part").mkdir()
        with pytest.raises(Refused, match="cannot write"):
            await scene.commit()
        assert scene.log.ledger.round == 0
        assert scene.commits == []
        assert isinstance(scene.intake.broken.result(), StorageError)

    in_scene(directory, story)


TINY_OTHER = max((one.text for one in (TINY.largest(), TINY.smallest())), key=len).replace("k7", "k5", 1)


def test_the_manifest_of_these_tests_is_the_operators_own() -> None:
    assert signed_manifest().open().operators == (OPERATOR.public_key,)
