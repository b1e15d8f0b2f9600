"""The feature for images of a peer's own: reads them, measures the model on some, and hands in what the others taught, with noise."""

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.image_folder import private_folder
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.evaluation.held_out import evaluate
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.features.feature import Feature, Vector
from manta_swarm.peer.features.plugin import Plugin, Setting
from manta_swarm.peer.features.private.noise import Noise, NoiseAccount
from manta_swarm.protocol.errors import MantaError, UserError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.private import Measure
from manta_swarm.protocol.signed import Signed

SHARE = 20  # of a peer's time measuring takes one part at most

logger = logging.getLogger("manta.peer")


class Measuring:
    """Measures the states of one run at one peer."""

    def __init__(self, context: RunContext, dataset: ImageDataset, *, is_told: bool) -> None:
        """Prepare.

        Args:
            context: of the run.
            dataset: the peer's own; if nothing of it is held out nothing is measured.
            is_told: whether the operator gets to know.
        """
        self._context = context
        self._space = space_named(context.manifest.supernet)
        self._dataset = dataset
        self._is_told = is_told
        self._rests_until_ms = 0.0
        self._measured: int | None = None  # the round whose state was measured last

    async def measure(self, round_: int, parameters: Tensor, *, is_last: bool = False) -> None:
        """Measure the state after a round, its parameters (N,), if that is due: the last one is, the first one says nothing."""
        is_resting = self._context.clock.now_ms() < self._rests_until_ms and not is_last
        if is_resting or round_ in (0, self._measured) or not self._dataset.num_held_out:
            return
        began_ms = self._context.clock.now_ms()
        measure = await self._context.compute.run(self._found, round_, parameters)
        self._rests_until_ms = self._context.clock.now_ms() + (SHARE - 1) * (self._context.clock.now_ms() - began_ms)
        self._measured = round_
        largest, smallest = measure.largest / measure.samples, measure.smallest / measure.samples
        self._context.live_status.update(own_round=round_, own_samples=measure.samples, own_largest=largest, own_smallest=smallest)
        self._context.live_status.write()
        if is_last:
            figures = f"largest={largest:.1%} smallest={smallest:.1%}"
            self._context.live_status.say(f"on {measure.samples} held-out images of its own round={round_} {figures}")
        if self._is_told:
            await self._tell(measure)

    def _found(self, round_: int, parameters: Tensor) -> Measure:
        supernet = build(self._space, "cpu")  # and not on a GPU: this process has none, so that a pause frees them all
        supernet.load(parameters)
        samples = self._dataset.num_held_out
        found = evaluate(supernet, self._dataset, [self._space.largest(), self._space.smallest()])
        largest, smallest = (round(quality["accuracy"] * samples) for quality in found)
        return Measure(self._context.run, self._context.key, round_, samples, largest, smallest)

    async def _tell(self, measure: Measure) -> None:
        try:
            await self._context.log.tell_measure(Signed.sign(measure, self._context.identity))
        except MantaError as error:  # the figures are for people: nothing waits for them
            logger.info("measure not told round=%d reason=%s", measure.round, error)


def load_private(manifest: Manifest, folder: Path | None) -> ImageDataset:
    """Return the peer's own images, as a run with private data trains on them.

    Raises:
        UserError: no folder was given, what is in it does not fit the run, or the run does not fit itself; the message says what to do.
    """
    if folder is None:
        raise UserError(
            "in this run each peer trains on images of its own, which stay on its computer: name their folder with --private-data "
            f"(a folder for each class in it: {_some(manifest.private[0].classes)})"
        )
    asked, space = manifest.private[0], space_named(manifest.supernet)
    if (space.task, space.num_classes) != (manifest.task, len(asked.classes)):
        raise UserError(f"the run's supernet {space.name} does not fit its {len(asked.classes)} classes: ask the operator to mend it")
    return private_folder(
        folder,
        asked.classes,
        channels=space.image_channels,
        side=space.resolutions[-1],
        mirrored=bool(asked.mirrored),
        least=manifest.microbatch_samples,
    )


def refuse_private(config: PeerConfig) -> None:
    """Refuse settings of private data in a run where everybody trains on the same data.

    Raises:
        UserError: there are some.
    """
    if config.private_data is not None:
        raise UserError("in this run everybody trains on the same data, and --private-data would not be used: leave it out")
    given = [name for name in ("private_noise", "private_clip", "private_epsilon") if getattr(config, name) is not None]
    if given:
        raise UserError(f"in this run everybody trains on the same data, and --{given[0].replace('_', '-')} hides nothing: leave it out")


def noise_of(config: PeerConfig, path: Path) -> Noise | None:
    """Return the noise that a person asked for; None: none. Its account is the file at ``path``.

    Raises:
        UserError: a budget that is spent.
        StorageError: the account is damaged.
    """
    sigma, clip, limit = config.private_noise, config.private_clip, config.private_epsilon
    if sigma is None or clip is None:
        return None
    noise = Noise(sigma, clip, NoiseAccount(path, config.private_delta), limit)
    if noise.is_spent:
        raise UserError(
            f"the budget of privacy is spent: {noise.line()}, and once more would be beyond --private-epsilon {limit:g}; "
            "raise it, or add more noise"
        )
    return noise


def described(dataset: ImageDataset) -> str:
    """Return what was found, for a person: how many images of how many classes, and how many of them are held out."""
    present = len(np.union1d(dataset.train_labels, dataset.held_out_labels))
    held_out = f"{dataset.num_held_out} are held out to measure by" if dataset.num_held_out else "too few to hold any out and measure by"
    return f"{dataset.num_train} images to train with, of {present} of the run's {dataset.num_classes} classes; {held_out}"


def _some(names: tuple[str, ...], shown: int = 12) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


if TYPE_CHECKING:
    from manta_swarm.peer.session import Session


class PrivateImages(Feature):
    """Holds this peer's own images, in a run whose data stay with the peers."""

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
    """Adds differential-privacy noise to each vector that was learnt, before anything leaves this peer."""

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
    """Adds, in a run whose data stay with the peers, the peer's own images and what is done with them."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse settings for private data in a run that has none."""
        if not manifest.is_private and config.view is None:
            refuse_private(config)

    def load(self, config: PeerConfig, manifest: Manifest, root: Path | None) -> Dataset | None:
        """Return the peer's own images."""
        return load_private(manifest, config.private_data) if manifest.is_private and config.view is None else None

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return the features that measure on some of the images and add the noise that the person asked for."""
        if not of.context.manifest.is_private:
            return ()
        found: list[Feature] = []
        if isinstance(of.dataset, ImageDataset):
            is_noisy, told = of.config.private_noise is not None, of.config.tell_accuracy
            found.append(PrivateImages(of.context, of.dataset, tells_accuracy=not is_noisy if told is None else told))
        if (noise := noise_of(of.config, of.context.store.directory / "privacy")) is not None:
            found.append(NoisyVectors(of.context, noise))
        return found
