"""Who writes, by a real etcd."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.operators.etcd import Etcd, check_endpoint
from manta_swarm.aggregator.features.operators.leader_lease import LeaderLease
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import sha256
from tests.etcds import RealEtcd, etcd_in, needs_etcd

RUN, ONE, TWO = sha256(b"run"), b"1" * 32, b"2" * 32


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    with etcd_in(tmp_path) as running:
        yield running


@needs_etcd
def test_one_at_a_time_has_its_turn_and_the_next_ones_term_is_later(etcd: RealEtcd) -> None:
    async def scene() -> None:
        client = Etcd(["http://127.0.0.1:9", etcd.url])  # of two endpoints one is enough
        one, two = LeaderLease(client, RUN, ONE, ttl_s=2), LeaderLease(client, RUN, TWO, ttl_s=2)
        await one.check()
        assert await one.holder() is None
        first = await one.won()
        assert one.is_held
        assert await two.holder() == ONE
        waiting = asyncio.create_task(two.won())
        keeping = asyncio.create_task(one.kept())
        done, _ = await asyncio.wait((waiting, keeping), timeout=3)  # longer than a lease that nobody renews
        assert not done
        assert one.is_held
        keeping.cancel()
        await asyncio.wait((keeping,))
        await one.give_up()
        assert not one.is_held
        assert await asyncio.wait_for(waiting, 30) > first
        assert await one.holder() == TWO
        client.close()

    asyncio.run(scene())


@needs_etcd
def test_who_cannot_renew_stops_by_its_own_clock_before_another_can_have_its_turn(etcd: RealEtcd) -> None:
    async def scene() -> None:
        client = Etcd([etcd.url])
        one, two = LeaderLease(client, RUN, ONE, ttl_s=2), LeaderLease(client, RUN, TWO, ttl_s=2)
        await one.won()
        asked_s = time.monotonic()
        assert etcd.process is not None
        etcd.process.send_signal(signal.SIGSTOP)
        try:
            await one.kept()
        finally:
            etcd.process.send_signal(signal.SIGCONT)
        assert not one.is_held
        assert one._until_s < asked_s + 2  # by the clock of the one that stops: this is what is promised
        await two.won()
        etcd.stop(signal.SIGKILL)
        waiting = asyncio.create_task(one.won())  # in vain, while etcd is away
        await two.kept()
        assert not waiting.done()
        etcd.start()
        await asyncio.wait_for(waiting, 60)
        client.close()

    asyncio.run(scene())


def test_an_etcd_that_is_away_at_the_start_is_told_in_one_line() -> None:
    async def scene() -> None:
        client = Etcd(["http://127.0.0.1:9"])
        with pytest.raises(UserError, match=r"127\.0\.0\.1:9.*start etcd") as raised:
            await LeaderLease(client, RUN, ONE, ttl_s=2).check()
        assert "\n" not in str(raised.value)
        client.close()

    asyncio.run(scene())


@pytest.mark.parametrize("url", ["127.0.0.1:2379", "http://", "ftp://host:1", "http://host:99999", "http://host/path", ""])
def test_what_is_no_address_of_an_etcd_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address of an etcd"):
        check_endpoint(url)
