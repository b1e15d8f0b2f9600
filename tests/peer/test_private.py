"""A peer's own images against what its run asks for."""

from pathlib import Path

import pytest

from automl.data.digits import digits
from automl.data.splitting import write_class_folders
from peer.private import described, load_private, refuse_private
from protocol.errors import UserError
from protocol.private import PrivateData
from protocol.records import Manifest
from protocol.signing import Identity
from tests.runs import manifest_of

CLASSES = tuple(map(str, range(10)))


def manifest(supernet: str = "classifier-tiny", classes: tuple[str, ...] = CLASSES) -> Manifest:
    return manifest_of(Identity(b"o" * 32), data="private", private=(PrivateData(classes, 0, 25),), supernet=supernet)


def test_images_that_fit_the_run_are_read_and_described(tmp_path: Path) -> None:
    write_class_folders(digits(), range(100), tmp_path / "own")
    dataset = load_private(manifest(), tmp_path / "own")
    assert dataset.num_train + dataset.num_held_out == 100
    assert described(dataset).startswith(f"{dataset.num_train} images to train with, of 10 of the run's 10 classes; ")


def test_a_run_that_needs_them_says_how_and_one_that_does_not_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"name their folder with --private-data \(a folder for each class in it: 0, 1, 2, .*9\)"):
        load_private(manifest(), None)
    with pytest.raises(UserError, match="everybody trains on the same data"):
        refuse_private(tmp_path)
    refuse_private(None)


def test_a_run_whose_supernet_has_other_classes_is_the_operators_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit its 2 classes: ask the operator to mend it"):
        load_private(manifest(classes=("cat", "dog")), tmp_path)


def test_less_than_a_lot_is_too_few(tmp_path: Path) -> None:
    write_class_folders(digits(), range(5), tmp_path / "own")
    with pytest.raises(UserError, match="a lot of this run has 16: add images"):
        load_private(manifest(), tmp_path / "own")
