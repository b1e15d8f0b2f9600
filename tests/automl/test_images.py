from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from automl.data.digits import load
from automl.data.images import ImageDataset, augment, resize
from protocol.errors import UserError

DIGEST = "d2347cc9e36f14ae4179757526234040a00eea3df6eeccda2098aed2f814bce2"


def test_the_digits_and_their_split_are_fixed(digits: ImageDataset) -> None:
    assert digits.digest.hex() == DIGEST
    assert load("digits").digest == digits.digest
    assert digits.train_images.shape == (1442, 1, 8, 8)
    assert digits.held_out_images.shape == (355, 1, 8, 8)
    assert len(digits.train_labels) == 1442
    assert len(digits.held_out_labels) == 355


def test_no_held_out_image_is_among_the_training_images(digits: ImageDataset) -> None:
    train = {image.tobytes() for image in digits.train_images}
    assert not any(image.tobytes() in train for image in digits.held_out_images)


def test_every_class_has_a_fifth_held_out(digits: ImageDataset) -> None:
    for label in range(digits.num_classes):
        held_out, train = np.sum(digits.held_out_labels == label), np.sum(digits.train_labels == label)
        assert 0.18 < held_out / (held_out + train) <= 0.2


def test_the_digest_names_every_pixel_label_and_the_split(digits: ImageDataset) -> None:
    pixels = digits.train_images.copy()
    pixels[5, 0, 3, 3] ^= 1
    labels = digits.held_out_labels.copy()
    labels[0] = (labels[0] + 1) % 10
    moved = {
        "train_images": digits.train_images[:-1],
        "held_out_images": np.concatenate([digits.train_images[-1:], digits.held_out_images]),
    }
    changed = [
        replace(digits, train_images=pixels),
        replace(digits, held_out_labels=labels),
        replace(digits, **moved),
        replace(digits, name="b"),
    ]
    assert len({digits.digest, *(one.digest for one in changed)}) == 5


def test_an_unknown_data_set_is_the_users_error() -> None:
    with pytest.raises(UserError, match="digits"):
        load("faces")


@pytest.mark.parametrize("resolution", [32, 20, 8])
def test_resizing_is_bilinear(digits: ImageDataset, resolution: int) -> None:
    images = digits.train_images[:20]
    expected = F.interpolate(torch.from_numpy(images).double() / 16, (resolution, resolution), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resize(images, 16, resolution), expected.float())


def test_augmentation_depends_on_the_seed_alone_and_differs_between_images(digits: ImageDataset) -> None:
    images = resize(digits.train_images[:1], 16, 32).expand(6, -1, -1, -1)
    once = augment(images, 2**64 - 1)
    assert torch.equal(once, augment(images, 2**64 - 1))
    assert not torch.equal(once, augment(images, 0))
    assert len({image.numpy().tobytes() for image in once}) == 6


def test_augmentation_moves_pixels_a_little_and_invents_none(digits: ImageDataset) -> None:
    images = resize(digits.train_images[:500], 16, 32)
    moved = augment(images, 1)
    assert set(moved.unique().tolist()) <= {0.0, *images.unique().tolist()}
    rows = torch.arange(32.0)[:, None]
    shift = ((moved * rows).sum((1, 2, 3)) / moved.sum((1, 2, 3))) - ((images * rows).sum((1, 2, 3)) / images.sum((1, 2, 3)))
    assert shift.abs().max() < 6
    assert shift.abs().mean() > 0.5
    assert shift.mean().abs() < 0.3
