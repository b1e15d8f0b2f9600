"""Data sets by their names, as a manifest's ``dataset`` or a command line has them.

- ``digits``, ``layers``, ``motorcycle``: of a library, or made here; they need no folder.
- a torchvision set by its name in lower case: ``cifar10``, ``fashionmnist``, ``emnist-letters``, ``kitti2015stereo``, ...
- ``folder-NAME``: one's own labelled images in root/NAME; ``stereo-NAME``: one's own stereo pairs.
- ``shards-NAME``: images or pairs in shards in root/NAME, read when they are asked for.

A name of labelled images may end in a size, like ``food101-128px``: then no image is kept larger than that.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.image_folder import image_folder
from manta_swarm.automl.data.names import BUNDLED, OWN_IMAGES, OWN_PAIRS, SHARDS, own_folder, root_of, unknown, without_size
from manta_swarm.automl.data.shards.layout import IMAGES
from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.sharded import ShardedImages, sharded_pairs
from manta_swarm.automl.data.stereo_folder import stereo_folder
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.protocol.errors import UserError


def load_dataset(name: str, root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return the data set called ``name``; ``root`` is the folder that holds the data which no library brings along.

    With ``download`` torchvision may fetch what is missing into ``root``; otherwise nothing is downloaded.

    Raises:
        UserError: no such data set, or its files are missing or broken; the message says what to do.
    """
    if name in BUNDLED:
        return _bundled(name)
    kind, side = without_size(name)
    if kind.startswith(OWN_IMAGES):
        return replace(image_folder(kind, own_folder(kind, OWN_IMAGES, root), side), name=name)
    if name.startswith(OWN_PAIRS):
        return stereo_folder(name, own_folder(name, OWN_PAIRS, root))
    if name.startswith(SHARDS):
        shards = open_shards(own_folder(name, SHARDS, root))
        return ShardedImages(name, shards) if shards.list.kind == IMAGES else sharded_pairs(name, shards)
    return _torchvision(name, kind, side, root, download)


def load_view(name: str, view: str, root: Path | None) -> StereoDataset:
    """Return the stereo pairs called ``name`` of which only one view is in ``root``, and with the left one the disparities.

    Raises:
        UserError: as ``load_dataset``, or pairs of which nobody has one view only.
    """
    if not name.startswith(OWN_PAIRS):
        raise UserError(f"{name} comes with both views: leave --view out")
    return stereo_folder(name, own_folder(name, OWN_PAIRS, root), view)


def _bundled(name: str) -> Dataset:
    # Here and not above: a library takes seconds to import, and only its own set needs it.
    if name == "digits":
        with _library_of(name):
            from manta_swarm.automl.data.digits import digits
        return digits()
    if name == "motorcycle":
        with _library_of(name):
            from manta_swarm.automl.data.motorcycle import motorcycle
        return motorcycle()
    from manta_swarm.automl.data.layered import layers

    return layers()


def _torchvision(name: str, kind: str, side: int, root: Path | None, download: bool) -> Dataset:
    with _library_of(name):
        from manta_swarm.automl.data.torchvision_images import torchvision_image_names, torchvision_images
        from manta_swarm.automl.data.torchvision_stereo import torchvision_stereo, torchvision_stereo_names

    if kind in torchvision_image_names():
        folder = root_of(name, root, may_be_made=download)
        return replace(torchvision_images(kind, folder, download=download, side=side), name=name)
    if name in torchvision_stereo_names():
        return torchvision_stereo(name, root_of(name, root, may_be_made=download), download=download)
    raise unknown(name, [*torchvision_image_names(), *torchvision_stereo_names()])


@contextlib.contextmanager
def _library_of(name: str) -> Iterator[None]:
    """While the library of a data set is imported: say in a line that it is missing, or does not fit.

    Raises:
        UserError: so it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{name} needs {error.name}, which is not installed: pip install 'manta-swarm[swarm]'") from error
    except (ImportError, RuntimeError) as error:  # a torchvision of another build than torch: "operator torchvision::nms does not exist"
        raise UserError(
            f"{name}: its library does not fit torch {torch.__version__} ({error}); torch and torchvision have to come from one place, "
            "both for the CPU or both for GPUs"
        ) from error
