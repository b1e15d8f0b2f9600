from pathlib import Path

import pytest
import torch

from automl.data.digits import digits
from automl.data.layered import layers
from automl.data.shared import shared_images
from peer.worker_data import WorkerData
from protocol.errors import UserError


def test_images_are_in_memory_once_for_the_peer_and_its_workers() -> None:
    dataset = digits()
    data = WorkerData.of(dataset, None)
    here, there = data.here(dataset), shared_images(data.images[0], data.region)
    data.close()
    assert (here.digest, here.num_held_out) == (dataset.digest, dataset.num_held_out)
    assert not here.train_images.flags.writeable  # type: ignore[attr-defined]
    for one, other in ((here, dataset), (there, dataset)):
        assert torch.equal(one.training_batch([3, 9], 1, 32).inputs, other.training_batch([3, 9], 1, 32).inputs)


def test_stereo_pairs_are_opened_by_their_name_and_have_a_place_to_be_kept(tmp_path: Path) -> None:
    dataset = layers()
    data = WorkerData.of(dataset, tmp_path)
    (pairs,) = data.pairs
    assert (data.images, pairs.name, pairs.root) == ((), "layers", str(tmp_path))
    assert data.region.size_bytes >= pairs.place_bytes > 10 * dataset.train[0].disparity.size
    assert data.here(dataset) is dataset
    data.close()


def test_a_data_set_of_another_kind_is_refused() -> None:
    class Other:
        name = "other"

    with pytest.raises(UserError, match="other cannot be shared among workers: give --workers 1"):
        WorkerData.of(Other(), None)  # type: ignore[arg-type]
