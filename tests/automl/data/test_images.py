import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from manta_swarm.automl.data.images import ImageDataset, augment, held_out_fifth, resize
from manta_swarm.automl.data.preparing import jitter_tables, mirrored, toned
from tests.automl.data.files import noise


@pytest.fixture
def colours() -> ImageDataset:
    """200 images to train with and 30 held out, three classes."""
    labels = np.arange(230) % 3
    return ImageDataset("colours", 255, 3, noise(200, 3, 20, 20), labels[:200], noise(30, 3, 20, 20, seed=1), labels[200:], flips=True)


DIGEST = "d2347cc9e36f14ae4179757526234040a00eea3df6eeccda2098aed2f814bce2"


def test_the_digits_and_their_split_are_fixed(digits: ImageDataset) -> None:
    assert digits.digest.hex() == DIGEST
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
        replace(digits, flips=True),
    ]
    assert len({digits.digest, *(one.digest for one in changed)}) == 6


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


def test_a_training_batch_is_the_resized_and_moved_images_and_their_labels(digits: ImageDataset) -> None:
    indices = [3, 1000, 3, 7]
    batch = digits.training_batch(indices, 9, 24)
    assert torch.equal(batch.inputs, augment(resize(digits.train_images[indices], 16, 24), 9))
    assert batch.targets.dtype == torch.int64
    assert batch.targets.tolist() == digits.train_labels[indices].tolist()


def test_a_training_batch_has_the_same_bits_on_every_machine(digits: ImageDataset) -> None:
    batch = digits.training_batch(range(16), 2**64 - 1, 28)
    data = batch.inputs.numpy().tobytes() + batch.targets.numpy().tobytes()
    assert hashlib.sha256(data).hexdigest().startswith("540c5e22878de7e7")


def test_about_half_of_the_images_are_flipped_where_that_keeps_the_class() -> None:
    images = noise(400, 3, 6, 5)
    dataset = ImageDataset("noise", 255, 2, images, np.zeros(400, np.int64), images[:2], np.zeros(2, np.int64), flips=True)
    flipped, others = (dataset.training_batch(range(400), seed, 5, strength=0).inputs for seed in (5, 6))
    is_flipped = (flipped == resize(images[..., ::-1], 255, 5)).all(3).all(2).all(1)
    assert torch.equal((flipped == resize(images, 255, 5)).all(3).all(2).all(1), ~is_flipped)
    assert 150 < is_flipped.sum() < 250
    assert not torch.equal(others, flipped)


def test_jitter_changes_light_and_contrast_a_little_and_keeps_the_order_of_levels() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(300, axis=0)
    levels = toned(ramp, jitter_tables(300, 255, 1)).reshape(300, 256).astype(np.int64)
    assert (np.diff(levels, axis=1) >= 0).all()
    assert len({one.tobytes() for one in levels}) > 250
    middle = levels[:, 127] - 127
    assert abs(middle).max() <= 32 < 2 * abs(middle).max()
    slope = (levels[:, 160] - levels[:, 96]) / 64
    assert 0.75 <= slope.min() < 0.85 < 1.15 < slope.max() <= 1.25


def test_colours_are_augmented_and_digits_are_not(colours: ImageDataset, digits: ImageDataset) -> None:
    grey = replace(colours, flips=False)
    assert not torch.equal(colours.training_batch(range(50), 1, 20).inputs, grey.training_batch(range(50), 1, 20).inputs)
    moved = augment(resize(colours.train_images[:50], 255, 20), 1)
    assert not torch.equal(grey.training_batch(range(50), 1, 20).inputs, moved)
    assert (digits.image_channels, digits.flips) == (1, False)


def test_the_halves_make_up_the_held_out_images(colours: ImageDataset) -> None:
    parts = {part: list(colours.held_out_batches(20, 8, part)) for part in ("all", "search", "test")}
    assert [len(batch.targets) for batch in parts["all"]] == [8, 8, 8, 6]
    assert torch.equal(torch.cat([batch.inputs for batch in parts["all"]]), resize(colours.held_out_images, 255, 20))
    halves = [{image.numpy().tobytes() for batch in parts[part] for image in batch.inputs} for part in ("search", "test")]
    assert [len(half) for half in halves] == [15, 15]
    assert not halves[0] & halves[1]
    for part in ("search", "test"):
        assert torch.cat([batch.targets for batch in parts[part]]).bincount().tolist() == [5, 5, 5]


def test_calibration_images_are_training_images_as_they_are(colours: ImageDataset) -> None:
    batches = list(colours.calibration_batches(16, 24, 100))
    assert [tuple(batch.shape) for batch in batches] == [(24, 3, 16, 16)] * 4
    train = {image.numpy().tobytes() for image in resize(colours.train_images, 255, 16)}
    assert len({image.numpy().tobytes() for batch in batches for image in batch} & train) == 96


def test_even_a_small_class_has_an_image_held_out() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    held_out = held_out_fifth(noise(15, 1, 4, 4), labels)
    assert np.bincount(labels[held_out]).tolist() == [1, 1, 2]


def test_without_strength_images_are_as_they_are_but_for_being_mirrored(colours: ImageDataset) -> None:
    chosen = [3, 5, 8, 13]
    images = colours.train_images[chosen]
    plain = resize(np.where(mirrored(4, 9)[:, None, None, None], images[..., ::-1], images), 255, 24)
    assert torch.equal(colours.training_batch(chosen, 9, 24, 0).inputs, plain)
    assert not torch.equal(colours.training_batch(chosen, 9, 24, 100).inputs, plain)
    assert torch.equal(colours.training_batch(chosen, 9, 24).inputs, colours.training_batch(chosen, 9, 24, 100).inputs)


def test_more_strength_moves_and_tones_further(colours: ImageDataset) -> None:
    chosen = list(range(100))
    plain = colours.training_batch(chosen, 9, 24, 0).inputs
    distances = [float((colours.training_batch(chosen, 9, 24, strength).inputs - plain).abs().mean()) for strength in (25, 50, 100, 200)]
    assert distances == sorted(distances)
    images = colours.train_images
    changes = [np.abs(toned(images, jitter_tables(len(images), 255, 9, strength)).astype(int) - images).mean() for strength in (0, 30, 100)]
    assert changes[0] == 0 < changes[1] < changes[2]
