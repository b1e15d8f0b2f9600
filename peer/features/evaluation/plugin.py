"""Makes the service that measures architectures when others of the run ask."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.update import state_from_pieces
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.evaluation.measurer import Measurer
from manta_swarm.peer.features.evaluation.service import EvaluationService, EvaluationSubject
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.plugin import Plugin, Setting
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.train.data import HeldData
from manta_swarm.protocol.errors import EncodingError

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session

_PRIVATE, _ONE_VIEW, _PART = "the run's data are private", "it has one view of the run's data", "it has a part of the run's data"


class Evaluation(Feature):
    """Measures architectures for whoever asks, for a share of the time."""

    def __init__(self, config: PeerConfig, context: RunContext, progress: Progress, held: HeldData) -> None:
        """Answer nobody before limits are told and it is open.

        Args:
            config: the person's settings.
            context: of the run.
            progress: says which state is held.
            held: the data that are here.
        """
        manifest = context.manifest
        self._context = context
        self._progress = progress
        self._root = held.root
        refusal = _PRIVATE if manifest.is_private else _ONE_VIEW if config.view is not None else _PART if held.train else ""
        subject = EvaluationSubject(context.run, manifest.data_digest, space_named(manifest.supernet), refusal)
        self._service = EvaluationService(context.identity, subject, self)

    # As the host of its service (``peer.features.evaluation.service.EvaluationHost``).

    @property
    def held_round(self) -> int:
        """The round of the newest state that is held."""
        return self._progress.held_round

    def weights(self, state: bytes) -> bytes | None:
        """Return a committed state's parameters by its digest; None: they are not here."""
        blob = self._context.blob_store.get(state)
        if blob is None:
            return None
        try:
            return state_from_pieces(blob.pieces, self._context.num_weights).parameters.numpy().tobytes()
        except EncodingError:  # a body's or a mean's root
            return None

    async def start(self) -> Measurer:
        """Start the process that measures, and tell the person."""
        live_status, manifest = self._context.live_status, self._context.manifest
        share = live_status.status.limits.get("evaluation", "10%")
        live_status.say(f"measures networks of this run for others, for {share} of the time at most")
        return await Measurer.start(manifest.supernet, manifest.dataset, manifest.data_digest, self._root)

    def measured(self, count: int) -> None:
        """Show how many architectures were measured in all."""
        self._context.live_status.update(measured_for_others=count)

    # As a feature.

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Answer meanwhile."""
        async with self._service.open(self._context.node):
            yield

    def limit(self, limits: Limits) -> None:
        """Work at most for the share of the time that the person gives."""
        self._service.limit(limits.evaluation, limits.duty)

    def pause(self) -> None:
        """Measure nothing, and have no process, until ``resume``."""
        self._service.pause()

    def resume(self) -> None:
        """Go on."""
        self._service.resume()


class EvaluationPlugin(Plugin):
    """Adds the service that measures architectures for whoever of the run asks."""

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return the feature that measures, at every peer: one that cannot measure says why to whoever asks."""
        return (Evaluation(of.config, of.context, of.progress, of.held),)
