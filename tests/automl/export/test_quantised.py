"""Exports of 8 bits, made and run by the real onnxruntime."""

import json
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.layered import make_pair
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.evaluation.held_out import measure
from manta_swarm.automl.export.card import card
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.export.files import open_exported, write
from manta_swarm.automl.export.onnx import read_onnx
from manta_swarm.automl.export.quantised import quantised, quantised_bytes
from manta_swarm.automl.export.subnet import Subnet
from tests.automl.export.exports import random_onnx_model, random_subnet


@pytest.fixture(scope="module")
def of_8_bits(digits: ImageDataset) -> Subnet:
    return quantised(replace(random_subnet("classification"), onnx_model=random_onnx_model("classification")), digits, samples=32)


def test_an_export_of_8_bits_is_read_and_is_as_good_as_it_says(of_8_bits: Subnet, digits: ImageDataset, tmp_path: Path) -> None:
    written = {each.path.name: each for each in write(of_8_bits, tmp_path, "net", ["int8", "onnx", "folder"])}
    assert written.keys() == {"net.int8.onnx", "net.onnx", "net"}
    exported = open_exported(tmp_path / "net.int8.onnx")
    described = exported.description
    assert described.int8 is not None
    assert described.int8 == of_8_bits.description.int8
    assert (described.int8.calibration_samples, described.is_int8) == (32, True)
    assert measure(exported, digits, 28, part="test") == described.own_metrics == described.int8.metrics
    assert described.metrics == random_subnet("classification").description.metrics
    assert described.int8.latency.fp32_ms > 0 < described.int8.latency.int8_ms
    # It is near the network and not the network.
    inputs = next(digits.held_out_batches(28, 177)).inputs
    fp32, int8 = open_exported(tmp_path / "net.onnx")(inputs), exported(inputs)
    assert 0 < (int8 - fp32).abs().mean().item() < 0.05
    assert (int8.argmax(1) == fp32.argmax(1)).float().mean().item() > 0.8
    for other in ("net.onnx", "net"):
        description = open_exported(tmp_path / other).description
        assert (description.is_int8, description.int8) == (False, described.int8)
        assert description.own_metrics == description.metrics


def test_its_weights_are_of_8_bits_and_its_operations_of_the_standard(of_8_bits: Subnet) -> None:
    model = onnx.load_model_from_string(quantised_bytes(of_8_bits))
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}
    weights = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    kernels = [weight for weight in weights if weight.ndim == 4]
    assert kernels
    assert all(kernel.dtype == "int8" for kernel in kernels)
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}


def test_the_card_has_both_figures_and_both_latencies(of_8_bits: Subnet) -> None:
    int8 = of_8_bits.description.int8
    assert int8 is not None
    text = card(of_8_bits.description)
    assert f"| accuracy | 12.50% | {int8.metrics['accuracy']:.2%} |" in text
    assert re.search(r"\| one sample \| [0-9.e+-]+ ms \| [0-9.e+-]+ ms \|", text)
    assert f"Both by {int8.latency.runtime} with threads: {torch.get_num_threads()}" in text
    assert "8 bits" not in card(random_subnet("classification").description)


def test_numbers_of_another_kind_than_it_says_are_refused(of_8_bits: Subnet) -> None:
    model = onnx.load_model_from_string(quantised_bytes(of_8_bits))
    entry = next(entry for entry in model.metadata_props if entry.key == "manta.json")
    entry.value = of_8_bits.description.to_json()
    with pytest.raises(ValueError, match="another kind"):
        read_onnx(model.SerializeToString())


@pytest.mark.parametrize(
    "change", [("8_bits", 8), ("int8_ms", -1.0), ("numbers", "int4"), ("metrics", {}), ("threads", True), ("int8", None)]
)
def test_a_description_of_8_bits_is_read_strictly(of_8_bits: Subnet, change: tuple[str, object]) -> None:
    description = replace(of_8_bits.description, is_int8=True)
    assert Description.from_json(description.to_json()) == description
    value = json.loads(description.to_json())
    name, wrong = change
    part = {"int8_ms": value["int8"]["latency"], "threads": value["int8"]["latency"], "metrics": value["int8"], "8_bits": value["int8"]}
    part.get(name, value)[name] = wrong
    with pytest.raises(ValueError, match=r"."):
        Description.from_json(json.dumps(value))
    only = json.loads(random_subnet("classification").description.to_json())
    with pytest.raises(ValueError, match=r"."):
        Description.from_json(json.dumps({**only, "numbers": "int8"}))


def test_a_stereo_network_of_8_bits_sees_depth_as_before(tmp_path: Path) -> None:
    subnet = replace(random_subnet("stereo"), onnx_model=random_onnx_model("stereo"))
    few = StereoDataset.from_pairs("few", *([make_pair(part, index) for index in range(2)] for part in ("train", "held out")))
    made = quantised(subnet, few, samples=2)
    write(made, tmp_path, "net", ["int8"])
    exported = open_exported(tmp_path / "net.int8.onnx")
    assert measure(exported, few, 64, part="test") == exported.description.own_metrics
    assert exported.description.own_metrics.keys() == {"epe", "d1", "bad3"}
