"""Blobs fetched over the in-memory network, from sources that lie, lack, stall, are busy, die or are many; and once over real nodes."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.blobs import BUSY, HASHES, MAX_PIECE_BYTES, METHOD, AskPiece, Blob, BlobStore, PartialBlob, sizes_of
from manta_swarm.network.fetch_calls import EXTRA_CALLS, PIECES_AT_ONCE
from manta_swarm.network.fetching import fetch
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import Handler
from manta_swarm.network.sources import CALLS_A_SOURCE
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.network.processes import LISTEN
from tests.network.virtual_time import now

pytestmark = pytest.mark.virtual_time
KEYS = [PublicKey(sha256(b"node %d" % i)) for i in range(30)]
PIECE_BYTES = 100
DATA = random.Random(1).randbytes(24 * PIECE_BYTES - 7)
BLOB = Blob.cut(DATA, PIECE_BYTES)
SIZES = sizes_of(len(DATA), PIECE_BYTES)
ONE = Blob.of([b"one piece"])

Lie = Callable[[AskPiece, bytes], bytes]
Wrap = Callable[[Handler], Handler]


class Noted:
    """Notes what a fetch says of it."""

    def __init__(self) -> None:
        self.wrong: list[tuple[PublicKey, str]] = []
        self.counts: list[int] = []

    def distrust(self, key: PublicKey, reason: str) -> None:
        self.wrong.append((key, reason))

    def arrived(self, count: int) -> None:
        self.counts.append(count)


class Sources:
    """Node 0 fetches; the others are sources."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(delay_s=lambda *_: 0.1)
        self.here = self.network.endpoint(KEYS[0])
        self.asked: list[tuple[PublicKey, int]] = []
        self.judge = Noted()

    async def add(self, *blobs: Blob, wrap: Wrap = lambda handler: handler) -> tuple[MemoryEndpoint, BlobStore]:
        """Add a source that hands out ``blobs``, by its handler as ``wrap`` changes it."""
        key = KEYS[len(self.network.endpoints)]
        endpoint, blob_store = self.network.endpoint(key), BlobStore(max_bytes=10**6)
        for blob in blobs:
            blob_store.put(blob, "body")
        await blob_store.serve(endpoint)
        handler = wrap(endpoint.handlers[METHOD])

        async def answer(caller: PublicKey, request: bytes) -> bytes:
            self.asked.append((key, unpack(AskPiece, request, max_bytes=128).place))
            return await handler(caller, request)

        endpoint.handlers[METHOD] = answer
        return endpoint, blob_store

    async def fetch(self, blob: Blob = BLOB, sizes: Sequence[int] | None = None, deadline_s: float = 60.0, **settings: Any) -> Blob:
        sizes = [len(piece) for piece in blob.pieces] if sizes is None else sizes
        keys = list(self.network.endpoints)
        rng = random.Random(1)
        found = await fetch(
            self.here,
            blob.root,
            sizes,
            keys,
            deadline_s=deadline_s,
            judge=self.judge,
            rng=rng,
            **settings,
        )
        assert found == blob
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        return found

    def asked_of(self, number: int) -> list[int]:
        """Return the places that a source was asked for."""
        return [place for key, place in self.asked if key == KEYS[number]]


def lying(lie: Lie) -> Wrap:
    """A source that sends what ``lie`` makes of a request and its right answer."""

    def wrap(handler: Handler) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            return lie(unpack(AskPiece, request, max_bytes=128), await handler(caller, request))

        return answer

    return wrap


def refusing(reason: str, times: float = float("inf")) -> Wrap:
    """A source that refuses so many calls."""

    def wrap(handler: Handler) -> Handler:
        refused = 0

        async def answer(caller: PublicKey, request: bytes) -> bytes:
            nonlocal refused
            refused += 1
            if refused <= times:
                raise Unreachable(reason)
            return await handler(caller, request)

        return answer

    return wrap


def slow(seconds: float, places: Callable[[int], bool] = lambda _: True) -> Wrap:
    """A source that takes its time for some places."""

    def wrap(handler: Handler) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            if places(unpack(AskPiece, request, max_bytes=128).place):
                await asyncio.sleep(seconds)
            return await handler(caller, request)

        return answer

    return wrap


@pytest.fixture
def sources() -> Sources:
    return Sources()


async def test_sources_are_used_side_by_side_and_no_piece_is_asked_for_twice(sources: Sources) -> None:
    for _ in range(3):
        await sources.add(BLOB)
    assert (await sources.fetch()).join() == DATA
    places = [place for _, place in sources.asked]
    assert sorted(places) == [HASHES, *range(24)]
    assert Counter(key for key, place in sources.asked if place != HASHES) == {KEYS[1]: 9, KEYS[2]: 9, KEYS[3]: 6}
    assert places[1:] != sorted(places[1:])  # in an order of its own
    assert now() == pytest.approx(0.1 * (1 + 24 / PIECES_AT_ONCE))


async def test_one_source_alone_gets_a_few_calls_at_once(sources: Sources) -> None:
    await sources.add(BLOB)
    await sources.fetch()
    assert now() == pytest.approx(0.1 * (1 + 24 / CALLS_A_SOURCE))


async def test_one_piece_needs_one_call_to_the_first_source(sources: Sources) -> None:
    for _ in range(3):
        await sources.add(ONE)
    await sources.fetch(ONE)
    assert sources.asked == [(KEYS[1], 0)]
    assert now() == pytest.approx(0.1)


async def test_one_empty_piece_and_shorter_pieces_than_they_may_be_arrive(sources: Sources) -> None:
    empty = Blob.of([b""])
    await sources.add(empty, BLOB)
    await sources.fetch(empty, [0])
    await sources.fetch(empty, [10])
    await sources.fetch(BLOB, [MAX_PIECE_BYTES] * 24)


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda ask, data: data if ask.place == HASHES else data[:-1] + bytes([data[-1] ^ 1]), id="a bit"),
        pytest.param(lambda ask, data: data if ask.place == HASHES else data[:-1], id="truncated pieces"),
        pytest.param(lambda ask, data: data if ask.place == HASHES else data + b"!", id="longer pieces"),
        pytest.param(lambda ask, data: data if ask.place == HASHES else bytes(2**20), id="much too long"),
        pytest.param(lambda _ask, _data: b"", id="nothing"),
        pytest.param(lambda ask, data: data if ask.place == HASHES else bytes(BLOB.pieces[5]), id="always one piece"),
        pytest.param(lambda ask, data: data[32:] + data[:32] if ask.place == HASHES else data, id="hashes in another order"),
        pytest.param(lambda ask, data: data[:-32] if ask.place == HASHES else data, id="a hash less"),
        pytest.param(lambda ask, data: data + bytes(32) if ask.place == HASHES else data, id="a hash more"),
        pytest.param(lambda ask, data: data[:-1] if ask.place == HASHES else data, id="half a hash"),
        pytest.param(lambda ask, data: b"".join(Blob.of([b"x"] * 24).hashes) if ask.place == HASHES else b"x", id="another blob"),
        pytest.param(lambda ask, data: b"no" if ask.place % 3 == 0 else data, id="only some pieces"),
    ],
)
async def test_who_lies_is_told_of_once_and_others_serve(lie: Lie, sources: Sources) -> None:
    await sources.add(BLOB, wrap=lying(lie))
    await sources.add(BLOB)
    await sources.fetch()
    assert [key for key, _ in sources.judge.wrong] == [KEYS[1]]
    assert now() < 2


async def test_who_lied_is_not_asked_again(sources: Sources) -> None:
    await sources.add(ONE, BLOB, wrap=lying(lambda _ask, _data: b"lie"))
    await sources.add(BLOB, ONE)
    await sources.fetch()
    assert sources.asked_of(1) == [HASHES]
    await sources.fetch(ONE)
    assert sources.asked_of(1) == [HASHES, 0]  # another fetch asks it again: who told is to remember
    assert len(sources.judge.wrong) == 2


async def test_pieces_that_are_too_large_are_refused_whoever_sends_them(sources: Sources) -> None:
    for _ in range(3):
        await sources.add(BLOB)
    sizes = [*SIZES[:-1], SIZES[-1] - 1]
    with pytest.raises(Unreachable, match=r"nobody is left who could.*sent 93 bytes for piece 23, which has at most 92"):
        await sources.fetch(sizes=sizes)
    assert sorted(key for key, _ in sources.judge.wrong) == sorted(KEYS[1:4])
    assert now() < 2


async def test_who_lacks_it_or_is_away_is_passed_over(sources: Sources) -> None:
    await sources.add()
    await sources.add(BLOB)
    await sources.add(BLOB)
    sources.network.lost = lambda _sender, receiver, _method: receiver == KEYS[2]
    await sources.fetch()
    assert set(sources.asked_of(3)) == {HASHES, *range(24)}
    assert len(sources.asked_of(1)) < 8
    assert sources.judge.wrong == []
    assert now() < 2


async def test_what_nobody_has_yet_is_asked_for_again_after_growing_pauses(sources: Sources) -> None:
    _, first = await sources.add()
    _, second = await sources.add()

    async def later() -> None:
        await asyncio.sleep(20)
        second.put(BLOB, "body")

    arriving = asyncio.create_task(later())
    found = await fetch(sources.here, BLOB.root, SIZES, KEYS[:3], deadline_s=60)
    assert found == BLOB
    assert arriving.done()
    assert first.get(BLOB.root) is None
    assert now() < 30
    assert 4 < len(sources.asked_of(1)) < 20


async def test_fetchers_that_start_together_do_not_ask_again_together(sources: Sources) -> None:
    times: list[float] = []

    def wrap(handler: Handler) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            times.append(now())
            return await handler(caller, request)

        return answer

    await sources.add(wrap=wrap)
    fetchers = [fetch(sources.network.endpoint(key), ONE.root, [9], [KEYS[1]], deadline_s=30) for key in KEYS[10:14]]
    results = await asyncio.gather(*fetchers, return_exceptions=True)
    assert all(isinstance(result, Unreachable) for result in results)
    assert times[:4] == [0.0] * 4
    assert len(set(times[4:])) == len(times[4:]) > 12


async def test_who_is_busy_is_left_alone_for_a_moment_and_others_are_asked(sources: Sources) -> None:
    await sources.add(BLOB, wrap=refusing(BUSY, times=3))
    await sources.add(BLOB)
    await sources.fetch()
    assert now() < 2
    assert 3 < len(sources.asked_of(1)) < 15  # it serves once it can


async def test_all_busy_for_a_while_is_only_a_delay(sources: Sources) -> None:
    for _ in range(2):
        await sources.add(BLOB, wrap=refusing(BUSY, times=5))
    await sources.fetch()
    assert now() < 15


@pytest.mark.parametrize("blob", [ONE, BLOB], ids=["one piece", "many pieces"])
async def test_who_has_another_way_gives_up_once_nobody_has_it_and_who_has_none_does_not(blob: Blob, sources: Sources) -> None:
    for _ in range(2):
        await sources.add()
    with pytest.raises(Unreachable, match="nobody is left who could"):
        await sources.fetch(blob, deadline_s=300, tries=4)
    assert now() < 5
    assert [len(sources.asked_of(number)) for number in (1, 2)] == [4, 4]
    with pytest.raises(Unreachable, match="within 300 s"):
        await sources.fetch(blob, deadline_s=300)


async def test_others_who_are_away_do_not_keep_up_hope_and_while_the_first_one_is_nothing_is_given_up(sources: Sources) -> None:
    await sources.add()
    await sources.add(BLOB)
    sources.network.lost = lambda _sender, receiver, _method: receiver == KEYS[2]
    with pytest.raises(Unreachable, match="nobody is left who could"):
        await sources.fetch(deadline_s=300, tries=4)
    assert 2 < now() < 15
    back_s = now() + 100
    sources.network.lost = lambda *_: now() < back_s
    await sources.fetch(deadline_s=300, tries=4)


@pytest.mark.parametrize("reason", [BUSY, "not here yet"])
async def test_who_is_busy_or_is_getting_it_is_not_given_up(reason: str, sources: Sources) -> None:
    await sources.add(BLOB, wrap=refusing(reason, times=12))
    await sources.fetch(deadline_s=300, tries=2)


async def test_a_source_that_goes_away_with_many_calls_in_flight_was_away_once(sources: Sources) -> None:
    await sources.add(BLOB)
    sources.network.lost = lambda *_: 0.15 < now() < 0.25
    await sources.fetch(deadline_s=300, tries=2)


@pytest.mark.parametrize("blob", [ONE, BLOB], ids=["one piece", "many pieces"])
async def test_a_source_that_never_answers_costs_a_moment_only(blob: Blob, sources: Sources) -> None:
    await sources.add(blob, wrap=slow(1e6))
    await sources.add(blob)
    await sources.fetch(blob, deadline_s=300)
    assert now() < 6
    assert len(sources.asked_of(1)) <= CALLS_A_SOURCE + 1


async def test_three_that_stall_just_under_the_timeout_do_not_hold_up_the_one_that_works(sources: Sources) -> None:
    for _ in range(3):
        await sources.add(BLOB, wrap=slow(timeouts.PIECE_S - 1, lambda place: place != HASHES))
    await sources.add(BLOB)
    await sources.fetch(deadline_s=300)
    assert now() < 8


async def test_who_was_too_slow_is_asked_again_only_where_others_are_not_enough(sources: Sources) -> None:
    blob = Blob.cut(DATA, 10)
    await sources.add(blob, wrap=slow(1e6, lambda place: place != HASHES))
    for _ in range(2):
        await sources.add(blob)
    await sources.fetch(blob, deadline_s=300)
    assert len(sources.asked_of(1)) == 1 + 3  # the hashes, and its share of the first eight pieces


async def test_a_slow_piece_is_asked_for_elsewhere_after_a_multiple_of_what_others_took(sources: Sources) -> None:
    await sources.add(BLOB, wrap=slow(3.0, lambda place: place >= 0))
    for _ in range(2):
        await sources.add(BLOB, wrap=slow(0.4, lambda place: place >= 0))
    await sources.fetch(deadline_s=300)
    counts = Counter(place for _, place in sources.asked)
    assert max(counts.values()) == 2
    assert sum(count - 1 for count in counts.values()) == len(sources.asked_of(1)) - 1  # each of the slow one, and no other
    assert now() < 4


async def test_equally_slow_sources_are_not_asked_twice_and_a_fetch_slower_than_the_timeout_still_ends(sources: Sources) -> None:
    for _ in range(2):
        await sources.add(BLOB, wrap=slow(20.0, lambda place: place >= 0))
    await sources.fetch(deadline_s=600)
    extra = len(sources.asked) - 25
    assert extra <= 8  # before the first piece had come, nobody could know
    assert now() < 20.2 * 24 / PIECES_AT_ONCE + 1


async def test_a_line_on_which_all_at_once_would_come_too_late_still_brings_them(sources: Sources) -> None:
    num_coming = 0

    def wrap(handler: Handler) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            nonlocal num_coming
            num_coming += 1
            seconds = 10.0  # alone
            try:
                while seconds > 0:
                    seconds -= 0.1 / num_coming
                    await asyncio.sleep(0.1)
            finally:
                num_coming -= 1
            return await handler(caller, request)

        return answer

    for _ in range(3):
        await sources.add(BLOB, wrap=wrap)
    await sources.fetch(deadline_s=3600)
    assert now() < 3 * 24 * 10


async def test_the_timeout_grows_for_what_nobody_answers(sources: Sources) -> None:
    for _ in range(9):
        await sources.add(ONE, wrap=slow(1e6))
    asking = asyncio.create_task(sources.fetch(ONE, deadline_s=40))
    asked = []
    for seconds in (0.5, 1, 2, 4, 8, 16):
        await asyncio.sleep(seconds)
        asked.append(len(sources.asked))
    assert asked == [1, 2, 3, 4, 5, 6]  # at 0, 1, 3, 7, 15 and 31 s
    with pytest.raises(Unreachable):
        await asking


async def test_only_so_many_are_asked_beside_others_at_once(sources: Sources) -> None:
    for _ in range(9):
        await sources.add(BLOB, wrap=slow(1e6, lambda place: place != HASHES))
    asking = asyncio.create_task(sources.fetch(deadline_s=20))
    await asyncio.sleep(1)
    assert len(sources.asked) == 1 + PIECES_AT_ONCE
    await asyncio.sleep(1)
    assert len(sources.asked) == 1 + PIECES_AT_ONCE + EXTRA_CALLS
    with pytest.raises(Unreachable):
        await asking


async def test_a_short_deadline_makes_impatient(sources: Sources) -> None:
    await sources.add(ONE, wrap=slow(1e6))
    await sources.add(ONE)
    await sources.fetch(ONE, [MAX_PIECE_BYTES], deadline_s=2)  # which may well take more than 2 s


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_small_and_so_quick_does_not_make_impatient(seed: int, sources: Sources) -> None:
    blob = Blob.of([b"header", *BLOB.pieces[:10]])
    for _ in range(3):
        await sources.add(blob, wrap=slow(0.8, lambda place: place > 0))
    sizes = [len(piece) for piece in blob.pieces]
    await fetch(sources.here, blob.root, sizes, KEYS[1:4], deadline_s=60, rng=random.Random(seed))
    assert len(sources.asked) == 1 + 11


async def test_who_has_only_some_pieces_gives_these(sources: Sources) -> None:
    for half in (0, 1):
        _, blob_store = await sources.add()
        partial_blob = PartialBlob(BLOB.root, BLOB.hashes)
        partial_blob.pieces[half::2] = [bytes(piece) for piece in BLOB.pieces[half::2]]
        blob_store.grow(partial_blob, "body", BLOB.size_bytes)
    await sources.fetch()
    assert now() < 0.8  # the refusal of one piece says nothing about the next


async def test_the_call_that_lost_is_cancelled(sources: Sources) -> None:
    ended = []

    def wrap(_handler: Handler) -> Handler:
        async def answer(_caller: PublicKey, _request: bytes) -> bytes:
            try:
                await asyncio.sleep(1e6)
            finally:
                ended.append(now())
            return b""

        return answer

    await sources.add(ONE, wrap=wrap)
    await sources.add(ONE)
    await sources.fetch(ONE)
    assert ended == [now()]


async def test_a_source_that_dies_in_the_middle_is_replaced(sources: Sources) -> None:
    def wrap(handler: Handler) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            if len(sources.asked_of(1)) == 6:
                del sources.network.endpoints[KEYS[1]]
            return await handler(caller, request)

        return answer

    await sources.add(BLOB, wrap=wrap)
    await sources.add(BLOB)
    await sources.fetch()
    assert now() < 3


async def test_nobody_gives_it_within_the_deadline_and_what_each_did_is_said(sources: Sources) -> None:
    await sources.add()
    await sources.add(BLOB, wrap=slow(1e6))
    await sources.add(BLOB, wrap=lying(lambda _ask, _data: b"lie"))
    away = KEYS[9]
    with pytest.raises(Unreachable) as caught:
        await fetch(sources.here, BLOB.root, SIZES, [*KEYS[:4], away, KEYS[1]], deadline_s=7, rng=random.Random(1))
    names = [key.hex()[:8] for key in (*KEYS[1:4], away)]
    reasons = ["not here", "does not answer", "sent 3 bytes are not the hashes of 24 pieces", f"{names[3]} (blob) could not be reached"]
    answers = "; ".join(f"{name}: {reason}" for name, reason in zip(names, reasons, strict=True))
    start = f"nobody gave {BLOB.root.hex()[:16]}... within 7 s: 1 of 1 pieces are missing"
    assert str(caught.value) == f"{start} ({answers})"
    assert now() == pytest.approx(7)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_nobody_to_ask_is_said_at_once(sources: Sources) -> None:
    with pytest.raises(Unreachable, match="nobody to ask"):
        await sources.fetch()
    assert now() == 0


@pytest.mark.parametrize("sizes", [[], [-1], [MAX_PIECE_BYTES + 1], [1] * 40_000])
async def test_sizes_that_no_blob_has_are_a_bug_of_the_caller(sizes: list[int], sources: Sources) -> None:
    with pytest.raises(ValueError, match="a blob has"):
        await sources.fetch(sizes=sizes)


async def test_a_fetch_that_is_cancelled_leaves_nothing_behind(sources: Sources) -> None:
    await sources.add(BLOB, wrap=slow(1e6, lambda place: place > 5))
    fetching = asyncio.create_task(sources.fetch())
    await asyncio.sleep(1)
    fetching.cancel()
    await asyncio.wait([fetching])
    assert fetching.cancelled()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_fault_of_this_program_is_raised_as_it_is(sources: Sources) -> None:
    await sources.add(BLOB)

    class Broken:
        def distrust(self, _key: PublicKey, _reason: str) -> None:
            raise ZeroDivisionError

    await sources.add(BLOB, wrap=lying(lambda _ask, _data: b""))
    with pytest.raises(ZeroDivisionError):
        await fetch(sources.here, BLOB.root, SIZES, KEYS[:3], deadline_s=60, judge=Broken())
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_what_is_in_the_blob_store_is_not_fetched_and_what_is_fetched_is_put_there(sources: Sources) -> None:
    await sources.add(BLOB, ONE)
    blob_store = BlobStore(max_bytes=10**6)
    for blob in (BLOB, ONE):
        await sources.fetch(blob, blob_store=blob_store, kind="body")
        assert blob_store.get(blob.root) == blob
    num_asked = len(sources.asked)
    for blob in (BLOB, ONE):
        await sources.fetch(blob, blob_store=blob_store, kind="body")
    assert len(sources.asked) == num_asked


async def test_what_arrived_before_the_deadline_is_not_fetched_again(sources: Sources) -> None:
    await sources.add(BLOB, wrap=slow(1e6, lambda place: place % 8 == 0))
    blob_store = BlobStore(max_bytes=10**6)
    with pytest.raises(Unreachable, match="within 5 s: 3 of 24 pieces are missing"):
        await sources.fetch(blob_store=blob_store, kind="body", deadline_s=5)
    partial_blob = blob_store.partial_blob(BLOB.root)
    assert partial_blob is not None
    missing = list(partial_blob.missing)
    assert missing == [0, 8, 16]
    del sources.network.endpoints[KEYS[1]]
    sources.network.endpoints[KEYS[1]] = sources.here  # so that the next has a key of its own
    await sources.add(BLOB)
    await sources.fetch(blob_store=blob_store, kind="body")
    assert sorted(sources.asked_of(2)) == missing
    assert blob_store.get(BLOB.root) == BLOB


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_most_sources_do_one_that_has_it_is_enough(seed: int, sources: Sources) -> None:
    rng = random.Random(seed)

    def moody(handler: Handler) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            mood = rng.random()
            if mood < 0.3:
                raise Unreachable(rng.choice([BUSY, "not here", "not here yet", "no"]))
            if mood < 0.4:
                await asyncio.sleep(rng.choice([0.5, 5, 50, 1e5]))
            if mood > 0.97:
                raise EncodingError("no such piece")
            return rng.randbytes(100) if mood > 0.9 else await handler(caller, request)

        return answer

    honest = rng.randrange(6)
    for number in range(6):
        await sources.add(BLOB, wrap=refusing(BUSY, times=rng.randrange(4)) if number == honest else moody)
    sources.network.lost = lambda _sender, receiver, _method: receiver != KEYS[1 + honest] and rng.random() < 0.2
    await sources.fetch(deadline_s=300)
    assert now() < 40
    assert KEYS[1 + honest] not in dict(sources.judge.wrong)


async def test_twenty_newcomers_get_it_from_each_other_and_not_all_from_the_one_that_had_it(sources: Sources) -> None:
    server, newcomers = KEYS[0], KEYS[1:21]
    num_given: Counter[PublicKey] = Counter()
    network = MemoryNetwork()

    async def start(key: PublicKey) -> BlobStore:
        endpoint, blob_store = network.endpoint(key), BlobStore(max_bytes=10**6, max_sending_bytes=4 * PIECE_BYTES)
        await blob_store.serve(endpoint)
        honest = endpoint.handlers[METHOD]

        async def answer(caller: PublicKey, request: bytes) -> bytes:
            data = await honest(caller, request)
            num_given[key] += unpack(AskPiece, request, max_bytes=128).place != HASHES
            await asyncio.sleep(1.0)  # a slow line; a refusal is quick
            return data

        endpoint.handlers[METHOD] = answer
        return blob_store

    (await start(server)).pin(BLOB)
    blob_stores = [await start(key) for key in newcomers]

    async def get(key: PublicKey, blob_store: BlobStore) -> None:
        rng = random.Random(key)
        sources = [server, *newcomers]
        found = await fetch(network.endpoints[key], BLOB.root, SIZES, sources, deadline_s=300, blob_store=blob_store, kind="state", rng=rng)
        assert found == BLOB

    async with asyncio.TaskGroup() as tasks:
        for key, blob_store in zip(newcomers, blob_stores, strict=True):
            tasks.create_task(get(key, blob_store))
    assert num_given[server] <= 4 * 24  # four blobs for twenty newcomers
    assert sum(num_given.values()) < 22 * 24  # and in all hardly a piece twice to one
    assert now() < 60  # from the server alone: 20 blobs of 24 pieces, 4 at a time, 120 s


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
@pytest.mark.parametrize("piece_bytes", [2**15, 2**20], ids=["unary", "stream"])
def test_real_nodes_hand_each_other_a_blob(tmp_path: Path, piece_bytes: int) -> None:
    data = random.Random(2).randbytes(40 * piece_bytes + 5)
    blob, sizes = Blob.cut(data, piece_bytes), sizes_of(len(data), piece_bytes)

    async def work(nodes: Sequence[Node]) -> None:
        blob_stores = [BlobStore(max_bytes=2**30) for _ in nodes]
        for node, blob_store in zip(nodes, blob_stores, strict=True):
            await blob_store.serve(node)
        blob_stores[0].pin(blob)
        keys = [node.key for node in nodes]
        for number in (1, 2, 3):
            found = await fetch(nodes[number], blob.root, sizes, keys, deadline_s=40, blob_store=blob_stores[number], kind="state")
            assert found == blob
        lying = Blob(tuple(bytes(piece_bytes) for _ in sizes), blob.hashes, blob.root)
        blob_stores[0].pin(lying)
        judge = Noted()
        found = await fetch(nodes[3], blob.root, sizes, keys, deadline_s=40, judge=judge)
        assert found == blob
        assert [key for key, _ in judge.wrong] == [keys[0]]
        while any(blob_store._sending._num_bytes for blob_store in blob_stores):  # noqa: ASYNC110 - until nothing counts as under way
            await asyncio.sleep(0.01)

    async def whole() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            nodes: list[Node] = []
            for number in range(4):
                identity, path = Identity(sha256(b"node %d" % number)), tmp_path / f"{number}.key"
                path.write_bytes(identity.to_libp2p())
                initial_peers = await nodes[0].addresses() if nodes else []
                nodes.append(await Node.start(identity, path, listen=[LISTEN], initial_peers=initial_peers))
                stack.push_async_callback(nodes[-1].close)
            await work(nodes)

    asyncio.run(whole())
