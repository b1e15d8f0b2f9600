"""A peer's state and its teacher, over an in-memory network, with a real supernet and contributions of random numbers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
import torch

from manta_swarm.automl.training.update import State, state_digest, state_pieces
from manta_swarm.codec.coding import parse
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import AskPiece, Blob, BlobStore
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.sync.spread import BlobDistribution
from manta_swarm.peer.sync.states import States, next_stop, ways
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.manifest import Recipe
from manta_swarm.protocol.records import Round, Threshold
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.memory_log import PEERS, MemoryLog
from tests.peer.contexts import context_of, never
from tests.runs import EXCHANGE, manifest_of

pytestmark = pytest.mark.usefixtures("quick_pauses")

EARLY, LATE, LIAR = (Identity(bytes([seed]) * 32) for seed in (2, 3, 4))
MIN_EXPONENTS = dict.fromkeys(range(-10, 110), -32)

# Which way is the shortest.

MANIFEST = manifest_of(EARLY)  # SGD: a state has one moment
START = CommitRef(9, sha256(b"commit"), sha256(b"state"), -32, None)


def after(rows: int, round_: int = 10) -> CommitRef:
    """Return a commit with so many rows."""
    digest = sha256(b"any")
    return CommitRef.after(Round(digest, round_, digest, 0, rows, digest, digest, digest, (Threshold(0, 1, 1),), -32, 1))


@pytest.mark.parametrize(
    ("rows", "own", "codec", "names"),
    [
        (1, True, "int16", ["bodies", "mean", "state"]),
        (1, False, "int16", ["bodies", "mean", "state"]),
        (2, True, "int16", ["bodies", "mean", "state"]),
        (2, False, "int16", ["mean", "bodies", "state"]),
        (3, True, "int16", ["mean", "bodies", "state"]),
        (4, True, "int16", ["mean", "bodies", "state"]),
        (64, True, "int16", ["mean", "state", "bodies"]),
        (3, False, "int8", ["bodies", "mean", "state"]),
        (4, True, "int8", ["bodies", "mean", "state"]),
        (5, True, "int8", ["mean", "bodies", "state"]),
        (64, True, "int8", ["mean", "state", "bodies"]),
    ],
)
def test_the_way_of_the_fewest_bytes_is_first(rows: int, own: bool, codec: str, names: list[str]) -> None:
    manifest = replace(MANIFEST, exchange=replace(EXCHANGE, codec=codec))
    found = ways(after(rows), START, own, manifest, 100_000, knows_min_exponents=True)
    assert [way.name for way in found] == names
    assert [way.num_bytes for way in found] == sorted(way.num_bytes for way in found)


def test_bytes_are_those_that_travel() -> None:
    found = {way.name: way.num_bytes for way in ways(after(3), START, True, MANIFEST, 100_000, knows_min_exponents=True)}
    assert found["mean"] == 400_000
    assert 800_000 < found["state"] < 800_200  # and a header
    assert 2 * 200_025 < found["bodies"] < 2 * 200_025 + 3 * 160  # 25 chunks; and the table


@pytest.mark.parametrize(
    ("target", "held", "knows_min_exponents", "names"),
    [
        pytest.param(after(1), None, True, ["state"], id="nothing is held"),
        pytest.param(after(1, 12), START, True, ["state"], id="far behind"),
        pytest.param(after(1, 9), START, True, ["state"], id="another commit of the round held"),
        pytest.param(START, None, True, ["state"], id="the run's start"),
        pytest.param(after(1), START, False, ["mean", "state"], id="min exponents are not known"),
    ],
)
def test_where_there_is_less_to_go_by_there_are_fewer_ways(
    target: CommitRef, held: CommitRef | None, knows_min_exponents: bool, names: list[str]
) -> None:
    assert [way.name for way in ways(target, held, False, MANIFEST, 100_000, knows_min_exponents)] == names


SPARSE = replace(MANIFEST, exchange=replace(EXCHANGE, codec="topk-64-4", local_steps=5))
PATH = tuple(after(2, round_) for round_ in range(10, 30))


def test_of_the_newest_state_and_all_rounds_since_the_one_held_what_takes_fewer_bytes_is_taken() -> None:
    assert next_stop(PATH[:1], START, MANIFEST, 100_000, MIN_EXPONENTS) is PATH[0]
    assert next_stop(PATH, START, MANIFEST, 100_000, MIN_EXPONENTS) is PATH[-1]  # dense: each body is half a mean
    assert next_stop(PATH[:2], START, MANIFEST, 100_000, MIN_EXPONENTS) is PATH[0]  # two means are a little less than SGD's state
    assert next_stop(PATH, START, SPARSE, 100_000, MIN_EXPONENTS) is PATH[0]  # sparse: twenty rounds are less than a state
    assert next_stop(PATH, START, SPARSE, 100_000, {}) is PATH[-1]  # without min exponents it would be twenty means


def test_where_nothing_is_held_or_commits_between_are_not_known_it_is_the_newest_one() -> None:
    assert next_stop(PATH, None, SPARSE, 100_000, MIN_EXPONENTS) is PATH[-1]
    assert next_stop(PATH[1:], START, SPARSE, 100_000, MIN_EXPONENTS) is PATH[-1]
    assert next_stop((PATH[0], PATH[2]), START, SPARSE, 100_000, MIN_EXPONENTS) is PATH[2]


# Going there.


@dataclass
class Scene:
    """A log with a history, and peers in memory."""

    log: MemoryLog
    compute: ComputeThread
    asked: list[bytes] = field(default_factory=list)  # roots that the log was asked for
    seeds: "count[int]" = field(default_factory=count)
    neighbours: dict[bytes, Neighbours] = field(default_factory=dict)  # of each peer, by its key

    async def peer(self, identity: Identity) -> States:
        states, _ = await self.peer_with_blob_store(identity)
        return states

    async def peer_with_blob_store(self, identity: Identity) -> tuple[States, BlobStore]:
        endpoint, blob_store, log = self.log.network.endpoint(identity.public_key), BlobStore(max_bytes=2**28), self.log
        await blob_store.serve(endpoint)
        neighbours = await self.announce(endpoint)
        await neighbours.look()  # for those who came before
        context = context_of(
            endpoint,
            identity,
            log.signed,
            compute=self.compute,
            blob_store=blob_store,
            num_weights=log.num_weights,
            training_spec=log.training_spec,
        )
        spread = BlobDistribution(context, neighbours)
        await spread.start()
        return States(context, spread), blob_store

    async def announce(self, endpoint: MemoryEndpoint) -> Neighbours:
        """Announce whoever has this endpoint; return what it knows of others."""
        neighbours = self.neighbours[endpoint.key] = Neighbours(endpoint, self.log.ledger.run)
        await neighbours.announce(cohort="here", round_=0)
        return neighbours

    async def meets(self, identity: Identity) -> None:
        """Let a peer look for the others again."""
        await self.neighbours[identity.public_key].look()

    def commit(self, rows: int = 1, **lies: object) -> CommitRef:
        """Commit a round of so many contributions; return it."""
        for peer in PEERS[:rows]:
            self.log.give(peer, next(self.seeds))
        return CommitRef.after(self.log.commit(**lies))

    @property
    def start(self) -> CommitRef:
        return CommitRef.start(self.log.manifest, self.log.ledger.run)

    async def at_the_start(self, identity: Identity) -> States:
        """Return a peer that holds the run's first state; nothing was asked for yet."""
        states = await self.peer(identity)
        await states.reach(self.start, None, MIN_EXPONENTS)
        self.asked.clear()
        return states


@asynccontextmanager
async def scene_with(**changes: object) -> AsyncIterator[Scene]:
    compute = ComputeThread()
    try:
        scene = Scene(await MemoryLog(MemoryNetwork(), **changes).start(), compute)
        note_what_is_asked(scene.log.endpoint, scene.asked)
        yield scene
    finally:
        compute.close()


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    return scene_with()


def note_what_is_asked(endpoint: MemoryEndpoint, roots: list[bytes]) -> None:
    answer = endpoint.handlers["blob"]

    async def note(caller: PublicKey, request: bytes) -> bytes:
        roots.append(unpack(AskPiece, request, max_bytes=128).root)
        return await answer(caller, request)

    endpoint.handlers["blob"] = note


def own_min_exponents(scene: Scene) -> dict[int, int]:
    return {round_: scene.log.ledger.min_exponent_at(round_) for round_ in range(scene.log.ledger.round + 1)}


async def test_a_state_is_reached_by_its_table_s_bodies_each_decoded_on_its_own_base(scene: Scene) -> None:
    states = await scene.at_the_start(LATE)
    *_, held = await live_through(scene, states, 4)
    assert set(scene.asked) == {blob.root for _, blob in scene.log.handed.values()}
    header, blob = scene.log.handed[scene.log.give(PEERS[1], 50, age=3)]
    states.keep_body(blob, parse("int16", blob.join(), scene.log.num_weights))
    target = scene.commit()
    assert {listed.weighing.age for listed in scene.log.ledger.table_at(5) or ()} == {0, 3}
    scene.asked.clear()
    await states.reach(target, held, own_min_exponents(scene))
    assert state_digest(states.held) == target.state
    assert header.contribution.open().body == blob.root not in scene.asked


async def test_an_own_body_is_handed_out_once_it_is_in_a_table(scene: Scene) -> None:
    states, blob_store = await scene.peer_with_blob_store(EARLY)
    await states.reach(scene.start, None, MIN_EXPONENTS)
    _, blob = scene.log.handed[scene.log.give(EARLY, 1)]
    states.keep_body(blob, parse("int16", blob.join(), scene.log.num_weights))
    assert blob_store.get(blob.root) is None
    await states.reach(CommitRef.after(scene.log.commit()), scene.start, own_min_exponents(scene))
    assert blob_store.get(blob.root) is not None


@pytest.mark.parametrize(("rows", "rounds"), [(3, 1), (1, 2)], ids=["the mean of many rows", "the state, far behind"])
async def test_of_what_leads_to_a_state_the_least_is_fetched(scene: Scene, rows: int, rounds: int) -> None:
    states = await scene.at_the_start(LATE)
    for _ in range(rounds):
        target = scene.commit(rows)
    await states.reach(target, scene.start, own_min_exponents(scene))
    assert state_digest(states.held) == target.state
    assert set(scene.asked) == {scene.log.means[0].root if rounds == 1 else target.state}


async def test_who_missed_some_rounds_goes_on_by_their_bodies_and_needs_no_state_again() -> None:
    async with scene_with(exchange=replace(EXCHANGE, codec="topk-64-4")) as scene:
        states, held = await scene.at_the_start(LATE), scene.start
        path = tuple(scene.commit(rows=2) for _ in range(4))
        min_exponents = own_min_exponents(scene)
        for place, expected in enumerate(path):
            stop = states.next_stop(path[place:], held, min_exponents)
            assert stop is expected
            await states.reach(stop, held, min_exponents)
            assert state_digest(states.held) == stop.state
            held = stop
        assert not {commit_ref.state for commit_ref in path} & set(scene.asked)


async def test_if_a_round_between_is_not_to_be_had_any_more_the_newest_state_is() -> None:
    async with scene_with(exchange=replace(EXCHANGE, codec="topk-64-4")) as scene:
        states, path = await scene.at_the_start(LATE), tuple(scene.commit() for _ in range(3))
        min_exponents, items = own_min_exponents(scene), scene.log.blob_store._items
        for root in [root for root in items if root != path[-1].state]:
            del items[root]
        stop = states.next_stop(path, scene.start, min_exponents)
        assert stop is path[0]
        with pytest.raises(Unreachable):
            await states.reach(stop, scene.start, min_exponents)
        assert states.next_stop(path, scene.start, min_exponents) is path[-1]
        await states.reach(path[-1], scene.start, min_exponents)
        assert state_digest(states.held) == path[-1].state


async def test_what_nobody_has_any_more_is_done_without_soon(scene: Scene) -> None:
    """The log has the newest state, and neither bodies nor mean, as after a restart."""
    states = await scene.at_the_start(LATE)
    target = scene.commit()
    items = scene.log.blob_store._items
    for root in [root for root in items if root != target.state]:
        del items[root]
    async with asyncio.timeout(30):  # and not when the deadline is over
        await states.reach(target, scene.start, own_min_exponents(scene))
    assert state_digest(states.held) == target.state


async def test_what_leads_to_another_state_than_the_committed_one_is_not_the_state(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    states = await scene.at_the_start(LATE)
    before = states.held
    false = State(1, torch.zeros(scene.log.num_weights), (torch.zeros(scene.log.num_weights),))
    target = scene.commit(state=state_digest(false))
    with pytest.raises(Unreachable, match=r"by bodies: it leads to another state; by mean: it leads to another state; by state: nobody"):
        await states.reach(target, scene.start, own_min_exponents(scene))
    assert states.held is before
    assert "the committed bodies leads to another state here round=1" in caplog.text


async def test_a_table_that_no_log_may_have_is_passed_by(scene: Scene) -> None:
    states = await scene.at_the_start(LATE)
    target = scene.commit()
    min_exponents = {**own_min_exponents(scene), 0: 200}  # a min exponent that no body can have
    await states.reach(target, scene.start, min_exponents)
    assert state_digest(states.held) == target.state
    assert scene.log.means[0].root in scene.asked


async def test_a_liar_is_found_out_and_others_are_asked(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    states = await scene.at_the_start(LATE)
    lie, liar = BlobStore(max_bytes=2**28), scene.log.network.endpoint(LIAR.public_key)
    await lie.serve(liar)
    await scene.announce(liar)
    await scene.meets(LATE)
    scene.commit()
    target = scene.commit()  # so far that the state is fetched
    false = Blob.of(state_pieces(states.held))
    lie._pinned[target.state] = Blob(false.pieces, false.hashes, target.state)  # type: ignore[arg-type,index]
    await states.reach(target, scene.start, own_min_exponents(scene))
    assert state_digest(states.held) == target.state
    assert f"wrong bytes peer={LIAR.public_key.hex()[:8]}" in caplog.text


async def test_neighbours_have_what_the_log_does_not_answer_for(scene: Scene) -> None:
    early, late = await scene.at_the_start(EARLY), await scene.at_the_start(LATE)
    target = scene.commit(rows=3)
    await early.reach(target, scene.start, own_min_exponents(scene))
    scene.log.go_away()
    await late.reach(target, scene.start, own_min_exponents(scene))
    assert state_digest(late.held) == target.state


async def test_all_ways_together_have_one_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    states = await scene.at_the_start(LATE)
    target = scene.commit()
    await scene.log.endpoint.serve("blob", never)
    monkeypatch.setattr(timeouts, "FETCH_S", 0.3)
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable, match=r"not within 0\.3 s"):
        await states.reach(target, scene.start, own_min_exponents(scene))
    assert asyncio.get_running_loop().time() - started_s < 2 * 0.3 + 5  # three ways, and a busy machine
    assert state_digest(states.held) == scene.start.state


# The teacher.


async def live_through(scene: Scene, states: States, last: int) -> list[CommitRef]:
    """Take a peer from the first state to that of round ``last``; return the commit refs of all rounds."""
    commit_refs = [scene.start]
    for _ in range(last):
        commit_refs.append(scene.commit())
        await states.reach(commit_refs[-1], commit_refs[-2], own_min_exponents(scene))
        assert state_digest(states.held) == commit_refs[-1].state
    return commit_refs


def teacher_round(scene: Scene) -> int:
    assert scene.log.plan.teacher_round is not None
    return scene.log.plan.teacher_round


SHRINKING = {"schedule": "shrinking", "num_rounds": 7}


async def test_up_to_the_end_of_the_full_phase_there_is_no_teacher_and_then_it_is_that_phase_s_last_state() -> None:
    async with scene_with(**SHRINKING) as scene:
        states = await scene.at_the_start(EARLY)
        taught, expected, held = teacher_round(scene), None, scene.start
        for round_ in range(1, scene.log.plan.num_rounds):
            found = await states.teacher()
            assert (found is None) == (round_ <= taught)
            if found is not None and expected is not None:
                assert found[0] == state_digest(expected)
                assert torch.equal(found[1], expected.parameters)
            target = scene.commit()
            await states.reach(target, held, own_min_exponents(scene))
            held = target
            if round_ == taught:
                expected = states.held


async def test_the_teacher_of_a_taught_round_is_the_state_itself_for_who_works_and_for_who_audits() -> None:
    async with scene_with(num_rounds=4, recipe=Recipe(taught_percent=25)) as scene:
        states = await scene.at_the_start(EARLY)
        commit_refs = await live_through(scene, states, 3)
        found = await states.teacher()
        assert found is not None
        assert found[0] == state_digest(states.held)
        assert torch.equal(found[1], states.held.parameters)
        for commit_ref, is_taught in zip(commit_refs[-2:], (False, True), strict=True):
            parameters, teacher = await states.parameters(commit_ref.state)
            assert (teacher is not None) == is_taught
            if teacher is not None:
                assert torch.equal(teacher, parameters)


async def test_a_peer_that_comes_late_gets_the_teacher_from_one_that_was_there_and_hands_it_on() -> None:
    async with scene_with(**SHRINKING) as scene:
        early, late, third = await scene.at_the_start(EARLY), await scene.peer(LATE), await scene.peer(LIAR)
        commit_refs = await live_through(scene, early, teacher_round(scene) + 1)
        await late.reach(commit_refs[-1], None, MIN_EXPONENTS)
        await third.reach(commit_refs[-1], None, MIN_EXPONENTS)
        scene.log.go_away()
        found, expected = await late.teacher(), await early.teacher()
        assert found is not None
        assert expected is not None
        assert found[0] == expected[0] == commit_refs[teacher_round(scene)].state
        assert torch.equal(found[1], expected[1])
        del scene.log.network.endpoints[EARLY.public_key]
        assert await late.teacher() == found  # it is not asked for again
        again = await third.teacher()
        assert again is not None
        assert again[0] == found[0]


async def test_another_state_in_the_teacher_s_place_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    async with scene_with(**SHRINKING) as scene:
        early, late = await scene.at_the_start(EARLY), await scene.peer(LATE)
        first = Blob.of(state_pieces(early.held))
        commit_refs = await live_through(scene, early, teacher_round(scene) + 1)
        await late.reach(commit_refs[-1], None, MIN_EXPONENTS)
        lie, root = BlobStore(max_bytes=1), commit_refs[teacher_round(scene)].state
        lie._pinned[root] = Blob(first.pieces, first.hashes, root)  # type: ignore[arg-type]
        liar = scene.log.network.endpoint(LIAR.public_key)
        await lie.serve(liar)
        await scene.announce(liar)
        await scene.meets(LATE)
        scene.log.go_away()
        early_endpoint = scene.log.network.endpoints.pop(EARLY.public_key)
        asking = asyncio.create_task(late.teacher())
        while "hashes that do not have the root" not in caplog.text:
            assert not asking.done()
            await asyncio.sleep(0)
        scene.log.network.endpoints[EARLY.public_key] = early_endpoint
        found, expected = await asking, await early.teacher()
        assert found is not None
        assert expected is not None
        assert torch.equal(found[1], expected[1])
