"""Statistics beside a snapshot: the same network to the bit without the data, and nothing else is taken for them."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.export.description import Provenance
from manta_swarm.automl.export.subnet import FORMAT, Subnet, add_statistics, cut, statistics_path, stored_subnet
from manta_swarm.automl.forms import MAX_STORED
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.protocol.errors import UserError
from tests.automl.conftest import in_general_position

STATE = "ab" * 32
PROVENANCE = Provenance(run="local", round=1, state=STATE, ledger_root="unknown", ledger_size=0)


def ends_of(supernet: Supernet, few: ImageDataset) -> list[Subnet]:
    return [cut(supernet, one, few, PROVENANCE) for one in (supernet.space.largest(), supernet.space.smallest())]


@pytest.fixture(scope="module")
def subnets(few: ImageDataset) -> list[Subnet]:
    return ends_of(in_general_position(Classifier(TINY)), few)


@pytest.mark.parametrize("which", ["supernet", "widened"])  # the latter has gates
def test_a_subnet_is_whole_without_the_data_to_the_bit(
    which: str, few: ImageDataset, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    supernet: Supernet = request.getfixturevalue(which)
    subnets = ends_of(supernet, few)
    path = statistics_path(tmp_path / "round-00000001.safetensors")
    assert path.name == "round-00000001.statistics"
    add_statistics(path, subnets[:1])
    add_statistics(path, subnets[1:])
    for wanted in subnets:
        found = stored_subnet(path, supernet, STATE, wanted.description.architecture.id)
        assert found.description == wanted.description
        expected, values = wanted.network.state_dict(), found.network.state_dict()
        assert values.keys() == expected.keys()
        assert all(torch.equal(values[name], tensor) for name, tensor in expected.items())
        assert not found.network.training


def test_what_is_of_another_state_or_missing_is_refused(supernet: Supernet, subnets: list[Subnet], tmp_path: Path) -> None:
    path, architecture = tmp_path / "a.statistics", supernet.space.largest().id
    with pytest.raises(UserError, match="manta-search calibrate"):
        stored_subnet(path, supernet, STATE, architecture)
    add_statistics(path, subnets[:1])
    with pytest.raises(UserError, match="no statistics of"):
        stored_subnet(path, supernet, STATE, supernet.space.smallest().id)
    with pytest.raises(UserError, match="another state"):
        stored_subnet(path, supernet, "cd" * 32, architecture)
    later = replace(subnets[1].description, provenance=replace(PROVENANCE, state="cd" * 32))
    add_statistics(path, [replace(subnets[1], description=later)])
    with pytest.raises(UserError, match="no statistics of"):
        stored_subnet(path, supernet, "cd" * 32, architecture)


def test_broken_files_are_refused(supernet: Supernet, subnets: list[Subnet], tmp_path: Path) -> None:
    path, architecture = tmp_path / "a.statistics", supernet.space.smallest().id
    add_statistics(path, subnets[1:])
    whole = path.read_bytes()
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load(whole)
    mean = next(name for name in tensors if name.endswith("running_mean"))
    variance = mean.replace("running_mean", "running_var")
    text = metadata[f"network {architecture}"]
    for wrong in (
        {**tensors, mean: tensors[mean][:-1].clone()},
        {**tensors, mean: tensors[mean].double()},
        {**tensors, mean: torch.full_like(tensors[mean], torch.nan)},
        {**tensors, variance: -torch.ones_like(tensors[variance])},
        {name: tensor for name, tensor in tensors.items() if name != mean},
        {**tensors, f"{architecture}/head.bias": torch.zeros(10)},
    ):
        safetensors.torch.save_file(wrong, path, metadata)
        with pytest.raises(UserError, match="does not hold the statistics"):
            stored_subnet(path, supernet, STATE, architecture)
    for lies in (
        {},
        {**metadata, "format": "manta/state/v3"},
        {**metadata, f"network {architecture}": "{}"},
        {**metadata, "network ab": text},
        {"format": FORMAT, **{f"network {index}": text for index in range(MAX_STORED + 1)}},
    ):
        safetensors.torch.save_file(tensors, path, lies)
        with pytest.raises(UserError, match="holds no statistics"):
            stored_subnet(path, supernet, STATE, architecture)
    for data in (b"", whole[:100], whole[:-1], b"x" * 1000):
        path.write_bytes(data)
        with pytest.raises(UserError, match="holds no statistics"):
            stored_subnet(path, supernet, STATE, architecture)
