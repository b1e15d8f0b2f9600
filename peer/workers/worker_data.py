"""What the worker processes of a peer share of its data set: images, what they read or make of stereo pairs, or where shards are."""

from dataclasses import dataclass, replace
from pathlib import Path

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.shards.sharded_images import ShardedImages
from manta_swarm.automl.data.shared import ImagesIn, share_images, shared_images
from manta_swarm.automl.data.shared_pairs import region_for
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.shared_memory import Region
from manta_swarm.peer.workers.worker_messages import PairsOf, ShardsOf
from manta_swarm.protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class WorkerData:
    """A data set that worker processes can have."""

    images: tuple[ImagesIn, ...]  # one, which lies in ``region``, or none
    pairs: tuple[PairsOf, ...]  # one, whose pairs are kept in ``region``, or none
    shards: tuple[ShardsOf, ...]  # one, which needs nothing in ``region``, or none
    region: Region

    @classmethod
    def of(cls, dataset: Dataset, root: Path | None, part: tuple[int, ...] = ()) -> "WorkerData":
        """Share a data set; of images the caller need not keep its own copy, see ``here``.

        ``root`` is the folder that it was loaded from, ``part`` its shards to train with where these are not all.

        Raises:
            StorageError: as ``Region.make``.
            UserError: a data set of a kind that worker processes can't have.
        """
        if isinstance(dataset, ImageDataset):
            images, region = share_images(dataset)
            return cls((images,), (), (), region)
        if isinstance(dataset, StereoDataset):
            region, place_bytes = region_for(dataset.train)
            return cls((), (PairsOf(dataset.name, "" if root is None else str(root), place_bytes, part),), (), region)
        if isinstance(dataset, ShardedImages):
            return cls((), (), (ShardsOf(dataset.name, str(root), dataset.digest, part),), Region.make(0))
        raise UserError(f"the data set {dataset.name} cannot be shared among workers: give --workers 1 and --gpus none")

    def here(self, dataset: Dataset) -> Dataset:
        """Return the data set that was shared as this process is to have it: its training images are those in shared memory."""
        if not self.images or not isinstance(dataset, ImageDataset):
            return dataset
        shared = shared_images(self.images[0], self.region)
        return replace(dataset, train_images=shared.train_images, train_labels=shared.train_labels)

    def close(self) -> None:
        """Give the memory back."""
        self.region.close()
