"""What a process that was killed while it wrote shards left, and two that write the same."""

from pathlib import Path

import pytest

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import noise, write_picture


class Killed(BaseException):
    """Stands for SIGKILL."""


def _pictures(folder: Path) -> Path:
    for number in range(20):
        write_picture(folder / ("cat", "dog")[number % 2] / f"{number}.png", noise(20, 20, 3, seed=number))
    return folder


def _nothing(_done: int, _total: int) -> None:
    pass


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".some.part"
    left.mkdir()
    for name in ("shard-00000.bin", "shard-00077.bin", "shard-00078.bin.part"):
        (left / name).write_bytes(b"left")
    shard_images(_pictures(tmp_path / "own"), tmp_path / "some", _nothing, shard_bytes=8 << 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "some"]
    assert not (tmp_path / "some" / "shard-00077.bin").exists()
    assert load_dataset("shards-some", tmp_path).num_held_out == 4


def test_a_second_process_does_not_touch_what_the_first_is_writing(tmp_path: Path) -> None:
    pictures, others = _pictures(tmp_path / "own"), 0

    def second(_done: int, _total: int) -> None:
        nonlocal others
        with pytest.raises(UserError, match=r"another process is writing .*some: wait for it, or choose another name with --shard"):
            shard_images(pictures, tmp_path / "some", _nothing)
        others += 1

    shard_images(pictures, tmp_path / "some", second, shard_bytes=8 << 10)
    assert others == 20
    assert load_dataset("shards-some", tmp_path).num_train == 16


def test_a_break_leaves_nothing(tmp_path: Path) -> None:
    def breaks(done: int, _total: int) -> None:
        if done == 15:
            raise Killed

    with pytest.raises(Killed):
        shard_images(_pictures(tmp_path / "own"), tmp_path / "some", breaks, shard_bytes=8 << 10)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_folder_of_another_s_in_the_way_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".some.part" / "mine").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot write to"):
        shard_images(_pictures(tmp_path / "own"), tmp_path / "some", _nothing)
    assert (tmp_path / ".some.part" / "mine").is_dir()
