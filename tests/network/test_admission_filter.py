"""A node that is held to a run's admission, over an in-memory network: whom it answers, whose records it believes."""

from typing import Any

import pytest

from manta_swarm.network.admission_filter import NOT_ADMITTED, AdmissionFilter, AdmittedKeys, Carried, stranger_told
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.admission import GUEST, MEMBER, AdmissionProof, AdmissionRule
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.contributions import PEERS
from tests.runs import manifest_of

OPERATOR = Identity(b"operator".ljust(32, b"."))
ALICE, BOB, STRANGER = PEERS[:3]
INVITED, LISTED = AdmissionRule("invitation"), AdmissionRule("list", (ALICE.public_key, BOB.public_key))


class FilteredNodes:
    """Admission filters of one run."""

    def __init__(self, rule: AdmissionRule) -> None:
        self.signed = SignedManifest.sign(manifest_of(OPERATOR, admission=rule), OPERATOR)
        self.manifest, self.network = self.signed.open(), MemoryNetwork()

    def shown(self, peer: Identity, operator: Identity = OPERATOR, access: str = MEMBER) -> Signed[AdmissionProof]:
        """Return a peer's admission proof."""
        return Signed.sign(AdmissionProof(self.signed.run, operator.public_key, peer.public_key, access), operator)

    async def admission_filter(self, peer: Identity, *, has_proof: bool = False, access: str = MEMBER) -> AdmissionFilter:
        """Return a peer's, open; it answers "echo"."""
        named = Admitted(self.manifest, self.signed.run)
        own = self.shown(peer, access=access) if has_proof else None
        known = AdmittedKeys(self.manifest, self.signed.run, named)
        admission_filter = AdmissionFilter(self.network.endpoint(peer.public_key), known, own, stranger_told(self.manifest))
        await admission_filter.open()

        async def echo(_caller: PublicKey, request: bytes) -> bytes:
            return request

        for method in ("echo", "manifest"):
            await admission_filter.serve(method, echo)
        return admission_filter


async def call(admission_filter: Any, other: Identity, method: str = "echo") -> bytes:
    answer: bytes = await admission_filter.call(other.public_key, method, b"hello", timeout_s=20)
    return answer


async def test_an_admission_proof_is_shown_once_and_a_stranger_is_told_what_to_ask_for() -> None:
    scene = FilteredNodes(INVITED)
    alice, _ = await scene.admission_filter(ALICE, has_proof=True), await scene.admission_filter(BOB, has_proof=True)
    calls = []
    scene.network.lost = lambda sender, _, method: bool(calls.append((sender, method)))  # type: ignore[func-returns-value]
    assert [await call(alice, BOB) for _ in range(2)] == [b"hello"] * 2
    assert [method for _, method in calls] == ["echo", "admission-proof", "echo", "echo"]
    stranger = await scene.admission_filter(STRANGER)
    with pytest.raises(Refused, match=f"{NOT_ADMITTED}: .* ask its operator for an invitation"):
        await call(stranger, BOB)
    assert await call(stranger, BOB, "manifest") == b"hello"


async def test_anothers_admission_proof_opens_nothing() -> None:
    scene = FilteredNodes(INVITED)
    await scene.admission_filter(BOB, has_proof=True)
    thief = scene.network.endpoint(STRANGER.public_key)
    for signer, key in ((OPERATOR, ALICE), (STRANGER, STRANGER)):
        with pytest.raises(Refused, match=r"proof"):
            await thief.call(BOB.public_key, "admission-proof", pack(scene.shown(key, signer)), timeout_s=20)
    with pytest.raises(Refused, match=NOT_ADMITTED):
        await call(thief, BOB)


async def test_where_keys_are_listed_nothing_has_to_be_shown() -> None:
    scene = FilteredNodes(LISTED)
    alice, _ = await scene.admission_filter(ALICE), await scene.admission_filter(BOB)
    assert await call(alice, BOB) == b"hello"
    with pytest.raises(Refused, match="its manifest lists"):
        await call(await scene.admission_filter(STRANGER), BOB)


@pytest.mark.parametrize(("rule", "has_proof"), [(INVITED, True), (LISTED, False)])
async def test_the_dht_has_the_records_of_those_who_are_in(rule: AdmissionRule, has_proof: bool) -> None:
    scene = FilteredNodes(rule)
    alice, bob = (
        await scene.admission_filter(ALICE, has_proof=has_proof),
        await scene.admission_filter(BOB, has_proof=has_proof),
    )
    stranger = await scene.admission_filter(STRANGER)
    await alice.publish("members", b"alice", ttl_s=60)
    await stranger.publish("members", b"stranger", ttl_s=60)
    assert await bob.lookup("members") == {ALICE.public_key: b"alice"}
    assert await call(alice, BOB) == b"hello"
    plain = scene.network.endpoint(STRANGER.public_key)
    stolen = Carried((scene.shown(ALICE),), b"stranger")
    for value in (b"stranger", pack(stolen), b""):
        await plain.publish("members", value, ttl_s=60)
        assert await bob.lookup("members") == {ALICE.public_key: b"alice"}


async def test_a_guest_is_answered_and_found_by_nobody() -> None:
    scene = FilteredNodes(INVITED)
    alice, bob = await scene.admission_filter(ALICE, has_proof=True), await scene.admission_filter(BOB, has_proof=True)
    guest = await scene.admission_filter(STRANGER, has_proof=True, access=GUEST)
    for member in (alice, bob):  # the one hears of it by its records first, the other by its call
        await guest.publish("members", b"guest", ttl_s=60)
        assert await member.lookup("members") == {}
        assert await guest.call(member.key, "echo", b"hello", timeout_s=20) == b"hello"
        assert await member.lookup("members") == {}
        assert (guest.key in member.known, member.known.trains(guest.key)) == (True, False)
    await alice.publish("members", b"alice", ttl_s=60)
    assert await guest.lookup("members") == {ALICE.public_key: b"alice"}
