"""All features of a peer, and which of them a peer has: the one place that knows them all."""

from collections.abc import Callable
from dataclasses import dataclass

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.features.audit.opening import auditing_of
from manta_swarm.peer.features.evaluation.opening import Evaluation
from manta_swarm.peer.features.feature import Feature, Features
from manta_swarm.peer.features.gateway.session import gateway_of
from manta_swarm.peer.features.private.feature import NoisyVectors, PrivateImages
from manta_swarm.peer.features.private.private import noise_of
from manta_swarm.peer.features.shards.session import Held
from manta_swarm.peer.features.two_views.views import SiteCrew, TwoViews
from manta_swarm.peer.workers.crew import Crew


@dataclass(frozen=True, slots=True)
class Setting:
    """What features are made of."""

    config: PeerConfig  # what the person wants
    context: RunContext
    progress: Progress
    held: Held  # the data that are here
    dataset: Dataset
    crew: Crew
    traffic: Traffic  # of the context's node


def _evidence(of: Setting) -> Feature | None:
    rules = of.context.manifest.audit_rules
    return None if rules is None else Evidence(of.context, of.progress, rules, has_light=bool(of.config.gateway))


def _auditing(of: Setting) -> Feature | None:
    return auditing_of(of.config, of.context, of.held)


def _evaluation(of: Setting) -> Feature | None:
    return Evaluation(of.config, of.context, of.progress, of.held)


def _private_images(of: Setting) -> Feature | None:
    if not isinstance(of.dataset, ImageDataset) or not of.context.manifest.is_private:
        return None
    is_noisy, told = of.config.private_noise is not None, of.config.tell_accuracy
    return PrivateImages(of.context, of.dataset, tells_accuracy=not is_noisy if told is None else told)


def _noise(of: Setting) -> Feature | None:
    noise = noise_of(of.config, of.context.store.directory / "privacy") if of.context.manifest.is_private else None
    return None if noise is None else NoisyVectors(of.context, noise)


def _gateway(of: Setting) -> Feature | None:
    return gateway_of(of.config, of.context, of.progress, of.dataset, of.traffic)


def _two_views(of: Setting) -> Feature | None:
    return TwoViews(of.crew) if isinstance(of.crew, SiteCrew) else None


# In the order in which they are told of an event. A plain swarm trains without any of them.
PLUGGED_IN: tuple[Callable[[Setting], Feature | None], ...] = (
    _evidence,
    _private_images,
    _noise,
    _gateway,
    _two_views,
    _evaluation,
    _auditing,
)


def features_of(setting: Setting) -> Features:
    """Return the features that a peer has.

    Raises:
        UserError: one that the person asked for cannot be had; the message says what to do.
        StorageError: the disk refuses.
    """
    found = [make(setting) for make in PLUGGED_IN]
    return Features([one for one in found if one is not None])
