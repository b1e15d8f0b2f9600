"""Fetching while sources come to be known, with some that are asked last; single pieces with their proofs; and how what comes is told."""

import asyncio

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.blobs import BUSY, HASHES, Blob, BlobStore
from manta_swarm.network.fetching import fetch, fetch_piece
from manta_swarm.network.sources import CALLS_A_SOURCE, Sources
from manta_swarm.protocol.errors import ProofError, Unreachable
from tests.network import test_fetching as scene
from tests.network.test_fetching import BLOB, DATA, KEYS, ONE, SIZES, lying, refusing, slow
from tests.network.virtual_time import now

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def sources() -> scene.Sources:
    return scene.Sources()


async def get(sources: scene.Sources, known: Sources, **settings: object) -> Blob:
    found = await fetch(sources.here, BLOB.root, SIZES, known, deadline_s=60.0, **settings)  # type: ignore[arg-type]
    assert found == BLOB
    return found


async def test_who_is_spare_is_not_asked_while_another_gives(sources: scene.Sources) -> None:
    await sources.add(BLOB)
    await sources.add(BLOB)
    await get(sources, Sources([KEYS[1]], spare=[KEYS[2]]))
    assert sources.asked_of(2) == []
    assert now() == pytest.approx(0.1 * (1 + 24 / CALLS_A_SOURCE))


@pytest.mark.parametrize("why", ["away", "not here", "busy", "slow", "lies"])
async def test_who_is_spare_is_asked_where_nobody_else_is_ready_to_give(why: str, sources: scene.Sources) -> None:
    wraps = {"not here": refusing("not here"), "busy": refusing(BUSY), "slow": slow(1000), "lies": lying(lambda *_: b"lie")}
    await sources.add(BLOB, wrap=wraps.get(why, refusing("any")))
    await sources.add(BLOB)
    if why == "away":
        del sources.network.endpoints[KEYS[1]]
    await get(sources, Sources([KEYS[1]], spare=[KEYS[2]]))
    assert now() < 5


async def test_nobody_spare_is_asked_before_the_timeout_is_over(sources: scene.Sources) -> None:
    await sources.add(BLOB)
    await get(sources, Sources(spare=[KEYS[1]], timeout_s=7.0))
    assert 7.0 < now() < 8.0


async def test_sources_that_come_to_be_known_are_asked_at_once(sources: scene.Sources) -> None:
    await sources.add(BLOB)
    await sources.add(BLOB)
    known = Sources(may_grow=True)
    fetched = asyncio.create_task(get(sources, known))
    await asyncio.sleep(3)
    known.add(KEYS[1])
    await asyncio.sleep(0.25)
    known.add(KEYS[2])
    await fetched
    assert now() == pytest.approx(3 + 0.1 + 0.1 * 3.5, abs=0.06)
    assert len(sources.asked_of(2)) >= 8
    assert list(known) == [KEYS[1], KEYS[2]]
    known.add(KEYS[3])  # nobody listens any more


async def test_a_source_that_says_again_that_it_has_it_is_asked_again_at_once(sources: scene.Sources) -> None:
    endpoint, blob_store = await sources.add()
    known = Sources([KEYS[1]], may_grow=True)
    fetched = asyncio.create_task(get(sources, known))
    await asyncio.sleep(30)  # it rests for seconds by now
    asked = len(sources.asked)
    blob_store.put(BLOB, "mean")
    known.add(endpoint.key)
    known.add(endpoint.key, is_spare=True)  # changes nothing
    await fetched
    assert sources.asked[asked:][0] == (KEYS[1], HASHES)
    assert now() < 31


async def test_who_may_come_to_be_known_is_waited_for_until_the_deadline(sources: scene.Sources) -> None:
    with pytest.raises(Unreachable, match="within 60 s"):
        await get(sources, Sources(may_grow=True))
    with pytest.raises(Unreachable, match="nobody is left"):
        await get(sources, Sources())
    assert now() == pytest.approx(60)


async def test_the_first_spare_one_s_word_that_there_is_nothing_counts_for_all(sources: scene.Sources) -> None:
    for _ in range(2):
        await sources.add(wrap=refusing("not here"))
    with pytest.raises(Unreachable, match="nobody is left"):
        await get(sources, Sources([KEYS[1]], spare=[KEYS[2]], may_grow=True), tries=3)
    assert len(sources.asked_of(2)) == 3
    assert now() < 20


async def test_while_the_first_spare_one_is_away_nothing_is_given_up(sources: scene.Sources) -> None:
    await sources.add(wrap=refusing("not here"))
    with pytest.raises(Unreachable, match="within 60 s"):
        await get(sources, Sources([KEYS[1]], spare=[KEYS[9]], may_grow=True), tries=3)


# One piece.


@pytest.mark.parametrize("place", [0, 7, 23])
async def test_one_piece_comes_with_its_proof_and_costs_two_calls(place: int, sources: scene.Sources) -> None:
    await sources.add(BLOB)
    found = await fetch_piece(sources.here, BLOB.root, SIZES, place, [KEYS[1]], deadline_s=9)
    assert found == BLOB.proven(place)
    found.check(BLOB.root, place, len(SIZES))
    assert sources.asked == [(KEYS[1], HASHES), (KEYS[1], place)]
    for root, other in ((ONE.root, place), (BLOB.root, (place + 1) % 24)):
        with pytest.raises(ProofError):
            found.check(root, other, len(SIZES))


async def test_the_only_piece_of_a_blob_costs_one_call_and_what_is_here_none(sources: scene.Sources) -> None:
    await sources.add(ONE)
    assert await fetch_piece(sources.here, ONE.root, [9], 0, [KEYS[1]], deadline_s=9) == ONE.proven(0)
    assert sources.asked == [(KEYS[1], 0)]
    blob_store = BlobStore(max_bytes=10**6)
    blob_store.put(BLOB, "body")
    assert await fetch_piece(sources.here, BLOB.root, SIZES, 3, [], deadline_s=9, blob_store=blob_store) == BLOB.proven(3)
    with pytest.raises(ValueError, match="no piece 24"):
        await fetch_piece(sources.here, BLOB.root, SIZES, 24, [KEYS[1]], deadline_s=9)


async def test_a_wrong_piece_is_refused_and_another_source_asked(sources: scene.Sources) -> None:
    await sources.add(BLOB, wrap=lying(lambda ask, data: data if ask.place == HASHES else b"lie"))
    await sources.add(BLOB)
    judge = scene.Noted()
    keys = [KEYS[1], KEYS[2]]
    assert await fetch_piece(sources.here, BLOB.root, SIZES, 5, keys, deadline_s=9, judge=judge) == BLOB.proven(5)
    assert [key for key, _ in judge.wrong] == [KEYS[1]]


# What is told.


async def test_each_piece_that_comes_is_told_of(sources: scene.Sources) -> None:
    await sources.add(BLOB)
    told = scene.Noted()
    await get(sources, Sources([KEYS[1]]), progress=told)
    assert told.counts == list(range(1, 25))


async def test_what_a_blob_store_sent_is_counted(sources: scene.Sources) -> None:
    _, blob_store = await sources.add(BLOB)
    await get(sources, Sources([KEYS[1]]))
    assert blob_store.bytes_sent == len(DATA) + 24 * 32


def test_a_near_one_gets_less_time_than_a_turn_at_the_log() -> None:
    """What is waited for first is over before the next resort is asked, and all of it long before the fetch itself."""
    assert timeouts.NEIGHBOURS_S <= timeouts.NEAR_GETS_S <= timeouts.TURN_S < timeouts.FETCH_S / 10
