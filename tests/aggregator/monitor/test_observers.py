"""What the aggregator writes down for the monitor, and what it counts of what passes through an endpoint."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from manta_swarm.aggregator.commit.timeline import KEPT, Timeline
from manta_swarm.aggregator.log.contents import STATUS
from manta_swarm.aggregator.monitor import observers as module
from manta_swarm.aggregator.monitor.observers import MAX_HEARD, MonitorBeside, Observers, Tally, Watched
from manta_swarm.aggregator.monitor.settings import MonitorSection, MonitorSocket
from manta_swarm.aggregator.monitor.shown import shown_final
from manta_swarm.aggregator.status import AggregatorStatus, Quality
from manta_swarm.network.log_client import AT_ONCE, TRAINING, WATCHING, AfterRound
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Refused
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.child import Program
from manta_swarm.runtime.clock import SYSTEM_CLOCK
from tests.clocks import ManualClock
from tests.memory_log import until

KEYS = [bytes([number]) * 32 for number in range(1, 4)]

SAID = AggregatorStatus(run="ab", name="test", num_rounds=9)

LOG, PEER = PublicKey(b"\x01" * 32), PublicKey(b"\x02" * 32)


class AtWork:
    """An aggregator that is looked at, with its first round open."""

    def __init__(self) -> None:
        self.status, self.closing, self.faults, self.traffic = SAID, Closing(8), CallerFaults(ManualClock()), Traffic()
        self.closing.open(1, 60_000, frozenset(), None)


def test_the_open_round_is_written_down_with_who_has_handed_in(tmp_path: Path) -> None:
    look, aggregator = Observers(tmp_path), AtWork()
    aggregator.closing.open(7, 60_000, frozenset(KEYS), round(SYSTEM_CLOCK.now_ms()))
    look.timeline.opened(7)
    first, second = b"\x0a" * 32, b"\x0b" * 32
    for founder, contribution in ((KEYS[0], first), (KEYS[1], second)):
        aggregator.closing.header(founder, {founder: founder}, 7, contribution, round(SYSTEM_CLOCK.now_ms()))
    aggregator.closing.arrived(first, round(SYSTEM_CLOCK.now_ms()))
    aggregator.closing.good(first)
    live = AggregatorStatus.model_validate_json(look.seen(aggregator).model_dump_json())
    assert live.open is not None
    assert (live.open.round, live.open.stage, live.open.open_ms) == (7, "open", 60_000)
    assert set(live.open.expected) == {key.hex() for key in KEYS}
    assert Counter((one.keys, one.body) for one in live.open.handed) == Counter([((KEYS[0].hex(),), "good"), ((KEYS[1].hex(),), "header")])
    assert live.open.deadline_at is not None
    assert live.open.opened_at is not None
    assert 0 < live.open.deadline_at - live.open.opened_at <= 60_001  # by two clocks, each rounded to a millisecond


def test_before_the_first_header_the_first_round_has_no_time(tmp_path: Path) -> None:
    look, aggregator = Observers(tmp_path), AtWork()
    look.timeline.opened(1, is_waiting_for_first=True)
    live = look.seen(aggregator)
    assert live.open is not None
    assert (live.open.stage, live.open.opened_at, live.open.deadline_at) == ("idle", None, None)


def test_a_disk_that_refuses_the_file_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / STATUS).mkdir()  # no file can take its place
    look, aggregator = Observers(tmp_path), AtWork()
    for _ in range(3):
        look.show(aggregator)
    look.close()
    assert len(caplog.records) == 1
    assert "status.json" in caplog.text


def test_the_file_is_kept_up_to_date_and_has_the_last_word_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHOW_S", 0.01)
    look, aggregator = Observers(tmp_path), AtWork()
    seen = set[int]()

    def has_changed_twice() -> bool:
        if (status := AggregatorStatus.read(tmp_path)) is not None:
            seen.add(status.written_at)
        return len(seen) == 3

    async def story() -> None:
        looking = asyncio.create_task(look.look_on(aggregator))
        await until(has_changed_twice)
        looking.cancel()
        await asyncio.wait({looking})

    asyncio.run(story())
    aggregator.status = SAID.model_copy(update={"round": 3})
    look.show(aggregator)
    look.close()
    found = AggregatorStatus.read(tmp_path)
    assert found is not None
    assert found.round == 3


def test_a_fault_in_what_is_shown_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = Observers(tmp_path)
    monkeypatch.setattr(module, "_SHOW_S", 0)

    async def story() -> None:
        looking = asyncio.create_task(look.look_on(None))  # type: ignore[arg-type] - which cannot be shown
        await until(lambda: "observers are not served any more" in caplog.text)
        assert not looking.done()
        looking.cancel()
        await asyncio.wait({looking})

    asyncio.run(story())
    look.close()


def test_the_address_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def kept(_program: Program) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "keep", kept)

    async def story(listen_address: MonitorSocket) -> None:
        feature = MonitorBeside(tmp_path, MonitorSection(), listen_address, None)
        assert [program.name for program in feature.programs] == ["monitor", "evaluator"]
        assert feature.status() == {"monitor": listen_address.url}
        running = asyncio.create_task(feature.run(()))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})

    listen_address = MonitorSocket.listening("127.0.0.1", 0)
    asyncio.run(story(listen_address))
    assert listen_address.socket.fileno() == -1


def test_figures_that_are_no_numbers_leave_what_is_written_readable_and_are_not_shown() -> None:
    for error in (float("nan"), float("inf"), 1.0):
        quality = Quality(metric="epe", largest=error, smallest=2.0, random=(1.0, 2.0))
        status = SAID.model_copy(update={"quality": quality, "quality_round": 3})
        read = AggregatorStatus.model_validate_json(status.model_dump_json())
        assert str(read.quality) == str(quality)
        expected = {"round": 3, "largest": 1.0, "smallest": 2.0, "random": [1.0, 2.0]}
        assert shown_final(read) == (expected if error == 1.0 else None)


async def test_calls_and_bytes_are_counted_by_method_and_answers_are_unchanged() -> None:
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
        ("blob", b"", False),
    ],
)
async def test_heard_of_is_who_hands_in_or_waits_for_commits_and_nobody_else(method: str, request_: bytes, is_heard: bool) -> None:
    network, tally = MemoryNetwork(), Tally(Timeline())

    async def answer(_caller: PublicKey, _request: bytes) -> bytes:
        return b"yes"

    await Watched(network.endpoint(LOG), tally).serve(method, answer)
    assert await network.endpoint(PEER).call(LOG, method, request_, timeout_s=10) == b"yes"
    assert tally.by_method[method].calls == 1
    assert (PEER in tally.heard()) is is_heard


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
