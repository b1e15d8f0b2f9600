"""Buckets of bytes: at what rate they let pass, whom first, and what happens when a limit changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manta_swarm.network.node import Node
from manta_swarm.network.traffic import PIECE_BYTES, Flow
from tests.network.nodes import LARGE, SMALL, echo, with_nodes
from tests.network.virtual_time import LOOP_CLOCK, now

pytestmark = pytest.mark.virtual_time
LIMIT = 200_000


@pytest.fixture
@asynccontextmanager
async def flow() -> AsyncIterator[Flow]:
    flow = Flow(LOOP_CLOCK)
    flow.limit = LIMIT
    try:
        yield flow
    finally:
        flow.limit = None


async def send(flow: Flow, num_bytes: int, piece: int = PIECE_BYTES, *, is_own: bool = True) -> float:
    """Pass so many bytes on, in pieces; return when the last one had passed."""
    while num_bytes > 0:
        await flow.take(min(piece, num_bytes), is_own=is_own)
        num_bytes -= piece
    return now()


@pytest.mark.parametrize("piece", [100, PIECE_BYTES, 1_000_000])
async def test_the_average_is_the_limit_whatever_the_sizes_are(piece: int, flow: Flow) -> None:
    while now() < 20:
        await flow.take(piece, is_own=True)
    assert flow.total == pytest.approx(LIMIT * now(), rel=0.02, abs=piece)


async def test_two_that_send_at_a_time_have_the_limit_together(flow: Flow) -> None:
    await asyncio.gather(send(flow, 30 * LIMIT), send(flow, 30 * LIMIT))
    assert now() == pytest.approx(60, rel=0.02)


async def test_own_calls_go_before_answers_to_others(flow: Flow) -> None:
    answered = asyncio.create_task(send(flow, 10 * LIMIT, is_own=False))
    await asyncio.sleep(1)
    begun = now()
    assert await send(flow, 2 * LIMIT) - begun == pytest.approx(2, rel=0.1)
    assert not answered.done()
    assert await answered == pytest.approx(12, rel=0.02)


async def test_what_came_unbidden_is_owed(flow: Flow) -> None:
    await asyncio.sleep(10)  # what was not used is not kept but for a moment
    flow.count(5 * LIMIT)
    begun = now()
    await send(flow, LIMIT)
    assert now() - begun == pytest.approx(6, rel=0.06)


async def test_a_limit_that_is_changed_or_lifted_holds_for_those_who_wait(flow: Flow) -> None:
    sending = asyncio.create_task(send(flow, 100 * LIMIT))
    await asyncio.sleep(10)
    flow.limit = 10 * LIMIT
    assert flow.total == pytest.approx(10 * LIMIT, rel=0.02)
    await asyncio.sleep(5)
    assert flow.total == pytest.approx(60 * LIMIT, rel=0.05)
    flow.limit = None
    before = now()
    assert await sending == before


async def test_who_gives_up_waiting_takes_nothing_from_the_others(flow: Flow) -> None:
    flow.count(LIMIT)
    gone = asyncio.create_task(flow.take(50 * LIMIT, is_own=True))
    await asyncio.sleep(0.1)
    gone.cancel()
    assert await send(flow, LIMIT) == pytest.approx(2, rel=0.1)


def test_no_rate_is_no_limit() -> None:
    with pytest.raises(ValueError, match="positive"):
        Flow().limit = 0


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # hivemind's way to find its daemon
def test_all_bytes_of_a_node_s_calls_are_counted_and_come_whole_under_a_limit(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        for flow in (a.traffic.sent, a.traffic.received, b.traffic.sent, b.traffic.received):
            flow.limit = 2_000_000
        before = [(node.traffic.sent.total, node.traffic.received.total) for node in (a, b)]
        for request in (SMALL, LARGE):
            assert await b.call(a.key, "echo", request, timeout_s=30) == b.key + request
        sent, answered = len(SMALL + LARGE), len(SMALL + LARGE) + 2 * len(b.key)
        after = [(node.traffic.sent.total, node.traffic.received.total) for node in (a, b)]
        assert after[0][1] - before[0][1] >= sent  # the DHT's own calls are counted as well
        assert after[0][0] - before[0][0] >= answered
        assert after[1][0] - before[1][0] >= sent
        assert after[1][1] - before[1][1] >= answered
        assert after[1][1] - before[1][1] < answered + 5_000

    with_nodes(tmp_path, 2, work)
