"""What the config of an exported network tells those who feed it without this code: how a picture becomes an input, what the classes
are called, and under which licences all is.

Exports of the first version tell none of it. Words follow those that model hubs use, where there are such words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from manta_swarm.automl.data.dataset import CLASSIFICATION, CROPS, Dataset, Preparation
from manta_swarm.automl.data.names import UNKNOWN, licence_of
from manta_swarm.automl.forms import check_licence
from manta_swarm.protocol.errors import UserError

MAX_TITLE = 100  # characters of a class's name
_MAX_SIDE = 1 << 14
_MAX_WHITE = 255
_RESAMPLING = {"smaller": "area", "larger": "bilinear"}  # automl.data.scaling
_UNPRINTABLE = "?"


@dataclass(frozen=True, slots=True)
class Presentation:
    """How a network is fed and read, and what may be done with it."""

    preparation: Preparation
    class_titles: tuple[str, ...]  # in the order of the output; stereo: none
    licence: str  # of the network
    dataset_licence: str

    def value(self, channels: int) -> dict[str, object]:
        """Return it as the JSON value that a network of so many image channels tells."""
        preparation = self.preparation
        told: dict[str, object] = {
            "preprocessing": {
                "crop": preparation.crop,
                "kept_side": preparation.kept_side,
                "resampling": _RESAMPLING,
                "divide_by": preparation.white,
                "image_mean": [0.0] * channels,  # nothing is subtracted: the networks take values from 0 to 1
                "image_std": [1.0] * channels,
            },
            "licences": {"network": self.licence, "dataset": self.dataset_licence},
        }
        titles = {str(label): title for label, title in enumerate(self.class_titles)}
        return {**told, "id2label": titles} if titles else told

    @classmethod
    def parse(cls, fields: Mapping[str, Mapping[str, object]], task: str, num_classes: int) -> "Presentation | None":
        """Return what a description's JSON tells; None if it tells nothing. Whoever calls it compares what ``value`` says again.

        Raises:
            ValueError: it tells something else, or of a network of another task.
        """
        if not {"preprocessing", "licences", "id2label"} & fields.keys():
            return None
        told, licences = fields["preprocessing"], fields["licences"]
        titles = tuple(map(_title, fields["id2label"].values())) if task == CLASSIFICATION else ()
        if told["crop"] != CROPS[task] or len(titles) != num_classes:
            raise ValueError("it is cut in a way that this task's inputs are not, or has other classes than its network")
        side = None if told["kept_side"] is None else _count(told["kept_side"], _MAX_SIDE)
        preparation = Preparation(CROPS[task], _count(told["divide_by"], _MAX_WHITE), side)
        return cls(preparation, titles, *(_licence(licences[name]) for name in ("network", "dataset")))


def presentation_of(dataset: Dataset, licence: str = UNKNOWN, dataset_licence: str | None = None) -> Presentation:
    """Return how a network for ``dataset`` is presented; the set's licence is the one that it tells itself, unless one is given."""
    return Presentation(
        preparation=dataset.preparation,
        class_titles=tuple(map(_printable, dataset.class_titles)),
        licence=licence,
        dataset_licence=dataset_licence or licence_of(dataset.name),
    )


def _printable(title: str) -> str:
    """Return a class's name, which may be a stranger's folder, as a text that can be shown anywhere."""
    shown = "".join(letter if letter.isprintable() else _UNPRINTABLE for letter in title)
    return shown[:MAX_TITLE] or _UNPRINTABLE


def _title(value: object) -> str:
    if not isinstance(value, str) or value != _printable(value):
        raise ValueError("the name of a class is too long, or cannot be shown")
    return value


def _licence(value: object) -> str:
    try:
        return check_licence(cast("str", value))
    except UserError as error:
        raise ValueError("a licence in it is none") from error


def _count(value: object, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError("a side or a level in it is no whole number above zero, or too large")
    return value
