"""Rounds of a peer that adds noise: what leaves it, and that it leaves when its budget is spent."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.codec.coding import parse
from manta_swarm.peer.features.private.noise import Noise
from tests.memory_log import MICROBATCH, SMALL_EXCHANGE, until
from tests.peer.features.private.test_noise import Counted
from tests.peer.scene import Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")


@pytest.mark.parametrize("steps", [1, 3])
async def test_what_is_handed_in_is_the_noise_and_what_is_signed_says_nothing_of_what_was_computed(steps: int, tmp_path: Path) -> None:
    async with scene_in(
        tmp_path, exchange=replace(SMALL_EXCHANGE, local_steps=steps, max_claim_samples=MICROBATCH * 40, first_min_exponent=0)
    ) as scene:
        account = Counted()
        member = scene.join(0, noise=Noise(100.0, 1.0, account, None))  # type: ignore[arg-type]
        await scene.log.wait_for(1)
        (header, blob), *_ = scene.log.handed.values()
        assert account.times == 1
        claim = header.claims[0].open()
        body = parse(scene.log.manifest.exchange.codec, b"".join(map(bytes, blob.pieces)), scene.log.num_weights)
        values = body.values(scene.log.manifest.exchange.first_min_exponent)
        assert 90 < float(np.std(values)) < 110  # what was learnt has values of a hundredth
        contribution = header.contribution.open()
        if steps > 1:
            assert {step.vector for step in claim.steps} == {step.mean for step in contribution.steps} == {bytes(32)}
        else:
            assert claim.steps[0].vector == contribution.steps[0].mean == claim.given  # of the noisy vector
        assert claim.residual == b""
        assert member.status.epsilon == 1.0


async def test_microbatches_whose_gradient_is_not_finite_are_counted_like_others(scene: Scene) -> None:
    member = scene.join(0, noise=Noise(1.0, 1.0, Counted(), None), prepare=lambda one: setattr(one.worker, "makes_no_sense", True))  # type: ignore[arg-type]
    await scene.log.wait_for(1)
    (header, _), *_ = scene.log.handed.values()
    assert header.claims[0].open().microbatches == len(member.worker.microbatches)


async def test_who_has_spent_its_budget_leaves_by_itself(scene: Scene) -> None:
    account = Counted()
    member = scene.join(0, noise=Noise(1.0, 1.0, account, 2.0))  # type: ignore[arg-type]
    for number in (1, 2):
        await scene.log.wait_for(1)
        scene.log.commit()
        if number == 1:
            await until(lambda: member.status.round == 1)
    await member.ends()
    assert account.times == 2
    assert not member.status.finished
