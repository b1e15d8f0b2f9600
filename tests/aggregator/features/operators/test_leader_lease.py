"""Who writes: by a real etcd, and by one in memory that may be away."""

import asyncio
import contextlib
import signal
import socket
import time
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.operators import etcd as etcds
from manta_swarm.aggregator.features.operators.etcd import Etcd, Holder, check_endpoint
from manta_swarm.aggregator.features.operators.leader_lease import LeaderLease
from manta_swarm.protocol.errors import Unreachable, UserError
from manta_swarm.protocol.signing import sha256
from tests.etcds import etcd_in, needs_etcd
from tests.network.virtual_time import LOOP_CLOCK, now

RUN, ANOTHER_RUN, ONE, TWO = sha256(b"run"), sha256(b"another run"), b"1" * 32, b"2" * 32
TTL_S = 2


class MemoryEtcd(Etcd):
    """An etcd with one key, in the loop's time."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_away = False
        self._until_s: dict[str, float] = {}  # by lease
        self._held: tuple[Holder, str] | None = None  # under a lease

    async def holder(self, key: str) -> Holder | None:
        del key
        await self._reached()
        return self._held[0] if self._held is not None and now() < self._until_s[self._held[1]] else None

    async def grant(self, ttl_s: int) -> str:
        await self._reached()
        lease = str(len(self._until_s))
        self._until_s[lease] = now() + ttl_s
        return lease

    async def take(self, key: str, value: bytes, lease: str) -> Holder | None:
        if await self.holder(key) is not None:
            return None
        self._held = Holder(value, len(self._until_s)), lease
        return self._held[0]

    async def renew(self, lease: str) -> bool:
        await self._reached()
        self._until_s[lease] = now() + TTL_S
        return True

    async def _reached(self) -> None:
        await self.answers.wait()
        if self.is_away:
            raise Unreachable("it is away")


@needs_etcd
async def test_one_at_a_time_has_its_turn_and_the_next_ones_term_is_later(tmp_path: Path) -> None:
    with etcd_in(tmp_path) as etcd, contextlib.closing(Etcd(["http://127.0.0.1:9", etcd.url])) as client:  # one of two is enough
        one, two = LeaderLease(client, RUN, ONE, ttl_s=TTL_S), LeaderLease(client, RUN, TWO, ttl_s=TTL_S)
        await one.check()
        assert await one.holder() is None
        first = await one.won()
        keeping = asyncio.create_task(one.kept())
        assert one.is_held
        assert await two.holder() == ONE
        waiting = asyncio.create_task(two.won())
        for operator in (ONE, TWO):  # the second gets it once the lease of the first, which nobody renews, is over
            await LeaderLease(client, ANOTHER_RUN, operator, ttl_s=TTL_S).won()
        assert not waiting.done()
        assert not keeping.done()
        assert one.is_held
        keeping.cancel()
        await asyncio.wait((keeping,))
        await one.give_up()
        assert not one.is_held
        assert await asyncio.wait_for(waiting, 30) > first
        assert await one.holder() == TWO


@pytest.mark.virtual_time
async def test_who_cannot_renew_stops_by_its_own_clock_before_another_can_have_its_turn() -> None:
    etcd = MemoryEtcd()
    one, two = (LeaderLease(etcd, RUN, operator, ttl_s=TTL_S, clock=LOOP_CLOCK) for operator in (ONE, TWO))
    await one.won()
    etcd.answers.clear()
    await one.kept()
    assert not one.is_held
    assert now() < TTL_S
    etcd.answers.set()
    await two.won()
    assert now() >= TTL_S
    etcd.is_away = True
    waiting = asyncio.create_task(one.won())  # in vain
    await two.kept()
    assert not waiting.done()
    etcd.is_away = False
    await waiting
    assert await two.holder() == ONE


@needs_etcd
@pytest.mark.swarm
async def test_who_holds_a_lease_of_an_etcd_that_stands_still_or_is_killed_stops_and_it_is_won_again_when_etcd_is_back(
    tmp_path: Path,
) -> None:
    with etcd_in(tmp_path) as etcd, contextlib.closing(Etcd([etcd.url])) as client:
        one, two = LeaderLease(client, RUN, ONE, ttl_s=TTL_S), LeaderLease(client, RUN, TWO, ttl_s=TTL_S)
        await one.won()
        asked_s = time.monotonic()
        assert etcd.process is not None
        etcd.process.send_signal(signal.SIGSTOP)
        try:
            await one.kept()
        finally:
            etcd.process.send_signal(signal.SIGCONT)
        assert not one.is_held
        assert one._until_s < asked_s + TTL_S  # by the clock of the one that stops: this is what is promised
        await two.won()
        etcd.stop(signal.SIGKILL)
        waiting = asyncio.create_task(one.won())  # in vain, while etcd is away
        await two.kept()
        assert not waiting.done()
        etcd.start()
        await asyncio.wait_for(waiting, 60)


async def test_an_etcd_that_is_away_or_silent_at_the_start_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcds, "_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            with contextlib.closing(Etcd([f"http://127.0.0.1:{port}"])) as client:
                with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}.*start etcd") as raised:
                    await LeaderLease(client, RUN, ONE, ttl_s=TTL_S).check()
                assert "\n" not in str(raised.value)


@pytest.mark.parametrize("url", ["127.0.0.1:2379", "http://", "ftp://host:1", "http://host:99999", "http://host/path", ""])
def test_what_is_no_address_of_an_etcd_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address of an etcd"):
        check_endpoint(url)
