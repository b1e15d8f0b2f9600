"""What an exported network is, where it comes from, how good it is, and how a picture becomes its input: the JSON in every exported file.

One value, the same in a ``.pt2``, an ``.onnx`` and a folder's ``config.json``. What follows from the supernet's name and the architecture
(inputs, outputs, cost) is in it for readers that do not have this code; on reading it is computed again and compared.

How a picture becomes an input, what the classes are called, and under which licences all is, is there for those who feed a network without
this code. Exports of the first version tell none of it. Words follow those that model hubs use, where there are such words.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

from manta_swarm.automl.data.dataset import CLASSIFICATION, CROPS, TEST, Dataset, Preparation
from manta_swarm.automl.data.names import UNKNOWN, licence_of
from manta_swarm.automl.forms import check_licence
from manta_swarm.automl.spaces.cost import macs, num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.protocol.errors import UserError

MAX_TITLE = 100  # characters of a class's name
_MAX_SIDE = 1 << 14
_MAX_WHITE = 255
_RESAMPLING = {"smaller": "area", "larger": "bilinear"}  # automl.data.scaling
_UNPRINTABLE = "?"

FORMAT = "manta/network/v1"
MAX_BYTES = 512 << 10  # most of it names of classes, where there are thousands
LOCAL = "local"  # the run of a training without a swarm

_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,._:+/-]{0,149}")
_METRICS = {"classification": ("accuracy",), "stereo": ("epe", "d1", "bad3")}
_MODEL_TYPES = {"classification": "manta-classifier", "stereo": "manta-stereo"}


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
        side = None if told["kept_side"] is None else _positive(told["kept_side"], _MAX_SIDE)
        preparation = Preparation(CROPS[task], _positive(told["divide_by"], _MAX_WHITE), side)
        return cls(preparation, titles, *(_licence(licences[name]) for name in ("network", "dataset")))


def presentation_of(dataset: Dataset, licence: str = UNKNOWN, dataset_licence: str | None = None) -> Presentation:
    """Return how a network for ``dataset`` is presented; the set's licence is the one that it tells itself, unless one is given."""
    return Presentation(
        preparation=dataset.preparation,
        class_titles=tuple(map(_shown_title, dataset.class_titles)),
        licence=licence,
        dataset_licence=dataset_licence or licence_of(dataset.name),
    )


def _shown_title(title: str) -> str:
    """Return a class's name, which may be a stranger's folder, as a text that can be shown anywhere."""
    shown = "".join(letter if letter.isprintable() else _UNPRINTABLE for letter in title)
    return shown[:MAX_TITLE] or _UNPRINTABLE


def _title(value: object) -> str:
    if not isinstance(value, str) or value != _shown_title(value):
        raise ValueError("the name of a class is too long, or cannot be shown")
    return value


def _licence(value: object) -> str:
    try:
        return check_licence(cast("str", value))
    except UserError as error:
        raise ValueError("a licence in it is none") from error


def _positive(value: object, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError("a side or a level in it is no whole number above zero, or too large")
    return value


@dataclass(frozen=True, slots=True)
class Provenance:
    """The state of the run that the network was cut out of; texts are ``unknown`` where nobody said."""

    run: str  # id, in hex
    round: int
    state: str  # digest of the state, in hex
    ledger_root: str  # of the log that had committed the round, in hex
    ledger_size: int  # entries in that log; 0 where unknown


@dataclass(frozen=True, slots=True)
class Latency:
    """How long one sample takes, the median of some runs in onnxruntime, and under which conditions."""

    fp32_ms: float
    int8_ms: float
    threads: int
    device: str
    runtime: str


@dataclass(frozen=True, slots=True)
class Int8:
    """The network again with weights and activations of 8 bits, scaled by what calibration samples make of it."""

    calibration_samples: int
    metrics: Mapping[str, float]  # on the same held-out samples as the description's own
    latency: Latency


@dataclass(frozen=True, slots=True)
class Description:
    """An exported network."""

    supernet: str
    architecture: Architecture
    provenance: Provenance
    dataset: str
    dataset_digest: str  # in hex
    calibration_samples: int  # training samples that the running statistics are of, at most
    test_samples: int  # held-out samples that the metrics are of; none of them had a part in the search
    metrics: Mapping[str, float]  # accuracy (0..1); or epe in pixels, d1 and bad3 (0..1)
    made_with: str  # versions of this project and of torch
    presentation: Presentation | None = None  # None: it is an export of the first version, which tells nothing of it
    int8: Int8 | None = None  # None: nobody made it
    is_int8: bool = False  # the file that carries this is the one with 8 bits
    weights: Mapping[str, str] = field(default_factory=dict)  # a folder's: SHA-256 in hex of each file of weights, by its name

    @property
    def space(self) -> SearchSpace:
        """The search space of the supernet."""
        return space_named(self.supernet)

    @property
    def own_metrics(self) -> Mapping[str, float]:
        """The metrics of the file that carries this."""
        return self.int8.metrics if self.int8 is not None and self.is_int8 else self.metrics

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the inputs are called."""
        return ("left", "right") if self.space.task == "stereo" else ("image",)

    @property
    def output_name(self) -> str:
        """What the output is called."""
        return "disparity" if self.space.task == "stereo" else "probabilities"

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each input."""
        height = self.architecture.resolution
        return self.space.image_channels, height, height * self.space.aspect

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one sample's output."""
        return self.input_shape[1:] if self.space.task == "stereo" else (self.space.num_classes,)

    def to_json(self, indent: int | None = None) -> str:
        """Return it as JSON text."""
        return json.dumps(self._value(), indent=indent, allow_nan=False)

    def _value(self) -> dict[str, object]:
        space, architecture = self.space, self.architecture
        channels, height, width = self.input_shape
        value: dict[str, object] = {
            "format": FORMAT,
            "model_type": _MODEL_TYPES[space.task],
            "task": space.task,
            "supernet": self.supernet,
            "architecture": {**json.loads(architecture.to_json()), "text": architecture.text, "id": architecture.id},
            "inputs": {
                "names": list(self.input_names),
                "layout": "NCHW",
                "channels": channels,
                "height": height,
                "width": width,
                "range": [0.0, 1.0],
                "colours": "grey" if channels == 1 else "RGB",
            },
            "output": {
                "name": self.output_name,
                "shape": list(self.output_shape),
                "unit": "pixels of the left input" if space.task == "stereo" else "probability",
            },
            "macs": macs(architecture, space),
            "num_weights": num_weights(architecture, space),
            "dataset": {"name": self.dataset, "digest": self.dataset_digest},
            "calibration_samples": self.calibration_samples,
            "metrics": {"part": TEST, "samples": self.test_samples, **self.metrics},
            "provenance": asdict(self.provenance),
            "made_with": self.made_with,
            **({} if self.presentation is None else self.presentation.value(channels)),
            **({} if self.int8 is None else {"int8": asdict(self.int8)}),
            **({"numbers": "int8"} if self.is_int8 else {}),
        }
        return {**value, "weights": dict(self.weights)} if self.weights else value

    @classmethod
    def from_json(cls, text: str | bytes) -> "Description":
        """Return the description of ``to_json``'s text.

        Raises:
            ValueError: it is no such text, says more or less than a description, or contradicts itself.
        """
        if len(text) > MAX_BYTES:
            raise ValueError(f"a description has at most {MAX_BYTES} bytes")
        try:
            value = json.loads(text)
            description = _parsed(value)
            again = description._value()
        except (TypeError, KeyError, AttributeError, RecursionError, UserError) as error:
            raise ValueError(f"not a description of a network: {error!r}") from error
        wrong = [name for name in {**value, **again} if _text_of(value, name) != _text_of(again, name)]
        if wrong:
            raise ValueError(f"its {wrong[0]!r} is not one that a network of {description.supernet} has")
        return description


def _text_of(value: dict[str, object], name: str) -> str:
    """Return a field as text in which 1, 1.0 and true are different things."""
    return json.dumps(value[name], sort_keys=True) if name in value else ""


def _parsed(value: object) -> Description:
    """Read what does not follow from anything else; the caller compares the rest."""
    fields = cast("dict[str, dict[str, object]]", value)
    space = space_named(_checked_text(fields["supernet"]))
    architecture = Architecture.parse(cast("str", fields["architecture"]["text"]), space)
    metrics, provenance = fields["metrics"], fields["provenance"]
    return Description(
        supernet=space.name,
        architecture=architecture,
        provenance=Provenance(
            run=_checked_text(provenance["run"]),
            round=_checked_count(provenance["round"]),
            state=_checked_text(provenance["state"]),
            ledger_root=_checked_text(provenance["ledger_root"]),
            ledger_size=_checked_count(provenance["ledger_size"]),
        ),
        dataset=_checked_text(fields["dataset"]["name"]),
        dataset_digest=_checked_text(fields["dataset"]["digest"]),
        calibration_samples=_checked_count(fields["calibration_samples"]),
        test_samples=_checked_count(metrics["samples"]),
        metrics={name: _finite(metrics[name]) for name in _METRICS[space.task]},
        made_with=_checked_text(fields["made_with"]),
        presentation=Presentation.parse(fields, space.task, space.num_classes),
        int8=_int8(fields["int8"], _METRICS[space.task]) if "int8" in fields else None,
        is_int8="int8" in fields and "numbers" in fields,
        weights={_checked_text(name): _checked_text(digest) for name, digest in fields.get("weights", {}).items()},
    )


def _int8(value: Mapping[str, object], metrics: Sequence[str]) -> Int8:
    measured = cast("dict[str, dict[str, object]]", value)
    latency = measured["latency"]
    return Int8(
        calibration_samples=_checked_count(measured["calibration_samples"]),
        metrics={name: _finite(measured["metrics"][name]) for name in metrics},
        latency=Latency(
            fp32_ms=_finite(latency["fp32_ms"]),
            int8_ms=_finite(latency["int8_ms"]),
            threads=_checked_count(latency["threads"]),
            device=_checked_text(latency["device"]),
            runtime=_checked_text(latency["runtime"]),
        ),
    )


def plain_text(text: str) -> str:
    """Return a text as it may stand in a description."""
    return re.sub(r"[^A-Za-z0-9 ,._:+/-]+", " ", text).strip(" ,._:+/-")[:150] or UNKNOWN


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or _TEXT.fullmatch(value) is None:
        raise ValueError("a text in it is too long, or has characters that it may not have")
    return value


def _checked_count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("a count in it is no whole number")
    return value


def _finite(value: object) -> float:
    if type(value) not in (int, float) or not 0.0 <= cast("float", value) <= sys.float_info.max:  # a whole number may be longer
        raise ValueError("a metric in it is no finite number")
    return cast("float", value)
