"""An aggregator that is killed: what it promised is in the table that the promise names, and its states are those of the log."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.automl.training.update import state_digest
from manta_swarm.network.log_client import HandIn
from manta_swarm.protocol.records import InclusionPromise
from tests.aggregator.at_work import OPEN_MS, Aggregator, World
from tests.aggregator.made import Made
from tests.aggregator.real_run import PEERS, everybodys, made, made_together
from tests.aggregator.small_run import opened_head
from tests.contributions import PEERS as MANY_PEERS

STRANGER = MANY_PEERS[3]


async def check_inclusion_promises(log: Aggregator, inclusion_promises: dict[bytes, InclusionPromise], contributions: list[Made]) -> None:
    """Check that what has an inclusion promise is in the table that it names, once that is committed, and that the log says so."""
    for one in contributions:
        inclusion_promise = inclusion_promises.get(one.digest)
        if inclusion_promise is None:
            continue
        answer = await log.header(one)
        assert answer.round == inclusion_promise.round
        if inclusion_promise.round > log.ledger.round:
            assert answer.status == HandIn.HAVE_PROMISE
            assert answer.inclusion_promise[0].open_by(log.ledger.manifest.operators) == inclusion_promise
        else:
            assert answer.status == HandIn.LISTED


async def check_life(log: Aggregator, inclusion_promises: dict[bytes, InclusionPromise], contributions: list[Made]) -> None:
    """Check a life after a kill: every promise is kept, the state is the log's, rounds go on, and all of it can be computed again."""
    await check_inclusion_promises(log, inclusion_promises, contributions)
    last = max(inclusion_promise.round for inclusion_promise in inclusion_promises.values())
    while log.ledger.round < last:
        await log.finish_round()
        assert log.run.state_keeper.state is not None
        assert state_digest(log.run.state_keeper.state) == log.ledger.state
    await check_inclusion_promises(log, inclusion_promises, contributions)
    for one in everybodys(log.ledger, seed=5):
        await log.hand_in(one)
    await log.finish_round()
    await log.commits.close()
    assert verify_directory(log.directory).rounds == last + 1
    assert replay_directory(log.directory).rounds == last + 1


async def test_killed_before_or_after_any_sync_it_keeps_every_promise(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Two rounds of three contributions, and one that comes for the next round while the first one is waited for."""
    fsync, mutex = os.fsync, threading.Lock()
    inclusion_promises: dict[bytes, InclusionPromise] = {}
    images: list[tuple[Path, dict[bytes, InclusionPromise]]] = []

    def filmed(file: int) -> None:
        with mutex:
            for sync in (lambda _: None, fsync):
                sync(file)
                given = dict(inclusion_promises)
                images.append((world.image(), given))

    log = await world.start()
    contributions = [*everybodys(log.ledger), made(log.ledger, STRANGER)]
    monkeypatch.setattr(os, "fsync", filmed)
    for one in contributions[:3]:
        inclusion_promises[one.digest] = await log.inclusion_promise(one)
    log.clock.now += OPEN_MS  # nobody is told: the round closes at the next event
    inclusion_promises[contributions[3].digest] = await log.inclusion_promise(contributions[3])
    await log.round(1)  # which needs no more time: all are in
    for one in everybodys(log.ledger):
        inclusion_promises[one.digest] = await log.inclusion_promise(one)
        contributions.append(one)
    await log.finish_round()
    await log.commits.close()
    monkeypatch.setattr(os, "fsync", fsync)
    assert sorted(inclusion_promise.round for inclusion_promise in inclusion_promises.values()) == [1, 1, 1, 2, 2, 2, 2]
    for image, given in images[:: len(images) // 6]:
        if given:
            await check_life(await world.start(image), given, contributions)
            await world.lives.pop().stop()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_around_the_transaction_it_comes_to_the_same_log_and_keeps_a_cohorts_and_its_members_own_promises_by_one_row(
    monkeypatch: pytest.MonkeyPatch, moment: str, world: World
) -> None:
    log = await world.start()
    images: list[Path] = []
    store = log.run.log._store

    def filmed(entries: Sequence[bytes]) -> None:
        if moment == "after":
            store(entries)
        images.append(world.image())
        if moment == "before":
            store(entries)

    monkeypatch.setattr(log.run.log, "_store", filmed)
    contributions = [
        made(log.ledger, PEERS[1], founder=PEERS[0].public_key),
        made_together(log.ledger, PEERS[:2]),
        made(log.ledger, PEERS[2]),
    ]
    inclusion_promises = {one.digest: await log.inclusion_promise(one) for one in contributions}
    await log.finish_round()
    expected = log.run.log.entries(0, 100)
    again = await world.start(images[0])
    assert again.ledger.round == (0 if moment == "before" else 1)
    if moment == "before":
        assert again.closing.left_ms(again.clock.now) == OPEN_MS  # all of its time once more, for those without an inclusion promise
        await again.finish_round()
    assert again.run.log.entries(0, 100) == expected
    assert opened_head(again.run.log).size == len(expected)
    table = again.ledger.table_at(1) or ()
    assert {one.contribution for one in table} == {one.digest for one in contributions[1:]}
    await check_life(again, inclusion_promises, contributions)


async def test_killed_again_and_again_before_a_round_closes_it_keeps_every_inclusion_promise(world: World) -> None:
    inclusion_promises: dict[bytes, InclusionPromise] = {}
    contributions: list[Made] = []
    for peer in PEERS:
        log = await world.start(world.image() if world.lives else None)
        contributions.append(made(log.ledger, peer))
        inclusion_promises[contributions[-1].digest] = await log.inclusion_promise(contributions[-1])
        world.directory = log.directory
    await check_life(log, inclusion_promises, contributions)
    assert log.ledger.index_at(1) == 3  # all three in one table
