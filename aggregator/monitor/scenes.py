"""What subnets answer to a few held-out samples, always the same ones, and the pictures of it beside each other."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manta_swarm.aggregator.monitor import drawing
from manta_swarm.aggregator.monitor.pictures import Answer, PicturesIndex, Scene, Sheet, picture_name
from manta_swarm.automl.data.dataset import CLASSIFICATION, STEREO, Dataset
from manta_swarm.automl.evaluation.quick_evaluation import answers, some_held_out
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.protocol.errors import UserError

_IMAGES, _SCENES = 24, 2
_ERROR_SHARE = 0.25  # of the largest disparity: what is drawn as brightly as can be

Named = tuple[PicturesIndex, dict[str, bytes]]
Mask = NDArray[np.bool_]


class Drawn(Protocol):
    """What one subnet answers."""

    def beside(self, other: "Drawn", round_: int) -> Named:
        """Return the index and the pictures by name, this subnet being the largest and ``other`` the smallest one."""
        ...


def draw(supernet: Supernet, dataset: Dataset, architecture: Architecture) -> Drawn:
    """Return what a subnet, for which the supernet is recalibrated, answers."""
    most, of_each = (_SCENES, 1) if dataset.task == STEREO else (_IMAGES, 2)  # of each batch, so that they are spread over the set
    batches = [(batch.inputs[:of_each], batch.targets[:of_each]) for batch in some_held_out(dataset, architecture.resolution)]
    inputs, targets = torch.cat([some for some, _ in batches])[:most], torch.cat([some for _, some in batches])[:most]
    result = answers(supernet, inputs, architecture)
    if dataset.task == STEREO:
        return DrawnDisparities(inputs[:, :3], targets, result)
    return DrawnAnswers(inputs, targets, result, _class_names(dataset))


def _class_names(dataset: Dataset) -> tuple[str, ...]:
    names = getattr(dataset, "class_names", None)
    return tuple(names) if names else tuple(map(str, range(dataset.num_classes)))


@dataclass(frozen=True, slots=True)
class DrawnAnswers:
    """Classification: images (B, C, H, W), labels (B,), logits (B, K)."""

    images: Tensor
    labels: Tensor
    logits: Tensor
    names: tuple[str, ...]

    def beside(self, other: Drawn, round_: int) -> Named:
        """See ``Drawn``."""
        assert isinstance(other, DrawnAnswers)
        data, width, height = drawing.sheet([image.numpy() for image in self.images])
        name = picture_name(data)
        pairs = zip(self.labels.tolist(), self._answers(), other._answers(), strict=True)
        shown = tuple(
            Answer(label=self.names[label], largest=largest, largest_sure=sure, smallest=smallest, smallest_sure=less_sure)
            for label, (largest, sure), (smallest, less_sure) in pairs
        )
        sheet = Sheet(picture=name, tile_width=width, tile_height=height, columns=drawing.COLUMNS, count=len(shown))
        return PicturesIndex(round=round_, kind=CLASSIFICATION, sheet=sheet, answers=shown), {name: data}

    def _answers(self) -> list[tuple[str, float]]:
        sure, places = self.logits.softmax(1).max(1)
        return [(self.names[place], round(value, 4)) for place, value in zip(places.tolist(), sure.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class DrawnDisparities:
    """Stereo: left views (B, 3, H, W), truths and disparities (B, H, W)."""

    left: Tensor
    truth: Tensor
    disparity: Tensor

    def beside(self, other: Drawn, round_: int) -> Named:
        """See ``Drawn``."""
        assert isinstance(other, DrawnDisparities)
        known = self.truth[self.truth >= 0]
        if not known.numel():
            raise UserError("the held-out pairs have no disparity to compare with")
        most = max(1.0, round(float(known.max()), 1))
        most_error = round(most * _ERROR_SHARE, 1)
        pictures: dict[str, bytes] = {}

        def keep(data: bytes) -> str:
            pictures[name := picture_name(data)] = data
            return name

        scenes = []
        for place in range(len(self.truth)):
            truth, mine = self.truth[place].numpy(), self.disparity[place].numpy()
            height, width = truth.shape
            others = drawing.resized(other.disparity[place].numpy(), height, width)
            is_known: Mask = truth >= 0
            everywhere = np.ones_like(is_known)
            errors = [np.abs(one - truth) for one in (mine, others)]
            scenes.append(
                Scene(
                    width=width,
                    height=height,
                    left=keep(drawing.view(self.left[place].numpy())),
                    truth=keep(drawing.coloured(truth, most, is_known)),
                    largest=keep(drawing.coloured(mine, most, everywhere)),
                    largest_error=keep(drawing.coloured(errors[0], most_error, is_known)),
                    smallest=keep(drawing.coloured(others, most, everywhere)),
                    smallest_error=keep(drawing.coloured(errors[1], most_error, is_known)),
                    largest_epe=_mean(errors[0], is_known),
                    smallest_epe=_mean(errors[1], is_known),
                )
            )
        index = PicturesIndex(round=round_, kind=STEREO, max_disparity=most, max_error=most_error, scenes=tuple(scenes))
        return index, pictures


def _mean(errors: drawing.Values, is_known: Mask) -> float:
    return round(float(errors[is_known].mean()), 3) if is_known.any() else 0.0
