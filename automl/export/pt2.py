"""``.pt2`` and ``.pte`` files: a network in torch's own archive, read with suspicion, and as a program of ExecuTorch for small devices.

A ``.pt2`` file is written without pickle.

What ``torch.export.load`` makes of a file (read in torch 2.15): example inputs, constants and weights can be pickled, shape expressions
and guards are evaluated as Python, names become Python source, compiled libraries are loaded. A file of a stranger could run anything. So
nothing is handed to torch before all of it has been checked: the records are those that ``pt2_bytes`` writes, the graph calls listed
tensor operations only, every name is a plain name, every expression a multiple of the batch. Then a new archive is packed from what was
checked, and torch reads that one. Whoever calls ``torch.export.load`` on a file must trust who made it.

A ``.pte`` file takes one sample a run. Convolutions go to XNNPACK, which folds the normalisations into them; what it has no operation for
goes to ExecuTorch's own. The package for it is an extra of this project. ExecuTorch trusts the programs that it runs, so nothing here opens
a stranger's: only what was just made is run, to compare it with the network.
"""

import importlib
import io
import json
import math
import re
import struct
import warnings
import zipfile
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from manta_swarm.automl.export.description import MAX_BYTES as MAX_DESCRIPTION_BYTES
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.forms import missing_executorch
from manta_swarm.automl.models.networks import Deployed

MAX_BYTES = 512 << 20
_MAX_RECORDS = 10_000
_MAX_GRAPH_BYTES = 32 << 20
_MAX_DEPTH = 32

_DESCRIPTION = "manta.json"
_GRAPH = "models/model.json"
_WEIGHTS = "data/weights/model_weights_config.json"
_CONSTANTS = "data/constants/model_constants_config.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_TEXTS = {"archive_format": b"pt2", "byteorder": b"little"}
_IGNORED = {"archive_version", ".data/version", ".data/serialization_id"}  # written anew
_WEIGHT = re.compile(r"data/(?:weights/weight|constants/tensor)_(?:0|[1-9][0-9]{0,4})")

# Pure functions of tensors, those of the networks and their like: none reads a file, takes a Python object or changes its input.
_OPERATIONS = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        *("conv2d.default", "conv_transpose2d.input", "batch_norm.default", "linear.default", "matmul.default", "softmax.int"),
        *("upsample_bilinear2d.vec", "avg_pool2d.default", "relu.default", "sigmoid.default", "floor.default", "ge.Scalar"),
        *("clamp.default", "clamp_min.default", "detach.default", "hardswish.default", "hardsigmoid.default"),
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Scalar", "sqrt.default", "rsqrt.default"),
        *("mean.dim", "sum.dim_IntList", "linalg_vector_norm.default", "arange.default", "zeros_like.default", "gather.default"),
        *("cat.default", "chunk.default", "split.Tensor", "slice.Tensor", "expand.default", "expand_as.default", "permute.default"),
        *("transpose.int", "view.default", "reshape.default", "squeeze.dim", "unsqueeze.default", "flatten.using_ints"),
        *("contiguous.default", "to.dtype", "sym_size.int", "_assert_tensor_metadata.default"),
    )
)
_ARGUMENTS = frozenset(
    f"as_{kind}"
    for kind in (
        *("tensor", "tensors", "int", "ints", "sym_int", "sym_ints", "float", "floats", "bool", "none"),
        *("expr", "name", "device", "scalar_type", "memory_format", "layout"),
    )
)
_SYMBOL = r"Symbol\('s[0-9]{1,4}', positive=True, integer=True\)"
_EXPRESSION = re.compile(rf"{_SYMBOL}|Mul\(Integer\([0-9]{{1,9}}\), {_SYMBOL}\)")
_NAME = re.compile(r"(?:(?!__)[A-Za-z0-9_])*(?:\.[A-Za-z0-9](?:(?!__)[A-Za-z0-9_])*)*")
_MAX_NAME = 200
_TREE_TYPES = (None, "builtins.tuple", "builtins.dict", "builtins.list")
_EMPTY = ("custom_obj_values", "sym_float_values", "sym_bool_values", "treespec_namedtuple_fields")
_REBUILT: dict[str, object] = {
    "metadata": {},
    "guards_code": [],
}  # only ever for people, or for checks that ``automl.export.files`` makes itself

_EXAMPLE_BATCH = 2  # 1 would be taken for a constant

_DESCRIPTION_METHOD = "manta_json"  # a method of the program, without inputs: the bytes of the description's JSON


def pt2_bytes(program: torch.export.ExportedProgram, description: Description) -> bytes:
    """Return a graph and its description as a ``.pt2`` file."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={_DESCRIPTION: description.to_json()})
    return buffer.getvalue()


def read_pt2(data: bytes) -> tuple[torch.nn.Module, Description]:
    """Return the network of a ``.pt2`` file that ``pt2_bytes`` made, and its description.

    Raises:
        ValueError: the bytes are anything else. Nothing in them has been run.
    """
    try:
        records = _records(data)
        graph = _json(records[_GRAPH], _MAX_GRAPH_BYTES)
        _check_graph(graph, 0)
        for name in (_WEIGHTS, _CONSTANTS):
            _check_payloads(records, name)
        description = Description.from_json(records[f"extra/{_DESCRIPTION}"])
    except (KeyError, TypeError, AttributeError, OSError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, struct.error) as error:
        raise ValueError(f"not an archive of the form that this project writes: {error!r}") from error
    records[_GRAPH] = json.dumps(graph).encode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.9, of bytes that it reads itself
            program = torch.export.load(io.BytesIO(_packed(records)))
        return program.module(), description
    except Exception as error:  # torch raises anything at all for a graph that contradicts itself
        raise ValueError(f"torch {torch.__version__} cannot read it: {type(error).__name__}") from error


def _records(data: bytes) -> dict[str, bytes]:
    """Return the records of an archive by name, without the folder that they are all in; those that are no data are left out."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = archive.infolist()
    if len(entries) > _MAX_RECORDS or any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        raise ValueError("it has too many records, or packed ones")
    if sum(entry.file_size for entry in entries) > len(data):
        raise ValueError("its records overlap")
    root = entries[0].filename.split("/")[0] if entries else ""
    records: dict[str, bytes] = {}
    for entry in entries:
        name = entry.filename.removeprefix(f"{root}/")
        if name in records or not _is_expected(name):
            raise ValueError(f"it has a record that it should not have: {entry.filename[:100]!r}")
        records[name] = archive.read(entry)
    if records[_SAMPLE_INPUTS]:
        raise ValueError("it has pickled example inputs")
    if any(records.get(name, text) != text for name, text in _TEXTS.items()):
        raise ValueError("its byte order or its form is another one")
    return {name: content for name, content in records.items() if name not in _IGNORED and name not in _TEXTS}


def _is_expected(name: str) -> bool:
    fixed = {_GRAPH, _WEIGHTS, _CONSTANTS, _SAMPLE_INPUTS, f"extra/{_DESCRIPTION}", *_TEXTS, *_IGNORED}
    return name in fixed or _WEIGHT.fullmatch(name) is not None


def _json(data: bytes, max_bytes: int) -> object:
    if len(data) > max_bytes:
        raise ValueError("a record of text is too long")
    return json.loads(data)


def _check_graph(value: object, depth: int) -> None:
    """Check every part of a graph's JSON, and empty those in ``_REBUILT``.

    Raises:
        ValueError: a part could make torch do anything but compute on tensors.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("its graph is nested too deep")
    if isinstance(value, dict):
        for key, part in value.items():
            _check_name(key)
            if key in _REBUILT:
                value[key] = _REBUILT[key]
            elif key.startswith("as_") and key not in _ARGUMENTS:
                raise ValueError(f"its graph has an argument of a kind that is not computed with: {key}")
            elif not _is_checked_text(key, part):
                _check_graph(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            _check_graph(part, depth + 1)
    elif isinstance(value, str):
        _check_name(value)


def _is_checked_text(key: str, value: object) -> bool:
    """Return whether ``key`` is one whose value has rules of its own; they hold if it is.

    Raises:
        ValueError: they do not.
    """
    if key == "target":
        holds = value in _OPERATIONS
    elif key == "expr_str":
        holds = isinstance(value, str) and _EXPRESSION.fullmatch(value) is not None
    elif key in ("in_spec", "out_spec"):
        holds = isinstance(value, str) and len(value) < MAX_DESCRIPTION_BYTES and _is_plain_tree(json.loads(value))
    elif key in _EMPTY:
        holds = value == {}
    elif key == "device":
        holds = value == {"type": "cpu", "index": None}
    elif key == "torch_version":
        holds = isinstance(value, str) and len(value) < _MAX_NAME
    else:
        return False
    if not holds:
        raise ValueError(f"its graph has a {key} that is not allowed: {str(value)[:100]!r}")
    return True


def _is_plain_tree(value: object) -> bool:
    """Return whether a description of nested arguments names nothing but tuples, lists and dictionaries without keys."""
    if isinstance(value, dict):
        return value.get("type") in _TREE_TYPES and value.get("context") in (None, "null", "[]") and _is_plain_tree(value["children_spec"])
    return all(_is_plain_tree(part) for part in value) if isinstance(value, list) else type(value) is int


def _check_name(name: str) -> None:
    if len(name) > _MAX_NAME or _NAME.fullmatch(name) is None:
        raise ValueError(f"its graph has a name that is no name: {name[:100]!r}")


def _check_payloads(records: dict[str, bytes], name: str) -> None:
    """Check the list of weights or constants: raw numbers on the CPU, as many as their shapes say, and none pickled.

    Raises:
        ValueError: another kind of thing is among them.
    """
    config = cast("dict[str, dict[str, dict[str, object]]]", _json(records[name], _MAX_GRAPH_BYTES))
    _check_graph(config, 0)
    folder = name.rsplit("/", 1)[0]
    for payload in config["config"].values():
        record = f"{folder}/{payload['path_name']}"
        if payload["use_pickle"] is not False or _WEIGHT.fullmatch(record) is None:
            raise ValueError("it has pickled weights")
        sizes = cast("dict[str, list[dict[str, int]]]", payload["tensor_meta"])["sizes"]
        if not records[record] or math.prod(size["as_int"] for size in sizes) > len(records[record]):
            raise ValueError("it has fewer weights than it says")


def _packed(records: dict[str, bytes]) -> bytes:
    """Return an archive of the records."""
    from torch.export.pt2_archive import PT2ArchiveWriter  # loads torch's compiler, for seconds: not whoever only opens a network

    buffer = io.BytesIO()
    with PT2ArchiveWriter(buffer) as writer:
        for name, content in records.items():
            writer.write_bytes(name, content)
    return buffer.getvalue()


def traced(network: nn.Module, description: Description) -> torch.export.ExportedProgram:
    """Return the graph of a deployed network (``automl.models.networks``): nothing of this machine in it, and no example inputs."""
    batch = torch.export.Dim("batch", min=1)
    inputs = tuple(torch.zeros(_EXAMPLE_BATCH, *description.input_shape) for _ in description.input_names)
    with torch.no_grad():
        program = torch.export.export(network, inputs, dynamic_shapes={name: {0: batch} for name in description.input_names})
    program.example_inputs = None  # torch would pickle them into the file
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names this machine's folders
        node.meta.pop("nn_module_stack", None)
    return program


def pte_bytes(network: nn.Module, description: Description) -> bytes:
    """Return a network as ``automl.models.networks.deployed`` makes it, and its description, as a ``.pte`` file.

    Raises:
        UserError: ExecuTorch is not installed.
    """
    exir, partitioner = _package("executorch.exir"), _package("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    text = torch.frombuffer(bytearray(description.to_json().encode()), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, about its own use of torch
        edge = exir.to_edge_transform_and_lower(
            _in_rows(network, description), partitioner=[partitioner.XnnpackPartitioner()], constant_methods={_DESCRIPTION_METHOD: text}
        )
        return bytes(edge.to_executorch().buffer)


def _in_rows(network: nn.Module, description: Description) -> torch.export.ExportedProgram:
    """Return the graph of a network for one sample, whose numbers lie plane by plane: ExecuTorch's operations know no other layout."""
    inputs = tuple(torch.zeros(1, *description.input_shape) for _ in description.input_names)
    with torch.no_grad():
        module = torch.export.export(network, inputs).module()
        for node in list(module.graph.nodes):
            if node.target is torch.ops.aten.contiguous.default:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
        module.recompile()
        return torch.export.export(module, inputs)


def own_pte(data: bytes) -> tuple[Deployed, Description]:
    """Return the network of a file that ``pte_bytes`` made in this process, run sample by sample, and its description."""
    program = _package("executorch.runtime").Runtime.get().load_program(data)
    (text,) = program.load_method(_DESCRIPTION_METHOD).execute([])
    method = program.load_method("forward")

    def network(*inputs: Tensor) -> Tensor:
        outputs = [
            method.execute([each.contiguous() for each in sample])[0].clone()
            for sample in zip(*(part.split(1) for part in inputs), strict=True)
        ]
        return torch.cat(outputs)

    return network, Description.from_json(bytes(text.tolist()))


def _package(name: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise missing_executorch() from error
