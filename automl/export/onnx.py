"""``.onnx`` files: the graph of a network in the form that most runtimes read, with its description in the model's metadata.

The packages for it are an extra of this project. Files of strangers are read by onnxruntime, on the CPU, after a check that they name no
other file and no operation outside the standard.
"""

import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from manta_swarm.automl.export.description import Description
from manta_swarm.automl.forms import ONNX_PACKAGES, missing_package
from manta_swarm.automl.models.networks import Deployed

OPSET = 18  # of the standard operations: onnxruntime reads it from version 1.14 on
IR_VERSION = 10  # of the file, as torch's exporter writes it
MAX_BYTES = 512 << 20
_KEY = "manta.json"  # in metadata_props


def onnx_model(program: torch.export.ExportedProgram, description: Description) -> bytes:
    """Return a graph (automl.export.pt2) as an ONNX model that does not say yet what it is.

    Raises:
        UserError: the packages for it are not installed.
    """
    model = exported_model(program, list(description.input_names), [description.output_name])
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    data: bytes = model.SerializeToString()
    return data


def exported_model(
    program: torch.export.ExportedProgram, input_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None
) -> Any:
    """Return a program of torch's as an ONNX model, without what the exporter tells about the source code and its folders.

    Raises:
        UserError: the packages for it are not installed.
    """
    for name in ONNX_PACKAGES:
        package(name)
    exported = torch.onnx.export(
        program, dynamo=True, opset_version=OPSET, input_names=input_names, output_names=output_names, verbose=False
    )
    assert exported is not None
    model = exported.model_proto
    for message in _messages(model):
        if message.DESCRIPTOR.name in ("NodeProto", "ValueInfoProto", "TensorProto", "GraphProto", "ModelProto", "FunctionProto"):
            message.ClearField("metadata_props")
            message.ClearField("doc_string")
    model.graph.ClearField("value_info")  # shapes in between, in the exporter's names: runtimes infer them
    return model


def onnx_bytes(data: bytes, description: Description) -> bytes:
    """Return a model that does not say what it is, and what it is, as an ``.onnx`` file.

    Raises:
        UserError: the packages for it are not installed.
    """
    onnx = package("onnx")
    model = onnx.load_model_from_string(data)
    model.metadata_props.add(key=_KEY, value=description.to_json())
    onnx.checker.check_model(model, full_check=True)
    described: bytes = model.SerializeToString()
    return described


def read_onnx(data: bytes) -> tuple[Deployed, Description]:
    """Return the network of an ``.onnx`` file that ``onnx_bytes`` made, run by onnxruntime on the CPU, and its description.

    Raises:
        ValueError: the bytes are anything else.
        UserError: the packages for it are not installed.
    """
    onnx, onnxruntime = package("onnx"), package("onnxruntime")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own, whose class has changed its place over the versions
        raise ValueError("not an ONNX model") from error
    texts = [entry.value for entry in model.metadata_props if entry.key == _KEY]
    if len(texts) != 1:
        raise ValueError("it does not say what network it is: it is not of this project")
    description = Description.from_json(texts[0])
    _check(model, description)
    try:
        return session_of(data, description), description
    except Exception as error:  # onnxruntime's have no class in common
        raise ValueError(f"onnxruntime {onnxruntime.__version__} cannot read it") from error


def session_of(data: bytes, description: Description) -> Deployed:
    """Return a model as onnxruntime runs it, on the CPU with torch's number of threads: from one tensor an input to the output."""
    onnxruntime = package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its errors are raised as well
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def network(*inputs: Tensor) -> Tensor:
        named = {name: part.numpy() for name, part in zip(description.input_names, inputs, strict=True)}
        return torch.from_numpy(session.run([description.output_name], named)[0])

    return network


def _check(model: Any, description: Description) -> None:
    """Check that a model is all in its file, that its inputs and output are those of its description, and so are its numbers.

    Raises:
        ValueError: they are not.
    """
    for message in _messages(model):
        kind = message.DESCRIPTOR.name
        if kind == "TensorProto" and (message.data_location or message.external_data):
            raise ValueError("it has weights in another file")
        if kind in ("NodeProto", "OperatorSetIdProto") and message.domain not in ("", "ai.onnx"):
            raise ValueError(f"it has operations that are not of the standard: {message.domain[:100]!r}")
    names = [value.name for value in model.graph.input]
    if names != list(description.input_names) or [value.name for value in model.graph.output] != [description.output_name]:
        raise ValueError("its inputs or its output have other names than it says")
    if any(node.op_type == "QuantizeLinear" for node in model.graph.node) != description.is_int8:
        raise ValueError("its numbers are of another kind than it says")


def _messages(message: Any) -> Iterator[Any]:
    """Yield a protobuf message and all that are in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "__len__") else [value]:
                yield from _messages(part)


def package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_package(name) from error
