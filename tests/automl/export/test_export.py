import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.export import load_folder
from manta_swarm.automl.export.card import card
from manta_swarm.automl.export.description import Description, Provenance
from manta_swarm.automl.export.files import TOLERANCE, open_exported, write
from manta_swarm.automl.export.subnet import cut, provenance_of
from manta_swarm.automl.forms import FORMATS, check_targets
from manta_swarm.automl.models.networks import deployed
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.errors import UserError
from tests.automl.export.exports import put, random_files, random_folder, random_subnet

TASKS = ("classification", "stereo")
NOWHERE = Provenance(run="local", round=1, state="ab", ledger_root="unknown", ledger_size=0)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", ["net.pt2", "net.onnx", "net"])
def test_an_exported_network_computes_what_the_plain_one_computes_at_any_batch(task: str, name: str, tmp_path: Path) -> None:
    subnet = random_subnet(task)
    exported = open_exported(put(task, tmp_path, name))
    channels, height, width = subnet.description.input_shape
    network = deployed(subnet.network, task)
    for batch in (1, 7):
        inputs = torch.rand(
            batch, channels * len(subnet.description.input_names), height, width, generator=torch.Generator().manual_seed(batch)
        )
        expected = network(*inputs.chunk(len(subnet.description.input_names), 1))
        outputs = exported(inputs)
        assert outputs.shape == expected.shape
        difference = (outputs - expected).abs().max().item()
        assert difference <= TOLERANCE * max(1.0, expected.abs().max().item())
        if name != "net.onnx":
            assert difference == 0.0
        if task == "classification":
            assert (outputs >= 0).all()
            assert torch.allclose(outputs.sum(1), torch.ones(batch))
    assert replace(exported.description, weights={}) == subnet.description


def test_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    exported = open_exported(put("classification", tmp_path))
    with pytest.raises(ValueError, match="shape"):
        exported(torch.rand(2, 1, 29, 28))


@pytest.mark.parametrize("task", TASKS)
def test_a_folder_gives_back_the_network_to_the_bit(task: str, tmp_path: Path) -> None:
    network = load_folder(put(task, tmp_path))
    expected = random_subnet(task).network.state_dict()
    found = {name.removeprefix("network."): tensor for name, tensor in network.state_dict().items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("task", TASKS)
def test_the_files_name_no_folder_of_the_machine_that_made_them(task: str) -> None:
    here = str(Path(__file__).resolve().parents[3]).encode()
    for name, data in random_files(task).items():
        assert here not in data, name
        assert b"site-packages" not in data, name


def test_a_config_says_how_a_picture_becomes_an_input_and_what_the_classes_are(supernet: Supernet, digits: ImageDataset) -> None:
    named = replace(digits, titles=("zero", "a\nb", "x" * 200, *"3456789"))
    value = json.loads(cut(supernet, supernet.space.smallest(), named, NOWHERE).description.to_json())
    assert value["id2label"] == dict(enumerate_text("zero", "a?b", "x" * 100, *"3456789"))
    told = value["preprocessing"]
    assert told["crop"] == "centre square"
    assert (told["kept_side"], told["divide_by"], told["image_mean"], told["image_std"]) == (8, 16, [0.0], [1.0])
    # What it tells is what is done: with it alone a picture becomes the input that the data set makes of it.
    levels = torch.from_numpy(digits.held_out_images[:5]).double()
    wanted = torch.nn.functional.interpolate(levels, size=28, mode="bilinear", align_corners=False) / told["divide_by"]
    made = next(digits.held_out_batches(28, 5)).inputs
    assert torch.allclose(made.double(), wanted, atol=1e-6)
    assert value["licences"] == {"network": "unknown", "dataset": "cc-by-4.0"}


def enumerate_text(*texts: str) -> list[tuple[str, str]]:
    return [(str(place), text) for place, text in enumerate(texts)]


def test_an_export_of_the_first_version_is_read_though_it_tells_less(tmp_path: Path) -> None:
    description = replace(random_subnet("classification").description, presentation=None)
    again = Description.from_json(description.to_json())
    assert again == description
    text = card(again)
    assert 'license: "unknown"' in text
    assert "id2label" not in text


def test_a_card_says_how_pictures_become_inputs_and_under_which_licence() -> None:
    text = random_folder("classification")["net/README.md"].decode()
    assert 'license: "apache-2.0"' in text
    assert 'datasets: ["digits"]' in text
    assert "centre square, 28 x 28 pixels of whole levels" in text
    assert "levels divided by 255" in text
    assert "| licence of the network, of the data set | apache-2.0, unknown |" in text
    own = replace(random_subnet("classification").description, dataset="folder-mine")
    assert "datasets:" not in card(own)


def test_a_card_says_what_the_network_is_and_where_it_comes_from() -> None:
    text = random_folder("stereo")["net/README.md"].decode()
    description = random_subnet("stereo").description
    front_matter = text.split("---\n")[1]
    assert "pipeline_tag" in front_matter
    for expected in (
        description.architecture.text,
        description.architecture.id,
        "ab" * 32,
        "cd" * 32,
        "4.500 px",
        "62.50%",
        "177",
        "load_folder",
    ):
        assert expected in text
    assert "its root is unknown" in text
    assert max(map(len, re.sub(r"`[^`]*`|model-index.*", "", text).splitlines())) < 200


@pytest.mark.parametrize("task", TASKS)
def test_a_description_survives_its_json(task: str) -> None:
    description = random_subnet(task).description
    assert Description.from_json(description.to_json()) == description
    assert Description.from_json(description.to_json(indent=2)) == description


Change = Callable[[dict], object]  # type: ignore[type-arg]


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(extra=1),
        lambda value: value.pop("task"),
        lambda value: value.update(macs=value["macs"] + 1),
        lambda value: value.update(macs=float(value["macs"])),
        lambda value: value["metrics"].update(accuracy=float("nan")),
        lambda value: value["metrics"].update(accuracy="high"),
        lambda value: value["metrics"].update(accuracy=10**400),
        lambda value: value["metrics"].update(f1=0.5),
        lambda value: value["architecture"].update(text="r28"),
        lambda value: value["architecture"].update(id="00"),
        lambda value: value["inputs"].update(height=25),
        lambda value: value.update(supernet="classifier-huge"),
        lambda value: value["provenance"].update(run="\x1b[31m"),
        lambda value: value["provenance"].update(round=-1),
        lambda value: value["provenance"].update(round=True),
        lambda value: value.update(provenance=[]),
        lambda value: value.update(made_with="x" * 1000),
        lambda value: value["dataset"].update(name="../../etc/passwd\n"),
        lambda value: value["preprocessing"].update(crop="five crops"),
        lambda value: value["preprocessing"].update(kept_side=True),
        lambda value: value["preprocessing"].update(kept_side=28.0),
        lambda value: value["preprocessing"].update(kept_side=1 << 40),
        lambda value: value["preprocessing"].update(divide_by=0),
        lambda value: value["preprocessing"].update(image_mean=[0.5]),
        lambda value: value["preprocessing"].update(more=1),
        lambda value: value["preprocessing"]["resampling"].update(smaller="nearest"),
        lambda value: value.pop("preprocessing"),
        lambda value: value.pop("licences"),
        lambda value: value["licences"].update(network="MIT or so\n"),
        lambda value: value["licences"].update(dataset=None),
        lambda value: value.pop("id2label"),
        lambda value: value["id2label"].pop("9"),
        lambda value: value["id2label"].update({"10": "one more"}),
        lambda value: value["id2label"].update({"3": "\x1b[31m"}),
        lambda value: value["id2label"].update({"3": "x" * 101}),
        lambda value: value["id2label"].update({"3": 3}),
        lambda value: value.update(id2label={str(9 - label): title for label, title in enumerate(value["id2label"].values())}),
    ],
)
def test_a_description_that_says_something_else_is_refused(change: Change, tmp_path: Path) -> None:
    value = json.loads(random_subnet("classification").description.to_json())
    change(value)
    with pytest.raises(ValueError, match=r"."):
        Description.from_json(json.dumps(value))
    (put("classification", tmp_path) / "config.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match="describes no network"):
        load_folder(tmp_path / "net")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "1", '"text"', "{}", "[" * 10_000, '{"supernet": "classifier-tiny"}', " " * 70_000]
)
def test_other_json_is_no_description(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Description.from_json(text)


def with_digest(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write other weights and let config.json name them."""
    data = safetensors.torch.save(tensors)
    config = json.loads((folder / "config.json").read_text())
    config["weights"] = {"model.safetensors": hashlib.sha256(data).hexdigest()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(data)


def test_weights_that_are_not_the_networks_are_refused(tmp_path: Path) -> None:
    folder = put("classification", tmp_path)
    good = dict(random_subnet("classification").network.state_dict())
    nan = good["head.bias"].clone()
    nan[3] = torch.nan
    for wrong in (
        {name: tensor for name, tensor in good.items() if name != "head.bias"},
        {**good, "more": torch.zeros(3)},
        {**good, "head.bias": torch.zeros(11)},
        {**good, "head.bias": good["head.bias"].double()},
        {**good, "head.bias": nan},
    ):
        with_digest(folder, wrong)
        with pytest.raises(UserError, match="does not hold the weights"):
            load_folder(folder)
    with_digest(folder, good)
    load_folder(folder)


def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = put("classification", tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    for broken in (data[:-1], data[:100], b"", data + b"x", bytes([data[-1] ^ 1]).join([data[:-1], b""])):
        (folder / "model.safetensors").write_bytes(broken)
        with pytest.raises(UserError, match="does not hold the weights"):
            load_folder(folder)
    (folder / "model.safetensors").write_bytes(data + bytes(2 << 20))
    with pytest.raises(UserError, match="too many"):
        load_folder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot read"):
        load_folder(folder)


def test_a_subnet_is_cut_with_statistics_and_metrics_of_its_own(supernet: Supernet, digits: ImageDataset) -> None:
    architecture = supernet.space.smallest()
    before = supernet.flat_weights_N.clone()
    subnet = cut(supernet, architecture, digits, NOWHERE)
    assert torch.equal(supernet.flat_weights_N, before)
    batches = list(digits.held_out_batches(28, 128, "test"))
    right = sum(int((subnet.network(batch.inputs).argmax(1) == batch.targets).sum()) for batch in batches)
    assert subnet.description.test_samples == sum(len(batch.targets) for batch in batches) < digits.num_held_out
    assert subnet.description.metrics == {"accuracy": right / subnet.description.test_samples}
    with pytest.raises(UserError, match="choose another data set"):
        cut(supernet, architecture, replace(digits, num_classes=11), NOWHERE)


def test_provenance_is_what_the_snapshot_and_the_file_beside_it_say(tmp_path: Path) -> None:
    state = State(7, torch.arange(3.0), (torch.zeros(3),))
    digest = state_digest(state).hex()
    snapshot = tmp_path / "round-00000007.safetensors"
    beside = tmp_path / "round-00000007.json"
    assert provenance_of(snapshot, state, {}) == Provenance("unknown", 7, digest, "unknown", 0)
    beside.write_text(json.dumps({"ledger_size": 12, "ledger_root": "cd" * 32, "tree_head": "a note"}))
    assert provenance_of(snapshot, state, {"run": "ab", "state": digest}) == Provenance("ab", 7, digest, "cd" * 32, 12)
    with pytest.raises(UserError, match="damaged"):
        provenance_of(snapshot, state, {"state": "00" * 32})
    for text in ("", "[]", "{}", '{"ledger_size": 1, "ledger_root": 2}', '{"ledger_size": true, "ledger_root": "' + "ab" * 32 + '"}'):
        beside.write_text(text)
        with pytest.raises(UserError, match="root of the log"):
            provenance_of(snapshot, state, {})


def test_nothing_is_written_over_and_nothing_is_lost(tmp_path: Path) -> None:
    subnet = random_subnet("classification")
    written = write(subnet, tmp_path / "out", "net", ["folder"])
    assert [each.path for each in written] == [tmp_path / "out" / "net"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net"]
    (tmp_path / "out" / "net" / "README.md").write_text("mine")
    with pytest.raises(UserError, match="--force"):
        write(subnet, tmp_path / "out", "net", ["folder"])
    assert (tmp_path / "out" / "net" / "README.md").read_text() == "mine"
    write(subnet, tmp_path / "out", "net", ["folder"], overwrite=True)
    assert (tmp_path / "out" / "net" / "README.md").read_bytes() == random_folder("classification")["net/README.md"]
    (tmp_path / "out" / "net" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="something else"):
        write(subnet, tmp_path / "out", "net", ["folder"], overwrite=True)
    assert (tmp_path / "out" / "net" / "thesis.txt").read_text() == "mine"


def test_a_disk_that_refuses_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subnet = random_subnet("classification")
    write(subnet, tmp_path, "net", ["folder"])
    (tmp_path / "net" / "README.md").write_text("old")
    rename = os.rename

    def refusing(source: Path, target: Path) -> None:
        if "new" in source.parts:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr("os.rename", refusing)
    with pytest.raises(UserError, match="No space left"):
        write(subnet, tmp_path, "net", ["folder"], overwrite=True)
    assert (tmp_path / "net" / "README.md").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_a_missing_package_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'manta-swarm\[export\]'"):
        check_targets(tmp_path, "net", FORMATS, replace=False)


def test_a_supernet_with_other_channels_and_classes_is_described_by_its_name() -> None:
    space = space_named("classifier-tiny-3x100")
    description = random_subnet("classification").description
    assert description.presentation is not None
    presentation = replace(description.presentation, class_titles=tuple(map(str, range(100))))
    description = replace(description, supernet=space.name, presentation=presentation)
    assert description.input_shape == (3, 28, 28)
    assert description.output_shape == (100,)
    assert Description.from_json(description.to_json()) == description
