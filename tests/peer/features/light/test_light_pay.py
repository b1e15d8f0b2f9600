"""What a light contributor learns of its pay: from a real log's tables, by way of a gateway's payouts, and kept only if it is proven."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.network.light_pay import MAX_PAY_BYTES, LightPay
from manta_swarm.network.log_client import LogClient
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.peer.commands.earnings import CLAIMS, WORD, runs_of
from manta_swarm.peer.features.gateway.payouts import Payouts
from manta_swarm.peer.features.light.client import NotKnown
from manta_swarm.peer.features.light.pay import Pay
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.signing import Digest
from tests.memory_log import PEERS, MemoryLog
from tests.peer.computer import live_status_in

LIGHT, GATEWAY, OTHER = PEERS[0], PEERS[1], PEERS[2]
KEYS = {LIGHT.public_key}  # whose claims are in the gateway's contributions


class Scene:
    """A log whose tables have contributions of one light contributor, its gateway's payouts, and what the contributor keeps."""

    def __init__(self, log: MemoryLog, directory: Path) -> None:
        self.log = log
        self.client = LogClient(log.network.endpoint(GATEWAY.public_key), log.manifest, log.signed.run)
        self.listed = LogClient(log.network.endpoint(LIGHT.public_key), log.manifest, log.signed.run)  # asks for rows of that key
        self.payouts = Payouts(self.client, is_audited=False)
        self.directory = directory
        self.lines: list[str] = []
        self.spoiled: Callable[[LightPay], LightPay] = lambda pay: pay
        self.begin()

    def begin(self) -> None:
        """Start the light contributor, perhaps again."""
        self.live_status = live_status_in(self.directory, self.lines)
        self.light = Pay(self.log.signed, LIGHT.public_key, PeerStore(self.directory), self.live_status)

    async def counted(self) -> Digest:
        """Let a round count a contribution of the light contributor and one of somebody else."""
        round_ = self.log.ledger.round + 1
        digest = Digest(self.log.give(LIGHT, seed=round_))
        self.log.give(OTHER, seed=100 + round_)
        self.light.counts(digest, self.log.handed[digest][0].claims[0])
        self.log.commit()
        found = await self.listed.counted(round_)
        self.payouts.counted(round_, found)
        return digest

    async def look(self) -> None:
        """Ask for all that is due."""
        names = [(one.contribution, LIGHT.public_key) for one in self.light._owed]
        known: dict[tuple[bytes, bytes], bytes | None] = {name: await self.payouts.pay(*name, KEYS) for name in names}

        class Client:
            """Says what the gateway said."""

            def pay(_self, contribution: bytes, key: bytes) -> LightPay:
                found = known[contribution, key]
                if found is None:
                    raise NotKnown("not known here")
                return self.spoiled(unpack(LightPay, found, max_bytes=MAX_PAY_BYTES))

        self.light.look(Client(), at_once=True)  # type: ignore[arg-type]


@pytest.fixture
@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(await MemoryLog(MemoryNetwork()).start(), tmp_path)
    try:
        yield scene
    finally:
        await scene.payouts.close()


async def test_what_each_round_paid_is_proven_kept_and_shown_and_known_again_after_a_restart(scene: Scene, tmp_path: Path) -> None:
    for _ in range(2):
        await scene.counted()
        await scene.look()
    credit = scene.log.ledger.credits()[LIGHT.public_key]
    status = scene.live_status.status
    assert (status.credit, status.credit_checked, status.credit_rounds) == (credit, credit, 2)
    (found,) = runs_of(tmp_path, verify=True)
    assert not found.problems
    assert [(one.round, one.by) for one in found.rounds] == [(1, CLAIMS), (2, CLAIMS)]
    assert sum(one.amount or 0 for one in found.rounds) == credit
    scene.begin()
    assert (scene.live_status.status.credit, scene.live_status.status.credit_rounds) == (credit, 2)


async def test_another_key_and_a_contribution_that_no_round_counted_are_not_known(scene: Scene) -> None:
    digest = await scene.counted()
    assert await scene.payouts.pay(digest, OTHER.public_key, KEYS) is None
    assert await scene.payouts.pay(bytes(32), LIGHT.public_key, KEYS) is None
    waiting = scene.log.give(LIGHT, seed=9)
    scene.light.counts(waiting, scene.log.handed[waiting][0].claims[0])
    await scene.look()
    assert [one.contribution for one in scene.light._owed] == [waiting]  # it is asked for again


async def test_pay_that_does_not_hold_is_not_kept_and_without_claims_it_stays_the_logs_word(scene: Scene, tmp_path: Path) -> None:
    await scene.counted()
    scene.spoiled = lambda pay: replace(
        pay, listing=replace(pay.listing, contribution=replace(pay.listing.contribution, index=pay.listing.contribution.index + 1))
    )
    await scene.look()
    assert "does not hold" in scene.lines[-1]
    assert runs_of(tmp_path, verify=True)[0].rounds == []
    await scene.counted()
    scene.spoiled = lambda pay: replace(pay, claims=())
    await scene.look()
    (found,) = runs_of(tmp_path, verify=True)
    assert not found.problems
    assert [(one.round, one.by) for one in found.rounds] == [(2, WORD)]
    assert scene.live_status.status.credit_checked == 0
