"""Measures a latency table: every layer of a search space alone, what every network has besides, and some whole networks to check by.

Layers run at the shapes that they have in a network. Those of one shape are measured once: in a unit, all but the first. What a network has
besides its layers is a network whose layers hand on what they once made. All run in torch, in the memory layout channels_last, eagerly or
on a GPU in CUDA graphs; or in onnxruntime, as graphs like those that are exported (``automl.latency.onnx_graphs``). How times are taken
is in ``automl.latency.visits``.

Shapes: B batch, C channels, H and W height and width.
"""

import logging
import math
import platform
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from manta_swarm.automl.devices import CudaGraphs, DeviceWork, Recorded, Recorder
from manta_swarm.automl.latency.correction import fitted_table
from manta_swarm.automl.latency.table import GRAPHS, ONNXRUNTIME, TORCH, Conditions, LatencyTable
from manta_swarm.automl.latency.visits import BESIDE, THOROUGH, MeasuringEffort, Seconds, Stopwatch, TimedSubject, Told
from manta_swarm.automl.models.networks import plain_network
from manta_swarm.automl.models.supernet import Plain, plain_layer
from manta_swarm.automl.spaces.cost import layer_keys, rest_keys
from manta_swarm.automl.spaces.shapes import LayerShape, unit_sides
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, noted_widths
from manta_swarm.automl.spaces.units import Layer
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.clock import SYSTEM_CLOCK

_MOST_SAID = 200  # characters of an error
_NEAR = 0.05  # of what is recorded: kernels may be other ones, which add in another order
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

logger = logging.getLogger("manta.latency")


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A layer alone: what its latency depends on, and nothing else."""

    shape: LayerShape  # wherever it stands: unit and index are 0
    height: int  # of its input
    width: int
    layer: Layer


@dataclass(frozen=True, slots=True)
class FixedPart:
    """All that every network of a resolution has besides its layers, where the last of them hand on so many channels."""

    resolution: int
    channels: int


Part = LayerPart | FixedPart


def table_parts(space: SearchSpace) -> dict[str, Part]:
    """Return what the price of each key of a table is measured on; many keys have the same part."""
    parts: dict[str, Part] = {}
    for resolution in space.resolutions:
        parts |= {key: FixedPart(resolution, channels) for key, channels in rest_keys(space, resolution)}
        sides = [(resolution, resolution * space.aspect), *unit_sides(space, resolution)]
        for key, shape, layer in layer_keys(space, resolution):
            height, width = sides[shape.unit if shape.index == 0 else shape.unit + 1]
            parts[key] = LayerPart(replace(shape, unit=0, index=0), height, width, layer)
    return parts


def profile(
    space: SearchSpace,
    device: str = "cpu",
    dtype: str = "fp32",
    batch: int = 1,
    effort: MeasuringEffort = THOROUGH,
    told: Told = lambda done, total: None,
    runtime: str | None = None,
) -> LatencyTable:
    """Return the latency table of a space on this machine's ``device``, "cpu" or "cuda"; torch's threads are as the caller set them.

    onnxruntime has as many threads as torch, and measures on the CPU in fp32. CUDA graphs are for GPUs; None: on a GPU these, where all
    can be recorded, else torch's launches one by one.

    Raises:
        UserError: the device is not there, or cannot run the networks in this dtype or at this batch; a package for ONNX is missing.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA GPU here that torch can use; measure with --device cpu")
    parts = table_parts(space)
    networks = _networks(space, effort.num_networks)
    subjects: list[Part | Architecture] = [*dict.fromkeys(parts.values()), *networks]
    try:
        if runtime == ONNXRUNTIME:
            from manta_swarm.automl.latency.onnx_graphs import median_ms, version  # which loads the packages for ONNX

            times_ms, release = median_ms(space, subjects, batch, effort, told), version()
        else:
            wished = TORCH if runtime is None and device == "cpu" else runtime
            times_ms, runtime = _by_torch(space, torch.device(device), _DTYPES[dtype], batch, subjects, effort, told, wished)
            release = torch.__version__
    except RuntimeError as error:  # of torch: no such operator in this dtype, or no memory left
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{device} cannot run {space.name} in {dtype} at batch {batch}: {reason}; try another --dtype or --batch"
        ) from error
    taken_ms = dict(zip(subjects, times_ms, strict=True))
    conditions = Conditions(device, device_name(device), torch.get_num_threads(), dtype, batch, release, runtime)
    entries = {key: taken_ms[part] for key, part in parts.items()}
    return fitted_table(space, conditions, entries, [(architecture, taken_ms[architecture]) for architecture in networks])


def _by_torch(
    space: SearchSpace,
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    subjects: Sequence[Part | Architecture],
    effort: MeasuringEffort,
    told: Told,
    runtime: str | None,
) -> tuple[list[float], str]:
    """Return the milliseconds of one run of each subject, and by which of torch's runtimes; None: by graphs where they can be recorded."""
    if runtime != TORCH:
        try:
            return LayerTimer(space, device, dtype, batch, recorder=CudaGraphs()).median_ms(subjects, effort, told), GRAPHS
        except RuntimeError as error:
            if runtime == GRAPHS:
                raise
            reason = " ".join(str(error).split())[:_MOST_SAID]
            logger.warning("CUDA graphs cannot be measured here (%s): these are the times of launches one by one", reason)
    return LayerTimer(space, device, dtype, batch).median_ms(subjects, effort, told), TORCH


def fixed_of(space: SearchSpace, part: FixedPart) -> Architecture:
    """Return the network whose layers are left out where the rest is measured."""
    smallest = space.smallest()
    widths = noted_widths((*smallest.widths[:-1], part.channels if space.units[-1].widths else None))
    return replace(smallest, resolution=part.resolution, widths=widths)


def core_ms(space: SearchSpace, architectures: Sequence[Architecture], effort: MeasuringEffort = BESIDE) -> list[float]:
    """Return the milliseconds that one core of this computer works on one sample with each of some whole networks.

    Counted is the time of the calling thread, and torch has that one alone meanwhile: so other programs may keep the computer busy. Not for
    tables: what a network waits for is not in it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = LayerTimer(space, torch.device("cpu"), torch.float32, 1, clock=_ThreadTime())
        return bench.median_ms(architectures, effort, lambda done, total: None)
    finally:
        torch.set_num_threads(threads)


def _networks(space: SearchSpace, num_random: int) -> list[Architecture]:
    """Return the whole networks to measure: the extremes of the extreme resolutions, and random ones."""
    ends = (space.resolutions[0], space.resolutions[-1])
    extremes = [replace(network, resolution=resolution) for network in (space.smallest(), space.largest()) for resolution in ends]
    sampled = [space.sample(random.Random(f"latency:{index}")) for index in range(num_random)]
    return list(dict.fromkeys([*extremes, *sampled]))


class LayerTimer:
    """Runs layers and networks in torch on a device, and takes their times."""

    def __init__(
        self,
        space: SearchSpace,
        device: torch.device,
        dtype: torch.dtype,
        batch: int,
        clock: Seconds = SYSTEM_CLOCK,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare; with a ``recorder`` what runs is recorded first, and replayed."""
        self._recorder = recorder
        self._space = space
        self._stopwatch = Stopwatch(clock, _Gpu(device) if device.type == "cuda" else None)
        self._device = device
        self._dtype = dtype
        self._batch = batch
        self._generator = torch.Generator().manual_seed(0)
        self._inputs: dict[tuple[int, int, int, int], Tensor] = {}  # shared, for they would fill the memory

    @torch.inference_mode()
    def median_ms(self, subjects: Sequence[Part | Architecture], effort: MeasuringEffort, told: Told) -> list[float]:
        """Return the milliseconds of one run of each subject.

        Raises:
            RuntimeError: of torch; or a recording does not do what was recorded.
        """
        runs = [self._run(subject) for subject in subjects]
        recorder = self._recorder
        return self._stopwatch.median_ms(runs if recorder is None else [_recorded(recorder, run) for run in runs], effort, told)

    def _run(self, subject: Part | Architecture) -> DeviceWork:
        if isinstance(subject, LayerPart):
            shape = (self._batch * subject.shape.views, subject.shape.channels_in, subject.height, subject.width)
            return _Forward(self._ready(plain_layer(subject.shape, subject.layer)), self._input(shape))
        module, x_BCHW = self._network(fixed_of(self._space, subject) if isinstance(subject, FixedPart) else subject)
        if isinstance(subject, FixedPart):
            for name, layer in list(module.named_modules()):
                if isinstance(layer, Plain):
                    module.set_submodule(name, _Recording(layer))
            module(x_BCHW)
        return _Forward(module, x_BCHW)

    def _network(self, architecture: Architecture) -> tuple[nn.Module, Tensor]:
        space, height = self._space, architecture.resolution
        channels = space.image_channels * (2 if space.task == "stereo" else 1)
        x_BCHW = self._input((self._batch, channels, height, height * space.aspect))
        return self._ready(plain_network(space, architecture)), x_BCHW

    def _ready(self, module: nn.Module) -> nn.Module:
        draw(module, self._generator)
        return module.eval().to(self._device, self._dtype).to(memory_format=torch.channels_last)

    def _input(self, shape: tuple[int, int, int, int]) -> Tensor:
        if shape not in self._inputs:
            x_BCHW = torch.rand(shape, generator=self._generator).to(self._device, self._dtype)
            self._inputs[shape] = x_BCHW.contiguous(memory_format=torch.channels_last)
        return self._inputs[shape]


def _recorded(recorder: Recorder, work: DeviceWork) -> TimedSubject:
    """Return a run's recording. One that did nothing would be fast, and so it is compared."""
    expected = work.run().clone()
    recorded = recorder.record(work)
    recorded.made.zero_()
    recorded.replay()
    if not torch.allclose(recorded.made, expected, rtol=0.0, atol=_NEAR * float(expected.abs().max())):
        raise RuntimeError("a recording did not do what was recorded")
    return _Replay(recorded)


@dataclass(frozen=True, slots=True)
class _Forward:
    """A pass forward through a module."""

    module: nn.Module
    x_BCHW: Tensor

    def run(self) -> Tensor:
        made: Tensor = self.module(self.x_BCHW)
        return made


@dataclass(frozen=True, slots=True)
class _Replay:
    """A recording that is measured."""

    recorded: Recorded

    def run(self) -> None:
        self.recorded.replay()


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU, which works on what it was told before."""

    device: torch.device

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


class _ThreadTime:
    """The time for which the calling thread had a core."""

    def now_s(self) -> float:
        return time.thread_time()


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


def draw(module: nn.Module, generator: torch.Generator) -> None:
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
