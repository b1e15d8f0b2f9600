"""A peer with a gateway in a run in memory: what its light contributors did is in the log, with what coding left; where none can be."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.gateway.cohort_session import LeaseSession
from manta_swarm.peer.features.gateway.plugin import GatewayPlugin
from manta_swarm.peer.features.gateway.service import GatewayService
from manta_swarm.peer.features.light.work import LightWork
from manta_swarm.peer.features.light.work_gate import WorkGate
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.light import LeaseRequest, LightReturn, LightWord, ReturnFate
from manta_swarm.protocol.rounds import PeerStage
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.audited import RULES
from tests.memory_log import MICROBATCH, PEERS, SMALL_EXCHANGE, until
from tests.peer.contexts import context_of
from tests.peer.gateways import digits
from tests.peer.scene import Member, Scene, scene_in
from tests.runs import EXCHANGE, manifest_of

LIGHTS = [Identity(sha256(b"light %d" % number)) for number in range(2)]
PAYOUTS = {LIGHTS[1].public_key: Identity(sha256(b"account")).public_key}  # the accounts that claims name, where it is not the own key
SPARSE = replace(SMALL_EXCHANGE, codec="topk-256-4", residual_percent=90)
SPARSE_STEPS = replace(SPARSE, local_steps=2)


def _service(scene: Scene, *, is_lease_only: bool = False) -> GatewayService:
    log = scene.log
    context = context_of(None, PEERS[0], log.signed, None, ComputeThread(), training_spec=log.training_spec, num_weights=log.num_weights)
    return GatewayService(context, digits(), is_lease_only=is_lease_only)


async def _contribute(scene: Scene, service: GatewayService, identity: Identity) -> bytes:
    """Do a lease of the base that the gateway works on, once there is one; return the name of what came back."""
    back = await _done(scene, service, identity)
    word = await service.take(pack(back))
    assert word.fate == ReturnFate.HELD, word.reason
    return back.name


async def _done(scene: Scene, service: GatewayService, identity: Identity) -> LightReturn:
    """Do a lease of the base that the gateway works on, once there is one; return what is to be brought back."""
    work = LightWork(scene.log.manifest, scene.log.signed.run, identity, PAYOUTS.get(identity.public_key))
    request = LeaseRequest(scene.log.signed.run, PEERS[0].public_key, identity.public_key, 0, 0)
    packed = pack(Signed.sign(request, identity))
    while not (answer := await service.lease(packed, "here")).lease:  # noqa: ASYNC110 - as a contributor asks
        await asyncio.sleep(0.01)
    lease = answer.lease[0].open()
    weights, samples = service.blob(lease.weights), service.blob(lease.samples)
    assert weights is not None
    assert samples is not None
    return (await asyncio.to_thread(work.do, lease, weights, samples, WorkGate())).back


def _cohort_sessions(service: GatewayService) -> list[LeaseSession]:
    """Return a list of the places that a gateway has taken, which grows with them."""
    cohort_sessions: list[LeaseSession] = []
    convene = service.convene

    async def counted(*args: Any, **kwargs: Any) -> LeaseSession:
        cohort_sessions.append(cohort_session := await convene(*args, **kwargs))
        return cohort_session

    service.convene = counted  # type: ignore[method-assign]
    return cohort_sessions


def _word(service: GatewayService, name: bytes) -> LightWord:
    word = service.word(name)
    assert word is not None
    return word


def _wait_with_microbatches(gateway: Member) -> None:
    """Let it not be done with its own microbatches before its light contributors are; what they teach is about as long as theirs."""
    gateway.worker.may_go_on.clear()
    gateway.worker.scale = 4.0


@pytest.mark.parametrize("exchange", [SMALL_EXCHANGE, SPARSE, SPARSE_STEPS], ids=["dense", "sparse", "local steps"])
async def test_light_contributors_are_in_the_gateways_contribution_and_have_credit(exchange: Any, tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=exchange) as scene:
        scene.log.left_ms = 600_000  # no clock decides here
        service = _service(scene)
        gateway = scene.join(0, gateway=service, prepare=_wait_with_microbatches)
        for round_ in range(1, 4):
            names = [await _contribute(scene, service, identity) for identity in LIGHTS]
            gateway.worker.may_go_on.set()
            await until(lambda names=names: all(_word(service, name).fate != ReturnFate.HELD for name in names))
            assert [(_word(service, name).fate, _word(service, name).reason) for name in names] == [(ReturnFate.TAKEN, "")] * 2
            header = scene.log.headers[-1]
            claims = {claim.open().key: claim.open() for claim in header.claims}
            assert set(claims) == {PEERS[0].public_key, *(identity.public_key for identity in LIGHTS)}
            if exchange.codec != "int16" and round_ > 1:  # the log left all of them one residual, and the gateway adds it for all
                assert len({claim.residual for claim in claims.values()}) == 1
                assert claims[PEERS[0].public_key].residual == scene.log.headers[-2].contribution.open().residual != b""
            _wait_with_microbatches(gateway)
            scene.log.commit()
            await gateway.reaches(round_)
        earned, credits = scene.log.ledger.reputation.earned, scene.log.ledger.credits()
        assert all(earned[identity.public_key] > 0 for identity in LIGHTS)
        account = PAYOUTS[LIGHTS[1].public_key]  # which its claims name
        assert credits[account] == earned[LIGHTS[1].public_key]
        assert LIGHTS[1].public_key not in credits
        assert gateway.status.samples_counted >= 3 * MICROBATCH * exchange.local_steps


@pytest.mark.parametrize("exchange", [SMALL_EXCHANGE, SPARSE_STEPS], ids=["one step", "local steps"])
async def test_a_gateway_that_only_leases_does_a_microbatch_a_step_and_goes_on_leasing(exchange: Any, tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=exchange) as scene:
        scene.log.left_ms = 600_000  # no clock decides here: it would lease for minutes
        service = _service(scene, is_lease_only=True)
        gateway = scene.join(0, gateway=service, prepare=lambda member: setattr(member.worker, "scale", 4.0))
        names = [await _contribute(scene, service, LIGHTS[0])]
        await until(lambda: gateway.stage is PeerStage.SIGNED)
        names.append(await _contribute(scene, service, LIGHTS[1]))
        assert not scene.log.headers
        await gateway.leaves()  # what came back by then is handed in
        assert [(_word(service, name).fate, _word(service, name).reason) for name in names] == [(ReturnFate.TAKEN, "")] * 2
        keys = {claim.open().key for claim in scene.log.headers[-1].claims}
        assert keys == {PEERS[0].public_key, *(identity.public_key for identity in LIGHTS)}
        assert len(gateway.worker.microbatches) == exchange.local_steps


async def test_a_gateway_that_only_leases_hands_nothing_in_where_nobody_comes(scene: Scene) -> None:
    scene.log.left_ms = 200
    service = _service(scene, is_lease_only=True)
    cohort_sessions = _cohort_sessions(service)
    gateway = scene.join(0, gateway=service)
    await until(lambda: len(cohort_sessions) > 1)  # all was due, and it began again
    await gateway.leaves()
    assert (gateway.worker.microbatches, scene.log.headers) == ([], [])


async def test_whoever_is_alone_at_a_gateway_that_only_leases_loses_nothing_by_being_late(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=replace(SMALL_EXCHANGE, first_open_ms=500)) as scene:
        scene.log.left_ms = 500
        service = _service(scene, is_lease_only=True)
        cohort_sessions = _cohort_sessions(service)
        scene.join(0, gateway=service, prepare=lambda member: setattr(member.worker, "scale", 4.0))
        late = await _done(scene, service, LIGHTS[0])
        leased_by = len(cohort_sessions)
        await until(lambda: len(cohort_sessions) > leased_by + 1)  # all was due, and it began again
        word = await service.take(pack(late))
        assert word.fate == ReturnFate.HELD, word.reason
        await until(lambda: _word(service, late.name).fate != ReturnFate.HELD)
        assert _word(service, late.name).fate == ReturnFate.TAKEN, _word(service, late.name).reason


CONFIG = PeerConfig(gateway=("127.0.0.1:0",))
REFUSAL = "samples of shards-noise are of many sizes and cannot be handed out: leave --gateway out"


def test_a_gateway_of_images_in_shards_is_refused_in_a_line_before_any_shard_is_got() -> None:
    """It is refused when the peer has met its run: ``peer.joining`` gets the data after that."""
    with pytest.raises(UserError, match=REFUSAL):
        GatewayPlugin().check(CONFIG, manifest_of(PEERS[3], dataset="shards-noise"))


def test_a_gateway_where_several_local_steps_are_audited_is_refused_in_a_line() -> None:
    steps, audited = replace(EXCHANGE, local_steps=4), (RULES,)
    with pytest.raises(UserError, match=r"several local steps are audited.*leave --gateway out"):
        GatewayPlugin().check(CONFIG, manifest_of(PEERS[3], exchange=steps, audits=audited))
    GatewayPlugin().check(PeerConfig(), manifest_of(PEERS[3], exchange=steps, audits=audited))
    GatewayPlugin().check(CONFIG, manifest_of(PEERS[3], audits=audited))
    GatewayPlugin().check(CONFIG, manifest_of(PEERS[3], exchange=steps))
