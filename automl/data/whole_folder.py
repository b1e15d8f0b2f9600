"""All images of a folder as a test set, read one after the other: however many there are, few are in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, CLASSIFICATION, Batch, EvaluationSet
from manta_swarm.automl.data.image_folder import class_files
from manta_swarm.automl.data.images import resize
from manta_swarm.automl.data.pictures import read_picture
from manta_swarm.automl.data.scaling import rescale_pixels
from manta_swarm.automl.data.shards.threads import in_threads, one_ahead
from manta_swarm.protocol.errors import UserError

_WHITE = 255


class WholeFolder:
    """Labelled images, none of which is held back. An EvaluationSet (automl.data.dataset)."""

    def __init__(
        self, folder: Path, titles: Sequence[str], channels: int, kept_side: int | None, calibrating: EvaluationSet | None = None
    ) -> None:
        """Look at what there is in ``folder``, with a folder for each class that there are images of.

        Args:
            folder: the folder.
            titles: what a network calls its classes, in the order of their labels.
            channels: 1 (grey) or 3 (RGB) of what the network is fed.
            kept_side: the side that pictures were brought to before all else where it was trained; None: they were not.
            calibrating: has the training images that statistics are measured on, if they are.

        Raises:
            UserError: no folder, or one of no class of the network.
        """
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder: name one with a folder for each class in it")
        files = class_files(folder, least=1)
        unknown = sorted(files.keys() - set(titles))
        if unknown:
            some = ", ".join(titles[:5]) + (", ..." if len(titles) > 5 else "")
            raise UserError(f"{folder / unknown[0]} is no class of the network, which has {some}: rename the folder, or move it away")
        self.folder = folder
        self._files = [(path, titles.index(name)) for name, paths in files.items() for path in paths]
        self._channels = channels
        self._kept_side = kept_side
        self._calibrating = calibrating

    def __len__(self) -> int:
        return len(self._files)

    @property
    def task(self) -> str:
        """Classification."""
        return CLASSIFICATION

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield training images of the set that is there to calibrate with."""
        if self._calibrating is None:
            raise ValueError("there are no training images to calibrate with")
        return self._calibrating.calibration_batches(resolution, batch, limit)

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield all images; there are no parts.

        Raises:
            UserError: when it is its turn: a file is no image, or has colours that the network does not see.
        """
        if part != ALL:
            raise ValueError(f"a whole folder has no part {part!r}")
        starts = range(0, len(self._files), every * batch)
        return one_ahead(self._batch(self._files[start : start + batch], resolution) for start in starts)

    def _batch(self, files: Sequence[tuple[Path, int]], resolution: int) -> Batch:
        images = list(in_threads(lambda file: self._image(file[0], resolution), files))
        return Batch(torch.stack(images), torch.tensor([label for _, label in files], dtype=torch.int64))

    def _image(self, path: Path, resolution: int) -> Tensor:
        picture = read_picture(path)
        if picture.ndim == 3 and self._channels == 1:
            raise UserError(f"{path} has colours, and the network sees grey images: save it in grey, or remove it")
        rows, columns = picture.shape[:2]
        side = min(rows, columns)
        top, left = (rows - side) // 2, (columns - side) // 2
        square = picture[top : top + side, left : left + side]
        planes = square.transpose(2, 0, 1) if square.ndim == 3 else np.repeat(square[None], self._channels, axis=0)
        if self._kept_side is not None and side != self._kept_side:
            planes = rescale_pixels(planes[None], self._kept_side, self._kept_side)[0]
        return resize(planes[None], _WHITE, resolution)[0]
