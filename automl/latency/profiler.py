"""Measures a latency table: every layer of a search space alone, what every network has besides, and some whole networks to check by.

Layers run at the shapes that they have in a network, in torch's eager mode and the memory layout channels_last. Those of one shape are
measured once: in a unit, all but the first. What a network has besides its layers is a network whose layers hand on what they once made.
All subjects take turns, visit by visit in a new order, so that a drift of the machine's clock hits all alike. The fastest run of a visit
counts, for other programs can only make it longer, and then the median over the visits.

Shapes: B batch, C channels, H and W height and width.
"""

import math
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from automl.latency.correction import fitted_table
from automl.latency.table import Conditions, LatencyTable
from automl.models.layers import PlainLayer
from automl.models.plain import plain_network
from automl.spaces.shapes import LayerShape, layer_shapes, unit_sides
from automl.spaces.space import Architecture, SearchSpace, layer_gene
from automl.spaces.units import Layer
from protocol.errors import UserError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WARM_UPS = 2
_MIN_RUNS, _MAX_RUNS = 3, 50  # of a fast subject in one visit
_SLOW_MS = 20.0  # a subject that takes so long runs once in a visit, and does not care what others left in the caches

Told = Callable[[int, int], None]  # hears how many measurements of how many are done


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things are measured."""

    visits: int
    min_visits: int  # of a slow subject
    visit_ms: float  # a fast subject runs several times in one visit, for about so long
    subject_ms: float  # a slow subject is visited less often, for about so long in all
    num_networks: int  # random whole networks, besides the extremes


THOROUGH = Effort(visits=15, min_visits=5, visit_ms=2.0, subject_ms=600.0, num_networks=14)
QUICK = Effort(visits=2, min_visits=2, visit_ms=0.5, subject_ms=100.0, num_networks=4)
BESIDE = Effort(visits=3, min_visits=2, visit_ms=2.0, subject_ms=30.0, num_networks=0)  # for ``core_ms``


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A layer alone: what its latency depends on, and nothing else."""

    shape: LayerShape  # wherever it stands: unit and index are 0
    height: int  # of its input
    width: int
    layer: Layer


@dataclass(frozen=True, slots=True)
class FixedPart:
    """All that every network of a resolution has besides its layers."""

    resolution: int


Part = LayerPart | FixedPart


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to measure: a module, and what it is run on."""

    module: nn.Module
    x_BCHW: Tensor


def table_parts(space: SearchSpace) -> dict[str, Part]:
    """Return what the price of each key of a table is measured on; many keys have the same part."""
    parts: dict[str, Part] = {}
    for resolution in space.resolutions:
        parts[f"r{resolution}"] = FixedPart(resolution)
        sides = [(resolution, resolution * space.aspect), *unit_sides(space, resolution)]
        for shape in layer_shapes(space):
            height, width = sides[shape.unit if shape.index == 0 else shape.unit + 1]
            for layer in space.units[shape.unit].layers():
                key = f"r{resolution} {layer_gene(shape.unit, shape.index, layer)}"
                parts[key] = LayerPart(replace(shape, unit=0, index=0), height, width, layer)
    return parts


def profile(
    space: SearchSpace,
    device: str = "cpu",
    dtype: str = "fp32",
    batch: int = 1,
    effort: Effort = THOROUGH,
    told: Told = lambda done, total: None,
) -> LatencyTable:
    """Return the latency table of a space on this machine's ``device``, "cpu" or "cuda"; torch's threads are as the caller set them.

    Raises:
        UserError: the device is not there, or cannot run the networks in this dtype or at this batch.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA GPU here that torch can use; measure with --device cpu")
    parts = table_parts(space)
    networks = _networks(space, effort.num_networks)
    try:
        with torch.inference_mode():
            bench = Bench(space, torch.device(device), _DTYPES[dtype], batch)
            subjects: dict[Part | Architecture, Subject] = {part: bench.part(part) for part in parts.values()}
            subjects |= {architecture: bench.network(architecture) for architecture in networks}
            median_ms = dict(zip(subjects, bench.median_ms(list(subjects.values()), effort, told), strict=True))
    except RuntimeError as error:  # of torch: no such operator in this dtype, or no memory left
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{device} cannot run {space.name} in {dtype} at batch {batch}: {reason}; try another --dtype or --batch"
        ) from error
    conditions = Conditions(device, device_name(device), torch.get_num_threads(), dtype, batch, torch.__version__)
    entries = {key: median_ms[part] for key, part in parts.items()}
    return fitted_table(space, conditions, entries, [(architecture, median_ms[architecture]) for architecture in networks])


def core_ms(space: SearchSpace, architectures: Sequence[Architecture], effort: Effort = BESIDE) -> list[float]:
    """Return the milliseconds that one core of this computer works on one sample with each of some whole networks.

    Counted is the time of the calling thread, and torch has that one alone meanwhile: so other programs may keep the computer busy. Not for
    tables: what a network waits for is not in it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            bench = Bench(space, torch.device("cpu"), torch.float32, 1, clock_s=time.thread_time)
            return bench.median_ms([bench.network(one) for one in architectures], effort, lambda done, total: None)
    finally:
        torch.set_num_threads(threads)


def _networks(space: SearchSpace, num_random: int) -> list[Architecture]:
    """Return the whole networks to measure: the extremes of the extreme resolutions, and random ones."""
    ends = (space.resolutions[0], space.resolutions[-1])
    extremes = [replace(network, resolution=resolution) for network in (space.smallest(), space.largest()) for resolution in ends]
    sampled = [space.sample(random.Random(f"latency:{index}")) for index in range(num_random)]
    return list(dict.fromkeys([*extremes, *sampled]))


class Bench:
    """Builds subjects on a device, and takes their times."""

    def __init__(
        self, space: SearchSpace, device: torch.device, dtype: torch.dtype, batch: int, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._space = space
        self._clock_s = clock_s
        self._device = device
        self._dtype = dtype
        self._batch = batch
        self._generator = torch.Generator().manual_seed(0)
        self._inputs: dict[tuple[int, int, int, int], Tensor] = {}  # shared, for they would fill the memory

    def part(self, part: Part) -> Subject:
        """Return a part to measure."""
        if isinstance(part, LayerPart):
            shape = (self._batch * part.shape.views, part.shape.channels_in, part.height, part.width)
            return Subject(self._ready(PlainLayer(part.shape, part.layer)), self._input(shape))
        subject = self.network(replace(self._space.smallest(), resolution=part.resolution))
        for name, layer in list(subject.module.named_modules()):
            if isinstance(layer, PlainLayer):
                subject.module.set_submodule(name, _Recording(layer))
        subject.module(subject.x_BCHW)
        return subject

    def network(self, architecture: Architecture) -> Subject:
        """Return a whole network to measure."""
        space, height = self._space, architecture.resolution
        channels = space.image_channels * (2 if space.task == "stereo" else 1)
        x_BCHW = self._input((self._batch, channels, height, height * space.aspect))
        return Subject(self._ready(plain_network(space, architecture)), x_BCHW)

    def _ready(self, module: nn.Module) -> nn.Module:
        _draw(module, self._generator)
        return module.eval().to(self._device, self._dtype).to(memory_format=torch.channels_last)

    def _input(self, shape: tuple[int, int, int, int]) -> Tensor:
        if shape not in self._inputs:
            x_BCHW = torch.rand(shape, generator=self._generator).to(self._device, self._dtype)
            self._inputs[shape] = x_BCHW.contiguous(memory_format=torch.channels_last)
        return self._inputs[shape]

    def median_ms(self, subjects: Sequence[Subject], effort: Effort, told: Told) -> list[float]:
        """Return the milliseconds of one run of each subject: the median over its visits."""
        done = iter(range(1, 1 << 40))
        run_ms: list[float] = []
        for subject in subjects:
            self._times_ms(subject, _WARM_UPS)
            run_ms += self._times_ms(subject, 1)
            told(next(done), len(subjects) * (1 + effort.visits))
        visits = [min(effort.visits, max(effort.min_visits, round(effort.subject_ms / each_ms))) for each_ms in run_ms]
        total = len(subjects) + sum(visits)
        times_ms: list[list[float]] = [[] for _ in subjects]
        for visit in range(effort.visits):
            visited = [index for index in range(len(subjects)) if visit < visits[index]]
            for index in random.Random(visit).sample(visited, len(visited)):
                runs = 1
                if run_ms[index] < _SLOW_MS:
                    runs = min(max(_MIN_RUNS, round(effort.visit_ms / run_ms[index])), _MAX_RUNS)
                    self._times_ms(subjects[index], 1)  # brings its weights back into the caches
                times_ms[index].append(min(self._times_ms(subjects[index], runs)))
                told(next(done), total)
        return [statistics.median(times) for times in times_ms]

    def _times_ms(self, subject: Subject, runs: int) -> list[float]:
        """Return the milliseconds of each of some runs; on a GPU their mean, for it works on one while it is told the next."""
        chunk = runs if self._device.type == "cuda" else 1
        times_ms = []
        for _ in range(runs // chunk):
            self._wait()
            started_s = self._clock_s()
            for _ in range(chunk):
                subject.module(subject.x_BCHW)
            self._wait()
            times_ms.append(max(self._clock_s() - started_s, 1e-9) * 1e3 / chunk)  # a clock may stand still, a latency is above zero
        return times_ms

    def _wait(self) -> None:
        """Wait until a GPU has done what it was told."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _Recording(nn.Module):
    """A layer that hands on what it made the first time."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = layer
        self._made: Tensor | None = None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self._made is None:
            self._made = self._layer(x_BCHW)
        return self._made


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    """Fill in weights that keep numbers about one: zeros, denormals and infinities would not take the usual time."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.ndim > 1:
            bound = math.sqrt(3.0 / tensor[0].numel())
            tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))
        else:
            tensor.fill_(1.0 if name.endswith(("norm.weight", "running_var")) else 0.0)


def device_name(device: str) -> str:
    """Return what the processor or the GPU calls itself."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return next(_processor_names(), "") or platform.processor() or platform.machine() or "unknown"


def _processor_names() -> Iterator[str]:
    """Yield the model names that Linux gives."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                yield value.strip()
