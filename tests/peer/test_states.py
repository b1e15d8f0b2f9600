"""A peer's state and its teacher, over an in-memory network, with a real supernet and means of random numbers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import torch

from automl.schedule import Plan
from automl.update import State, initial_state, next_state, state_bytes, state_digest
from peer.states import SHELF, States
from peer.work import ComputeThread
from protocol.errors import Unreachable
from protocol.records import Manifest
from protocol.rounds import Standing
from protocol.signing import Identity, PublicKey, sha256
from swarm import codec
from swarm.mean import Mean
from swarm.memory import MemoryNetwork
from swarm.transfer import Shelf
from tests.runs import manifest_of

OPERATOR, EARLY, LATE, LIAR = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3, 4))
MANIFEST = manifest_of(OPERATOR, schedule="shrinking", num_rounds=7)
PLAN = Plan.of(MANIFEST)
TEACHER_ROUND = PLAN.teacher_round or 0


def some_mean(num_values: int, seed: int) -> Mean:
    values = torch.randn(num_values, generator=torch.Generator().manual_seed(seed)) / 100
    data = codec.encode(MANIFEST.swarm_codec, values)
    return Mean.join(MANIFEST.swarm_codec, [data], [codec.decode(MANIFEST.swarm_codec, data, num_values)])


def history() -> tuple[tuple[State, ...], tuple[Mean, ...]]:
    """Return the states of every round, and the means that lead to them."""
    states, means = [initial_state(PLAN)], []
    for round_ in range(PLAN.num_rounds):
        means.append(some_mean(states[0].parameters.numel(), round_))
        states.append(next_state(states[-1], means[-1].values, PLAN))
    return tuple(states), tuple(means)


STATES, MEANS = history()


@dataclass
class Scene:
    """Peers in memory."""

    network: MemoryNetwork
    compute: ComputeThread

    async def peer(self, identity: Identity, manifest: Manifest = MANIFEST) -> States:
        endpoint = self.network.endpoint(identity.public_key)
        shelf = Shelf(SHELF)
        await shelf.serve(endpoint)
        return States(endpoint, shelf, manifest, Plan.of(manifest), STATES[0].parameters.numel(), self.compute)


def in_scene(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def play() -> None:
        compute = ComputeThread()
        try:
            await story(Scene(MemoryNetwork(), compute))
        finally:
            compute.close()

    asyncio.run(play())


async def live_through(states: States, last: int) -> None:
    """Take a peer from the first state to that of round ``last``, by the copies that it prepares itself."""
    states.adopt(STATES[0])
    for round_ in range(1, last + 1):
        states.adopt_prepared(await states.prepare(MEANS[round_ - 1]))
        assert state_digest(states.held) == state_digest(STATES[round_])


def standing(round_: int) -> Standing:
    return Standing(round_, sha256(b"commit %d" % round_), MEANS[round_ - 1].digest, state_digest(STATES[round_]))


def keys(*identities: Identity) -> list[PublicKey]:
    return [identity.public_key for identity in identities]


def test_up_to_the_end_of_the_full_phase_there_is_no_teacher_and_then_it_is_that_phase_s_last_state() -> None:
    async def story(scene: Scene) -> None:
        states = await scene.peer(EARLY)
        for round_ in range(TEACHER_ROUND):
            states.adopt(STATES[round_])
            assert await states.teacher([]) is None
        for round_ in range(TEACHER_ROUND, PLAN.num_rounds):
            states.adopt(STATES[round_])
            found = await states.teacher([])
            assert found is not None
            assert found[0] == state_digest(STATES[TEACHER_ROUND])
            assert torch.equal(found[1], STATES[TEACHER_ROUND].parameters)

    in_scene(story)


def test_in_a_sandwich_run_there_is_never_a_teacher() -> None:
    async def story(scene: Scene) -> None:
        states = await scene.peer(EARLY, manifest_of(OPERATOR, num_rounds=7))
        for round_ in range(PLAN.num_rounds):
            states.adopt(State(round_, STATES[round_].parameters, STATES[round_].moments))
            assert await states.teacher([]) is None

    in_scene(story)


def test_a_peer_that_comes_late_gets_the_state_and_its_teacher_from_one_that_was_there() -> None:
    async def story(scene: Scene) -> None:
        early, late = await scene.peer(EARLY), await scene.peer(LATE)
        last = PLAN.num_rounds - 1  # by then the teacher's round is further back than what is kept of the rounds
        await live_through(early, last)
        late.adopt(await late.reach(standing(last), None, keys(EARLY)))
        found, expected = await late.teacher(keys(EARLY)), await early.teacher([])
        assert found is not None
        assert expected is not None
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])
        scene.network.lost = lambda *_: True
        assert await late.teacher(keys(EARLY)) == found  # it is not asked for again

    in_scene(story)


def test_who_got_the_teacher_hands_it_on() -> None:
    async def story(scene: Scene) -> None:
        early, late, third = await scene.peer(EARLY), await scene.peer(LATE), await scene.peer(LIAR)
        await live_through(early, TEACHER_ROUND + 1)
        late.adopt(STATES[TEACHER_ROUND + 1])
        await late.teacher(keys(EARLY))
        del scene.network.endpoints[EARLY.public_key]
        third.adopt(STATES[TEACHER_ROUND + 1])
        assert await third.teacher(keys(EARLY, LATE)) is not None

    in_scene(story)


def test_another_state_in_the_teacher_s_place_is_not_believed() -> None:
    async def story(scene: Scene) -> None:
        late, liar = await scene.peer(LATE), scene.network.endpoint(LIAR.public_key)
        lie = Shelf(1)
        lie.pin(state_bytes(STATES[0]))
        lie._pinned[state_digest(STATES[TEACHER_ROUND])] = state_bytes(STATES[0])
        await lie.serve(liar)
        late.adopt(STATES[TEACHER_ROUND + 1])
        with pytest.raises(Unreachable, match="do not have the digest"):
            await late.teacher(keys(LIAR))
        await live_through(await scene.peer(EARLY), TEACHER_ROUND)
        assert await late.teacher(keys(LIAR, EARLY)) is not None

    in_scene(story)


def test_the_state_is_reached_by_its_mean_where_the_round_before_is_held() -> None:
    async def story(scene: Scene) -> None:
        early, late = await scene.peer(EARLY), await scene.peer(LATE)
        await live_through(early, TEACHER_ROUND + 1)
        late.adopt(STATES[TEACHER_ROUND])
        reached = await late.reach(standing(TEACHER_ROUND + 1), standing(TEACHER_ROUND), keys(EARLY))
        assert reached.teacher == state_digest(STATES[TEACHER_ROUND])
        assert state_digest(reached) == state_digest(STATES[TEACHER_ROUND + 1])

    in_scene(story)
