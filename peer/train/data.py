"""What a peer trains on, loaded from this computer and compared with what the run's manifest says."""

from dataclasses import dataclass
from pathlib import Path

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.network.blobs import BlobStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest


@dataclass(frozen=True, slots=True)
class HeldData:
    """The run's data that are on this computer."""

    blob_store: BlobStore  # from which this peer hands things out, shards among them
    root: Path | None  # the folder with the data sets that come with no library
    train: tuple[int, ...] = ()  # the shards to train with, where these are not all
    claimed: int = 0  # what claims say of that (``Claim.shards``)

    def part_of(self, dataset: Dataset) -> Dataset:
        """Return the data set as microbatches of this peer are drawn from it."""
        if self.train:
            assert isinstance(dataset, ShardedImages | ShardedPairs)
            return dataset.with_part(self.train)
        return dataset


def check_supported(manifest: Manifest) -> None:
    """Refuse a run that is newer than this program; tasks, algorithms and schedules that it cannot name make no manifest at all.

    Raises:
        UserError: it asks for something that this version does not have.
    """
    try:
        space = space_named(manifest.supernet)
    except UserError as error:
        raise UserError(f"{error}; install the version that the operator names") from error
    if space.task != manifest.task:
        raise UserError(f"the run's supernet {space.name} is for {space.task}, its task is {manifest.task}: ask the operator to mend it")


def load_checked(manifest: Manifest, root: Path | None) -> Dataset:
    """Return the run's data set from this computer; ``root`` is the folder for those that come with no library.

    Raises:
        UserError: it is missing, not the run's, or not what the run's supernet is made for; the message says what to do.
    """
    try:
        dataset = load_dataset(manifest.dataset, root)
    except UserError as error:
        raise UserError(f"the run needs the data set {manifest.dataset!r}: {error}") from error
    if dataset.digest != manifest.data_digest:
        raise UserError(
            f"the data set {manifest.dataset!r} on this computer is not the run's (its digest is {dataset.digest.hex()[:16]}, "
            f"the manifest says {manifest.data_digest.hex()[:16]}): install the library versions, and get the data, that the operator names"
        )
    space = space_named(manifest.supernet)
    made_for = (space.task, space.image_channels, space.num_classes)
    if made_for != (dataset.task, dataset.image_channels, dataset.num_classes):
        raise UserError(f"the run's supernet {space.name} does not fit its data set {dataset.name}: ask the operator to mend it")
    return dataset
