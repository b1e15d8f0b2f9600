"""What an operator hands out of a data set in shards: all of it or nothing, and what its manifest says of it."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.settings.config import RunConfig, load_run_file, template
from manta_swarm.aggregator.states.opening import lend_shards, travelling_of
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.shards.layout import LIST_NAME
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import PIECE_BYTES
from manta_swarm.protocol.signing import Identity
from tests.automl.data.files import noise, write_picture

OPERATOR = Identity(b"\x01" * 32)


def _config(**data: object) -> RunConfig:
    return RunConfig.model_validate({"data": {"share_shards": True, **data}})


def _dataset(folder: Path) -> ShardedImages:
    for number in range(20):
        write_picture(folder / "own" / ("a", "b")[number % 2] / f"{number}.png", noise(20, 20, 3, seed=number))
    shard_images(folder / "own", folder / "noise", lambda _done, _total: None, shard_bytes=5000)
    dataset = load_dataset("shards-noise", folder)
    assert isinstance(dataset, ShardedImages)
    return dataset


def test_the_manifest_says_what_newcomers_need_to_know(tmp_path: Path) -> None:
    config, dataset = _config(dataset="shards-noise"), _dataset(tmp_path)
    (tmp_path / "run.toml").write_text(template(config))
    assert load_run_file(tmp_path / "run.toml") == config
    config.check()
    (said,) = config.manifest(OPERATOR, bytes(32), dataset, travelling_of(config, dataset)).shards
    list_ = (tmp_path / "noise" / LIST_NAME).read_bytes()
    assert (said.list_root, said.list_bytes) == (Blob.cut(list_, PIECE_BYTES).root, len(list_))
    files = sorted((tmp_path / "noise").glob("shard-*"))
    assert said.size_bytes == sum(path.stat().st_size for path in files)
    assert 0 < said.train_shards < len(files)
    assert travelling_of(_config(dataset="shards-noise", share_shards=False), dataset) == ()


@pytest.mark.parametrize("changes", [{"data": {"share_shards": True}}, {"data": {"share_shards": True}, "run": {"data": "private"}}])
def test_what_is_not_in_shards_or_stays_at_home_does_not_travel(changes: dict[str, object]) -> None:
    config = RunConfig.model_validate(changes)
    with pytest.raises(UserError, match="share_shards = true is for a data set in shards, which all train on, and not for digits: make"):
        config.check()
    with pytest.raises(UserError, match="not for digits"):
        travelling_of(config, load_dataset("digits"))


def test_who_lacks_a_shard_hands_none_out(tmp_path: Path) -> None:
    dataset, blob_store = _dataset(tmp_path), BlobStore(max_bytes=0)
    assert lend_shards(blob_store, dataset) == len(dataset.shards.list.shards)
    dataset.shards.path(1).write_bytes(b"cut")
    with pytest.raises(UserError, match=r"1 shards of shards-noise are missing or cut, .*shard-00001.bin first"):
        lend_shards(blob_store, dataset)
