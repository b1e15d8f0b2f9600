"""A subnet of bottlenecks, with gates and the wide head, in every form that leaves this project."""

from pathlib import Path

import torch

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.export.files import TOLERANCE, open_exported, write
from manta_swarm.automl.export.quantised import quantised
from manta_swarm.automl.export.subnet import add_statistics, statistics_path, stored_subnet
from manta_swarm.automl.models.networks import build, deployed
from manta_swarm.automl.spaces.space import space_named
from tests.automl.export.exports import random_subnet

SUPERNET = "classifier-base-1x10"


def test_a_subnet_of_the_base_classifier_is_exported_in_every_form_and_read_again(digits: ImageDataset, tmp_path: Path) -> None:
    subnet = quantised(random_subnet("classification", SUPERNET), digits, samples=16)
    write(subnet, tmp_path, "net", ["pt2", "onnx", "folder", "int8"])
    images = next(digits.held_out_batches(128, 3)).inputs
    expected = deployed(subnet.network, "classification")(images)
    for name, allowed in (("net.pt2", 0.0), ("net", 0.0), ("net.onnx", TOLERANCE), ("net.int8.onnx", 0.1)):
        exported = open_exported(tmp_path / name)
        assert (exported(images) - expected).abs().max().item() <= allowed, name
        assert exported.description.supernet == SUPERNET


def test_its_statistics_lie_beside_a_snapshot_and_make_the_same_network(tmp_path: Path) -> None:
    subnet = random_subnet("classification", SUPERNET)
    path = statistics_path(tmp_path / "round-00000007.safetensors")
    add_statistics(path, [subnet])
    supernet = build(space_named(SUPERNET))
    supernet.initialise(torch.Generator().manual_seed(3))
    architecture = subnet.description.architecture
    again = stored_subnet(path, supernet, subnet.description.provenance.state, architecture.id)
    expected = subnet.network.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.network.state_dict().items())
    assert any("gate" in name for name in expected)
