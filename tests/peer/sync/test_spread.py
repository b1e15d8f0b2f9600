"""Peers of a run that spread its bodies, tables and means over the in-memory network, in virtual time, beside a log that has everything."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.log_client import AskRound
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.sync import spread
from manta_swarm.peer.sync.spread import BlobDistribution
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.records import Contribution, InclusionPromise, Round
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.network.committed import NUM_VALUES, OPERATOR, Committed, commit
from tests.network.test_gossip_state import offer_with
from tests.network.virtual_time import LOOP_CLOCK, now
from tests.peer.contexts import context_of

pytestmark = pytest.mark.virtual_time

LOG = PublicKey(OPERATOR.public_key)
AGES = [0, 0, 1]
MEAN_BYTES = 4 * NUM_VALUES
COMMITTED = commit(AGES)
FOUNDERS = [Identity(sha256(b"founder %d" % number)) for number in range(3)]


class Peer:
    """One peer's node, blob store, neighbours and spreading."""

    def __init__(self, endpoint: MemoryEndpoint, given: Committed, size: int | None) -> None:
        self.endpoint = endpoint
        self.blob_store = BlobStore(max_bytes=2**28)
        self.neighbours = Neighbours(endpoint, given.signed.run, LOOP_CLOCK, rng=random.Random(endpoint.key))
        neighbours: Any = self.neighbours if size is None else _Larger(self.neighbours, size)
        identity = Identity(endpoint.key)
        context = context_of(endpoint, identity, given.signed, blob_store=self.blob_store, num_weights=NUM_VALUES, clock=LOOP_CLOCK)
        self.spread = BlobDistribution(context, neighbours)


class _Larger:
    """Neighbours of a run that is said to be larger than it is."""

    def __init__(self, neighbours: Neighbours, size: int) -> None:
        self._neighbours = neighbours
        self.size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._neighbours, name)


class Scene:
    """A log, and peers that know each other."""

    def __init__(self, given: Committed, count: int, size: int | None = None) -> None:
        self.given = given
        self.network = MemoryNetwork(delay_s=lambda *_: 0.05)
        self.blob_store = BlobStore(max_bytes=2**28)
        self.tables: Counter[bytes] = Counter()  # that the log gave, by who asked
        self.log = self.network.endpoint(LOG)
        self.peers = [Peer(self.network.endpoint(PublicKey(sha256(b"peer %d" % number))), given, size) for number in range(count)]

    async def start(self) -> "Scene":
        for blob in (*self.given.bodies, self.given.mean):
            self.blob_store.put(blob, "body")
        await self.blob_store.serve(self.log)
        await self.log.serve("weights", self._on_weights)
        for peer in self.peers:
            await peer.blob_store.serve(peer.endpoint)
            await peer.spread.start()
            await peer.neighbours.announce(cohort="alone", round_=0)
        for peer in self.peers:
            await peer.neighbours.look()
        return self

    async def _on_weights(self, caller: PublicKey, request: bytes) -> bytes:
        assert request == pack(AskRound(self.given.entry.round))
        self.tables[caller] += 1
        return self.given.weights

    async def all_do(self, work: Callable[[Peer], Awaitable[Any]]) -> list[Any]:
        return await asyncio.gather(*(work(peer) for peer in self.peers))

    def offer(self, number: int) -> tuple[Signed[Contribution], Signed[InclusionPromise], Blob]:
        """Return what the cohort of a body's founder has of it."""
        entry, blob = self.given.entry, self.given.bodies[number]
        offer = offer_with(blob.root, FOUNDERS[number], round_=entry.round, run=self.given.signed.run, signer=OPERATOR)
        return offer.contribution, offer.inclusion_promise, blob

    async def close(self) -> None:
        for peer in self.peers:
            await peer.spread.close()
        await asyncio.sleep(1)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@asynccontextmanager
async def scene_of(count: int, *, size: int | None = None, given: Committed = COMMITTED) -> AsyncIterator[Scene]:
    scene = await Scene(given, count, size).start()
    yield scene
    await scene.close()


def before(given: Committed, rows: int) -> Round:
    """Return the commit before, of a table of so many rows."""
    return replace(given.before[0], contributions=rows)


async def test_bodies_are_everywhere_before_the_commit_and_the_log_sends_none() -> None:
    async with scene_of(12) as scene:
        await scene.all_do(lambda peer: _commit(peer, before(scene.given, 3)))
        for number, peer in enumerate(scene.peers[:3]):
            peer.spread.own(*scene.offer(number))
        for peer in scene.peers:
            peer.spread.headers_closed(scene.given.entry.round)
        await asyncio.sleep(5)
        assert [peer.spread.num_bodies(scene.given.entry.round) for peer in scene.peers] == [3] * 12
        await scene.all_do(lambda peer: _commit(peer, scene.given.entry))
        for blob in scene.given.bodies:
            sizes = [len(piece) for piece in blob.pieces]
            assert await scene.all_do(lambda peer, blob=blob, sizes=sizes: peer.spread.blob(blob.root, sizes, "body")) == [blob] * 12
        assert scene.blob_store.bytes_sent == 0
        counts = [peer.spread.counts for peer in scene.peers]
        assert sum(sum(one.hops.values()) for one in counts) == 12 * 3 - 3
        assert sum(one.bytes_in for one in counts) <= sum(one.bytes_out for one in counts)
        whole = sum(blob.size_bytes for blob in scene.given.bodies)
        for number, peer in enumerate(scene.peers):
            own = scene.given.bodies[number].size_bytes if number < 3 else 0
            assert peer.spread._gossip.bytes_in >= whole - own
        gave = sum(peer.blob_store.bytes_sent for peer in scene.peers)
        assert 11 * whole <= gave <= 1.01 * 11 * whole  # hashes too


async def _commit(peer: Peer, entry: Round) -> None:
    peer.spread.committed(entry)


async def test_a_body_is_shown_once_the_time_for_headers_is_over_as_it_was_told_last() -> None:
    async with scene_of(4) as scene:
        await scene.all_do(lambda peer: _commit(peer, before(scene.given, 3)))
        round_ = scene.given.entry.round
        for peer in scene.peers:
            peer.spread.headers_open(round_, 1000)
            peer.spread.headers_open(round_, 3000)
        scene.peers[0].spread.own(*scene.offer(0))
        await asyncio.sleep(2.9)
        assert [peer.spread.num_bodies(round_) for peer in scene.peers[1:]] == [0, 0, 0]
        await asyncio.sleep(5)
        assert [peer.spread.num_bodies(round_) for peer in scene.peers] == [1, 1, 1, 1]


async def test_where_all_bodies_are_more_than_the_mean_they_are_not_got() -> None:
    async with scene_of(4) as scene:
        body = scene.given.bodies[0].size_bytes
        most = MEAN_BYTES // body
        await scene.all_do(lambda peer: _commit(peer, before(scene.given, most + 2)))
        scene.peers[0].spread.own(*scene.offer(0))
        for peer in scene.peers:
            peer.spread.headers_closed(scene.given.entry.round)
        await asyncio.sleep(5)
        assert [peer.spread.num_bodies(scene.given.entry.round) for peer in scene.peers] == [1, 0, 0, 0]
        assert scene.peers[1].spread.sources(scene.given.bodies[0].root)  # it is known who has it, for a check


async def test_a_table_comes_from_the_log_in_a_small_run_and_is_handed_out() -> None:
    async with scene_of(3) as scene:
        entry = scene.given.entry
        for _ in range(2):
            found = await scene.all_do(lambda peer: peer.spread.weighed(entry))
            assert found == [scene.given.weighed] * 3
        assert scene.tables.total() == 3
        one, other = scene.peers[:2]
        asked = pack(AskRound(entry.round))
        assert await one.endpoint.call(other.endpoint.key, "weights", asked, timeout_s=1) == scene.given.weights
        with pytest.raises(Refused, match="not here"):
            await one.endpoint.call(other.endpoint.key, "weights", pack(AskRound(1)), timeout_s=1)


async def test_in_a_large_run_few_ask_the_log_for_a_mean_and_a_table_and_the_others_get_them_from_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spread, "LOG_BYTES", 1)

    async with scene_of(40) as scene:
        entry = scene.given.entry
        sizes = [len(piece) for piece in scene.given.mean.pieces]
        for peer in scene.peers:
            peer.spread.headers_closed(entry.round)
            peer.spread.committed(entry)
        await asyncio.sleep(1)

        async def catch_up(peer: Peer) -> None:
            assert await peer.spread.weighed(entry) == scene.given.weighed
            assert await peer.spread.blob(entry.mean, sizes, "mean") == scene.given.mean

        began = now()
        await scene.all_do(catch_up)
        assert now() - began < 10
        assert 0 < scene.tables.total() <= 12
        assert 0 < scene.blob_store.bytes_sent <= 12 * scene.given.mean.size_bytes


async def test_where_nobody_who_should_ask_the_log_does_the_others_do_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "LOG_BYTES", 1)

    async with scene_of(1, size=10**6) as scene:
        entry, began = scene.given.entry, now()
        (peer,) = scene.peers
        turn_s = peer.spread._turn_s(entry.mean, MEAN_BYTES)
        assert timeouts.TURN_S <= turn_s <= timeouts.TURN_S * 20
        await peer.spread.blob(entry.mean, [len(piece) for piece in scene.given.mean.pieces], "mean")
        assert now() - began >= turn_s
        turn_s = peer.spread._turn_s(entry.weights, 3 * 128)
        began = now()
        await peer.spread.weighed(entry)
        assert turn_s <= now() - began <= turn_s + 1


async def test_turns_are_drawn_anew_for_each_thing_and_a_few_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "CROWD_A_CONTRIBUTION", 1000)

    async with scene_of(8, size=1000) as scene:
        size, num_bytes = 1000, 2**20
        for peer in scene.peers:
            peer.spread._neighbours.size = size  # type: ignore[misc]
        roots = [sha256(b"%d" % number) for number in range(1000)]
        turns = [[peer.spread._turn_s(root, num_bytes) for root in roots] for peer in scene.peers]
        first = sum(turn == 0 for own in turns for turn in own) / len(scene.peers) / len(roots)
        assert 0.5 * spread.LOG_FIRST / size < first < 2 * spread.LOG_FIRST / size
        assert max(map(max, turns)) <= timeouts.TURN_S * 9
        assert all(peer.spread._turn_s(roots[0], 100) == 0 for peer in scene.peers)  # of so little the log may give to all
        assert sum(turn <= 2 * timeouts.TURN_S for turn in turns[0]) < 40


async def test_nobody_waits_long_for_peers_that_no_table_bears_out() -> None:
    async with scene_of(1, size=10**6) as scene:
        (peer,) = scene.peers
        roots = [sha256(b"%d" % number) for number in range(1000)]
        before = max(peer.spread._turn_s(root, 2**20) for root in roots)
        peer.spread.committed(replace(scene.given.entry, contributions=3))
        after = max(peer.spread._turn_s(root, 2**20) for root in roots)
        # 8 who are in no table, 24 for three contributions; 4 ask at once.
        assert timeouts.TURN_S * 1.5 < before <= timeouts.TURN_S * 2 < after <= timeouts.TURN_S * 4


async def test_a_log_that_is_away_is_not_missed_while_somebody_has_what_is_wanted() -> None:
    async with scene_of(2) as scene:
        entry = scene.given.entry
        one, other = scene.peers
        await one.spread.weighed(entry)
        del scene.network.endpoints[LOG]
        one.blob_store.put(scene.given.mean, "mean")
        assert await other.spread.weighed(entry) == scene.given.weighed
        sizes = [len(piece) for piece in scene.given.mean.pieces]
        assert await other.spread.blob(entry.mean, sizes, "mean", may_be_old=True) == scene.given.mean


async def test_a_table_that_nobody_gives_is_said_to_be_missing() -> None:
    async with scene_of(3) as scene:
        del scene.network.endpoints[LOG]
        with pytest.raises(Unreachable, match="nobody gave the weights of round 7"):
            await scene.peers[0].spread.weighed(scene.given.entry)


async def test_only_the_newest_tables_are_kept() -> None:
    async with scene_of(1) as scene:
        (peer,) = scene.peers
        for number in range(1, 9):
            peer.spread.keep_weighed(replace(scene.given.entry, round=number), scene.given.weighed)
        assert list(peer.spread._weights) == [5, 6, 7, 8]
