"""Two sites with a view each, on a network in memory: they find each other, train microbatches together, and survive each other."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.views import LEFT, RIGHT, StereoDataset
from manta_swarm.automl.models.linked import SiteLink
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.space import STEREO_TINY
from manta_swarm.automl.spaces.units import Layer
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker
from manta_swarm.automl.training.vertical import SiteWorker
from manta_swarm.network import timeouts
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rpc import Handler, Refused
from manta_swarm.peer.config import PeerConfig, check_join, load_config
from manta_swarm.peer.features.two_views.partner import MEET, Site
from manta_swarm.peer.features.two_views.plugin import TwoViewsPlugin
from manta_swarm.peer.features.two_views.views import BEGIN, EXCHANGE, LEAD, Begin, MicrobatchName, SiteExchange, SitePool
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.devices import choose_devices
from manta_swarm.peer.workers.pool import WorkerLost
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, UserError
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.network.members import DEADLINE_S, PEERS
from tests.runs import manifest_of
from tests.stereo_sites import at_site, few_pairs, write_scenes

MANIFEST = replace(
    manifest_of(Identity(b"o" * 32)), task="stereo", supernet="stereo-tiny", data_digest=few_pairs().digest, microbatch_samples=2
)
LEFT_KEY, RIGHT_KEY = (peer.public_key for peer in PEERS[:2])
BASE = b"b" * 32
SMALLEST = STEREO_TINY.smallest()
ARCHITECTURE = replace(SMALLEST, units=(*SMALLEST.units[:-1], (Layer(3, 4),)))  # small, and yet more weights than a part has


@cache
def weights(seed: int = 0) -> torch.Tensor:
    stereo = Stereo(STEREO_TINY)
    stereo.initialise(torch.Generator().manual_seed(seed))
    return stereo.flat_weights_N


def microbatch_of(key: bytes, index: int) -> Microbatch:
    return Microbatch(MANIFEST.seed, BASE, 0, key, index, ARCHITECTURE, MANIFEST.microbatch_samples)


class Near:
    """The way to the one cohort peer, all of whose callers are cohort peers."""

    def __init__(self, endpoint: MemoryEndpoint, cohort_peer: PublicKey) -> None:
        self.endpoint = endpoint
        self.cohort_peer = cohort_peer
        self.spoil: Callable[[str, bytes], bytes] = lambda method, answer: answer

    @property
    def key(self) -> PublicKey:
        return self.endpoint.key

    def cohort_peers(self) -> tuple[PublicKey, ...]:
        return (self.cohort_peer,)

    async def serve_cohort_peers(self, method: str, handler: Handler) -> None:
        async def spoiled(caller: PublicKey, request: bytes) -> bytes:
            return self.spoil(method, await handler(caller, request))

        await self.endpoint.serve(method, spoiled)

    async def call_cohort_peer(self, cohort_peer: PublicKey, method: str, request: bytes, *, timeout_s: float, largest: int) -> bytes:
        del largest
        return await self.endpoint.call(cohort_peer, method, request, timeout_s=timeout_s)


class Pair:
    """The two sites."""

    def __init__(self, both: StereoDataset, of_right: StereoDataset | None = None) -> None:
        network = MemoryNetwork()
        self.network, self.said = network, {LEFT: list[str](), RIGHT: list[str]()}
        self.changed = asyncio.Event()
        self.compute = {view: ComputeThread() for view in (LEFT, RIGHT)}
        self.near = {LEFT: Near(network.endpoint(LEFT_KEY), RIGHT_KEY), RIGHT: Near(network.endpoint(RIGHT_KEY), LEFT_KEY)}
        self.pool: dict[str, SitePool] = {}
        for view, data in ((LEFT, both), (RIGHT, of_right or both)):
            site = at_site(data, view)
            worker = SiteWorker("stereo-tiny", site, view)
            self.pool[view] = SitePool(worker, site, Site.of(site, view), MANIFEST, self.compute[view])
            self.pool[view].reach(self.near[view])

    async def follow(self, view: str) -> None:
        """Take note of what happens at a worker pool, as a session does."""
        while True:
            self.said[view] += await self.pool[view].changes.next()
            self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def says(self, view: str, beginning: str) -> None:
        """Return once one of them has said a line that begins like this."""
        await self.until(lambda: any(line.startswith(beginning) for line in self.said[view]))

    async def both_present(self) -> None:
        await self.until(lambda: all(pool.free() for pool in self.pool.values()))

    async def met_again(self) -> None:
        """Return once both know of their second meeting."""
        await self.until(lambda: all(pool._partner.meeting == 2 for pool in self.pool.values()))

    async def train(self, view: str, index: int) -> MicrobatchResult:
        """Train a microbatch of one site, as often as it takes."""
        key = LEFT_KEY if view == LEFT else RIGHT_KEY
        while True:
            try:
                return (await self.pool[view].train(0, microbatch_of(key, index))).result
            except WorkerLost:
                await self.both_present()


@asynccontextmanager
async def pair_of(of_right: StereoDataset | None = None) -> AsyncIterator[Pair]:
    pair = Pair(few_pairs(), of_right)
    following = [asyncio.create_task(pair.follow(view)) for view in pair.pool]
    try:
        for pool in pair.pool.values():
            await pool.load(weights(), None)
            await pool.start()
        yield pair
    finally:
        for task in following:
            task.cancel()
        for view, pool in pair.pool.items():
            await pool.close()
            pair.compute[view].close()


@pytest.fixture
def pair() -> AbstractAsyncContextManager[Pair]:
    return pair_of()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "VIEWS_AGAIN_S", (0.01, 0.05))
    monkeypatch.setattr(timeouts, "VIEWS_MATCH_S", 0.2)


@cache
def pooled(microbatch: Microbatch) -> MicrobatchResult:
    worker = Worker("stereo-tiny", few_pairs())
    worker.load(weights())
    return worker.train(microbatch)


async def test_microbatches_of_both_sites_are_those_of_one_that_has_both_views(pair: Pair) -> None:
    await pair.both_present()
    results = await asyncio.gather(*(pair.train(view, 0) for view in (LEFT, RIGHT)))
    for result, microbatch in zip(results, [microbatch_of(key, 0) for key in (LEFT_KEY, RIGHT_KEY)], strict=True):
        expected = pooled(microbatch)
        assert result.loss == pytest.approx(expected.loss, rel=1e-5)
        assert float((result.gradient - expected.gradient).norm() / expected.gradient.norm()) < 0.05
    for view, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
        own, same = pair.pool[view].own, pair.pool[other].others
        # What the left site gives for a microbatch of the right one's is its share of all weights, and takes two parts.
        assert (own.microbatches, own.exchanges) == (same.microbatches, same.exchanges) == (1, 15 if view == LEFT else 16)
        assert (own.bytes_sent, own.bytes_received) == (same.bytes_received, same.bytes_sent)
    assert pair.said[LEFT] == [f"trains with peer {RIGHT_KEY.hex()[:8]}, which has the right views of the same 42 scenes"]


@pytest.mark.parametrize(
    ("of_right", "line"),
    [
        (few_pairs(39), "the other site has 41 scenes of other names, or holds out others"),
        (replace(few_pairs(), train=few_pairs(41).train[1:]), "the views of both sites together are not the run's data set"),
    ],
)
async def test_sites_that_do_not_have_the_run_s_pairs_say_so_once_and_train_nothing(of_right: StereoDataset, line: str) -> None:
    async with pair_of(of_right) as pair:
        await pair.until(lambda: all(pair.said.values()))
        assert pair.said[LEFT][0].startswith(line)
        assert len(pair.said[LEFT]) == 1
        assert len(pair.said[RIGHT]) == 1
        assert not pair.pool[LEFT].free()
        with pytest.raises(WorkerLost, match="the other site is away"):
            await pair.pool[LEFT].train(0, microbatch_of(LEFT_KEY, 0))


def cut(answer: bytes) -> bytes:
    return answer[:-4]


@pytest.mark.parametrize(
    ("place", "spoil", "reason"),
    [
        (0, cut, "have 0 bytes, not|have .* bytes, not"),
        (6, lambda answer: np.full(len(answer) // 4, np.nan, "<f4").tobytes(), "are not finite"),
        (9, lambda answer: answer + b"\0" * 4, "bytes, not"),
    ],
)
async def test_a_site_that_lies_ends_the_microbatch_with_a_reason_and_the_next_one_is_trained(
    pair: Pair, place: int, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    await pair.both_present()
    asked = 0

    def lie(method: str, answer: bytes) -> bytes:
        nonlocal asked
        asked += method == EXCHANGE
        return spoil(answer) if method == EXCHANGE and asked == place + 1 else answer

    pair.near[RIGHT].spoil = lie
    with pytest.raises(WorkerLost, match=reason):
        await pair.pool[LEFT].train(0, microbatch_of(LEFT_KEY, 0))
    await pair.says(LEFT, "without the other site: the other site's ")
    result = await pair.train(LEFT, 0)
    assert result.loss == pytest.approx(pooled(microbatch_of(LEFT_KEY, 0)).loss, rel=1e-5)


class Held(SiteWorker):
    """A worker that begins nothing until it may."""

    def train_site(self, microbatch: Microbatch, link: SiteLink, *, is_own: bool) -> MicrobatchResult | None:
        assert MAY_BEGIN.wait(DEADLINE_S)
        return super().train_site(microbatch, link, is_own=is_own)


MAY_BEGIN = threading.Event()


async def test_a_site_that_is_late_ends_the_microbatch(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "VIEWS_EXCHANGE_S", 0.1)
    MAY_BEGIN.clear()

    await pair.both_present()
    pair.pool[RIGHT]._worker.__class__ = Held
    with pytest.raises(WorkerLost, match=r"within 0\.1 s|nothing for 0\.1 s"):
        await pair.pool[LEFT].train(0, microbatch_of(LEFT_KEY, 0))
    await pair.says(LEFT, "without the other site")
    MAY_BEGIN.set()


@pytest.mark.parametrize(("asks", "key"), [(LEFT, LEFT_KEY), (RIGHT, RIGHT_KEY)], ids=[LEFT, RIGHT])
async def test_a_microbatch_that_ends_after_the_sites_met_again_does_not_part_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, asks: str, key: PublicKey
) -> None:
    monkeypatch.setattr(timeouts, "VIEWS_EXCHANGE_S", 0.1)
    MAY_BEGIN.clear()
    await pair.both_present()
    right = pair.pool[RIGHT]
    right._worker.__class__ = Held
    with pytest.raises(WorkerLost):
        await pair.pool[asks].train(0, microbatch_of(key, 0))
    await pair.met_again()
    assert right._following
    MAY_BEGIN.set()
    await asyncio.gather(*right._following)
    assert all(pool.present() for pool in pair.pool.values())


async def test_an_answer_that_a_microbatch_failed_does_not_part_sites_that_met_again(pair: Pair) -> None:
    await pair.both_present()
    left, right = pair.pool[LEFT], pair.pool[RIGHT]

    async def late(caller: PublicKey, request: bytes) -> bytes:
        try:
            return await left._on_lead(caller, request)
        except RemoteFault:
            await pair.met_again()
            raise

    await pair.near[LEFT].serve_cohort_peers(LEAD, late)
    pair.near[RIGHT].spoil = lambda method, answer: answer[:-1] if method == EXCHANGE and right._partner.meeting == 1 else answer
    with pytest.raises(WorkerLost):
        await right.train(0, microbatch_of(RIGHT_KEY, 0))
    assert all(pool.present() for pool in pair.pool.values())


async def test_a_site_that_is_gone_leaves_the_other_one_waiting(pair: Pair) -> None:
    await pair.both_present()
    del pair.network.endpoints[LEFT_KEY]
    with pytest.raises(WorkerLost):
        await pair.pool[RIGHT].train(0, microbatch_of(RIGHT_KEY, 0))
    assert not pair.pool[RIGHT].free()
    await pair.says(RIGHT, "without the other site: ")


async def test_sites_at_other_weights_or_paused_train_nothing_and_stay_together(pair: Pair) -> None:
    await pair.both_present()
    await pair.pool[RIGHT].load(weights(1), None)
    for view, key in ((LEFT, LEFT_KEY), (RIGHT, RIGHT_KEY)):
        with pytest.raises(WorkerLost, match="at other weights"):
            await pair.pool[view].train(0, microbatch_of(key, 0))
        assert pair.pool[view].free()
    await pair.pool[RIGHT].load(weights(), None)
    await pair.pool[RIGHT].pause()
    assert not pair.pool[RIGHT].present()
    with pytest.raises(WorkerLost, match="at other weights"):
        await pair.pool[LEFT].train(0, microbatch_of(LEFT_KEY, 0))
    await pair.pool[RIGHT].resume()
    await pair.train(LEFT, 0)


async def test_what_a_cohort_peer_may_not_ask_is_refused(pair: Pair) -> None:
    name = MicrobatchName(BASE, 0, LEFT_KEY, 0, ARCHITECTURE.text, b"w" * 32, 100)

    await pair.both_present()
    left, right = pair.near[LEFT].endpoint, pair.near[RIGHT].endpoint
    for request, reason in (
        (Begin(b"i" * 16, replace(name, key=b"k" * 32)), "somebody else's"),
        (Begin(b"i" * 16, replace(name, architecture="r64 nonsense")), "unknown gene"),
    ):
        with pytest.raises(Refused, match=reason):
            await left.call(RIGHT_KEY, BEGIN, pack(request), timeout_s=5.0)
    with pytest.raises(Refused, match="somebody else's"):
        await right.call(LEFT_KEY, LEAD, pack(name), timeout_s=5.0)
    with pytest.raises(Refused, match="gave the microbatch up"):
        await left.call(RIGHT_KEY, EXCHANGE, pack(SiteExchange(b"i" * 16, 0, b"")), timeout_s=5.0)
    stranger = pair.network.endpoint(PEERS[2].public_key)
    with pytest.raises(Refused, match="have not met"):
        await stranger.call(RIGHT_KEY, BEGIN, pack(Begin(b"i" * 16, name)), timeout_s=5.0)
    with pytest.raises(Refused):
        await stranger.call(RIGHT_KEY, MEET, b"\xa0", timeout_s=5.0)


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (Site, ("middle", 3, b"d" * 32, (b"d" * 32,))),
        (Site, ("right", 3, b"d" * 32, (b"d" * 32, b"d" * 32))),
        (MicrobatchName, (BASE, 0, LEFT_KEY, 0, "r" * 500, b"w" * 32)),
        (SiteExchange, (b"i" * 15, 0, b"")),
        (SiteExchange, (b"i" * 16, -1, b"")),
    ],
)
def test_messages_are_parsed_strictly(kind: type, record: tuple[object, ...]) -> None:
    with pytest.raises(EncodingError):
        unpack(kind, pack(record), max_bytes=4096)


def test_a_run_or_settings_that_a_view_does_not_fit_are_said(tmp_path: Path) -> None:
    plugin, left, right = TwoViewsPlugin(), PeerConfig(view=LEFT), PeerConfig(view=RIGHT)
    with pytest.raises(UserError, match="--view is for runs of stereo pairs"):
        plugin.check(left, manifest_of(Identity(b"o" * 32)))
    with pytest.raises(UserError, match="--view needs a cohort peer with the other view: leave --alone out"):
        plugin.check(PeerConfig(view=LEFT, alone=True), MANIFEST)
    with pytest.raises(UserError, match="layers comes with both views: leave --view out"):
        plugin.load(left, replace(MANIFEST, dataset="layers"), tmp_path)
    write_scenes(tmp_path, 4)
    dataset = plugin.load(right, replace(MANIFEST, dataset="stereo-scenes"), tmp_path / RIGHT)
    assert dataset is not None
    with pytest.raises(UserError, match="on the CPU: give --gpus none, and leave --workers out"):
        plugin.make_pool(right, MANIFEST, dataset, choose_devices("none", 2), ComputeThread())
    pool = plugin.make_pool(right, MANIFEST, dataset, choose_devices("none", None), ComputeThread())
    assert pool is not None
    assert not pool.free()
    with pytest.raises(UserError, match="leases need samples with both views"):
        check_join(load_config({"dir": tmp_path, "view": "left", "gateway": ("127.0.0.1:0",)}))
    with pytest.raises(UserError, match=r"--view: .*left.* or .*right"):
        load_config({"dir": tmp_path, "view": "middle"})
