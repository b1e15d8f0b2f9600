"""What a process that was killed while it wrote shards left, and two that write the same."""

from pathlib import Path

import pytest

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import nothing, write_classes

PETS = {"cat": 10, "dog": 10}


class Killed(BaseException):
    """Stands for SIGKILL."""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".some.part"
    left.mkdir()
    for name in ("shard-00000.bin", "shard-00077.bin", "shard-00078.bin.part"):
        (left / name).write_bytes(b"left")
    shard_images(write_classes(tmp_path / "own", PETS, 20, 20, 3), tmp_path / "some", nothing, shard_bytes=8 << 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "some"]
    assert not (tmp_path / "some" / "shard-00077.bin").exists()
    assert load_dataset("shards-some", tmp_path).num_held_out == 4


def test_a_second_process_does_not_touch_what_the_first_is_writing(tmp_path: Path) -> None:
    pictures, others = write_classes(tmp_path / "own", PETS, 20, 20, 3), 0

    def second(_done: int, _total: int) -> None:
        nonlocal others
        with pytest.raises(UserError, match=r"another process is writing .*some: wait for it, or choose another name with --shard"):
            shard_images(pictures, tmp_path / "some", nothing)
        others += 1

    shard_images(pictures, tmp_path / "some", second, shard_bytes=8 << 10)
    assert others == 20
    assert load_dataset("shards-some", tmp_path).num_train == 16


def test_a_break_leavesnothing(tmp_path: Path) -> None:
    def breaks(done: int, _total: int) -> None:
        if done == 15:
            raise Killed

    with pytest.raises(Killed):
        shard_images(write_classes(tmp_path / "own", PETS, 20, 20, 3), tmp_path / "some", breaks, shard_bytes=8 << 10)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_folder_of_another_s_in_the_way_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".some.part" / "mine").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot write to"):
        shard_images(write_classes(tmp_path / "own", PETS, 20, 20, 3), tmp_path / "some", nothing)
    assert (tmp_path / ".some.part" / "mine").is_dir()
