"""A peer's own images against what its run asks for."""

import sys
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.image_folder import write_class_folders
from manta_swarm.peer.config import PeerConfig, check_join
from manta_swarm.peer.features.private import noise
from manta_swarm.peer.features.private.plugin import described, load_private, noise_of, refuse_private
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.private import PrivateData
from manta_swarm.protocol.signing import Identity
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
        refuse_private(PeerConfig(private_data=tmp_path))
    refuse_private(PeerConfig())


def test_a_run_whose_supernet_has_other_classes_is_the_operators_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit its 2 classes: ask the operator to mend it"):
        load_private(manifest(classes=("cat", "dog")), tmp_path)


def test_less_than_a_microbatch_is_too_few(tmp_path: Path) -> None:
    write_class_folders(digits(), range(5), tmp_path / "own")
    with pytest.raises(UserError, match="a microbatch of this run has 16: add images"):
        load_private(manifest(), tmp_path / "own")


def test_noise_needs_all_of_its_settings_and_nothing_that_goes_around_it(tmp_path: Path) -> None:
    assert noise_of(PeerConfig(), tmp_path / "privacy") is None
    for config in (PeerConfig(private_noise=1), PeerConfig(private_clip=1), PeerConfig(private_epsilon=1)):
        with pytest.raises(UserError, match="noise needs both --private-noise SIGMA and --private-clip C"):
            check_join(config)
        with pytest.raises(UserError, match=r"--private-\w+ hides nothing: leave it out"):
            refuse_private(config)
    with pytest.raises(UserError, match="which no account of privacy counts"):
        check_join(PeerConfig(private_noise=1, private_clip=1, tell_accuracy=True))


def test_without_its_library_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise._library.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'manta-swarm\[privacy\]'"):
        noise_of(PeerConfig(private_noise=1, private_clip=1), tmp_path / "privacy")
    noise._library.cache_clear()


def test_a_budget_that_is_spent_is_said_at_the_start(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install -e '.[privacy]'")
    path = tmp_path / "privacy"
    generous = noise_of(PeerConfig(private_noise=10, private_clip=1, private_epsilon=100), path)
    assert generous is not None
    generous.add(np.zeros(3, np.float32))
    once = generous.epsilon
    with pytest.raises(UserError, match=r"the budget of privacy is spent: epsilon=.* at delta=1e-05 so far"):
        noise_of(PeerConfig(private_noise=10, private_clip=1, private_epsilon=once), path)
    again = noise_of(PeerConfig(private_noise=10, private_clip=1, private_epsilon=2 * once), path)
    assert again is not None
    assert again.epsilon == once
