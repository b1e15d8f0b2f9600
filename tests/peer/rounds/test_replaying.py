"""The weights before local steps from files of their means: the bits of the steps themselves, whatever the optimiser, taken or not."""

from pathlib import Path

import pytest
import torch

from automl.models.networks import build
from automl.spaces.space import space_named
from automl.training.local import LocalSteps
from automl.training.schedule import Plan
from automl.training.update import State
from exact.residuals import vector_digest
from peer.rounds.replaying import write_weights
from protocol.manifest import Optimizer
from protocol.recipe import Recipe
from protocol.records import StepRecord
from protocol.signing import sha256
from protocol.vectors import PAGE_BYTES
from swarm.vectors import VectorsFolder

CLAIM, ROUND, STEPS = sha256(b"claim"), 7, 5
ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
SGD = Optimizer("sgd", "0.1", "0.9", "0", "0", "0.0005", 20, "0.9", "0.5")
COUNT = build(space_named("stereo-tiny"), "meta").num_weights


class Worked:
    """A claim of several steps, one of which was not taken, whose means are in a folder."""

    def __init__(self, directory: Path, optimizer: Optimizer, decay: str) -> None:
        self.plan = Plan("stereo-tiny", "sandwich", "data-parallel", optimizer, 30, 3, STEPS, Recipe(decay=decay))
        self.folder = VectorsFolder(directory, kept_rounds=5, max_bytes=1 << 30)
        generator = torch.Generator().manual_seed(1)
        local = LocalSteps(State(ROUND - 1, torch.randn(COUNT, generator=generator), ()), self.plan)
        self.steps: list[StepRecord] = []
        self.keep(local.weights)
        for number in range(STEPS):
            mean = torch.randn(COUNT, generator=generator)
            if number == 2:
                mean[COUNT // 3] = 3e38  # the square of it is none
                mean[-1] = torch.inf
            state, digest = vector_digest(local.weights.numpy()), self.keep(mean)
            self.steps.append(StepRecord(number, 16, state, digest, digest))
            assert local.step(mean) == (number != 2)

    def keep(self, values: torch.Tensor) -> bytes:
        digest = vector_digest(values.numpy())
        self.folder.keep(ROUND, CLAIM, digest, values.numpy())
        return digest

    def write(self, wanted: list[int]) -> None:
        write_weights(self.folder, CLAIM, ROUND, self.steps, wanted, self.plan, COUNT)


@pytest.mark.parametrize(("optimizer", "decay"), [(ADAMW, "matrices"), (SGD, "all")])
def test_the_weights_before_each_step_come_out(tmp_path: Path, optimizer: Optimizer, decay: str) -> None:
    assert 4 * COUNT > PAGE_BYTES  # more than a page: else one of them would say nothing of the others
    worked = Worked(tmp_path, optimizer, decay)
    assert worked.steps[3].state == worked.steps[2].state
    worked.write([4])
    assert worked.folder.read(CLAIM, worked.steps[4].state) is not None
    assert not worked.folder.has(CLAIM, worked.steps[1].state)
    worked.write([1, 2, 3, 4])
    for step in worked.steps:
        assert worked.folder.read(CLAIM, step.state) is not None


def test_without_a_mean_that_it_takes_nothing_is_written(tmp_path: Path) -> None:
    worked = Worked(tmp_path, ADAMW, "all")
    worked.folder.keep_only(CLAIM, (worked.steps[0].state, worked.steps[0].mean))
    worked.write([1, 2])
    assert not worked.folder.has(CLAIM, worked.steps[1].state)
    worked.write([1])
    assert worked.folder.read(CLAIM, worked.steps[1].state) is not None


def test_weights_that_are_not_those_that_were_trained_on_are_not_written(tmp_path: Path) -> None:
    worked = Worked(tmp_path, SGD, "all")
    path = next(tmp_path.glob(f"*/{CLAIM.hex()}/{worked.steps[0].mean.hex()}"))
    data = bytearray(path.read_bytes())
    data[PAGE_BYTES + 3] ^= 1
    path.write_bytes(data)
    worked.write([1])
    assert not worked.folder.has(CLAIM, worked.steps[1].state)
    assert not list(tmp_path.rglob("*.part"))
