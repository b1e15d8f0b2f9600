"""What passes through an endpoint is counted, and passes all the same."""

import asyncio

import pytest

from manta_swarm.aggregator.commit.timeline import KEPT, Timeline
from manta_swarm.aggregator.monitor.observers import MAX_HEARD, Tally, Watched
from manta_swarm.network.log_client import AT_ONCE, TRAINING, WATCHING, AfterRound
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.signing import PublicKey
from tests.clocks import ManualClock

LOG, PEER = PublicKey(b"\x01" * 32), PublicKey(b"\x02" * 32)


def test_calls_and_bytes_are_counted_by_method_and_answers_are_unchanged() -> None:
    async def story() -> None:
        network, clock = MemoryNetwork(), ManualClock(1.0)
        tally = Tally(Timeline(clock), clock)
        watched = Watched(network.endpoint(LOG), tally)

        async def echo(caller: PublicKey, request: bytes) -> bytes:
            assert caller == PEER
            return request * 2

        async def refuse(_caller: PublicKey, _request: bytes) -> bytes:
            raise LedgerError("no")

        await watched.serve("echo", echo)
        await watched.serve("refuse", refuse)
        assert {method: calls.calls for method, calls in tally.by_method.items()} == {"echo": 0, "refuse": 0}
        peer = network.endpoint(PEER)
        assert await peer.call(LOG, "echo", b"abc", timeout_s=10) == b"abcabc"
        clock.advance(1)
        with pytest.raises(Refused):
            await peer.call(LOG, "refuse", b"x", timeout_s=10)
        seen = {method: (calls.calls, calls.in_bytes, calls.out_bytes) for method, calls in tally.by_method.items()}
        assert seen == {"echo": (1, 3, 6), "refuse": (1, 1, 0)}
        assert tally.heard() == {}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("method", "request_", "is_heard"),
    [
        ("header", b"a header", True),
        ("body", b"a part of a body", True),
        ("audit.bring", b"a page", True),
        ("commit-after", pack(AfterRound(3, TRAINING)), True),
        ("commit-after", pack(AfterRound(0, AT_ONCE)), False),  # doctor, and whoever fetches a state
        ("commit-after", pack(AfterRound(3, WATCHING)), False),  # a witness
        ("commit-after", b"nonsense", False),
        ("manifest", b"", False),  # about
        ("ping", b"", False),
        ("tree-head", b"", False),
        ("entries", b"", False),
        ("blob", b"", False),
    ],
)
def test_heard_of_is_who_hands_in_or_waits_for_commits_and_nobody_else(method: str, request_: bytes, is_heard: bool) -> None:
    async def story() -> None:
        network, tally = MemoryNetwork(), Tally(Timeline())

        async def answer(_caller: PublicKey, _request: bytes) -> bytes:
            return b"yes"

        await Watched(network.endpoint(LOG), tally).serve(method, answer)
        assert await network.endpoint(PEER).call(LOG, method, request_, timeout_s=10) == b"yes"
        assert tally.by_method[method].calls == 1
        assert (PEER in tally.heard()) is is_heard

    asyncio.run(story())


def test_who_waits_for_an_answer_is_heard_of_all_the_time() -> None:
    clock = ManualClock(1.0)
    tally = Tally(Timeline(clock), clock)
    tally.begin("commit-after", 4, PEER)
    clock.advance(599)
    assert tally.heard() == {PEER: 600_000}
    tally.end("commit-after", 100, PEER)
    clock.advance(100)
    assert tally.heard() == {PEER: 600_000}


def test_strangers_in_any_number_take_bounded_memory() -> None:
    tally = Tally(Timeline())
    for number in range(MAX_HEARD + 100):
        key = PublicKey(number.to_bytes(32, "big"))
        tally.begin("commit-after", 0, key)
        tally.end("commit-after", 0, key)
    assert len(tally.heard()) == MAX_HEARD
    assert not tally._waiting


def test_a_round_is_timed_from_its_opening_to_its_last_fetch() -> None:
    clock = ManualClock(1.0)
    timeline = Timeline(clock)
    timeline.opened(1, is_waiting_for_first=True)
    events = [
        lambda: timeline.called("header"),
        lambda: timeline.called("header"),
        lambda: timeline.answered("body"),
        lambda: timeline.closed(),
        lambda: timeline.answered("body"),  # of the next round
        lambda: timeline.done(),
        lambda: timeline.opened(2),
        lambda: timeline.answered("blob"),
        lambda: timeline.answered("weights"),
    ]
    for event in events:
        event()
        clock.advance(0.01)
    (first,) = timeline.committed
    assert (first.opened_at, first.first_header_at, first.last_body_at) == (1_000, 1_000, 1_020)
    assert (first.closed_at, first.committed_at, first.first_fetch_at, first.last_fetch_at) == (1_030, 1_050, 1_070, 1_080)
    assert timeline.current.round == 2
    assert timeline.current.opened_at == 1_060


def test_a_long_run_takes_bounded_memory() -> None:
    timeline = Timeline()
    for round_ in range(1, 1_000):
        timeline.opened(round_)
        timeline.closed()
        timeline.done()
    assert [times.round for times in timeline.committed] == list(range(1_000 - KEPT, 1_000))
