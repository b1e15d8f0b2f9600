"""Images of a peer's own in a run whose data are private: read, checked against the run, and said in a line. They go nowhere else."""

from pathlib import Path

import numpy as np

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.private_folder import private_folder
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.private.account import Account
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest


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
    noise = Noise(sigma, clip, Account(path, config.private_delta), limit)
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
