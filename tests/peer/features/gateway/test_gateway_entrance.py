"""Light contributors come into a run of invited peers through a gateway over HTTP, and in no other way."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.protocol.signed import Signed

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from manta_swarm.network.admission_filter import AdmittedKeys
from manta_swarm.network.invitation import Token
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.peer.config import GatewayUrl
from manta_swarm.peer.features.gateway.http import serving
from manta_swarm.peer.features.gateway.service import METHOD, Entrance
from manta_swarm.peer.features.light.client import GatewayClient, NotLetIn
from manta_swarm.peer.features.light.light import LightAdmission
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.admission import GUEST, INVITATION, LIST, MEMBER, Admission, AdmissionProof, AdmissionRule, Invitation
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import RemoteFault, Unreachable, UserError
from manta_swarm.protocol.light import EnterRequest, LeaseRequest
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.runtime.listen_address import ListenAddress
from tests.memory_log import OPERATOR
from tests.peer.gateways import GATEWAY, LIGHTS, Gateway, gateway_with

INVITED = AdmissionRule(INVITATION)
ALICE, BOB, CAROL = LIGHTS[:3]


class Invited:
    """A gateway of a run of invited peers, its HTTP, and a log that lets keys in by the ledger's own rule."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self.gateway, self.run, self.manifest = gateway, gateway.signed.run, gateway.manifest
        self.address = address
        self.asked: list[bytes] = []
        self.admitted = Admitted(self.manifest, self.run)
        network = MemoryNetwork()
        self.log = network.endpoint(OPERATOR.public_key)
        known = AdmittedKeys(self.manifest, self.run, self.admitted)
        node = network.endpoint(GATEWAY.public_key)
        gateway.service.entrance = Entrance(replace(gateway.context, node=node), known)

    async def open(self) -> None:
        await self.log.serve(METHOD, self._on_admission)

    async def _on_admission(self, _caller: PublicKey, request: bytes) -> bytes:
        signed = unpack(Signed[Admission], request, max_bytes=2048)
        self.asked.append(request)
        admission, invitation = self.admitted.take(signed, 1)
        return pack(self.shown(admission.key, access=invitation.access))

    def shown(self, key: bytes, operator: Identity = OPERATOR, run: bytes | None = None, access: str = MEMBER) -> Signed[AdmissionProof]:
        """Return an admission proof of ``key``."""
        return Signed.sign(AdmissionProof(run or self.run, operator.public_key, key, access), operator)

    def token(self, keys: int = 1, operator: Identity = OPERATOR, run: bytes | None = None, access: str = MEMBER) -> Token:
        secret = os.urandom(32)
        made = Invitation(run or self.run, operator.public_key, Identity(secret).public_key, keys, 5, access)
        return Token(Signed.sign(made, operator), secret)

    async def enter(self, identity: Identity, directory: Path, told: str | None = None) -> None:
        """Do what a light contributor does when it meets its gateway."""
        client, entry = GatewayClient([GatewayUrl.of(self.address)]), LightAdmission(identity, PeerStore(directory), told)
        await asyncio.to_thread(entry.enter, client, self.manifest, self.run)

    async def lease(self, identity: Identity) -> bool:
        """Return whether the gateway has a lease for a key, or would have one if it had work."""
        request = LeaseRequest(self.run, GATEWAY.public_key, identity.public_key, 0, 0)
        client = GatewayClient([GatewayUrl.of(self.address)])
        return bool((await asyncio.to_thread(client.lease, Signed.sign(request, identity))).lease)


@asynccontextmanager
async def over_http(rule: AdmissionRule = INVITED) -> AsyncIterator[Invited]:
    async with gateway_with(admission=rule) as gateway, serving(gateway.service, ListenAddress("127.0.0.1", 0)) as address:
        invited = Invited(gateway, address)
        await invited.open()
        await gateway.convene()
        yield invited


@pytest.fixture
def invited() -> AbstractAsyncContextManager[Invited]:
    return over_http()


async def test_an_invited_key_leases_and_comes_back_by_its_admission_proof_and_no_other_leases(invited: Invited, tmp_path: Path) -> None:
    token = invited.token()
    with pytest.raises(NotLetIn, match="not open to everybody"):
        await invited.lease(ALICE)
    await invited.enter(ALICE, tmp_path / "alice", token.to_text())
    assert await invited.lease(ALICE)
    await invited.enter(ALICE, tmp_path / "alice")  # its admission proof is enough from now on, also where the gateway is another one
    assert len(invited.asked) == 1
    with pytest.raises(UserError, match="takes invited peers only"):
        await invited.enter(BOB, tmp_path / "bob")
    with pytest.raises(NotLetIn):
        await invited.lease(BOB)


async def test_an_invitation_that_lets_nobody_in_is_brought_to_the_log_once_a_minute_at_most(invited: Invited, tmp_path: Path) -> None:
    token = invited.token()
    await invited.enter(ALICE, tmp_path / "alice", token.to_text())
    for _ in range(3):
        with pytest.raises(UserError, match=r"used up: it was for 1 keys.*ask who gave it"):
            await invited.enter(BOB, tmp_path / "bob", token.to_text())
    assert len(invited.asked) == 2
    invited.gateway.now_ms += 61_000
    with pytest.raises(UserError, match="used up"):
        await invited.enter(BOB, tmp_path / "bob", token.to_text())
    assert len(invited.asked) == 3


async def test_what_cannot_let_anybody_in_never_reaches_the_log(invited: Invited) -> None:
    client = GatewayClient([GatewayUrl.of(invited.address)])
    of_bob, elsewhere = invited.token().admission(BOB.public_key), invited.token(run=sha256(b"run"))
    bad = {
        "no operator": EnterRequest(invited.run, ALICE.public_key, (), (invited.token(operator=CAROL).admission(ALICE.public_key),)),
        "of another key": EnterRequest(invited.run, ALICE.public_key, (), (of_bob,)),
        "to another run": EnterRequest(invited.run, ALICE.public_key, (), (elsewhere.admission(ALICE.public_key),)),
        "guest": EnterRequest(invited.run, ALICE.public_key, (), (invited.token(access=GUEST).admission(ALICE.public_key),)),
        "a guest,": EnterRequest(invited.run, BOB.public_key, (invited.shown(BOB.public_key, access=GUEST),), ()),
    }
    for why, request in bad.items():
        with pytest.raises(NotLetIn, match=why):
            await asyncio.to_thread(client.enter, request)
    forged = invited.shown(ALICE.public_key, CAROL)
    with pytest.raises(RemoteFault, match="signature"):
        await asyncio.to_thread(client.enter, EnterRequest(invited.run, ALICE.public_key, (forged,), ()))
    another = invited.shown(ALICE.public_key, run=sha256(b"run"))
    with pytest.raises(RemoteFault, match="another run"):
        await asyncio.to_thread(client.enter, EnterRequest(invited.run, ALICE.public_key, (another,), ()))
    assert not invited.asked
    with pytest.raises(NotLetIn):
        await invited.lease(ALICE)


async def test_a_key_that_is_out_leases_no_more_and_is_told_so(invited: Invited, tmp_path: Path) -> None:
    await invited.enter(ALICE, tmp_path / "alice", invited.token().to_text())
    assert await invited.lease(ALICE)
    invited.admitted.out[ALICE.public_key] = 1
    with pytest.raises(NotLetIn):
        await invited.lease(ALICE)
    with pytest.raises(UserError, match="does not let your key in any more"):
        await invited.enter(ALICE, tmp_path / "alice")


async def test_while_the_log_is_away_a_light_contributor_waits(invited: Invited, tmp_path: Path) -> None:
    invited.gateway.service.entrance = Entrance(
        replace(invited.gateway.context, node=MemoryNetwork().endpoint(GATEWAY.public_key)),
        AdmittedKeys(invited.manifest, invited.run, Admitted(invited.manifest, invited.run)),
    )
    with pytest.raises(Unreachable, match="log does not answer"):
        await invited.enter(ALICE, tmp_path / "alice", invited.token().to_text())


async def test_a_listed_key_leases_without_showing_anything_and_another_is_told_before_it_asks(tmp_path: Path) -> None:
    async with over_http(AdmissionRule(LIST, (ALICE.public_key,))) as invited:
        await invited.enter(ALICE, tmp_path / "alice")
        assert await invited.lease(ALICE)
        with pytest.raises(UserError, match="takes the peers that its manifest lists"):
            await invited.enter(BOB, tmp_path / "bob")
        with pytest.raises(NotLetIn):
            await invited.lease(BOB)
