"""Where the run stands, as the log tells it: at once, at the commit, or when it is time to ask again. Waiting costs no time here."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import manta_swarm.aggregator.commit.feed
from manta_swarm.aggregator.commit.feed import MAX_WAITING_OF_ONE, FeedService
from manta_swarm.aggregator.log.log import Log
from manta_swarm.network import timeouts
from manta_swarm.network.log_client import MAX_FEED_BYTES, AfterRound, CreditWord, FeedAnswer, LogClient
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.exchange import MAX_COHORT, grace_ms
from manta_swarm.protocol.ledger import KEPT_TABLES
from manta_swarm.protocol.listed import Listed, weighed_in
from manta_swarm.protocol.records import Header, Included, entry_of
from manta_swarm.protocol.rewards import earned
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.protocol.table import Weighed, weights
from tests.aggregator.small_run import OPERATOR, OTHER_OPERATOR, PEERS, STRANGER, create, grow, signed_manifest
from tests.contributions import claim_of, cohort_header_of, header_of, in_order, round_of
from tests.network.virtual_time import LoopClock, now

pytestmark = pytest.mark.virtual_time
OPEN_MS = 4_000


@dataclass
class Scene:
    """A log that tells, and those who ask."""

    log: Log
    closing: Closing
    service: FeedService
    network: MemoryNetwork
    weighed: list[int]  # the rounds whose weights were asked for

    def client(self, peer: Identity) -> LogClient:
        return LogClient(self.network.endpoint(peer.public_key), self.log.ledger.manifest, self.log.ledger.run)

    async def ask(self, peer: Identity, round_: int, *, waits_as: int = 1) -> FeedAnswer:
        """Return the log's answer, whatever it proves."""
        endpoint = self.network.endpoint(peer.public_key)
        request = pack(AfterRound(round_, waits_as))
        answer = await endpoint.call(PublicKey(OPERATOR.public_key), "commit-after", request, timeout_s=1_000)
        return unpack(FeedAnswer, answer, max_bytes=MAX_FEED_BYTES)

    def commit(self, *headers: Header) -> None:
        """Commit a round of these, or one of everybody alone."""
        if headers:
            ledger, table = self.log.ledger, in_order(headers)
            listed = [ledger.listed(header, ledger.round + 1) for header in table]
            self.log.commit([*map(entry_of, table), entry_of(round_of(ledger, listed))])
        else:
            grow(self.log, 1)
        self.open()
        self.service.committed()

    def open(self) -> None:
        ledger = self.log.ledger
        self.closing.open(ledger.round + 1, OPEN_MS, ledger.last_keys, int(1000 * now()))

    @property
    def num_waiting(self) -> int:
        return self.service._waiting.total()


@contextlib.asynccontextmanager
async def told(directory: Path, **settings: Any) -> AsyncIterator[Scene]:
    """A scene at work; at the end nobody waits."""
    network = MemoryNetwork()
    with create(directory / "log", signed_manifest(**{"num_rounds": 100, **settings})) as log:
        closing = Closing(8)
        weighed: list[int] = []

        class Unclipped:
            async def of(self, round_: int) -> tuple[Weighed, ...]:
                weighed.append(round_)
                return unclipped(log.ledger.table_at(round_) or ())

        service = FeedService(network.endpoint(PublicKey(OPERATOR.public_key)), log, closing, Unclipped(), LoopClock())
        scene = Scene(log, closing, service, network, weighed)
        scene.open()
        await service.start()
        yield scene
        assert scene.num_waiting == 0


@pytest.fixture
def scene(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    return told(tmp_path)


def unclipped(table: Sequence[Listed]) -> tuple[Weighed, ...]:
    """Return what a table weighs where nobody is clipped."""
    found = weights([one.weighing for one in table])
    return weighed_in(table, found, found)


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    """Check how long something takes."""
    started = now()
    yield
    assert now() - started == pytest.approx(seconds, abs=0.01)


def at(seconds: float, happens: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_at(seconds, happens)


async def test_who_does_not_wait_is_told_at_once_where_the_run_stands(scene: Scene) -> None:
    client = scene.client(PEERS[0])
    with takes(0):
        told = await client.next_update(client.operator, 0, left_ms=None)
        assert (told.proven_commit, told.counted, told.left_ms, told.is_from_log) == (None, None, OPEN_MS, True)
    scene.commit()
    scene.commit()
    await asyncio.sleep(1)
    with takes(0):
        told = await client.next_update(client.operator, 0, left_ms=None)
        assert told.proven_commit is not None
        assert told.proven_commit.proven.round.round == 2
        assert told.proven_commit.proven.commit == scene.log.ledger.last_commit
        assert told.left_ms == OPEN_MS - 1_000
        assert told.counted is not None
        assert told.counted.contribution.founder == PEERS[0].public_key
        assert (await client.next_update(client.operator, 2, left_ms=None)).proven_commit is None


async def test_who_waits_is_told_at_the_commit_and_who_is_behind_at_once(scene: Scene) -> None:
    client = scene.client(PEERS[0])
    at(3, scene.commit)
    with takes(3):
        told = await client.next_update(client.operator, 0, left_ms=OPEN_MS)
    assert told.proven_commit is not None
    assert told.left_ms == OPEN_MS  # of the next round, which is open by then
    with takes(0):
        assert (await client.next_update(client.operator, 0, left_ms=OPEN_MS)).proven_commit == told.proven_commit


async def test_nobody_waits_longer_than_a_round_may_take(scene: Scene) -> None:
    longest_s = grace_ms(scene.log.ledger.open_ms) / 1000 + timeouts.FEED_HELD_S
    with takes(OPEN_MS / 1000 + longest_s):
        assert await scene.ask(PEERS[0], 0) == FeedAnswer((), (), 0)
    with takes(longest_s):
        await scene.ask(PEERS[0], 0)


async def test_who_knows_of_a_round_that_this_log_has_not_is_told_so_at_once(scene: Scene) -> None:
    with takes(0), pytest.raises(Refused, match="this log has 0 rounds"):
        await scene.ask(PEERS[0], 1)
    scene.commit()
    with takes(0), pytest.raises(Refused, match="this log has 1 rounds"):
        await scene.ask(PEERS[0], 2, waits_as=0)


async def test_everybody_who_waits_is_told_by_one_commit(scene: Scene) -> None:
    peers = [Identity(number.to_bytes(32, "big")) for number in range(1, 301)]
    asking = [asyncio.create_task(scene.ask(peer, 0)) for peer in (*peers, *PEERS)]
    at(2, scene.commit)
    await asyncio.sleep(1)
    assert scene.num_waiting == len(asking)
    with takes(1):
        news = [await task for task in asking]
    assert {one.receipt for one in news} == {(scene.log.receipt(scene.log.ledger.size - 1),)}
    assert [len(one.contribution) for one in news] == [0] * len(peers) + [1] * len(PEERS)


async def test_one_caller_may_wait_twice_and_all_together_so_often(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    monkeypatch.setattr(manta_swarm.aggregator.commit.feed, "MAX_WAITING", 5)
    for _ in range(2):  # the places are free again
        waiting = [asyncio.create_task(scene.ask(STRANGER, scene.log.ledger.round)) for _ in range(MAX_WAITING_OF_ONE)]
        await asyncio.sleep(0.1)
        with takes(0):
            await scene.ask(STRANGER, scene.log.ledger.round)
        waiting += [asyncio.create_task(scene.ask(peer, scene.log.ledger.round)) for peer in PEERS]
        await asyncio.sleep(0.1)
        assert scene.num_waiting == 5
        with takes(0):
            await scene.ask(OTHER_OPERATOR, scene.log.ledger.round)
        scene.commit()
        with takes(0):
            await asyncio.gather(*waiting)
        assert scene.num_waiting == 0


async def test_a_caller_who_hangs_up_leaves_its_place(scene: Scene) -> None:
    handler = scene.network.endpoints[PublicKey(OPERATOR.public_key)].handlers["commit-after"]
    calling = asyncio.ensure_future(handler(PublicKey(STRANGER.public_key), pack(AfterRound(0, 1))))
    await asyncio.sleep(0.1)
    assert scene.num_waiting == 1
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_round_is_told_once_the_next_one_is_open(scene: Scene) -> None:
    """Between the two, the log's thread has it already, and how long the next one is open is not known."""
    scene.commit()
    waiting = asyncio.create_task(scene.ask(PEERS[0], 1))
    await asyncio.sleep(OPEN_MS / 1000)
    grow(scene.log, 1)
    client = scene.client(PEERS[1])
    assert (await client.next_update(client.operator, 1, left_ms=None)).proven_commit is None
    told = (await client.next_update(client.operator, 0, left_ms=None)).proven_commit
    assert told is not None
    assert told.proven.round.round == 1
    with pytest.raises(Refused, match="not made yet"):
        await client.counted(2)
    assert not waiting.done()
    scene.open()
    scene.service.committed()
    assert (await waiting).left_ms == OPEN_MS


async def test_after_the_last_round_nobody_waits(tmp_path: Path) -> None:
    async with told(tmp_path, num_rounds=2) as scene:
        scene.commit()
        waiting = asyncio.create_task(scene.ask(PEERS[0], 1))
        await asyncio.sleep(0.1)
        scene.commit()
        with takes(0):
            assert len((await waiting).receipt) == 1
            assert await scene.ask(PEERS[0], 2) == FeedAnswer((), (), OPEN_MS)


# Tables.


async def test_contributions_and_weights_of_the_newest_rounds_come_with_their_proofs(scene: Scene) -> None:
    for _ in range(KEPT_TABLES + 2):
        scene.commit()
    entries = {}
    for round_ in range(3, KEPT_TABLES + 3):
        for peer in PEERS:
            client = scene.client(peer)
            found = await client.counted(round_)  # checks every proof
            assert found is not None
            assert found.contribution.founder == peer.public_key
            index = scene.log.ledger.index_at(round_)
            assert index is not None
            entries[round_] = client.open(pack(scene.log.receipt(index))).proven.round
            table = scene.log.ledger.table_at(round_)
            assert table is not None
            assert await client.weighed(entries[round_], client.operator) == unclipped(table)
        assert await scene.client(STRANGER).counted(round_) is None
    scene.commit()
    for round_ in (-1, 0, 1, 3, KEPT_TABLES + 4, 2**62):
        with pytest.raises(Refused, match="not kept here any more, or not made yet"):
            await scene.client(PEERS[0]).counted(round_)
    with pytest.raises(Refused, match="not kept here any more, or not made yet"):
        await scene.client(PEERS[0]).weighed(entries[3], PublicKey(OPERATOR.public_key))
    assert scene.weighed == list(range(3, KEPT_TABLES + 3))  # once each, whoever asks
    assert len(scene.service._tables) < KEPT_TABLES  # what was shown once is kept as long as the ledger keeps it


async def test_a_table_is_shown_with_its_claims_which_come_to_the_credit_that_the_log_says(scene: Scene) -> None:
    first, second, alone = PEERS
    scene.commit()
    scene.commit(
        cohort_header_of(scene.log.ledger, [second, first], microbatches=(1, 2)),
        header_of(scene.log.ledger, alone, microbatches=(3, 1)),
    )
    ledger, shares = scene.log.ledger, dict[bytes, int]()
    for peer in PEERS:
        client = scene.client(peer)
        proven = client.proven(scene.log.receipt(ledger.index_at(2) or 0))
        shares = earned(ledger.manifest, ledger.training_spec, proven, await client.contributions(proven))
        word = CreditWord(2, ledger.credits()[peer.public_key], 0, 0, (), 0, 1, (shares[peer.public_key],))
        assert await client.credit(2) == word
        assert await client.credit(0) == replace(word, earned=())
    assert sum(shares.values()) == ledger.manifest.reward_pool
    assert await scene.client(STRANGER).credit(2) == CreditWord(2, 0, 0, 0, (), 0, 1, (0,))
    for round_ in (3, 2**40):
        with pytest.raises(Refused, match="not kept here any more, or not made yet"):
            await scene.client(first).contributions_page(replace(proven, round=replace(proven.round, round=round_)))
    for place in (-1, 2, 2**62):
        with pytest.raises(Refused, match="no contribution there"):
            await scene.client(first).contributions_page(proven, place)
    for size in (0, proven.tree_head.size - 1, proven.tree_head.size + 1):
        head = replace(proven.tree_head, size=size)
        with pytest.raises(Refused, match=r"under that head|not so many entries"):
            await scene.client(first).contributions_page(replace(proven, tree_head=head))
    for _ in range(KEPT_TABLES):
        scene.commit()
    assert (await scene.client(first).credit(2)).earned == ()


async def test_a_table_with_more_claims_than_an_answer_has_room_for_is_shown_in_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(manta_swarm.aggregator.commit.feed, "MAX_CLAIMS_BYTES", 30_000)
    founders = [Identity(sha256(b"founder %d" % number)) for number in range(4)]
    members = [
        [founder, *(Identity(sha256(founder.public_key + bytes([place]))) for place in range(MAX_COHORT - 1))] for founder in founders
    ]
    async with told(tmp_path, max_rows=len(members)) as scene:
        scene.commit(*(cohort_header_of(scene.log.ledger, cohort) for cohort in members))
        ledger, client = scene.log.ledger, scene.client(PEERS[0])
        proven = client.proven(scene.log.receipt(ledger.index_at(1) or 0))
        shares = earned(ledger.manifest, ledger.training_spec, proven, await client.contributions(proven))
        assert {key: share for key, share in shares.items() if share} == ledger.credits()
        assert len(shares) == len(members) * MAX_COHORT
        page, last = await client.contributions_page(proven), await client.contributions_page(proven, 3)
        assert 1 < len(page.entries) < 4
        assert (len(last.entries), last.proof) == (1, page.proof)


async def test_each_member_of_a_cohort_is_shown_the_contribution_that_has_its_claim(scene: Scene) -> None:
    first, second, alone = PEERS
    scene.commit(
        cohort_header_of(scene.log.ledger, [second, first], microbatches=(1, 2)),
        header_of(scene.log.ledger, alone, microbatches=(1, 2)),
    )
    for peer, founder in ((first, second), (second, second), (alone, alone)):
        client = scene.client(peer)
        told = await client.next_update(client.operator, 0, left_ms=None)
        shown = await client.counted(1)
        assert shown is not None
        assert told.counted == shown
        assert shown.contribution.founder == founder.public_key
        claim = claim_of(scene.log.ledger, peer, round=1, microbatches=(1, 2), founder=founder.public_key)
        assert claim.digest in shown.contribution.claims
    assert await scene.client(STRANGER).counted(1) is None
    scene.commit()
    assert await client.counted(1) == shown  # also later


async def test_entries_are_read_in_threads_and_none_of_them_is_kept(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    scene.commit()
    entries, beside = scene.log.entries, list[int]()

    def read(start: int, limit: int, max_bytes: int | None = None) -> list[bytes]:
        assert threading.current_thread() is not threading.main_thread()
        found = entries(start, limit, max_bytes)
        beside.append(sum(map(len, found)))
        return found

    client, proven = scene.client(PEERS[0]), scene.client(PEERS[0]).proven(scene.log.receipt(scene.log.ledger.index_at(1) or 0))
    table = scene.service._table_of(1)  # reads the round's entry
    monkeypatch.setattr(scene.log, "entries", read)
    for _ in range(3):
        await client.counted(1)
        await scene.ask(PEERS[0], 0)
        assert len((await client.contributions(proven)).entries) == len(PEERS)
    assert not any(isinstance(value, Included | list) for value in vars(table).values())
    assert len(beside) == 9


async def test_bytes_of_any_kind_are_refused(scene: Scene) -> None:
    scene.commit()
    endpoint = scene.network.endpoint(PublicKey(STRANGER.public_key))
    for method in ("commit-after", "listing", "weights", "contributions", "credit"):
        for request in (b"", b"\x00", bytes(500), pack(AfterRound(0, 1))[:-1], b"\x9b" + bytes(8)):
            with pytest.raises(Refused):
                await endpoint.call(PublicKey(OPERATOR.public_key), method, request, timeout_s=1)
