"""The ONNX export again with weights and activations of 8 bits: static quantisation by onnxruntime, nothing trained.

Scales of activations are the extremes over the data set's calibration samples, weights have a scale for each channel. What the 8 bits cost
and bring is measured beside fp32: the metrics on the same held-out samples, the latency in the same runtime.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import STEREO, TEST, Dataset
from manta_swarm.automl.evaluation.held_out import CALIBRATION_BATCH, measure
from manta_swarm.automl.export.description import Description, Int8, Latency, plain_text
from manta_swarm.automl.export.onnx import onnx_bytes, onnx_model, package, session_of
from manta_swarm.automl.export.pt2 import traced
from manta_swarm.automl.export.subnet import Subnet
from manta_swarm.automl.latency.profiler import device_name
from manta_swarm.automl.models.networks import Deployed, deployed

CALIBRATION_SAMPLES = {"classification": 256, STEREO: 64}
_QUANTISED = ("Conv", "Gemm", "Add", "Relu")
_WARM_UPS, _RUNS = 5, 40


def quantised(subnet: Subnet, dataset: Dataset, samples: int | None = None) -> Subnet:
    """Return the subnet with its model of 8 bits, and a description that says how it compares.

    ``samples``: scales are of so many training samples at most; None: of as many as the task needs (``CALIBRATION_SAMPLES``).

    Raises:
        UserError: a package for ONNX is missing.
    """
    description = replace(subnet.description, int8=None)
    plain = subnet.onnx_model or onnx_model(traced(deployed(subnet.network, description.space.task), description), description)
    limit = samples or CALIBRATION_SAMPLES[dataset.task]
    batches = list(dataset.calibration_batches(description.input_shape[1], CALIBRATION_BATCH[dataset.task], limit))
    model = _of_8_bits(plain, [_named(inputs, description) for inputs in batches])
    both = [session_of(data, description) for data in (plain, model)]
    fp32_ms, int8_ms = _latencies_ms(both, description)
    metrics = measure(lambda inputs: both[1](*_views(inputs, description)), dataset, description.architecture.resolution, part=TEST)
    runtime = f"onnxruntime {package('onnxruntime').__version__}"
    latency = Latency(fp32_ms, int8_ms, torch.get_num_threads(), plain_text(device_name("cpu")), runtime)
    described = replace(description, int8=Int8(sum(map(len, batches)), metrics, latency))
    return replace(subnet, description=described, onnx_model=plain, int8_model=model)


def quantised_bytes(subnet: Subnet) -> bytes:
    """Return the file of a subnet that ``quantised`` returned, with its description."""
    return onnx_bytes(subnet.int8_model, replace(subnet.description, is_int8=True))


def _of_8_bits(model: bytes, calibration: list[dict[str, Any]]) -> bytes:
    """Return an ONNX model quantised; ``calibration`` holds the inputs of some batches by name."""
    package("onnxruntime")
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Batches(CalibrationDataReader):  # type: ignore[misc] # the library has no types
        def __init__(self) -> None:
            self._left = iter(calibration)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    with tempfile.TemporaryDirectory(prefix="manta-int8-") as name:  # the library reads and writes files
        plain, folded, quantised = (Path(name, f"{step}.onnx") for step in ("plain", "folded", "int8"))
        plain.write_bytes(model)
        quant_pre_process(str(plain), str(folded), skip_symbolic_shape=True)  # folds normalisations into the convolutions
        quantize_static(
            str(folded),
            str(quantised),
            Batches(),
            per_channel=True,
            activation_type=QuantType.QUInt8,  # three times as fast as signed ones where it was tried
            weight_type=QuantType.QInt8,
            reduce_range=True,  # weights of 7 bits: processors without instructions for such sums add in 16 bits, and would overflow
            op_types_to_quantize=list(_QUANTISED),
        )
        return _tidied(quantised.read_bytes())


def _tidied(data: bytes) -> bytes:
    """Return a model without the sets of operations that none of its nodes is of, and without what the tools say of themselves."""
    model = package("onnx").load_model_from_string(data)
    used = {node.domain for node in model.graph.node}
    kept = [entry for entry in model.opset_import if entry.domain in used | {""}]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    del model.metadata_props[:]
    model.graph.ClearField("value_info")
    for node in model.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    serialised: bytes = model.SerializeToString()
    return serialised


def _latencies_ms(networks: list[Deployed], description: Description) -> list[float]:
    """Return the median milliseconds of each network for one sample; they take turns, so that a busy machine hits all alike."""
    inputs = [torch.zeros(1, *description.input_shape) for _ in description.input_names]
    times: list[list[float]] = [[] for _ in networks]
    for run in range(_WARM_UPS + _RUNS):
        for network, taken in zip(networks, times, strict=True):
            start = time.perf_counter()
            network(*inputs)
            if run >= _WARM_UPS:
                taken.append((time.perf_counter() - start) * 1e3)
    return [float(f"{statistics.median(taken):.4g}") for taken in times]


def _views(inputs: Tensor, description: Description) -> list[Tensor]:
    return [view.contiguous() for view in inputs.chunk(len(description.input_names), 1)]


def _named(inputs: Tensor, description: Description) -> dict[str, Any]:
    views = _views(inputs, description)
    return {name: view.numpy() for name, view in zip(description.input_names, views, strict=True)}
