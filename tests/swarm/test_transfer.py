"""Bytes by digest over the in-memory network, from providers that lie, stop in the middle or are not there."""

from collections.abc import Callable

import pytest

from protocol.encoding import pack, unpack
from protocol.errors import Unreachable
from protocol.signing import PublicKey, sha256
from swarm.memory import MemoryEndpoint, MemoryNetwork
from swarm.rpc import Refused
from swarm.transfer import PART_BYTES, Shelf, _Ask, _Give, fetch
from tests.swarm.members import run

KEYS = [PublicKey(sha256(b"node %d" % i)) for i in range(4)]
DATA = bytes(range(256)) * (3 * PART_BYTES // 256) + b"the last part"
Lie = Callable[[_Ask], _Give]


class Providers:
    """Node 0 fetches; the others have what they are given, or lie."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.here = self.network.endpoint(KEYS[0])
        self.asked: list[PublicKey] = []

    async def add(self, data: bytes | None = None, lie: Lie | None = None) -> MemoryEndpoint:
        key = KEYS[len(self.network.endpoints)]
        endpoint = self.network.endpoint(key)
        shelf = Shelf(2)
        if data is not None:
            shelf.put(data)
        await shelf.serve(endpoint)
        honest = endpoint.handlers["fetch"]

        async def answer(caller: PublicKey, request: bytes) -> bytes:
            self.asked.append(key)
            if lie is None:
                return await honest(caller, request)
            return pack(lie(unpack(_Ask, request, max_bytes=128)))

        endpoint.handlers["fetch"] = answer
        return endpoint

    async def fetch(self, max_bytes: int = 2 * len(DATA)) -> bytes:
        return await fetch(self.here, sha256(DATA), KEYS, max_bytes=max_bytes)


def part_of(data: bytes, ask: _Ask) -> _Give:
    return _Give(len(data), data[ask.offset : ask.offset + PART_BYTES])


def fetched(*lies: Lie | None, max_bytes: int = 2 * len(DATA)) -> tuple[bytes, list[PublicKey]]:
    """Return what is fetched, and who was asked, where every provider has the data and some lie."""

    async def work() -> tuple[bytes, list[PublicKey]]:
        providers = Providers()
        for lie in lies:
            await providers.add(DATA, lie)
        return await providers.fetch(max_bytes), providers.asked

    return run(work())


def test_data_of_many_parts_arrives_whole_and_only_one_provider_is_asked() -> None:
    data, asked = fetched(None, None)
    assert data == DATA
    assert set(asked) == {KEYS[1]}
    assert len(asked) == 4


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda ask: part_of(DATA[:-1] + b"!", ask), id="other bytes"),
        pytest.param(lambda ask: part_of(DATA[:-1], ask), id="truncated"),
        pytest.param(lambda ask: part_of(DATA + b"!", ask), id="longer"),
        pytest.param(lambda ask: _Give(len(DATA), b""), id="empty parts"),
        pytest.param(lambda ask: _Give(len(DATA), DATA[:PART_BYTES]), id="always the first part"),
        pytest.param(lambda ask: _Give(len(DATA), DATA[ask.offset : ask.offset + PART_BYTES + 1]), id="parts too long"),
        pytest.param(lambda ask: _Give(0, b""), id="nothing"),
        pytest.param(lambda ask: _Give(-1, DATA[:10]), id="a negative size"),
        pytest.param(lambda ask: _Give(2**60, DATA[:10]), id="an endless size"),
        pytest.param(lambda ask: _Give(2 * len(DATA) + 1, DATA[:10]), id="too large"),
    ],
)
def test_the_next_provider_serves_what_a_lying_one_did_not(lie: Lie) -> None:
    data, asked = fetched(lie, None)
    assert data == DATA
    assert set(asked) == {KEYS[1], KEYS[2]}


def test_a_size_that_cannot_be_is_refused_after_one_part() -> None:
    _, asked = fetched(lambda _: _Give(2**60, DATA[:10]), None)
    assert asked.count(KEYS[1]) == 1


def test_a_provider_without_the_data_and_one_that_is_away_are_passed_over() -> None:
    async def work() -> bytes:
        providers = Providers()
        await providers.add()
        await providers.add(DATA)
        await providers.add(DATA)
        providers.network.lost = lambda _sender, receiver, _method: receiver == KEYS[2]
        return await providers.fetch()

    assert run(work()) == DATA


def test_who_answered_what_is_said_when_nobody_has_it() -> None:
    async def work() -> None:
        providers = Providers()
        await providers.add()
        await providers.add(b"something else")
        await providers.fetch()

    with pytest.raises(Unreachable, match=rf"{KEYS[1].hex()[:8]}: not here.*{KEYS[2].hex()[:8]}: not here.*{KEYS[3].hex()[:8]}: "):
        run(work())


def test_nobody_to_ask_is_said() -> None:
    async def work() -> None:
        here = MemoryNetwork().endpoint(KEYS[0])
        await fetch(here, sha256(DATA), [KEYS[0]], max_bytes=10)

    with pytest.raises(Unreachable, match="nobody to ask"):
        run(work())


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1])
def test_sizes_around_a_part_arrive_whole(size: int) -> None:
    async def work() -> bytes:
        providers = Providers()
        await providers.add(DATA[:size])
        return await fetch(providers.here, sha256(DATA[:size]), KEYS, max_bytes=size)

    assert run(work()) == DATA[:size]


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"garbage", pack(_Ask(sha256(DATA), -1)), pack(_Ask(sha256(DATA), len(DATA) + 1)), pack(_Ask(b"x" * 200, 0))],
)
def test_a_malformed_request_is_refused(request_bytes: bytes) -> None:
    async def work() -> None:
        providers = Providers()
        other = await providers.add(DATA)
        await providers.here.call(other.key, "fetch", request_bytes, timeout_s=1)

    with pytest.raises(Refused):
        run(work())


def test_what_is_pinned_stays_whatever_comes_after_it() -> None:
    shelf = Shelf(1)
    digest = shelf.pin(b"pinned")
    for data in (b"a", b"b", b"c"):
        shelf.put(data)
    assert (digest, shelf.get(digest)) == (sha256(b"pinned"), b"pinned")
    assert shelf.get(sha256(b"c")) == b"c"
    assert shelf.get(sha256(b"b")) is None


def test_a_shelf_keeps_the_newest() -> None:
    shelf = Shelf(2)
    first, second = shelf.put(b"first"), shelf.put(b"second")
    assert first == sha256(b"first")
    shelf.put(b"first")  # new again
    shelf.put(b"third")
    assert shelf.get(first) == b"first"
    assert shelf.get(second) is None
    assert shelf.get(sha256(b"third")) == b"third"
