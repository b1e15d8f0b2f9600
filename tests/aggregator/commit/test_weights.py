"""What rows weigh in a mean, as the log tells it: the same right after the commit and after a start, and nothing where bodies are gone."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import manta_swarm.aggregator.commit.feed
from manta_swarm.aggregator.commit.feed import TableWeights
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.ledger import KEPT_TABLES
from manta_swarm.protocol.table import Weighed, weights, weights_root
from tests.aggregator.at_work import Aggregator, World
from tests.aggregator.made import made_of, values_of
from tests.aggregator.real_run import CONFIG, NUM_WEIGHTS, PEERS, commit, everybodys, made_together, opened

A, B, C = PEERS


async def told(log: Aggregator, round_: int) -> tuple[Weighed, ...]:
    """Return what a peer is told of a round's weights, checked against the round's entry."""
    client = log.client(A)
    index = log.ledger.index_at(round_)
    assert index is not None
    entry = client.open(pack(log.run.log.receipt(index))).proven.round
    found = await client.weighed(entry, client.operator)
    assert weights_root(found) == entry.weights
    assert len(found) == entry.contributions
    return found


async def test_weights_are_the_same_after_a_start_and_clipped_ones_too(world: World) -> None:
    log = await world.start()
    await log.everybodys_round()
    loud = made_of(log.ledger, A, 100 * values_of(NUM_WEIGHTS), microbatches=(1, 1, 1, 1))
    for one in (loud, made_together(log.ledger, [B, C])):
        await log.inclusion_promise(one)
    await log.finish_round()
    before = {round_: await told(log, round_) for round_ in (1, 2)}
    table = [one.weighing for one in log.ledger.table_at(2) or ()]
    assert tuple(one.weight for one in before[2]) == weights(table)
    assert before[2][0].clipped < before[2][0].weight  # the loud one, in the order of founders
    assert before[2][1].clipped == before[2][1].weight
    again = await world.restart()
    assert {round_: await told(again, round_) for round_ in (2, 1)} == before


async def test_a_table_whose_bodies_are_gone_is_not_shown_and_stops_nothing(world: World) -> None:
    log = await world.start()
    for _ in range(2):
        await log.everybodys_round()
    again = await world.restart()
    again.run.bodies._file(1).path.unlink()
    with pytest.raises(Refused, match="cannot be computed here any more"):
        await told(again, 1)
    assert len(await told(again, 2)) == 3
    counted = await again.client(A).counted(1)
    assert counted is not None  # which needs no body


def test_weights_are_computed_once_however_many_ask_and_kept_as_long_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path / "aggregator", CONFIG)
    computed: list[int] = []
    table_mean = manta_swarm.aggregator.commit.feed.table_mean

    def counted(*arguments: object) -> object:
        computed.append(1)
        return table_mean(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(manta_swarm.aggregator.commit.feed, "table_mean", counted)

    async def ask() -> None:
        known = TableWeights(run.log, run.bodies, NUM_WEIGHTS)
        found = await asyncio.gather(*(known.of(1) for _ in range(4)))
        assert set(found) == {after.weighed}
        assert len(computed) == 1
        for round_ in range(2, KEPT_TABLES + 2):
            known.remember(round_, [replace(after.weighed[0], round=round_)])
        assert [one.round for one in await known.of(KEPT_TABLES + 1)] == [KEPT_TABLES + 1]
        assert sorted(known._known) == list(range(2, KEPT_TABLES + 2))
        with pytest.raises(Unreachable, match="not kept here any more, or not made yet"):
            await known.of(KEPT_TABLES + 2)

    with run.log:
        after = commit(run, everybodys(run.log.ledger))
        asyncio.run(ask())
