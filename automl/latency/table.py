"""Latency tables: how long each layer takes alone on one device, and from that how long any architecture takes.

Pure: the measuring is ``automl.latency.profiler``'s. An estimate is a sum over the genes, each at its resolution (as in
``automl.spaces.cost``), put right by an offset and a factor that were fitted on whole networks; the error that remains was measured on
others.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from manta_swarm.automl.files import read_bounded, write_whole
from manta_swarm.automl.spaces.cost import cost_table, layer_keys, price_keys, rest_keys
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.protocol.errors import EncodingError, UserError

FORMAT = "manta/latency/v1"
MAX_BYTES = 4 << 20
MAX_MS = 1e9
MAX_TEXT = 200  # of the names in a table
DTYPES = ("fp32", "bf16", "fp16")
TORCH, GRAPHS, ONNXRUNTIME = RUNTIMES = ("torch", "cuda-graphs", "onnxruntime")  # graphs are torch's, and have its version


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was measured on, and how: a table holds for nothing else."""

    device: str  # "cpu" | "cuda"
    name: str  # of the processor or the GPU
    threads: int  # CPU threads
    dtype: str  # of DTYPES
    batch: int  # samples of one run
    version: str  # of the runtime
    runtime: str = TORCH  # of RUNTIMES


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far the estimates are from whole networks, none of which the correction was fitted on."""

    num_fitted: int  # networks that the correction was fitted on
    num_checked: int  # networks that the error is of
    mean_error: float  # of the true latency, 0.05 is 5 %
    worst_error: float
    rank_correlation: float  # Spearman's, -1 to 1


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """The latency of every architecture of a search space on one device."""

    supernet: str
    conditions: Conditions
    entries: Mapping[str, float] = field(repr=False)  # milliseconds of a batch, by the keys of the cost table
    offset: float  # milliseconds; latency = offset + factor * sum of entries
    factor: float
    accuracy: Accuracy

    def latency_ms(self, architecture: Architecture) -> float:
        """Return the estimated milliseconds of one batch; the architecture's genes are all in the table."""
        return self._corrected(math.fsum(self.entries[key] for key in price_keys(architecture)))

    def minimum_ms(self, space: SearchSpace) -> float:
        """Return the least milliseconds that any architecture of ``space`` takes; it may be a restricted part of the supernet's."""
        return self._corrected(min(self._cheapest_sum(space, resolution) for resolution in space.resolutions))

    def _cheapest_sum(self, space: SearchSpace, resolution: int) -> float:
        """Return the least sum of a network's layers at a resolution.

        Layers depend on one another by their widths alone: for each width of a unit the cheapest way to it is kept, with the
        cheapest choice of each layer and the cheapest depth of each unit.
        """
        cheapest: dict[tuple[int, int, int, int], float] = {}  # by unit, index, channels in and out
        for key, shape, _ in layer_keys(space, resolution):
            place = (shape.unit, shape.index, shape.channels_in, shape.width)
            cheapest[place] = min(cheapest.get(place, math.inf), self.entries[key])
        sums = {0: 0.0}  # by what the unit before hands on; where there is but one, it may be joined to something, as in stereo
        for number, unit in enumerate(space.units):
            ways: dict[int, list[float]] = {}
            for (_, _, channels_in, width), price in [item for item in cheapest.items() if item[0][:2] == (number, 0)]:
                before = sums[channels_in] if len(sums) > 1 else min(sums.values())
                others = [cheapest[number, index, width, width] for index in range(1, unit.depths[-1])]
                layers = min(math.fsum([price, *others[: depth - 1]]) for depth in unit.depths)
                ways.setdefault(width, []).append(before + layers)
            sums = {width: min(each) for width, each in ways.items()}
        return min(self.entries[key] + sums[channels] for key, channels in rest_keys(space, resolution))

    def _corrected(self, total_ms: float) -> float:
        return self.offset + self.factor * total_ms

    def to_bytes(self) -> bytes:
        """Return the table as canonical JSON: what a peer can publish."""
        value = {"format": FORMAT, **asdict(self)}
        value["conditions"][value["conditions"].pop("runtime")] = value["conditions"].pop("version")  # like "torch": "2.14.1"
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "LatencyTable":
        """Return the table of ``to_bytes``.

        Raises:
            EncodingError: not a table, too large, or one that leaves out a gene or holds a number that no latency can be.
        """
        if len(data) > MAX_BYTES:
            raise EncodingError(f"a latency table has at most {MAX_BYTES} bytes, not {len(data)}")
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise EncodingError(f"not JSON: {error}") from error
        table = _table(value)
        _check(table)
        return table

    def save(self, path: Path) -> None:
        """Write the table to a file, in place of one that may be there.

        Raises:
            UserError: the folder or the disk refuses.
        """
        write_whole(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "LatencyTable":
        """Return the table of a file.

        Raises:
            UserError: there is no such file, or it holds no table.
        """
        try:
            return cls.from_bytes(read_bounded(path, MAX_BYTES))
        except EncodingError as error:
            raise UserError(f"{path} is no latency table: {error}; measure one with: manta-search profile --out FILE") from error


def _table(value: object) -> LatencyTable:
    fields = _object(value, "a table", ("format", "supernet", "conditions", "entries", "offset", "factor", "accuracy"))
    if fields["format"] != FORMAT:
        raise EncodingError(f"its format is not {FORMAT}")
    runtime = _runtime(fields["conditions"])
    conditions = _object(fields["conditions"], "its conditions", ("device", "name", "threads", "dtype", "batch", runtime))
    accuracy = _object(fields["accuracy"], "its accuracy", ("num_fitted", "num_checked", "mean_error", "worst_error", "rank_correlation"))
    entries = fields["entries"]
    if not isinstance(entries, dict):
        raise EncodingError("its entries are no JSON object")
    return LatencyTable(
        supernet=_text(fields["supernet"]),
        conditions=Conditions(
            device=_text(conditions["device"]),
            name=_text(conditions["name"]),
            threads=_count(conditions["threads"]),
            dtype=_text(conditions["dtype"]),
            batch=_count(conditions["batch"]),
            version=_text(conditions[runtime]),
            runtime=runtime,
        ),
        entries={key: _number(price, 0.0, MAX_MS) for key, price in entries.items()},
        offset=_number(fields["offset"], -MAX_MS, MAX_MS),
        factor=_number(fields["factor"], 0.0, MAX_MS),
        accuracy=Accuracy(
            num_fitted=_count(accuracy["num_fitted"]),
            num_checked=_count(accuracy["num_checked"]),
            mean_error=_number(accuracy["mean_error"], -1.0, MAX_MS),
            worst_error=_number(accuracy["worst_error"], -1.0, MAX_MS),
            rank_correlation=_number(accuracy["rank_correlation"], -1.1, 1.1),
        ),
    )


def _runtime(conditions: object) -> str:
    """Return the one that is named in the conditions, with its version; a table of before knows torch alone."""
    named = [each for each in (GRAPHS, ONNXRUNTIME) if isinstance(conditions, dict) and each in conditions]
    return named[0] if named else TORCH


def _check(table: LatencyTable) -> None:
    """Check what the fields alone do not show.

    Raises:
        EncodingError: they do not fit together.
    """
    if table.conditions.device not in ("cpu", "cuda") or table.conditions.dtype not in DTYPES:
        raise EncodingError("its device or its dtype is none that there is")
    try:
        space = space_named(table.supernet)
    except UserError as error:
        raise EncodingError(str(error)) from error
    if set(table.entries) != {key for key, _ in cost_table(space)}:
        raise EncodingError(f"it does not price exactly the genes of {space.name}")
    if table.minimum_ms(space) <= 0.0:
        raise EncodingError("by its correction some networks take no time at all")
    if not 0.0 <= table.accuracy.mean_error <= table.accuracy.worst_error or abs(table.accuracy.rank_correlation) > 1.0:
        raise EncodingError("its accuracy contradicts itself")


def _object(value: object, what: str, names: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise EncodingError(f"{what} has exactly the fields {', '.join(names)}")
    return cast("dict[str, object]", value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise EncodingError(f"a name in it is no printable text of at most {MAX_TEXT} characters")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 < value <= 1 << 20:
        raise EncodingError("a count in it is no whole number above zero")
    return value


def _number(value: object, above: float, below: float) -> float:
    if type(value) not in (int, float) or not above < cast("float", value) < below:  # also refuses NaN and the infinities
        raise EncodingError("a number in it is not finite, or not one that it can be")
    return float(cast("float", value))
