"""How a peer hears of commits, and passes them on: against a scripted log, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import AfterRound, FeedAnswer, FeedUpdate, LogClient, ProvenCommit
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.sync.subscriber import CommitSubscriber, RunUpdate
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import LedgerError, OtherHistory, RemoteFault, SignatureError, Unreachable
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Receipt, Round
from manta_swarm.protocol.signing import PublicKey, sha256
from tests.memory_log import PEERS, MemoryLog
from tests.network.virtual_time import LOOP_CLOCK, now, run_virtual

OPERATOR, OWN, *OTHERS = (PublicKey(sha256(b"%d" % number)) for number in range(6))
DIGEST = sha256(b"any")
AWAY = Unreachable("away")


def told(round_: int, left_ms: int = 1000) -> FeedUpdate:
    """Return the log's news of a round's commit."""
    entry = Round(DIGEST, round_, DIGEST, 0, 1, DIGEST, DIGEST, DIGEST, (), 0, 1)
    receipt = Receipt(b"entry %d" % round_, 0, (), "")
    return FeedUpdate(ProvenCommit(receipt, ProvenRound(entry, DIGEST, None)), None, left_ms, is_from_log=True)  # type: ignore[arg-type]


def nothing(left_ms: int = 1000) -> FeedUpdate:
    """Return what the log says where there is no commit after the one asked for."""
    return FeedUpdate(None, None, left_ms, is_from_log=True)


class Script:
    """A log, a node and neighbours that do as the test says; what is heard ends with the script."""

    operator = OPERATOR
    key = OWN

    def __init__(
        self,
        answers: list[FeedUpdate | Exception],
        meetings: list[bool] | None = None,
        neighbours: dict[bytes, Any] | None = None,
        whole: list[bool] | None = None,
    ) -> None:
        self._answers: Iterator[FeedUpdate | Exception] = iter(answers)
        self._meetings = iter(meetings or [])
        self._neighbours = neighbours or {}
        self.asked: list[tuple[int, int | None, float]] = []  # of the log: the round known, how long is left, and when
        self.meetings: list[bool] = []
        self.was_met: list[bytes] = []
        self.taken: list[FeedUpdate] = []
        self.shown: list[bool] = []
        self.pushed: list[tuple[PublicKey, bytes]] = []
        self.forgotten: list[PublicKey] = []
        self.round = 0
        self._whole = iter(whole or [])
        self.compared: list[float] = []  # when the log was asked for its head
        self.remembered: list[int] = []

    def subscriber(self) -> CommitSubscriber:
        self.made = CommitSubscriber(self.context(), self, self, self)  # type: ignore[arg-type]
        return self.made

    def context(self, node: Any = None, log: Any = None) -> Any:
        """Return a peer's context with these, or itself in their place."""
        return SimpleNamespace(node=node or self, log=log or self, clock=LOOP_CLOCK)

    @property
    def newest_round(self) -> int:
        return self.round

    @property
    def pace(self) -> Any:
        return SimpleNamespace(left_ms=lambda _now_ms: 250.0)

    async def hear(self, subscriber: CommitSubscriber) -> None:
        """Take what is heard, until this is cancelled."""
        while True:
            update = await subscriber.next_update()
            if isinstance(update, RunUpdate):
                with update:
                    self.take(update.told)
            else:
                self.shown.append(update.is_away)

    def take(self, told: FeedUpdate) -> None:
        self.taken.append(told)
        if told.proven_commit is not None:
            self.round = max(self.round, told.proven_commit.proven.round.round)

    # As the log's client.

    async def next_update(self, key: PublicKey, round: int, *, left_ms: int | None, takes_part: bool = True) -> FeedUpdate:
        if key != OPERATOR:
            answer = self._neighbours[key]
        else:
            self.asked.append((round, left_ms, now()))
            answer = next(self._answers, None)
            if answer is None:
                raise asyncio.CancelledError
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def line(self) -> "Script":
        return self

    # As its line to the operators.

    def turn_away(self, why: str) -> None:
        pass

    async def meet(self, _node: Any) -> None:
        self.meetings.append(next(self._meetings, True))
        if not self.meetings[-1]:
            raise AWAY

    # As the node.

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        assert (method, timeout_s) == ("commit", timeouts.PUSH_S)
        self.pushed.append((key, request))
        if isinstance(self._neighbours[key], Exception):
            raise self._neighbours[key]
        return b""

    # As what holds the log to what it signed.

    async def compare(self) -> bool:
        self.compared.append(now())
        return next(self._whole, True)

    def check_rollback_time(self) -> None:
        pass

    def check_contradiction(self, proven_commit: ProvenCommit) -> None:
        pass

    def remember(self, proven_commit: ProvenCommit) -> None:
        self.remembered.append(proven_commit.proven.round.round)

    # As the neighbours.

    def some(self, count: int) -> list[PublicKey]:
        return [PublicKey(key) for key in self._neighbours][:count]

    mixed = some

    def met(self, key: PublicKey) -> None:
        self.was_met.append(key)

    def forget(self, key: PublicKey) -> None:
        self.forgotten.append(key)


def hear(script: Script, how: Callable[[CommitSubscriber], Awaitable[None]] = lambda subscriber: subscriber.listen()) -> Script:
    """Listen until the script is over."""

    async def listen() -> None:
        subscriber = script.subscriber()
        hearing = asyncio.create_task(script.hear(subscriber))
        try:
            await how(subscriber)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # what is being passed on is on its way
        finally:
            for _ in range(3):  # so is what was heard
                await asyncio.sleep(0)
            hearing.cancel()
        await subscriber.close()

    run_virtual(listen())
    return script


def rounds(script: Script) -> list[int]:
    return [one.proven_commit.proven.round.round for one in script.taken if one.proven_commit is not None]


def test_commits_are_told_as_they_come_and_the_next_one_is_waited_for_at_once() -> None:
    script = hear(Script([told(1), told(2), told(5)]))
    assert rounds(script) == [1, 2, 5]
    assert script.asked == [(0, 250, 0), (1, 250, 0), (2, 250, 0), (5, 250, 0)]
    assert script.shown.count(True) == 0


def test_a_log_that_has_nothing_to_say_at_once_is_asked_less_and_less_often() -> None:
    script = hear(Script([*[nothing()] * 6, told(1), nothing(), told(2)]))
    assert [at for *_, at in script.asked] == [0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5, 17.5, 18.0, 18.0]


def test_a_commit_that_a_neighbour_told_first_is_no_reason_to_pause() -> None:
    class Pushed(Script):
        async def next_update(self, key: PublicKey, round: int, *, left_ms: int | None, takes_part: bool = True) -> FeedUpdate:
            answer = await super().next_update(key, round, left_ms=left_ms, takes_part=takes_part)
            await self.made._on_pushed(OTHERS[0], b"")
            return answer

        def open(self, _data: bytes) -> ProvenCommit:
            found = told(self.round + 1).proven_commit
            assert found is not None
            return found

    script = Pushed([told(1), told(2), told(3)])
    hear(script)
    assert [at for *_, at in script.asked] == [0, 0, 0, 0]


def test_a_log_that_was_away_is_met_again_asked_for_the_time_and_only_then_waited_for() -> None:
    script = hear(Script([told(1), AWAY, AWAY, nothing(), told(2)], meetings=[False, False, True]))
    assert script.meetings == [False, False, True]
    assert [(known, left_ms) for known, left_ms, _ in script.asked] == [(0, 250), (1, 250), (1, None), (1, None), (1, 250), (2, 250)]
    assert [at for *_, at in script.asked] == [0, 0, 0.5, 1.5, 1.5, 1.5]
    assert (script.shown.count(True), script.shown[-1]) == (2, False)


def test_while_the_log_is_away_a_neighbour_may_know() -> None:
    script = hear(Script([AWAY, nothing()], neighbours={OTHERS[0]: told(3)}))
    assert OTHERS[0] in script.was_met
    assert rounds(script) == [3]
    assert script.asked[1][0] == 3


def test_a_neighbour_that_does_not_answer_or_lies_is_forgotten() -> None:
    for fault in (AWAY, SignatureError("a lie")):
        assert hear(Script([AWAY], neighbours={OTHERS[0]: fault})).forgotten == [OTHERS[0]]


def test_news_that_prove_nothing_are_passed_by_and_the_log_is_not_away(caplog: pytest.LogCaptureFixture) -> None:
    script = hear(Script([SignatureError("a lie"), told(1)]))
    assert rounds(script) == [1]
    assert True not in script.shown
    assert "the log's news are refused reason=a lie" in caplog.text


def test_a_commit_that_is_news_is_passed_on_to_two_neighbours_once() -> None:
    script = hear(Script([told(1), told(1), told(2)], neighbours={OTHERS[0]: None, OTHERS[1]: AWAY, OTHERS[2]: None}))
    receipts = [pack(one.proven_commit.receipt) for one in (told(1), told(2)) if one.proven_commit is not None]
    assert script.pushed == [(key, receipt) for receipt in receipts for key in OTHERS[:2]]
    assert script.forgotten == [OTHERS[1], OTHERS[1]]


def test_a_commit_that_contradicts_what_is_known_is_not_passed_on() -> None:
    class Contradicted(Script):
        def take(self, told: FeedUpdate) -> None:
            raise RemoteFault("two commits of round 1")

    script = hear(Contradicted([told(1)], neighbours={OTHERS[0]: None}))
    assert script.pushed == []


def test_the_first_look_waits_for_the_log_and_says_so() -> None:
    script = hear(Script([AWAY, AWAY, told(7)]), lambda subscriber: subscriber.first_look())
    assert (rounds(script), script.shown) == ([7], [True, True, False])
    assert script.asked == [(0, None, 0), (0, None, 0.5), (0, None, 1.5)]


@pytest.mark.virtual_time
async def test_nothing_is_passed_on_after_the_end() -> None:
    network = MemoryNetwork()
    script, node = Script([told(1)], neighbours={OTHERS[0]: None}), network.endpoint(OWN)
    reached = asyncio.Event()

    async def never(_caller: PublicKey, _request: bytes) -> bytes:
        reached.set()
        await asyncio.Event().wait()
        return b""

    await network.endpoint(OTHERS[0]).serve("commit", never)
    subscriber = CommitSubscriber(script.context(node), script, script, script)  # type: ignore[arg-type]
    hearing = asyncio.create_task(script.hear(subscriber))
    await subscriber.first_look()
    await reached.wait()
    hearing.cancel()
    await subscriber.close()
    assert not subscriber._pushing


# What it tells others, over a network in memory.


@asynccontextmanager
async def two_peers() -> AsyncIterator[tuple[MemoryLog, CommitSubscriber, LogClient]]:
    """Yield a log, a subscriber that has heard of nothing, and another peer's line to it."""
    network = MemoryNetwork()
    log = await MemoryLog(network).start()
    node, other = (network.endpoint(peer.public_key) for peer in PEERS[:2])
    client, script = LogClient(node, log.manifest, log.ledger.run), Script([])
    subscriber = CommitSubscriber(script.context(node, client), script, script, script)  # type: ignore[arg-type]
    hearing = asyncio.create_task(script.hear(subscriber))
    await subscriber.start()
    yield log, subscriber, LogClient(other, log.manifest, log.ledger.run)
    hearing.cancel()
    await subscriber.close()


async def test_who_asks_is_told_the_newest_commit_with_its_proof() -> None:
    async with two_peers() as (log, subscriber, other):
        key = PublicKey(PEERS[0].public_key)
        assert (await other.next_update(key, 0, left_ms=None)).proven_commit is None
        log.give(PEERS[2])
        entry = log.commit()
        await subscriber.first_look()
        answer = await other.next_update(key, 0, left_ms=None)
        assert answer.proven_commit is not None
        assert (answer.proven_commit.proven.round, answer.counted, answer.left_ms, answer.is_from_log) == (entry, None, 0, False)
        assert (await other.next_update(key, 1, left_ms=None)).proven_commit is None
        assert unpack(FeedAnswer, await subscriber._on_asked(key, pack(AfterRound(5, 1))), max_bytes=100) == FeedAnswer((), (), 0)


async def test_what_is_pushed_is_believed_with_its_proof_and_not_otherwise() -> None:
    async with two_peers() as (log, subscriber, _other):
        log.give(PEERS[2])
        log.commit()
        node, key = log.network.endpoint(OTHERS[0]), PublicKey(PEERS[0].public_key)
        receipt = log.receipt()
        for false in (b"", b"garbage", pack(Receipt(receipt.entry, 0, receipt.proof, receipt.tree_head))):
            with pytest.raises(Refused):
                await node.call(key, "commit", false, timeout_s=5)
            assert subscriber.newest is None
        await node.call(key, "commit", pack(receipt), timeout_s=5)
        assert subscriber.newest is not None
        assert subscriber.newest.receipt == receipt


async def test_a_question_that_is_none_is_refused() -> None:
    async with two_peers() as (log, _subscriber, _other):
        for false in (b"", b"\xff", bytes(1000)):
            with pytest.raises(Refused):
                await log.endpoint.call(PublicKey(PEERS[0].public_key), "commit-after", false, timeout_s=5)


@pytest.mark.parametrize(
    ("answers", "whole", "compared"),
    [
        ([told(1), AWAY, told(2)], [], [0.5]),
        ([told(1), AWAY, told(2)], [False, False, True], [0.5, 1.5, 3.5]),  # one that shows less than it signed is as good as away
        ([told(1), Refused("this log has no round"), told(2)], [], [0.5]),  # as it does not know the round that is known here
    ],
)
def test_a_log_that_was_away_or_lost_rounds_is_asked_for_its_head_before_its_news_are_taken(
    answers: list[FeedUpdate | Exception], whole: list[bool], compared: list[float]
) -> None:
    script = hear(Script(answers, whole=whole))
    assert (script.compared, script.remembered, rounds(script)) == (compared, [1, 2], [1, 2])
    assert (script.shown[: 1 + whole.count(False)], script.shown[-1]) == ([False, *whole.count(False) * [True]], False)


def test_at_its_start_a_peer_takes_nothing_from_a_log_that_lacks_what_it_signed() -> None:
    script = hear(Script([told(7)], whole=[False, True]), lambda subscriber: subscriber.first_look())
    assert (script.compared, rounds(script)) == ([0, 0.5], [7])


def test_a_neighbours_proof_of_two_histories_ends_the_peer() -> None:
    class Forked(Script):
        def take(self, told: FeedUpdate) -> None:
            if told.proven_commit is not None and not told.is_from_log:
                raise LedgerError("two commits of round 1")
            super().take(told)

        def check_contradiction(self, proven_commit: ProvenCommit) -> None:
            raise OtherHistory("two histories")

        def open(self, _data: bytes) -> ProvenCommit:
            found = told(1).proven_commit
            assert found is not None
            return found

        async def next_update(self, key: PublicKey, round: int, *, left_ms: int | None, takes_part: bool = True) -> FeedUpdate:
            if round:
                with pytest.raises(OtherHistory):
                    await self.made._on_pushed(OTHERS[0], b"")
                await asyncio.Event().wait()
            return await super().next_update(key, round, left_ms=left_ms, takes_part=takes_part)

    script = Forked([told(1)])
    with pytest.raises(OtherHistory, match="two histories"):
        hear(script)
