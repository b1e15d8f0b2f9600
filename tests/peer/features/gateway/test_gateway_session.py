"""Where there can be a gateway: not for images in shards, and not where several local steps are audited."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.shards.layout import travelling
from manta_swarm.automl.data.shards.sharded_images import ShardedImages
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.gateway.session import check_run, gateway_of
from manta_swarm.peer.features.shards.download import Download
from manta_swarm.peer.features.shards.holders import Holders
from manta_swarm.peer.features.shards.session import _get
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.voice import Voice
from tests.audited import RULES
from tests.automl.data.files import noise, write_picture
from tests.peer.computer import board_in
from tests.peer.contexts import context_of, progress_of
from tests.runs import EXCHANGE, manifest_of

OPERATOR, PEER = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
REFUSAL = "samples of shards-noise are of many sizes and cannot be handed out: leave --gateway out"


def _images(folder: Path) -> ShardedImages:
    for number in range(20):
        write_picture(folder / "own" / ("a", "b")[number % 2] / f"{number}.png", noise(20, 20, 3, seed=number))
    shard_images(folder / "own", folder / "noise", lambda _done, _total: None)
    dataset = load_dataset("shards-noise", folder)
    assert isinstance(dataset, ShardedImages)
    return dataset


def test_a_gateway_of_images_in_shards_is_refused_in_a_line(tmp_path: Path) -> None:
    config, signed = PeerConfig(gateway=("127.0.0.1:0",)), SignedManifest.sign(manifest_of(OPERATOR), OPERATOR)
    context = context_of(MemoryNetwork().endpoint(PEER.public_key), PEER, signed, board_in(tmp_path / "status"), ComputeThread())
    machine = RoundMachine(context.manifest, context.run, context.key, context.course)
    with pytest.raises(UserError, match=REFUSAL):
        gateway_of(config, context, progress_of(machine), _images(tmp_path), Traffic())


def test_where_they_travel_it_is_refused_before_any_shard_is_got(tmp_path: Path) -> None:
    dataset = _images(tmp_path)
    manifest = manifest_of(OPERATOR, dataset="shards-noise", data_digest=dataset.digest, shards=(travelling(dataset.shards.list),))
    node = MemoryNetwork().endpoint(PEER.public_key)
    holders = Holders(node, bytes(32), [OPERATOR.public_key], Voice())
    board = board_in(tmp_path / "status")
    download = Download(node, manifest, tmp_path / "noise", holders, Shelf(max_bytes=0), board)
    with pytest.raises(UserError, match=REFUSAL):
        asyncio.run(_get(PeerConfig(gateway=("127.0.0.1:0",)), manifest, node, tmp_path / "noise", download, board))


def test_a_gateway_where_several_local_steps_are_audited_is_refused_in_a_line() -> None:
    steps, audited = replace(EXCHANGE, local_steps=4), (RULES,)
    config = PeerConfig(gateway=("127.0.0.1:0",))
    with pytest.raises(UserError, match=r"several local steps are audited.*leave --gateway out"):
        check_run(config, manifest_of(OPERATOR, exchange=steps, audits=audited))
    check_run(PeerConfig(), manifest_of(OPERATOR, exchange=steps, audits=audited))
    check_run(config, manifest_of(OPERATOR, audits=audited))
    check_run(config, manifest_of(OPERATOR, exchange=steps))
