from pathlib import Path

import pytest
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.image_folder import WholeFolder, image_folder
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import noise, write_picture


def _pictures(folder: Path, classes: tuple[str, ...] = ("cat", "emu"), channels: int = 3) -> Path:
    for label, name in enumerate(classes):
        for number in range(5):
            size = (20, 30, 3)[: 2 + channels // 3]
            write_picture(folder / name / f"{number}.png", noise(*size, seed=10 * label + number))
    return folder


def test_all_images_of_a_folder_are_seen_under_the_labels_of_the_network(tmp_path: Path) -> None:
    tested = WholeFolder(_pictures(tmp_path), ("ant", "cat", "dog", "emu"), 3, None)
    batches = list(tested.held_out_batches(16, 4))
    assert [batch.targets.tolist() for batch in batches] == [[1, 1, 1, 1], [1, 3, 3, 3], [3, 3]]
    assert [tuple(batch.inputs.shape) for batch in batches] == [(4, 3, 16, 16), (4, 3, 16, 16), (2, 3, 16, 16)]
    assert len(tested) == 10


def test_its_inputs_are_those_of_the_folder_as_a_data_set(tmp_path: Path) -> None:
    dataset = image_folder("folder-x", _pictures(tmp_path), side=18)
    tested = WholeFolder(tmp_path, dataset.class_titles, 3, dataset.preparation.kept_side)
    (everything,) = tested.held_out_batches(16, 10)
    for held_out in dataset.held_out_batches(16, 1):
        same = [torch.equal(image, held_out.inputs[0]) for image in everything.inputs]
        assert everything.targets[same.index(True)] == held_out.targets[0]


def test_statistics_are_of_another_sets_training_images(tmp_path: Path) -> None:
    tested = WholeFolder(_pictures(tmp_path, channels=1), ("cat", "emu"), 1, None, digits())
    (first, *_) = tested.calibration_batches(16, 8, 16)
    assert torch.equal(first, next(iter(digits().calibration_batches(16, 8, 16))))


def test_a_class_that_the_network_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="emu is no class of the network, which has ant, cat: rename"):
        WholeFolder(_pictures(tmp_path), ("ant", "cat"), 3, None)
    with pytest.raises(UserError, match="is no folder"):
        WholeFolder(tmp_path / "none", ("ant", "cat"), 3, None)


def test_colours_are_refused_where_the_network_sees_none(tmp_path: Path) -> None:
    tested = WholeFolder(_pictures(tmp_path), ("cat", "emu"), 1, None)
    with pytest.raises(UserError, match="has colours, and the network sees grey images"):
        list(tested.held_out_batches(16, 4))
