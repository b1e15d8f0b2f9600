"""Files of strangers: whatever is in them, opening one runs nothing of theirs and ends in one clear line."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.export.files import open_exported
from manta_swarm.automl.export.onnx import read_onnx
from manta_swarm.automl.export.pt2 import read_pt2
from manta_swarm.protocol.errors import UserError
from tests.automl.export.exports import random_files

GRAPH = "models/model.json"
Change = Callable[[Any], object]


def repacked(change: Callable[[dict[str, bytes]], object], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return the classifier's archive with its records changed."""
    archive = zipfile.ZipFile(io.BytesIO(random_files("classification")["net.pt2"]))
    records = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    change(records)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as again:
        for name, data in records.items():
            again.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def with_graph(change: Change) -> bytes:
    """Return the classifier's archive with its graph changed."""

    def rewrite(records: dict[str, bytes]) -> None:
        value = json.loads(records[GRAPH])
        change(value)
        records[GRAPH] = json.dumps(value).encode()

    return repacked(rewrite)


def graph(value: Any) -> Any:
    return value["graph_module"]["graph"]


def test_an_archive_that_was_only_repacked_is_read() -> None:
    network, _ = read_pt2(repacked(lambda records: None))
    assert network(torch.rand(3, 1, 28, 28)).shape == (3, 10)


class Trap:
    """What runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_torch_itself_would_run_what_a_file_says_and_we_do_not(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    code = f"Symbol('s1', positive=True, integer=True) if __import__('pathlib').Path({str(trap)!r}).touch() is None else 1"
    evaluated = with_graph(lambda value: size(value).update(expr_str=code))
    pickled = repacked(lambda records: records.update({"data/sample_inputs/model.pt": pickle.dumps(Trap(trap))}))
    for data in (evaluated, pickled):
        with pytest.raises(ValueError, match=r"expr_str|pickled"):
            read_pt2(data)
        assert not trap.exists()
    with pytest.raises(Exception, match=r"."):  # whatever comes of it: the code has run by then
        torch.export.load(io.BytesIO(evaluated)).module()(torch.rand(1, 2, 3))
    assert trap.exists()


def size(value: Any) -> Any:
    return graph(value)["tensor_values"]["image"]["sizes"][0]["as_expr"]


@pytest.mark.parametrize(
    "change",
    [
        lambda value: graph(value)["nodes"][0].update(target="torch.ops.aten.from_file.default"),
        lambda value: graph(value)["nodes"][0].update(target="torch.load"),
        lambda value: graph(value)["nodes"][0].update(target=["torch.ops.aten.relu.default"]),
        lambda value: graph(value)["nodes"][0].update(name="x\nimport os"),
        lambda value: graph(value)["nodes"][0]["inputs"][0].update(arg={"as_custom_obj": {"name": "x", "class_fqn": "y"}}),
        lambda value: graph(value)["nodes"][0]["inputs"][0].update(arg={"as_graph": {}}),
        lambda value: graph(value)["nodes"][0]["inputs"][0].update(arg={"as_tensor": {"name": "x()"}}),
        lambda value: graph(value)["nodes"][0]["inputs"][0].update(arg={"as_tensor": {"name": "not_there"}}),
        lambda value: graph(value)["nodes"].pop(0),
        lambda value: graph(value).update(custom_obj_values={"x": {}}),
        lambda value: size(value).update(expr_str="2**99**99"),
        lambda value: size(value).update(expr_str="Symbol('s1', positive=True, integer=True).__class__"),
        lambda value: value["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name="__class__.x"),
        lambda value: value["graph_module"].update(treespec_namedtuple_fields={"x": {"fields": ["a"]}}),
        lambda value: value["graph_module"]["module_call_graph"][0]["signature"].update(in_spec='[1, {"type": "os.system"}]'),
        lambda value: graph(value)["tensor_values"]["image"].update(device={"type": "cuda", "index": 0}),
        lambda value: value.update({"a b": 1}),
        lambda value: value.clear(),
    ],
)
def test_a_graph_that_is_more_than_arithmetic_is_refused(change: Change) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pt2(with_graph(change))


def test_guards_and_metadata_are_left_out(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"

    def change(value: Any) -> None:
        value["guards_code"] = [f"__import__('pathlib').Path({str(trap)!r}).touch() is None"]
        graph(value)["nodes"][0]["metadata"] = {"stack_trace": "any text", "nn_module_stack": "x"}

    network, _ = read_pt2(with_graph(change))
    network(torch.rand(1, 1, 28, 28))
    assert not trap.exists()


WEIGHTS = "data/weights/model_weights_config.json"


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records.update({"data/aotinductor/model/x.so": b"\x7fELF"}),
        lambda records: records.update({"data/weights/model.pt": b"x"}),
        lambda records: records.update({"data/constants/opaque_obj_0": b"x"}),
        lambda records: records.update({"models/other.json": records[GRAPH]}),
        lambda records: records.update({"../../escaped": b"x"}),
        lambda records: records.update({"archive_format": b"pt3"}),
        lambda records: records.update({"byteorder": b"big"}),
        lambda records: records.update({"data/weights/weight_0": b""}),
        lambda records: records.update({"data/weights/weight_0": records["data/weights/weight_0"][:8]}),
        lambda records: records.update({WEIGHTS: records[WEIGHTS].replace(b'"use_pickle": false', b'"use_pickle": true', 1)}),
        lambda records: records.update({WEIGHTS: records[WEIGHTS].replace(b'"weight_0"', b'"../../models/model.json"', 1)}),
        lambda records: records.update({"extra/manta.json": b"{}"}),
        lambda records: records.pop("extra/manta.json"),
        lambda records: records.pop(GRAPH),
        lambda records: records.pop(WEIGHTS),
        lambda records: records.pop("data/weights/weight_3"),
        lambda records: records.update({GRAPH: b"[" * 100_000}),
        lambda records: records.clear(),
    ],
)
def test_an_archive_with_other_records_is_refused(change: Callable[[dict[str, bytes]], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pt2(repacked(change))


def test_a_packed_archive_is_refused() -> None:
    with pytest.raises(ValueError, match="packed"):
        read_pt2(repacked(lambda records: None, zipfile.ZIP_DEFLATED))


@settings(max_examples=30)
@given(st.data())
def test_bytes_that_changed_on_the_way_are_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["net.pt2", "net.onnx"]))
    whole = random_files("classification")[name]
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match=r"."):
        (read_pt2 if name == "net.pt2" else read_onnx)(whole[:cut])


@settings(max_examples=30)
@given(st.integers(0), st.integers(1, 255))
def test_a_changed_byte_of_an_archive_is_noticed_or_does_not_matter(position: int, difference: int) -> None:
    changed = bytearray(random_files("classification")["net.pt2"])
    changed[position % len(changed)] ^= difference
    try:
        network, _ = read_pt2(bytes(changed))
    except ValueError:
        return
    image, expected = unharmed()
    assert torch.equal(network(image), expected)


@cache
def unharmed() -> tuple[torch.Tensor, torch.Tensor]:
    """Return an image, and what the network of the whole archive makes of it."""
    network, _ = read_pt2(random_files("classification")["net.pt2"])
    image = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    return image, network(image)


def with_model(change: Change) -> bytes:
    model = onnx.load_model_from_string(random_files("classification")["net.onnx"])
    change(model)
    data: bytes = model.SerializeToString()
    return data


def name_another_file(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


@pytest.mark.parametrize(
    "change",
    [
        name_another_file,
        lambda model: model.metadata_props.pop(),
        lambda model: model.metadata_props.add(key="manta.json", value="{}"),
        lambda model: model.opset_import.add(domain="com.example", version=1),
        lambda model: setattr(model.graph.node[0], "domain", "com.example"),
        lambda model: setattr(model.graph.input[0], "name", "picture"),
        lambda model: setattr(model.graph.output[0], "name", "logits"),
        lambda model: setattr(model.graph.node[0], "op_type", "Nothing"),
        lambda model: model.graph.initializer.pop(),
        lambda model: model.graph.node.pop(),
    ],
)
def test_an_onnx_model_that_was_changed_is_refused(change: Change) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_onnx(with_model(change))


@pytest.mark.parametrize("name", ["net.pt2", "net.onnx", "net.txt"])
def test_a_file_that_is_no_network_is_the_users_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read|no exported network"):
        open_exported(tmp_path / name)
    (tmp_path / name).write_text("hello")
    with pytest.raises(UserError, match=r"no network that|no exported network"):
        open_exported(tmp_path / name)


def test_a_folder_that_is_none_of_a_network_is_told_where_one_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a folder of one holds config\.json$"):
        open_exported(tmp_path)
    for name in ("b.onnx", "a.pt2", "c.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"did you mean .*/a\.pt2\?$"):
        open_exported(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").touch()
    with pytest.raises(UserError, match=r"did you mean .*/a\?$"):
        open_exported(tmp_path)


def test_a_network_that_makes_something_else_than_it_says_is_the_users_error(tmp_path: Path) -> None:
    def change(value: Any) -> None:
        graph(value)["outputs"] = [{"as_tensor": {"name": graph(value)["nodes"][0]["outputs"][0]["as_tensor"]["name"]}}]
        value["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] = graph(value)["outputs"][0]

    (tmp_path / "net.pt2").write_bytes(with_graph(change))
    with pytest.raises(UserError, match="does not make what it says"):
        open_exported(tmp_path / "net.pt2")(torch.rand(1, 1, 28, 28))
