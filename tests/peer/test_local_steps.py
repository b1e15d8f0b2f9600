"""Rounds of several local steps and of sparse contributions, over a network in memory: alone, without a cohort."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch

from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.automl.training.update import LocalSteps
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.records import Claim, Contribution
from manta_swarm.protocol.rounds import PeerStage
from tests.memory_log import MICROBATCH, start_of, until
from tests.peer.cohort.test_cohort_rounds import STEPS, THIN
from tests.peer.scene import Member, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")


@pytest.fixture
def scene(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    return scene_in(tmp_path, exchange=THIN)


def listed(scene: Scene, round_: int) -> list[tuple[Contribution, Claim]]:
    """Return what the table of a round has, each with its one claim."""
    table = scene.log.ledger.table_at(round_)
    assert table is not None
    headers = [scene.log.handed[one.contribution][0] for one in table]
    return [(header.contribution.open(), header.claims[0].open()) for header in headers]


async def test_each_round_has_so_many_exact_steps_and_all_that_is_trained_counts(tmp_path: Path) -> None:
    async with scene_in(tmp_path, num_rounds=3, exchange=THIN) as scene:
        members = [scene.join(0), scene.join(1)]
        await scene.rounds(3, 2, *members)
        for member in members:
            await member.ends()
            assert (member.status.samples_counted, member.status.samples_lost, member.status.rounds_counted) == (9 * MICROBATCH, 0, 3)
            assert member.status.state == scene.log.ledger.state.hex()
            assert [(microbatch.step, microbatch.index) for microbatch in member.worker.microbatches] == [(0, 0), (1, 1), (2, 2)] * 3
        for contribution, claim in listed(scene, 2):
            assert (len(claim.steps), claim.microbatches, len(claim.given)) == (STEPS, STEPS, 32)
            assert [step.mean for step in contribution.steps] == [step.vector for step in claim.steps]  # it is alone


class Watched:
    """Remembers what a worker was given and gave."""

    def __init__(self, member: Member) -> None:
        self.weights: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []
        self._train = member.worker.train
        self._worker = member.worker
        member.worker.train = self.train  # type: ignore[method-assign]

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        assert self._worker.loaded is not None
        self.weights.append(self._worker.loaded)
        result = self._train(microbatch)
        self.gradients.append(result.gradient)
        return result


async def test_each_step_is_trained_on_the_weights_that_the_one_before_led_to_and_the_change_is_claimed(scene: Scene) -> None:
    watched: list[Watched] = []
    scene.join(0, prepare=lambda member: watched.append(Watched(member)))
    await scene.log.wait_for(1)
    local = LocalSteps(start_of(scene.log.plan), scene.log.plan)
    for weights, gradient in zip(watched[0].weights, watched[0].gradients, strict=True):
        assert torch.equal(weights, local.weights)
        local.step(gradient)
    claim = scene.log.headers[0].claims[0].open()
    assert [step.vector for step in claim.steps] == [vector_digest(gradient.numpy()) for gradient in watched[0].gradients]
    assert claim.given == vector_digest(local.learnt().numpy())  # there is no residual yet


async def test_a_claim_names_the_residual_that_the_listed_contribution_before_left_also_after_a_restart(scene: Scene) -> None:
    member = scene.join(0)
    await scene.rounds(1, 1, member)
    await scene.log.wait_for(1)
    await scene.end()  # as kill -9 does, with an inclusion promise for the second round
    again = scene.join(0)
    await until(lambda: again.stage is PeerStage.PROMISED)
    scene.log.commit()
    await scene.rounds(1)
    before = b""
    for round_ in range(1, 4):
        [(contribution, claim)] = listed(scene, round_)
        assert claim.residual == before
        assert len(contribution.residual) == 32
        before = contribution.residual


async def test_who_comes_back_when_nobody_can_say_any_more_whether_its_last_work_counted_uses_no_residual(scene: Scene) -> None:
    await scene.rounds(1, 1, scene.join(0))
    await scene.log.wait_for(1)
    await scene.end()  # as kill -9 does, with an inclusion promise for the second round, which leaves another residual
    scene.log.commit()
    other = scene.join(1)
    await scene.rounds(MAX_AGE + 2, 1, other)
    again = scene.join(0)
    await scene.log.wait_for(2)
    claims = [scene.log.handed[each][0].claims[0].open() for each in scene.log.in_round()]
    assert [claim.residual for claim in claims if claim.key == again.key] == [b""]
    assert again.status.samples_lost == 0


async def test_what_is_not_listed_leaves_the_residual_as_it_was(scene: Scene) -> None:
    member, other = scene.join(0), scene.join(1)
    await scene.rounds(1, 2, member, other)
    await scene.log.wait_for(2)
    mine = next(each for each in scene.log.in_round() if scene.log.handed[each][0].claims[0].open().key == member.key)
    scene.log.loses.add(mine)
    scene.log.commit()
    await other.reaches(2)
    await scene.rounds(1, 2)
    assert member.status.promises_broken == 1
    (first,) = [each for each, claim in listed(scene, 1) if claim.key == member.key]
    (third,) = [claim for _, claim in listed(scene, 3) if claim.key == member.key]
    assert third.residual == first.residual


async def test_steps_that_were_begun_are_finished_though_the_round_is_over_and_count_in_the_next(scene: Scene) -> None:
    slow, quick = await scene.held(0), scene.join(1)
    await scene.rounds(1, 1, quick)
    slow.worker.may_go_on.set()
    await scene.rounds(1, 2, slow)
    assert [microbatch.step for microbatch in slow.worker.microbatches[:3]] == [0, 1, 2]
    assert (slow.status.samples_counted, slow.status.samples_lost) == (STEPS * MICROBATCH, 0)


async def test_who_leaves_in_the_middle_of_its_steps_finishes_them_and_hands_them_in(scene: Scene) -> None:
    member = await scene.held(0)
    member.loop.leave()
    member.worker.may_go_on.set()
    await member.ends()
    assert len(scene.log.in_round()) == 1
    assert scene.log.headers[-1].claims[0].open().microbatches == STEPS
