"""A program talks to one of a run's operators, and to the next where that one is gone, silent, cut off from the others, or lies."""

import asyncio

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.log_client import HandIn, LogClient
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.operator_line import AskAnother, OperatorLine
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.memory_log import DEADLINE_S, OPERATOR, PEERS, MemoryLog

pytestmark = pytest.mark.virtual_time

OPERATORS = [OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (2, 3))]
KEYS = tuple(each.public_key for each in OPERATORS)
METHOD = "what"


class Town:
    """Operators that answer with their own key, and a line to them."""

    def __init__(self, keys: tuple[PublicKey, ...] = KEYS) -> None:
        self.silent: set[PublicKey] = set()
        self.network = MemoryNetwork(delay_s=lambda _, receiver, __: DEADLINE_S if receiver in self.silent else 0.0)
        self.endpoints: dict[PublicKey, MemoryEndpoint] = {key: self.network.endpoint(key) for key in keys}
        self.node = self.network.endpoint(PEERS[0].public_key)
        self.line = OperatorLine(self.node, Operators(bytes(32), keys, len(keys) // 2 + 1))

    async def __aenter__(self) -> "Town":
        for key, endpoint in self.endpoints.items():
            await serve_pings(endpoint)
            await self.answers(key, key)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def answers(self, key: PublicKey, answer: bytes | Exception) -> None:
        async def on_call(_caller: PublicKey, _request: bytes) -> bytes:
            if isinstance(answer, Exception):
                raise answer
            return answer

        await self.endpoints[key].serve(METHOD, on_call)

    def changes(self) -> list[PublicKey]:
        """Return the operators that the line came to talk to and nobody was told of."""
        waiting = self.line._changes
        return [waiting.get_nowait().key for _ in range(waiting.qsize())]

    async def ask(self) -> bytes:
        return await self.line.call(METHOD, b"", timeout_s=DEADLINE_S)


@pytest.fixture
def town() -> Town:
    return Town()


async def test_it_stays_with_who_answers_and_goes_to_the_next_when_that_is_gone(town: Town) -> None:
    first, second, third = town.line.in_turn
    assert [await town.ask() for _ in range(3)] == [first] * 3
    del town.network.endpoints[first]
    assert [await town.ask() for _ in range(3)] == [second] * 3
    town.network.endpoints[first] = town.endpoints[first]  # back again, and not needed
    assert await town.ask() == second
    del town.network.endpoints[second], town.network.endpoints[third]
    assert await town.ask() == first
    assert town.changes() == [second, first]
    del town.network.endpoints[first]
    with pytest.raises(Unreachable):
        await town.ask()


async def test_one_that_nothing_comes_from_any_more_is_found_out_while_a_call_waits(town: Town) -> None:
    first, second, _ = town.line.in_turn
    town.silent.add(first)
    async with asyncio.timeout(DEADLINE_S / 2):  # far less than the call itself would wait
        assert await town.ask() == second


async def test_after_a_silent_one_that_is_asked_next_which_answers_first(town: Town) -> None:
    first, second, third = town.line.in_turn
    town.silent |= {first, second}
    tried = []

    async def work(key: PublicKey) -> bytes:
        tried.append(key)
        return await town.node.call(key, METHOD, b"", timeout_s=DEADLINE_S)

    assert await town.line.ask(work) == third
    assert tried == [first, third]
    assert town.line.in_turn == (third, first, second)


async def test_one_that_falls_silent_during_an_upload_is_left_once_another_answers(town: Town) -> None:
    first, second, _ = town.line.in_turn
    town.silent.add(first)
    with town.line.uploading():
        async with asyncio.timeout(timeouts.OPERATOR_BUSY_S / 2):
            assert await town.ask() == second


async def test_while_an_upload_fills_the_line_to_all_operators_none_is_left(town: Town) -> None:
    first, *_ = town.line.in_turn
    asked, is_free = asyncio.Event(), asyncio.Event()

    async def on_ping(caller: PublicKey, request: bytes) -> bytes:
        del caller, request
        asked.set()
        await is_free.wait()
        return b""

    async def on_call(_caller: PublicKey, _request: bytes) -> bytes:
        await is_free.wait()
        return b"all of it"

    for key, endpoint in town.endpoints.items():
        await endpoint.serve("ping", on_ping)
        if key == first:
            await endpoint.serve(METHOD, on_call)
    with town.line.uploading():
        asking = asyncio.create_task(town.ask())
        await asked.wait()
        await asyncio.wait((asking,), timeout=10 * timeouts.OPERATOR_AWAY_S)
        is_free.set()
        assert await asking == b"all of it"
    assert town.changes() == []


async def test_one_that_is_slow_to_answer_and_there_is_waited_for(town: Town) -> None:
    first, *_ = town.line.in_turn
    pings = 0

    async def on_ping(_caller: PublicKey, _request: bytes) -> bytes:
        nonlocal pings
        pings += 1
        if pings == 3:
            asked.set()
        return b""

    async def on_call(_caller: PublicKey, _request: bytes) -> bytes:
        await asked.wait()
        return b"at last"

    asked = asyncio.Event()
    await town.endpoints[first].serve("ping", on_ping)
    await town.endpoints[first].serve(METHOD, on_call)
    assert await town.ask() == b"at last"
    assert town.changes() == []


async def test_one_that_is_cut_off_from_the_others_says_so_and_a_refusal_is_a_refusal(town: Town) -> None:
    first, second, third = town.line.in_turn
    await town.answers(first, AskAnother("it hears of no leader"))
    assert await town.ask() == second
    await town.answers(second, EncodingError("no"))
    with pytest.raises(Refused, match="no"):
        await town.ask()
    assert town.changes() == [second]
    await town.answers(second, AskAnother("nor does it"))
    await town.answers(third, AskAnother("nor does it"))
    with pytest.raises(Unreachable, match="ask another operator"):  # nobody can do it now: it is tried again, as when all are away
        await town.ask()


async def test_an_answer_that_proves_nothing_is_asked_of_another_one(town: Town) -> None:
    first, second, _ = town.line.in_turn

    async def work(key: PublicKey) -> bytes:
        if key in liars:
            raise EncodingError("nothing that it may say")
        return key

    liars = {first}
    assert await town.line.ask(work) == second
    liars = set(KEYS)
    with pytest.raises(EncodingError):
        await town.line.ask(work)


async def test_a_lone_operator_is_all_there_is() -> None:
    async with Town(KEYS[:1]) as town:
        assert await town.ask() == KEYS[0]
        town.line.turn_away("whatever it said")
        assert town.line.operator == KEYS[0]
        await town.answers(KEYS[0], AskAnother("who?"))
        with pytest.raises(Refused):
            await town.ask()
        del town.network.endpoints[KEYS[0]]
        with pytest.raises(Unreachable):
            await town.line.meet(town.node)


async def test_peers_spread_over_the_operators_and_meet_those_that_are_there(town: Town) -> None:
    firsts = {OperatorLine(town.network.endpoint(sha256(bytes([n]))), town.line.operators).operator for n in range(20)}  # type: ignore[arg-type]
    assert firsts == set(KEYS)
    del town.network.endpoints[town.line.operator]
    await town.line.meet(town.node)
    assert set(town.node.met) == set(KEYS) - {town.line.operator}


async def test_a_hand_in_that_loses_its_operator_in_the_middle_is_brought_to_the_next_and_any_operators_inclusion_promise_counts() -> None:
    network = MemoryNetwork()
    log = await MemoryLog(network, OPERATORS).start()
    client = LogClient(network.endpoint(PEERS[0].public_key), log.manifest, log.ledger.run)
    log.give(PEERS[0])
    ((digest, (header, blob)),) = log.handed.items()
    log.handed.clear()  # it has still to be handed in
    first, second, _ = client.line.in_turn

    async def then_gone(_caller: PublicKey, _request: bytes) -> bytes:
        log.go_away(first)
        return b""

    await log.endpoints[first].serve("body", then_gone)
    done = await client.hand_in(header, blob.pieces)
    assert (done.status, done.round, done.header_ms is not None) == (HandIn.HAVE_PROMISE, 1, True)
    assert done.signed is not None
    with pytest.raises(Exception, match="does not verify"):
        done.signed.open_by([OPERATOR.public_key])  # another one signed it
    assert digest in log.handed
    assert client.operator == second
