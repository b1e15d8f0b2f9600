"""A gateway's service: what is leased, what comes back, and everything that is wrong with it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import TINY, Architecture
from manta_swarm.automl.training.light import covered_weights
from manta_swarm.automl.training.schedule import bound_macs
from manta_swarm.codec.residuals import given, near_mean, vector_digest
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.gateway import service as gateway_service
from manta_swarm.peer.features.gateway.cohort_session import TOO_LARGE
from manta_swarm.peer.features.gateway.work import LentResidual
from manta_swarm.peer.features.light.work import LeaseWork
from manta_swarm.peer.features.light.work_gate import LeaseOver, WorkGate
from manta_swarm.peer.submit.making import Residual
from manta_swarm.peer.train.work import Vector
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import RemoteFault, SignatureError
from manta_swarm.protocol.light import LightReturn, LightWord, ReturnFate, Welcome
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.audited import RULES
from tests.memory_log import MICROBATCH, SMALL_EXCHANGE
from tests.peer.gateways import GATEWAY, LEFT_MS, LIGHTS, Gateway, Light, gateway_with, gathered_by, own_claim

STEPS = 2
RUN = sha256(b"run")
MANY_STEPS = {"exchange": replace(SMALL_EXCHANGE, local_steps=STEPS, codec="topk-256-4", residual_percent=50)}


def word_on(gateway: Gateway, done: LeaseWork) -> LightWord:
    """Return what a gateway says of what came back."""
    word = gateway.service.word(done.back.name)
    assert word is not None
    return word


def _unsigned(claim: Signed[Claim]) -> Claim:
    return unpack(Claim, claim.payload, max_bytes=4096)


@pytest.mark.parametrize("changes", [{}, MANY_STEPS], ids=["one step", "local steps"])
async def test_what_light_contributors_learnt_is_averaged_with_the_gateways_own_and_they_hear_of_the_inclusion_promise(
    changes: dict[str, object],
) -> None:
    async with gateway_with(**changes) as gateway:
        cohort_session = await gateway.convene()
        assert cohort_session.is_alone
        done = [await Light(gateway, number).contribute(microbatch_ms=10) for number in range(2)]
        assert not cohort_session.is_alone
        gathered = await gathered_by(gateway, cohort_session)
        assert list(gathered.keys) == sorted([GATEWAY.public_key, *(light.public_key for light in LIGHTS[:2])])
        by_claim = {each.back.claim.digest: each for each in done}
        vectors = [(await gathered.without(frozenset(gathered.keys) - {key})).mean for key in gathered.keys]
        for signed, vector in zip(gathered.claims, vectors, strict=True):
            if signed.digest in by_claim:
                assert vector_digest(vector) == signed.open().given
                asked = gateway.training_spec.plan.architectures(1, "here")
                assert {asked[place] for place, microbatches in enumerate(signed.open().work) if microbatches} == {
                    gateway.training_spec.plan.space.smallest()
                }
        weights = [signed.open().microbatches * MICROBATCH if signed.digest in by_claim else MICROBATCH for signed in gathered.claims]
        assert (gathered.mean == near_mean(vectors, weights)).all()
        await cohort_session.tell(gateway.accepted(*gathered.claims))
        for each in done:
            word = word_on(gateway, each)
            assert word.fate == ReturnFate.TAKEN
            assert each.back.claim.digest in word.contribution[0].open().claims
        assert gateway.service.taken == 2


async def test_a_claim_is_of_the_leased_microbatches_and_the_learnt_vector_is_what_a_full_peer_would_learn(gateway: Gateway) -> None:
    await gateway.convene()
    light = Light(gateway, 0)
    lease = await light.lease(microbatch_ms=10)
    assert lease.architecture == gateway.training_spec.plan.space.smallest().text
    assert lease.microbatches_a_step == 2  # as many as a claim may have
    weights = gateway.service.blob(lease.weights)
    assert weights == covered_weights(
        gateway.state.parameters.numpy(), gateway.training_spec.plan.space, gateway.training_spec.plan.space.smallest()
    )
    done = light.do(lease)
    claim = done.back.claim.open()
    assert (claim.key, claim.founder, claim.cohort) == (LIGHTS[0].public_key, GATEWAY.public_key, "here")
    assert (sum(claim.work), done.back.counts) == (2, (2,))


async def test_the_same_bytes_twice_have_the_same_answer_and_another_return_of_the_lease_is_refused(gateway: Gateway) -> None:
    cohort_session = await gateway.convene()
    light = Light(gateway, 0)
    done = await light.contribute()
    assert (await light.give_back(done)).fate == ReturnFate.HELD
    other = replace(done, back=resigned(done.back, LIGHTS[0], microbatch_ms=1234))
    word = await light.give_back(other)
    assert (word.fate, word.reason) == (ReturnFate.LOST, "this lease came back before, as something else")
    assert cohort_session.members == tuple(sorted([GATEWAY.public_key, LIGHTS[0].public_key]))
    gathered = await gathered_by(gateway, cohort_session)
    await cohort_session.tell(gateway.accepted(*gathered.claims))
    assert (await light.give_back(done)).fate == ReturnFate.TAKEN


async def test_a_gateway_that_only_leases_waits_until_all_is_due_though_its_own_work_is_over() -> None:
    async with gateway_with(is_lease_only=True) as gateway:
        cohort_session = await gateway.convene(left_ms=2_000)
        cohort_session.work_over()
        assert not cohort_session.is_alone
        await Light(gateway, 0).contribute()
        claim, own = own_claim(gateway, cohort_session)
        gathering = asyncio.create_task(cohort_session.gather(claim, own, MICROBATCH))
        await Light(gateway, 1).contribute()
        assert not gathering.done()
        gateway.now_ms += 2_000
        gathered = await gathering
        assert gathered is not None
        assert set(gathered.keys) == {GATEWAY.public_key, LIGHTS[0].public_key, LIGHTS[1].public_key}
        assert (await Light(gateway, 2).ask()).reason.startswith("the round's work is over here")


def resigned(back: LightReturn, identity: Identity, **changes: object) -> LightReturn:
    """Return a return whose claim is changed, and signed again."""
    claim = replace(_unsigned(back.claim), **changes)  # type: ignore[arg-type]
    return replace(back, claim=Signed.sign(claim, identity))


def with_step(back: LightReturn, *, work: tuple[int, ...] | None = None, **changes: Any) -> LightReturn:
    """Return a return whose claim says something else of its one step."""
    claim = _unsigned(back.claim)
    return resigned(back, LIGHTS[0], steps=(replace(claim.steps[0], **changes),), work=work or claim.work)


Spoil = Callable[[LightReturn], LightReturn]
WRONG: dict[str, tuple[Spoil, str]] = {
    "another founder": (lambda back: resigned(back, LIGHTS[0], founder=LIGHTS[0].public_key), "not the lease's"),
    "another cohort": (lambda back: resigned(back, LIGHTS[0], cohort="there"), "not the lease's"),
    "another round": (lambda back: resigned(back, LIGHTS[0], round=2), "not the lease's"),
    "a residual that nobody left": (lambda back: resigned(back, LIGHTS[0], residual=sha256(b"r")), "not the lease's"),
    "more microbatches": (lambda back: with_step(back, first=0, last=8, every=1, work=(9, 0, 0, 0)), "other microbatches"),
    "as many microbatches as can be said": (
        lambda back: with_step(back, first=0, last=2**34 - 1, every=1, work=(2**32,) * 4),
        "other microbatches",
    ),
    "other indices": (lambda back: with_step(back, first=77, last=77), "other indices"),
    "another vector of its step": (lambda back: with_step(back, vector=sha256(b"v")), "not what the claim says"),
    "microbatches of another architecture": (
        lambda back: resigned(back, LIGHTS[0], work=_unsigned(back.claim).work[1:] + _unsigned(back.claim).work[:1]),
        "other microbatches",
    ),
    "more microbatches than it claims": (lambda back: replace(back, counts=(2,)), "more microbatches"),
    "more microbatches than were leased": (lambda back: replace(back, counts=(3,)), "more microbatches, or other steps"),
    "microbatches of more steps": (lambda back: replace(back, counts=(1, 1)), "more microbatches, or other steps"),
    "another vector than it gives": (lambda back: resigned(back, LIGHTS[0], given=sha256(b"v")), "not what the claim says"),
    "another vector, twice": (lambda back: with_step(resigned(back, LIGHTS[0], given=RUN), vector=RUN), "not what the claim says"),
    "nothing that it gives": (lambda back: resigned(back, LIGHTS[0], given=b""), "not what the claim says"),
    "a body of other values": (lambda back: replace(back, body=back.body[:-2] + b"\x01\x00"), "not what the claim says"),
    "a body that is cut": (lambda back: replace(back, body=back.body[:-1]), "bytes are no body"),
    "an exponent for values that are none": (lambda back: replace(back, body=b"\xff" + back.body[1:]), "beyond the window"),
    "another key's": (lambda back: resigned(back, LIGHTS[3], key=LIGHTS[3].public_key), "no lease"),
    "another base's": (lambda back: resigned(back, LIGHTS[0], base=sha256(b"base")), "no lease"),
}


async def test_what_is_wrong_in_form_is_refused_with_its_reason_and_the_lease_can_still_come_back(gateway: Gateway) -> None:
    cohort_session = await gateway.convene()
    light = Light(gateway, 0)
    done = light.do(await light.lease())
    for what, (spoil, reason) in WRONG.items():
        word = await light.give_back(replace(done, back=spoil(done.back)))
        assert word.fate == ReturnFate.LOST, what
        assert reason in word.reason, what
        assert cohort_session.members == (GATEWAY.public_key,), what
    assert (await light.give_back(done)).fate == ReturnFate.HELD


async def test_what_is_not_signed_or_not_a_return_at_all_is_a_fault(gateway: Gateway) -> None:
    await gateway.convene()
    light = Light(gateway, 0)
    done = light.do(await light.lease())
    forged = Signed(Claim, done.back.claim.payload, bytes(64))
    with pytest.raises(SignatureError):
        await light.give_back(replace(done, back=replace(done.back, claim=forged)))
    for data in (b"", b"\xff" * 100, pack(done.back)[:-1], pack(done.back) + b"\0"):
        with pytest.raises(RemoteFault):
            await gateway.service.take(data)


async def test_what_comes_late_is_taken_until_the_gateway_hands_in_and_refused_from_then_on(gateway: Gateway) -> None:
    cohort_session = await gateway.convene()
    lights = [Light(gateway, number) for number in range(2)]
    done = [light.do(await light.lease()) for light in lights]
    gateway.now_ms = LEFT_MS + 1
    assert cohort_session.is_alone
    assert (await lights[0].give_back(done[0])).fate == ReturnFate.HELD
    assert not cohort_session.is_alone
    claim, own = own_claim(gateway, cohort_session)
    assert await cohort_session.gather(claim, own, MICROBATCH) is not None
    word = await lights[1].give_back(done[1])
    assert (word.fate, word.reason) == (ReturnFate.LOST, "too late: the gateway hands in already")
    await gateway.convene(gateway.after(1))
    assert "too late" in (await lights[1].give_back(done[1])).reason
    assert (await lights[1].lease()).base == gateway.base.commit


@pytest.mark.parametrize("steps", [1, STEPS])
async def test_a_lease_for_which_time_runs_out_comes_back_with_the_microbatches_that_were_done(steps: int) -> None:
    async with gateway_with(
        exchange=replace(SMALL_EXCHANGE, local_steps=steps, max_claim_samples=8 * MICROBATCH, weight_cap=8 * MICROBATCH)
    ) as gateway:
        cohort_session = await gateway.convene()
        light = Light(gateway, 0)
        lease = await light.lease(microbatch_ms=10)
        assert lease.microbatches_a_step > 1
        light.work._microbatches_ms.extend([1e6] * 99)  # it has become slow
        done = light.do(lease, until_s=time.monotonic() + 600)
        assert done.back.counts == (1,) * steps
        assert done.samples == steps * MICROBATCH
        assert (await light.give_back(done)).fate == ReturnFate.HELD
        gathered = await gathered_by(gateway, cohort_session)
        assert done.back.claim.digest in {signed.digest for signed in gathered.claims}
        if steps > 1:
            with pytest.raises(LeaseOver, match="before all local steps were done"):
                light.do(lease, until_s=0.0)


async def test_where_the_gateway_begins_the_same_work_again_nothing_that_is_leased_or_back_is_lost(gateway: Gateway) -> None:
    cohort_session = await gateway.convene(left_ms=8_000)
    lights = [Light(gateway, number) for number in range(3)]
    back = await lights[0].contribute()
    slow = lights[1].do(await lights[1].lease())
    cohort_session.nothing_learnt()  # it was paused before its own microbatch
    assert "over here" in (await lights[2].ask()).reason
    gateway.now_ms = 9_000
    again = await gateway.convene(left_ms=8_000)
    assert (await lights[1].give_back(slow)).fate == ReturnFate.HELD
    await lights[2].contribute()
    gathered = await gathered_by(gateway, again)
    assert set(gathered.keys) == {GATEWAY.public_key, *(light.identity.public_key for light in lights)}
    await again.tell(gateway.accepted(*gathered.claims))
    assert word_on(gateway, back).fate == ReturnFate.TAKEN


async def test_where_the_same_base_has_another_residual_what_was_leased_for_it_before_is_void(gateway: Gateway) -> None:
    await gateway.convene()
    light = Light(gateway, 0)
    done = light.do(await light.lease())
    await gateway.convene(lent=LentResidual(Residual.of(np.ones(gateway.state.parameters.numel(), np.float32)), sha256(b"contribution")))
    assert (await light.give_back(done)).fate == ReturnFate.LOST


async def test_a_gateway_waits_for_leases_that_are_out_and_no_longer_than_they_are_good(gateway: Gateway) -> None:
    cohort_session = await gateway.convene()
    light = Light(gateway, 0)
    lease = await light.lease()
    cohort_session.work_over()
    assert not cohort_session.is_alone
    assert "over here" in (await Light(gateway, 1).ask()).reason
    assert (await light.give_back(light.do(lease))).fate == ReturnFate.HELD
    claim, own = own_claim(gateway, cohort_session)
    await Light(gateway, 1).ask()
    gateway.now_ms = LEFT_MS + 1
    gathered = await cohort_session.gather(claim, own, MICROBATCH)
    assert gathered is not None
    assert len(gathered.claims) == 2


async def test_whose_vector_is_much_larger_than_the_others_is_left_out_and_told_so(gateway: Gateway) -> None:
    cohort_session = await gateway.convene()
    done = [await Light(gateway, number).contribute() for number in range(3)]
    gift = cohort_session._gifts[LIGHTS[1].public_key]
    cohort_session._gifts[LIGHTS[1].public_key] = replace(gift, vector=gift.vector * 1000)
    gathered = await gathered_by(gateway, cohort_session)
    assert LIGHTS[1].public_key not in gathered.keys
    word = word_on(gateway, done[1])
    assert (word.fate, word.reason) == (ReturnFate.LOST, TOO_LARGE)


async def test_whom_the_log_does_not_take_is_told_so_and_all_are_where_it_takes_nothing(gateway: Gateway) -> None:
    for round_, is_taken in ((0, True), (1, False)):
        cohort_session = await gateway.convene(gateway.after(round_))
        done = [await Light(gateway, number).contribute() for number in range(2)]
        gathered = await gathered_by(gateway, cohort_session)
        without = [signed for signed in gathered.claims if signed.digest != done[1].back.claim.digest]
        await cohort_session.tell(gateway.accepted(*without) if is_taken else None)
        assert [word_on(gateway, each).fate for each in done] == (
            [ReturnFate.TAKEN, ReturnFate.LOST] if is_taken else [ReturnFate.LOST, ReturnFate.LOST]
        )


async def test_the_residual_that_the_log_left_to_all_is_named_by_those_it_was_left_to_and_added_for_them() -> None:
    async with gateway_with(**MANY_STEPS) as gateway:
        left = Residual.of(np.full(gateway.state.parameters.numel(), 0.5, np.float32))
        cohort_session = await gateway.convene()
        await Light(gateway, 0).contribute()
        gathered = await gathered_by(gateway, cohort_session)
        accepted = gateway.accepted(*gathered.claims)
        await cohort_session.tell(accepted)
        cohort_session = await gateway.convene(gateway.after(1), lent=LentResidual(left, accepted.contribution.digest))
        done = [await Light(gateway, number).contribute() for number in range(2)]
        assert [each.back.claim.open().residual for each in done] == [left.digest, b""]
        vectors = [cohort_session._gifts[light.public_key].vector for light in LIGHTS[:2]]
        assert vector_digest(vectors[1]) == done[1].back.claim.open().given
        assert vector_digest(vectors[0]) != done[0].back.claim.open().given
        learnt = vectors[0] - np.float32(0.25)  # half of the residual was added
        assert vector_digest(given(learnt, left.values, 50)) == vector_digest(vectors[0])


async def test_what_came_back_is_kept_for_audits_before_it_is_taken() -> None:
    async with gateway_with(exchange=replace(SMALL_EXCHANGE, codec="topk-256-4"), audits=(RULES,)) as gateway:
        kept: list[dict[bytes, Vector]] = []

        class Keeper(Feature):
            """Remembers what is to be kept."""

            async def keep(self, round_: int, base: bytes, vectors: Mapping[bytes, Vector]) -> None:
                assert len(cohort_session._gifts) == len(kept)
                kept.append(dict(vectors))

        gateway.keeper = Keeper()
        left = Residual.of(np.full(gateway.state.parameters.numel(), 0.5, np.float32))
        cohort_session = await gateway.convene()
        await Light(gateway, 0).contribute()
        gathered = await gathered_by(gateway, cohort_session)
        accepted = gateway.accepted(*gathered.claims)
        await cohort_session.tell(accepted)
        cohort_session = await gateway.convene(gateway.after(1), lent=LentResidual(left, accepted.contribution.digest))
        kept.clear()
        done = [await Light(gateway, number).contribute() for number in range(2)]
        for light, vectors in zip(done, kept, strict=True):
            opened = light.back.claim.open()
            assert {vector_digest(vector) for vector in vectors.values()} == vectors.keys() == {opened.steps[0].vector}
            assert (opened.given, opened.residual) == (opened.steps[0].vector, b"")  # it knows the digest of what it gives
            assert vector_digest(cohort_session._gifts[PublicKey(opened.key)].vector) == opened.given


async def test_there_is_nothing_for_light_contributors_where_microbatches_need_the_teacher_or_are_the_largest() -> None:
    async with gateway_with(schedule="shrinking") as gateway:
        distilling = next(phase.first for phase in gateway.training_spec.plan.phases if phase.distils)
        await gateway.convene(gateway.after(distilling - 1))
        assert "learn from the largest network too" in (await Light(gateway, 0).ask()).reason
        await gateway.convene(gateway.after(0))
        assert (await Light(gateway, 0).ask()).lease
    async with gateway_with(algorithm="model-parallel") as gateway:
        roles = [gateway.training_spec.role(round_, "here") for round_ in (1, 2, 3, 4)]
        assert sorted(roles) == [0, 1, 2, 2]
        for round_, role in enumerate(roles):
            await gateway.convene(gateway.after(round_))
            answer = await Light(gateway, 0).ask()
            assert bool(answer.lease) == (role != 0)
            assert answer.lease or "the largest" in answer.reason


async def test_in_model_parallel_the_gateways_cohort_decides_the_architecture_and_all_of_it_is_covered() -> None:
    async with gateway_with(algorithm="model-parallel", **MANY_STEPS) as gateway:
        round_ = next(number for number in range(1, 5) if gateway.training_spec.role(number, "here") == 2)
        cohort_session = await gateway.convene(gateway.after(round_ - 1))
        (architecture,) = gateway.training_spec.plan.architectures(round_, "here")
        light = Light(gateway, 0)
        lease = await light.lease()
        assert lease.architecture == architecture.text
        assert (await light.give_back(light.do(lease))).fate == ReturnFate.HELD
        mask = gateway.training_spec.coverage(round_, "here")
        assert mask is not None
        assert not cohort_session._gifts[LIGHTS[0].public_key].vector[~mask].any()


async def test_a_gateway_knows_whether_light_contributors_are_here(gateway: Gateway) -> None:
    assert not gateway.service.has_contributors
    light = Light(gateway, 0)
    await light.ask()  # before the first base
    assert gateway.service.has_contributors
    gateway.now_ms += 60_001
    assert not gateway.service.has_contributors
    await gateway.convene(left_ms=300_000)
    await light.lease(microbatch_ms=30_000)
    gateway.now_ms += 60_001  # it is at work
    assert gateway.service.has_contributors
    gateway.now_ms += 300_000
    assert not gateway.service.has_contributors
    with pytest.raises(RemoteFault):
        await gateway.service.lease(light.request(run=RUN), "here")
    assert not gateway.service.has_contributors


async def test_where_the_gateways_cohort_is_of_a_lesser_size_there_are_leases_in_every_round() -> None:
    async with gateway_with(algorithm="model-parallel") as gateway:
        bound = bound_macs(TINY, 1)
        for round_ in range(1, 9):
            await gateway.convene(gateway.after(round_ - 1), cohort="here.size-1")
            lease = await Light(gateway, 0).lease()
            assert macs(Architecture.parse(lease.architecture, TINY), TINY) <= bound
        light = Light(gateway, 0)
        done = light.do(lease)
        assert done.back.claim.open().cohort == "here.size-1"
        assert (await light.give_back(done)).fate == ReturnFate.HELD


async def test_requests_that_are_for_others_or_from_the_gateways_own_key_are_faults_and_before_the_first_base_there_is_nothing(
    gateway: Gateway,
) -> None:
    light = Light(gateway, 0)
    assert "newest state" in (await light.ask()).reason
    for request in (light.request(run=sha256(b"run")), light.request(gateway=LIGHTS[1].public_key), b"", light.request()[:-1]):
        with pytest.raises(RemoteFault):
            await gateway.service.lease(request, "here")
    own = Light(gateway, 0)
    own.identity = GATEWAY
    with pytest.raises(RemoteFault, match="own key"):
        await gateway.service.lease(own.request(), "here")
    gateway.service.finish()
    assert (await light.ask()).is_over == 1


async def test_a_gateway_says_who_it_is_and_hands_out_only_what_a_lease_names(gateway: Gateway) -> None:
    welcome = unpack(Welcome, gateway.service.welcome, max_bytes=2**20)
    assert (welcome.gateway, welcome.manifest) == (GATEWAY.public_key, gateway.signed)
    await gateway.convene()
    lease = await Light(gateway, 0).lease()
    assert gateway.service.blob(sha256(b"something else")) is None
    await gateway.convene(gateway.after(1))
    assert gateway.service.blob(lease.samples) is None


async def test_samples_are_held_for_leases_that_are_out_and_for_no_others(gateway: Gateway) -> None:
    await gateway.convene(left_ms=10 * LEFT_MS)
    back, expired, lease = [await Light(gateway, number).lease(microbatch_ms=10) for number in range(3)]
    await Light(gateway, 0).give_back(Light(gateway, 0).do(back))
    gateway.now_ms = 20_000
    assert gateway.service.blob(lease.samples) is not None
    newest = await Light(gateway, 3).lease(microbatch_ms=10)
    held = [gateway.service.blob(each.samples) is not None for each in (back, expired, lease, newest)]
    assert held == [False, False, False, True]
    assert gateway.service.blob(newest.weights) is not None
    assert gateway.service.blob((await Light(gateway, 1).lease()).samples) is not None  # who lost a lease gets another one


async def test_a_lease_whose_samples_cannot_be_read_is_nobodys_fault_and_is_tried_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.convene()

    def broken(*_: object) -> bytes:
        raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(gateway_service, "cut", broken)
        assert "could not make the lease ready" in (await Light(gateway, 0).ask()).reason
    await Light(gateway, 0).contribute()


async def test_a_light_contributor_does_no_lease_that_makes_no_sense(gateway: Gateway) -> None:
    await gateway.convene()
    light = Light(gateway, 0)
    lease = await light.lease()
    weights, samples = gateway.service.blob(lease.weights), gateway.service.blob(lease.samples)
    assert weights is not None
    assert samples is not None
    for wrong in (
        replace(lease, architecture="r32"),
        replace(lease, architecture=gateway.training_spec.plan.space.largest().text + " u6.0:k3e2"),
        replace(lease, microbatches_a_step=3),  # more than a claim may have
        replace(lease, round=101),
    ):
        with pytest.raises(RemoteFault):
            light.work.do(wrong, weights, samples, WorkGate())
    for bad_weights, bad_samples in ((weights[4:], samples), (weights, samples[1:]), (b"\0\0\xc0\x7f" + weights[4:], samples)):
        with pytest.raises(RemoteFault):
            light.work.do(lease, bad_weights, bad_samples, WorkGate())
