"""Images of this peer's own, as a feature: the model is measured on some of them, and what they taught may be handed in with noise."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.features.feature import Feature, Vector
from manta_swarm.peer.features.plugin import Plugin, Setting
from manta_swarm.peer.features.private.measuring import Measuring
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.peer.features.private.private import described, load_private, noise_of, refuse_private
from manta_swarm.protocol.manifest import Manifest

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session


class PrivateImages(Feature):
    """Those of one peer, in a run whose data stay with the peers."""

    def __init__(self, context: RunContext, dataset: ImageDataset, *, tells_accuracy: bool) -> None:
        """Measure on ``dataset``; ``tells_accuracy``: the operator gets to know what comes out."""
        self._live_status = context.live_status
        self._dataset = dataset
        self._measuring = Measuring(context, dataset, is_told=tells_accuracy)

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Say what is trained on."""
        self._live_status.say(f"trains on images of its own, which stay here: {described(self._dataset)}")
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
        live_status, noise = self._context.live_status, self._noise
        live_status.update(epsilon=noise.epsilon, delta=noise.delta)
        live_status.say(f"adds noise to what it hands in, and hands in alone: {noise.line()}")
        yield
        live_status.say(f"given away of its images: {noise.line()}")

    def why_no_more(self) -> str:
        """Say so once the person's budget is spent."""
        return f"{self._noise.line()}, and once more would be beyond --private-epsilon" if self._noise.is_spent else ""

    async def on_learnt(self, vector: Vector) -> Vector:
        """Return a vector (N,) with noise; what that gives away is on the disk by then."""
        noisy = await self._context.compute.run(self._noise.add, vector)
        self._context.live_status.update(epsilon=self._noise.epsilon)
        self._context.live_status.write()
        return noisy


class PrivatePlugin(Plugin):
    """Images of the peers' own, in a run whose data stay with them."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse what is for such runs alone in another one."""
        if not manifest.is_private and config.view is None:
            refuse_private(config)

    def load(self, config: PeerConfig, manifest: Manifest, root: Path | None) -> Dataset | None:
        """Return the peer's own images."""
        return load_private(manifest, config.private_data) if manifest.is_private and config.view is None else None

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return what measures on some of them, and the noise that the person asked for."""
        if not of.context.manifest.is_private:
            return ()
        found: list[Feature] = []
        if isinstance(of.dataset, ImageDataset):
            is_noisy, told = of.config.private_noise is not None, of.config.tell_accuracy
            found.append(PrivateImages(of.context, of.dataset, tells_accuracy=not is_noisy if told is None else told))
        if (noise := noise_of(of.config, of.context.store.directory / "privacy")) is not None:
            found.append(NoisyVectors(of.context, noise))
        return found
