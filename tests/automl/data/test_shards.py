"""A folder in shards and back; what is damaged is named and not used."""

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from manta_swarm.automl.data.catalog import load_dataset, motorcycle
from manta_swarm.automl.data.images import resize
from manta_swarm.automl.data.pictures import picture_of, read_picture
from manta_swarm.automl.data.shards.layout import (
    LIST_NAME,
    ROW,
    Coded,
    LayoutError,
    Shard,
    ShardList,
    coded_pair,
    pair_in,
    parse_list,
    pieces_root,
)
from manta_swarm.automl.data.shards.reading import Shards, open_shards
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.data.shards.writing import shard_images, shard_pairs
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.protocol.encoding import encode, pack
from manta_swarm.protocol.errors import EncodingError, SamplesMissing, UserError
from tests.automl.data.files import noise, nothing, write_picture


def _folder(folder: Path, channels: int = 3) -> Path:
    """Write JPEG and PNG pictures of many sizes, in three classes."""
    for label, name in enumerate(("cat", "dog", "emu")):
        for number in range(10):
            size = (20 + 3 * number, 40 - 2 * label, *((3,) if channels == 3 else ()))
            write_picture(folder / name / f"{number}.{'jpg' if number % 2 else 'png'}", noise(*size, seed=10 * label + number))
    return folder


def _sharded(tmp_path: Path, channels: int = 3, **options: int) -> ShardedImages:
    shard_images(_folder(tmp_path / "own", channels), tmp_path / "some", nothing, shard_bytes=16 << 10, **options)
    dataset = load_dataset("shards-some", tmp_path)
    assert isinstance(dataset, ShardedImages)
    return dataset


def test_every_picture_of_a_folder_comes_back_with_its_own_pixels_and_class(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    assert (dataset.num_train, dataset.num_held_out, dataset.class_names) == (24, 6, ("cat", "dog", "emu"))
    assert (dataset.class_titles, dataset.preparation.kept_side) == (dataset.class_names, None)
    found = {(dataset.shards.label(place), _bytes(dataset.shards, place)) for place in range(30)}
    assert found == {
        (label, read_picture(path).tobytes())
        for label, name in enumerate(dataset.class_names)
        for path in (tmp_path / "own" / name).iterdir()
    }
    held_out = [batch.targets.tolist() for batch in dataset.held_out_batches(16, 4)]
    assert sorted(label for batch in held_out for label in batch) == [0, 0, 1, 1, 2, 2]


def test_files_stand_in_shards_as_they_are(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    everything = b"".join(dataset.shards.path(number).read_bytes() for number in range(len(dataset.shards.list.shards)))
    assert all(path.read_bytes() in everything for path in (tmp_path / "own").rglob("*.*"))


def test_the_digest_is_the_root_over_the_list_and_the_digests_of_the_shards(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    list_, leaves = dataset.shards.list, []
    leaves.append(encode((list_.format, "images", 3, ("cat", "dog", "emu"), 1, 24)))
    for number, shard in enumerate(list_.shards):
        data = dataset.shards.path(number).read_bytes()
        head = data[: 24 + ROW.itemsize * int.from_bytes(data[16:24], "little")]
        pieces = [hashlib.sha256(b"\0" + data[start : start + 2**20]).digest() for start in range(0, len(data), 2**20)]
        leaves.append(encode((hashlib.sha256(head).digest(), _root(pieces), len(data), shard.samples)))
    hashes = [hashlib.sha256(b"\0" + leaf).digest() for leaf in leaves]
    assert dataset.digest == _root(hashes)
    assert dataset.digest == load_dataset("shards-some", tmp_path).digest


def _root(hashes: list[bytes]) -> bytes:
    """Return the root as RFC 9162, section 2.1.1, defines it."""
    if len(hashes) == 1:
        return hashes[0]
    half = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _root(hashes[:half]) + _root(hashes[half:])).digest()


def test_a_shard_s_pieces_are_of_a_mebibyte_and_the_last_one_of_what_is_left() -> None:
    data = bytes(range(256)) * (2**12 * 2 + 1)
    pieces = [data[: 2**20], data[2**20 : 2**21], data[2**21 :]]
    assert pieces_root(data) == _root([hashlib.sha256(b"\0" + piece).digest() for piece in pieces])


def test_shards_are_bounded_and_hold_samples_of_one_part(tmp_path: Path) -> None:
    list_ = _sharded(tmp_path).shards.list
    assert len(list_.shards) > 3
    assert all(shard.size_bytes <= (16 << 10) + ROW.itemsize * shard.samples + 24 for shard in list_.shards)
    assert sum(shard.samples for shard in list_.shards[: list_.num_train_shards]) == list_.num_train


def test_shards_of_the_same_files_are_the_same_and_their_name_is_no_part_of_the_digest(tmp_path: Path) -> None:
    first = _sharded(tmp_path)
    shard_images(tmp_path / "own", tmp_path / "other", nothing, shard_bytes=16 << 10)
    assert load_dataset("shards-other", tmp_path).digest == first.digest


def test_pictures_are_scaled_down_to_a_side(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path, side=24)
    pictures = [dataset.shards.sample(place) for place in range(30)]
    assert all(isinstance(picture, np.ndarray) and 20 <= min(picture.shape[:2]) <= 24 for picture in pictures)
    assert any(isinstance(picture, np.ndarray) and max(picture.shape[:2]) > 24 for picture in pictures)


def test_held_out_images_are_the_centre_squares_of_pictures(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    (batch,) = dataset.held_out_batches(16, 10)
    for place, image in enumerate(batch.inputs):
        picture = dataset.shards.sample(dataset.num_train + place)
        assert isinstance(picture, np.ndarray)
        rows, columns, _ = picture.shape
        side = min(rows, columns)
        square = Image.fromarray(picture).crop(((columns - side) // 2, (rows - side) // 2, (columns + side) // 2, (rows + side) // 2))
        assert torch.equal(image, resize(np.asarray(square.resize(square.size)).transpose(2, 0, 1)[None], 255, 16)[0])


def test_grey_pictures_are_of_one_channel_and_not_mirrored(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path, channels=1)
    assert (dataset.image_channels, dataset.flips) == (1, False)
    assert dataset.training_batch([0, 1], 5, 16).inputs.shape == (2, 1, 16, 16)


def test_a_microbatch_is_a_function_of_its_arguments_alone(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    again = ShardedImages("other", open_shards(tmp_path / "some"), kept_bytes=0)
    first, second = dataset.training_batch([3, 0, 17], 99, 16), again.training_batch([3, 0, 17], 99, 16)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.inputs, dataset.training_batch([3, 0, 17], 100, 16).inputs)
    assert first.targets.tolist() == [dataset.shards.label(place) for place in (3, 0, 17)]


def test_a_microbatches_window_flip_and_light_are_those_of_the_specification(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    seed, resolution, places = 7, 16, [5, 11, 2, 8]

    def drawn(label: str, count: int) -> list[list[int]]:
        stream = hashlib.shake_256(f"manta/{label}/v1\n".encode() + seed.to_bytes(8, "little")).digest(2 * count * len(places))
        words = [int.from_bytes(stream[2 * place : 2 * place + 2], "little") for place in range(count * len(places))]
        return [words[count * place : count * place + count] for place in range(len(places))]

    found = dataset.training_batch(places, seed, resolution).inputs
    for image, place, window, flip, light in zip(found, places, drawn("window", 3), drawn("flip", 1), drawn("jitter", 2), strict=True):
        picture = dataset.shards.sample(place)
        assert isinstance(picture, np.ndarray)
        rows, columns, _ = picture.shape
        most = min(rows, columns)
        least = max((most + 1) // 2, min(resolution, most))
        side = least + window[0] * (most - least + 1) // 65536
        top, left = window[1] * (rows - side + 1) // 65536, window[2] * (columns - side + 1) // 65536
        cut = picture[top : top + side, left : left + side].astype(np.int64)
        if flip[0] * 2 // 65536 == 1:
            cut = cut[:, ::-1]
        contrast, brightness = light[0] * 129 // 65536 - 64, light[1] * 65 // 65536 - 32
        levels = ((2 * cut - 255) * (contrast + 256) + 2 * 255 * brightness + 256 * 255 + 256) // 512
        expected = resize(np.clip(levels, 0, 255).astype(np.uint8).transpose(2, 0, 1)[None], 255, resolution)[0]
        assert torch.equal(image, expected)


def test_calibration_and_every_second_batch_are_parts_of_what_there_is(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    assert [len(inputs) for inputs in dataset.calibration_batches(16, 8, 100)] == [8, 8, 8]
    every = list(dataset.held_out_batches(16, 1))
    assert [batch.targets.item() for batch in dataset.held_out_batches(16, 1, every=2)] == [batch.targets.item() for batch in every[::2]]


def test_pairs_come_back_as_they_were(tmp_path: Path) -> None:
    original = motorcycle()
    shard_pairs(original, tmp_path / "pair", nothing)
    dataset = load_dataset("shards-pair", tmp_path)
    assert isinstance(dataset, StereoDataset)
    assert (dataset.num_train, dataset.num_held_out) == (original.num_train, original.num_held_out)
    here, there = dataset.train[0], original.train[0]
    assert np.array_equal(here.left, there.left)
    assert np.array_equal(here.right, there.right)
    assert np.array_equal(here.disparity, there.disparity)
    assert torch.equal(dataset.training_batch([0], 1, 64).inputs, original.training_batch([0], 1, 64).inputs)
    assert dataset.digest == open_shards(tmp_path / "pair").list.digest


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("missing", lambda path: path.unlink()),
    ("cut or too long", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    ("cut or too long", lambda path: path.write_bytes(path.read_bytes() + b"x")),
    ("damaged", lambda path: _flip(path, 30)),
    ("damaged", lambda path: _flip(path, -1)),
]


@pytest.mark.parametrize(("said", "harm"), DAMAGE)
def test_a_damaged_shard_is_named_and_not_used(tmp_path: Path, said: str, harm: Callable[[Path], object]) -> None:
    _sharded(tmp_path)
    shards = open_shards(tmp_path / "some")
    harm(shards.path(1))
    first = shards.list.shards[0].samples
    last = first + shards.list.shards[1].samples - 1
    with pytest.raises(SamplesMissing, match=f"shard-00001.bin .*{said}"):
        shards.sample(last)
    with pytest.raises(SamplesMissing, match=f"shard-00001.bin .*{said}"):
        shards.need([0, last])  # known by now, before any sample is read
    assert [error is not None for _, error in shards.damaged()] == [number == 1 for number in range(len(shards.list.shards))]
    shards.sample(0)


def test_a_shard_of_another_set_is_not_used(tmp_path: Path) -> None:
    dataset = _sharded(tmp_path)
    os_first, os_second = dataset.shards.path(0), dataset.shards.path(1)
    os_second.write_bytes(os_first.read_bytes()[: os_second.stat().st_size].ljust(os_second.stat().st_size, b"\0"))
    with pytest.raises(SamplesMissing, match="another data set"):
        dataset.training_batch([dataset.shards.list.shards[0].samples], 0, 16)


def test_a_decoder_that_makes_other_pixels_is_told_apart_from_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = _sharded(tmp_path)

    def other(data: bytes, where: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return picture_of(data, where) ^ np.uint8(1)

    monkeypatch.setattr("manta_swarm.automl.data.shards.layout.picture_of", other)
    with pytest.raises(SamplesMissing, match="other pixels than where the shards were made: install"):
        dataset.shards.sample(0)


def test_a_pair_whose_maker_packed_its_disparities_wrongly_is_named_and_not_used(tmp_path: Path) -> None:
    pixels = noise(4, 6, 3, seed=1)
    whole = coded_pair(Pair(pixels, pixels, np.ones((4, 6), np.float32)))
    left, right, packed = whole.parts
    stored = b"\x78\x01\x00" + struct.pack("<HH", 96, 96 ^ 0xFFFF) + bytes(96)  # all that there is to unfold, and that is not the end
    bad_code = bytes([0b01100011, 0b00000000, 0b00111110]) + bytes(8)  # a byte more, and a distance that there is not
    for wrong in (packed[:-1] + b"x", packed[:-4], packed + b"x", zlib.compress(bytes(8)), b"x" * 20, stored + bad_code):
        coded = Coded([left, right, wrong], 0, [pixels, pixels, np.ones((4, 6), "<f4")])
        with pytest.raises(LayoutError, match="disparities"):
            pair_in(b"".join(coded.parts), coded.row, "a pair")
    assert pair_in(b"".join(whole.parts), whole.row, "a pair").disparity.shape == (4, 6)


def test_missing_shards_are_found_without_reading_them(tmp_path: Path) -> None:
    shards = _sharded(tmp_path).shards
    shards.path(0).unlink()
    shards.path(2).write_bytes(b"")
    assert list(shards.missing()) == [shards.path(0), shards.path(2)]


def testnothing_is_left_of_shards_that_cannot_be_made(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "own")
    (folder / "emu" / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"emu/0\.png is not a picture"):
        shard_images(folder, tmp_path / "some", nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize("data", [b"", b"\x80", encode(("manta/shards/v2", "images", 3, ("a", "b"), 1, 1, ()))])
def test_what_is_no_list_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / LIST_NAME).write_bytes(data)
    with pytest.raises(UserError, match="is not the list of a sharded data set"):
        load_dataset("shards-some", tmp_path)


GOOD = ShardList(
    "manta/shards/v1", "images", 3, ("a", "b"), 1, 2, (Shard(bytes(32), bytes(32), 1000, 2), Shard(bytes(32), bytes(32), 500, 1))
)


@settings(max_examples=200)
@given(st.integers(0, len(pack(GOOD)) - 1), st.integers(1, 255))
def test_a_list_with_another_byte_is_refused_or_another_list(place: int, change: int) -> None:
    data = bytearray(pack(GOOD))
    data[place] ^= change
    try:
        found = parse_list(bytes(data))
    except EncodingError:
        return
    assert pack(found) == bytes(data)
    assert found.digest != GOOD.digest


@pytest.mark.parametrize(
    "changes", [{"num_train": 1}, {"num_train": 3}, {"classes": ("a", "a")}, {"classes": ("a",)}, {"kind": "pairs"}, {"channels": 2}]
)
def test_a_list_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(GOOD, **changes)  # type: ignore[arg-type]


def _bytes(shards: Shards, place: int) -> bytes:
    picture = shards.sample(place)
    assert isinstance(picture, np.ndarray)
    return picture.tobytes()
