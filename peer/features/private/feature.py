"""Images of this peer's own, as a feature: the model is measured on some of them, and what they taught may be handed in with noise."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from torch import Tensor

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.features.feature import Feature, Vector
from manta_swarm.peer.features.private.measuring import Measuring
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.peer.features.private.private import described

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session


class PrivateImages(Feature):
    """Those of one peer, in a run whose data stay with the peers."""

    def __init__(self, context: RunContext, dataset: ImageDataset, *, tells_accuracy: bool) -> None:
        """Measure on ``dataset``; ``tells_accuracy``: the operator gets to know what comes out."""
        self._board = context.board
        self._dataset = dataset
        self._measuring = Measuring(context, dataset, is_told=tells_accuracy)

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Say what is trained on."""
        self._board.say(f"trains on images of its own, which stay here: {described(self._dataset)}")
        yield

    async def on_held(self, round_: int, parameters: Tensor, *, is_last: bool) -> None:
        """See how good the state is on the held-out images, every so often and at the run's end."""
        await self._measuring.measure(round_, parameters, is_last=is_last)


class NoisyVectors(Feature):
    """Differential privacy: all that leaves is made of vectors with noise."""

    is_blind = True

    def __init__(self, context: RunContext, noise: Noise) -> None:
        """Add ``noise`` to each vector that was learnt."""
        self._context = context
        self._noise = noise

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Say what was given away, at the beginning and at the end."""
        board, noise = self._context.board, self._noise
        board.update(epsilon=noise.epsilon, delta=noise.delta)
        board.say(f"adds noise to what it hands in, and hands in alone: {noise.line()}")
        yield
        board.say(f"given away of its images: {noise.line()}")

    def why_no_more(self) -> str:
        """Say so once the person's budget is spent."""
        return f"{self._noise.line()}, and once more would be beyond --private-epsilon" if self._noise.is_spent else ""

    async def on_learnt(self, vector: Vector) -> Vector:
        """Return a vector (N,) with noise; what that gives away is on the disk by then."""
        noisy = await self._context.compute.run(self._noise.add, vector)
        self._context.board.update(epsilon=self._noise.epsilon)
        self._context.board.write()
        return noisy
