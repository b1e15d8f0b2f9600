"""Layers and whole networks as onnxruntime runs them, and their times.

Sessions share their memory and rest after each run, so that one does not disturb the next.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from manta_swarm.automl.export.onnx import package
from manta_swarm.automl.latency.onnx_graphs import Rest, Shape, layer_model, rest_of
from manta_swarm.automl.latency.profiler import FixedPart, LayerPart, Part, draw, fixed_of
from manta_swarm.automl.latency.visits import Effort, Stopwatch, Subject, Told
from manta_swarm.automl.models.networks import plain_network
from manta_swarm.automl.models.supernet import plain_layer
from manta_swarm.automl.spaces.space import Architecture, SearchSpace

_LEAST = 0.05  # of the time of a part that is computed, whatever its call takes


def version() -> str:
    """Return the version of onnxruntime."""
    return str(package("onnxruntime").__version__)


def median_ms(space: SearchSpace, subjects: Sequence[Part | Architecture], batch: int, effort: Effort, told: Told) -> list[float]:
    """Return the milliseconds of one run of each subject, on the CPU in fp32 with as many threads as torch has.

    What a call takes that computes nothing is taken off those of parts: a network is called once, not layer by layer.

    Raises:
        UserError: a package for ONNX is missing.
    """
    inputs: dict[Shape, npt.NDArray[np.float32]] = {}  # shared, for they would fill the memory
    models = Models(space, batch)
    made = [models.of(subject) for subject in subjects]
    for shape in (shape for _, shapes in made for shape in shapes):
        if shape not in inputs:
            inputs[shape] = torch.rand(shape, generator=models.generator).numpy()
    runs = [_run(model, [inputs[shape] for shape in shapes]) for model, shapes in made]
    nothing = _run(layer_model(nn.Sequential(), (1, 1, 1)), [np.zeros((1, 1, 1, 1), np.float32)])
    *times_ms, call_ms = Stopwatch().median_ms([*runs, nothing], effort, told)
    return [
        time_ms if isinstance(subject, Architecture) else max(time_ms - call_ms, _LEAST * time_ms)
        for subject, time_ms in zip(subjects, times_ms, strict=True)
    ]


class Models:
    """Makes ONNX models with random weights."""

    def __init__(self, space: SearchSpace, batch: int) -> None:
        self._space = space
        self._batch = batch
        self._rests: dict[FixedPart, Rest] = {}
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def of(self, subject: Part | Architecture) -> tuple[Any, list[Shape]]:
        """Return the model of a subject and the shapes of its inputs."""
        if isinstance(subject, LayerPart):
            layer, shape = plain_layer(subject.shape, subject.layer).eval(), subject.shape
            draw(layer, self.generator)
            of_one = (shape.channels_in, subject.height, subject.width)
            return layer_model(layer, of_one), [(self._batch * shape.views, *of_one)]
        if isinstance(subject, FixedPart):
            rest = self._rest(subject)
            return rest.alone(), rest.image_shapes + rest.unit_shapes
        rest = self._rest(FixedPart(subject.resolution, self._space.widths_of(subject)[-1]))
        network = plain_network(self._space, subject)
        draw(network, self.generator)
        return rest.with_units(list(network.units)), rest.image_shapes  # type: ignore[arg-type]

    def _rest(self, part: FixedPart) -> Rest:
        if part not in self._rests:
            network = plain_network(self._space, fixed_of(self._space, part))
            draw(network, self.generator)
            self._rests[part] = rest_of(self._space, network, part.resolution, self._batch)
        return self._rests[part]


def _run(model: Any, inputs: Sequence[npt.NDArray[np.float32]]) -> Subject:
    onnxruntime = package("onnxruntime")
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its errors are raised as well
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    named = {each.name: values for each, values in zip(session.get_inputs(), inputs, strict=True)}
    return _Session(session, named)


@dataclass(frozen=True, slots=True)
class _Session:
    """A model that onnxruntime runs on the same inputs each time."""

    session: Any
    inputs: dict[str, npt.NDArray[np.float32]]

    def run(self) -> object:
        return self.session.run(None, self.inputs)


@functools.cache
def _share_memory() -> None:
    """Let the sessions that wish so take their memory from one arena: hundreds of them would each keep as much as they ever needed."""
    onnxruntime = package("onnxruntime")
    kind = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(kind, None)
