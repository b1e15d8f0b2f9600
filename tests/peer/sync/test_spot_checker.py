"""Spot checks of means: a wrong group is found, kept as a proof and stops the peer; a true one never is, whoever serves what."""

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manta_swarm.codec.coding import group_sizes
from manta_swarm.network.blobs import METHOD, BlobStore
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.wrong_group import WrongGroup
from manta_swarm.peer.sync.spot_checker import SHARE, LogLied, SpotChecker
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.network.committed import NUM_VALUES, OPERATOR, ROUND, Committed, commit, shape_of
from tests.peer.contexts import context_of

OWN, HOLDER, LIAR = (PublicKey(sha256(b"node %d" % number)) for number in range(3))
AGES = [0, 1, 2]
WRONG = {0: 0.5, 300_000: 0.5, NUM_VALUES - 1: 0.5}  # each group


@cache
def committed(*, is_wrong: bool) -> Committed:
    return commit(AGES, wrong=WRONG if is_wrong else None)


class _Bodies:
    """Stands for ``peer.sync.spread.BlobDistribution``."""

    def __init__(self, scene: "Scene", weighed: Any) -> None:
        self._scene = scene
        self.weighed = weighed

    def sources(self, _root: bytes) -> list[PublicKey]:
        return self._scene.sources

    def distrust(self, key: PublicKey, _reason: str) -> None:
        self._scene.wrong.append(key)


class Scene:
    """A peer that checks, one that holds the bodies, and the log."""

    def __init__(self, given: Committed, directory: Path) -> None:
        self.given = given
        self.directory = directory
        self.network = MemoryNetwork()
        self.node = self.network.endpoint(OWN)
        self.holder = self.network.endpoint(HOLDER)
        self.log = self.network.endpoint(PublicKey(OPERATOR.public_key))
        self.blob_stores: dict[PublicKey, BlobStore] = {}
        self.blob_store = BlobStore(max_bytes=2**28)
        self.sources: list[PublicKey] = [HOLDER]
        self.wrong: list[PublicKey] = []
        self.tables = 0

    async def serve(self, endpoint: MemoryEndpoint) -> None:
        """Let a node hand out the bodies."""
        blob_store = self.blob_stores[endpoint.key] = BlobStore(max_bytes=2**28)
        for blob in self.given.bodies:
            blob_store.put(blob, "body")
        await blob_store.serve(endpoint)

    def checker(self, *, knows: Iterable[Round] | None = None, seed: int = 0, weighed: Any = None) -> SpotChecker:
        bodies = _Bodies(self, weighed or self.weighed)
        context = context_of(
            self.node,
            Identity(b"p" * 32),
            self.given.signed,
            blob_store=self.blob_store,
            num_weights=NUM_VALUES,
            store=SimpleNamespace(directory=self.directory.parent),
        )
        checker = SpotChecker(context, bodies, rng=random.Random(seed))
        for entry in reversed(self.given.before) if knows is None else knows:
            checker.committed(entry)
        checker.committed(self.given.entry)
        return checker

    async def weighed(self, entry: Round) -> Any:
        assert entry == self.given.entry
        self.tables += 1
        return self.given.weighed

    async def check(self, checker: SpotChecker) -> dict[str, int]:
        """Return the outcomes, once the mean was checked."""
        await checker.check(self.given.receipt, self.given.proven, self.given.mean)
        return dict(checker.outcomes)


pytestmark = pytest.mark.usefixtures("quick_pauses")


@pytest.mark.parametrize("seed", range(6))
async def test_a_wrong_group_is_found_proven_and_kept_and_the_peer_cannot_go_on(tmp_path: Path, seed: int) -> None:
    scene = Scene(committed(is_wrong=True), tmp_path / "proofs")
    await scene.serve(scene.holder)
    checker = scene.checker(seed=seed)
    with pytest.raises(LogLied, match=f"committed a wrong mean in round {ROUND}") as raised:
        await scene.check(checker)
    (path,) = (tmp_path / "proofs").iterdir()
    assert str(path) in str(raised.value)
    found = unpack(WrongGroup, path.read_bytes(), max_bytes=2**28).check(shape_of)
    assert (found.round, found.differs, found.operators) == (ROUND, 1, (OPERATOR.public_key,))
    assert checker.outcomes == {"wrong": 1}


@pytest.mark.parametrize("seed", range(6))
async def test_a_true_mean_passes_and_only_one_group_of_each_body_is_fetched(tmp_path: Path, seed: int) -> None:
    scene = Scene(committed(is_wrong=False), tmp_path)
    await scene.serve(scene.holder)
    assert await scene.check(scene.checker(seed=seed)) == {"right": 1}
    assert not list(tmp_path.glob("*.proof"))  # noqa: ASYNC240
    sizes = set(group_sizes("topk-256-4", NUM_VALUES))
    assert scene.blob_stores[HOLDER].bytes_sent in {len(AGES) * (size + 3 * 32) for size in sizes}


@pytest.mark.parametrize("where", ["here", "at the log", "at the log and with a liar"])
async def test_bodies_are_here_or_the_log_s_and_who_serves_wrong_ones_is_told_of_and_nobody_is_accused_for_it(
    tmp_path: Path, where: str
) -> None:
    async def lie(_caller: PublicKey, _request: bytes) -> bytes:
        return bytes(96)

    scene = Scene(committed(is_wrong=False), tmp_path)
    scene.sources = [LIAR] if "liar" in where else []
    await scene.network.endpoint(LIAR).serve(METHOD, lie)
    if where == "here":
        for blob in scene.given.bodies:
            scene.blob_store.put(blob, "body")
    else:
        await scene.serve(scene.log)
    assert await scene.check(scene.checker()) == {"right": 1}
    assert set(scene.wrong) == set(scene.sources)


async def test_a_check_for_which_something_is_lacking_accuses_nobody(tmp_path: Path) -> None:
    async def no_table(_entry: Round) -> Any:
        raise Unreachable("nobody gave the table")

    scene = Scene(committed(is_wrong=True), tmp_path)
    for endpoint in (scene.log, scene.holder):
        await BlobStore(max_bytes=1).serve(endpoint)
    assert await scene.check(scene.checker()) == {"not possible": 1}  # nobody has the bodies
    await scene.serve(scene.holder)
    assert await scene.check(scene.checker(weighed=no_table)) == {"not possible": 1}
    assert await scene.check(scene.checker(knows=scene.given.before[1:])) == {"rounds not known": 1}


async def test_checks_cost_a_tenth_of_the_mean_on_average(tmp_path: Path) -> None:
    scene = Scene(committed(is_wrong=False), tmp_path)
    checker = scene.checker(seed=3)
    mean = 4 * NUM_VALUES
    for rows in (3, 20, 60):
        entry = replace(scene.given.entry, contributions=rows)
        tries = 20_000
        made = sum(checker.wants(entry) for _ in range(tries))
        cost = rows * max(group_sizes("topk-256-4", NUM_VALUES))
        assert made / tries * cost < 1.05 * mean / SHARE
        if rows > 11:  # else each mean could be checked for less
            assert made / tries * cost > 0.9 * mean / SHARE


async def test_only_the_newest_rounds_are_remembered(tmp_path: Path) -> None:
    scene = Scene(committed(is_wrong=False), tmp_path)
    checker = scene.checker(knows=[replace(scene.given.entry, round=number) for number in range(1, 100)])
    assert len(checker._entries) <= 7
