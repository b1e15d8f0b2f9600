"""The hub's own library opens and writes what this project exports; no network."""

from pathlib import Path

import pytest
import torch

from manta_swarm.automl.export import load_folder
from manta_swarm.automl.export.files import open_exported
from manta_swarm.protocol.errors import UserError
from tests.automl.export.exports import put, random_folder, random_subnet

pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
from manta_swarm.automl.export.hub import HubNetwork


@pytest.fixture(params=["classification", "stereo"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return put(request.param, tmp_path)


def test_an_export_goes_through_the_hubs_library_and_computes_the_same_bits(folder: Path, tmp_path: Path) -> None:
    network = HubNetwork.from_pretrained(str(folder), local_files_only=True)
    network.save_pretrained(tmp_path / "again")
    again = HubNetwork.from_pretrained(tmp_path / "again", local_files_only=True)
    description = network.description
    inputs = [torch.rand(3, *description.input_shape, generator=torch.Generator().manual_seed(5)) for _ in description.input_names]
    expected = load_folder(folder)(*inputs)
    assert torch.equal(network(*inputs), expected)
    assert torch.equal(again(*inputs), expected)
    # All files are those of the export, to the byte: the library has added and changed none.
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    assert open_exported(tmp_path / "again").description == description
    assert not again.training


def test_a_repository_that_is_not_here_is_told_without_asking_a_network(tmp_path: Path) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    with pytest.raises(LocalEntryNotFoundError):
        HubNetwork.from_pretrained("nobody/nothing", local_files_only=True, cache_dir=tmp_path)


def test_a_folder_that_was_changed_is_refused_here_too(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="does not hold the weights"):
        HubNetwork.from_pretrained(folder, local_files_only=True)


def test_the_card_is_one_that_the_hub_reads() -> None:
    from huggingface_hub import ModelCard

    card = ModelCard(random_folder("classification")["net/README.md"].decode())
    assert (card.data.license, card.data.library_name, card.data.datasets) == ("apache-2.0", "manta-swarm", ["digits"])
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.eval_results[0].metric_value == random_subnet("classification").description.metrics["accuracy"]
