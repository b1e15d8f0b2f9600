"""Noise on what a peer hands in: its size, the clip before it, that it is written down first; and rounds of a peer that adds it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from manta_swarm.codec.coding import parse
from manta_swarm.peer.features.private.noise import BudgetSpent, Noise, noisy, normal
from manta_swarm.protocol.errors import StorageError
from tests.memory_log import MICROBATCH, SMALL_EXCHANGE, until
from tests.peer.scene import Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")


class Counted:
    """An account that says how often something was handed in; one time more is epsilon 1."""

    delta = 1e-5

    def __init__(self, is_broken: bool = False) -> None:
        self.times = 0
        self._is_broken = is_broken

    def epsilon(self, sigma: float | None = None) -> float:
        """Count."""
        return float(self.times + (sigma is not None))

    def spend(self, sigma: float) -> None:
        """Count, or fail as a disk may."""
        if self._is_broken:
            raise StorageError("no room")
        self.times += 1


def noise(account: Counted, limit: float | None = None) -> Noise:
    return Noise(2.0, 3.0, account, limit)  # type: ignore[arg-type]


def test_the_numbers_are_normal_and_independent() -> None:
    values = normal(200_001)
    assert values.shape == (200_001,)
    assert stats.kstest(values, "norm").pvalue > 1e-6
    assert abs(float(np.corrcoef(values[:-1], values[1:])[0, 1])) < 0.02
    assert len(np.unique(values)) == len(values)
    assert not np.array_equal(normal(10), normal(10))


def test_a_vector_is_clipped_to_its_norm_and_gets_noise_of_that_size() -> None:
    vector = np.full(250_000, 7, np.float32)
    found = noisy(vector, 2.0, 3.0)
    clipped = 3.0 / math.sqrt(250_000)
    assert found.dtype == np.float32
    assert stats.kstest((found.astype(np.float64) - clipped) / 6.0, "norm").pvalue > 1e-6
    assert vector.tolist()[:3] == [7, 7, 7]


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_only_what_is_longer_than_the_clip_is_shortened(scale: float) -> None:
    vector = (np.array([3, 4], np.float32) * np.float32(scale)).astype(np.float32)
    length = 5 * scale
    for clip in (length * 2, length / 2):
        found = noisy(vector, 1e-300, clip)  # hardly any noise
        assert float(np.linalg.norm(found.astype(np.float64))) == pytest.approx(min(length, clip), rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_nothing_so_that_it_shows_nothing(bad: float) -> None:
    vector: NDArray[np.float32] = np.array([1, bad, 2], np.float32)
    found = noisy(vector, 1.0, 1.0)
    assert np.isfinite(found).all()
    assert noisy(np.zeros(0, np.float32), 1.0, 1.0).size == 0


def test_it_is_written_down_before_anything_may_leave() -> None:
    account = Counted()
    assert noise(account).add(np.zeros(5, np.float32)).shape == (5,)
    assert account.times == 1
    with pytest.raises(StorageError):
        noise(Counted(is_broken=True)).add(np.zeros(5, np.float32))


def test_a_budget_is_not_exceeded() -> None:
    account = Counted()
    limited = noise(account, limit=2.0)
    for _ in range(2):
        assert not limited.is_spent
        limited.add(np.zeros(5, np.float32))
    assert limited.is_spent
    with pytest.raises(BudgetSpent):
        limited.add(np.zeros(5, np.float32))
    assert account.times == 2
    assert not noise(account).is_spent
    assert limited.line() == "epsilon=2 at delta=1e-05 so far"


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
        await scene.rounds(1)
        if number == 1:
            await until(lambda: member.status.round == 1)
    await member.ends()
    assert account.times == 2
    assert not member.status.finished
