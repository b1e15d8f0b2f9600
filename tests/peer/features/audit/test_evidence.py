"""What audits may ask of a peer's work: kept while it may be asked for, brought when it is, and gone when it is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.network import timeouts
from manta_swarm.peer.store import VECTORS
from manta_swarm.protocol.auditing import VECTOR, WANTED, AskVector, vectors_of
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.exchange import MAX_AGE, Exchange
from manta_swarm.protocol.light import ReturnFate
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.rounds import PeerStage
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.protocol.verdicts import AuditRules
from tests.memory_log import MICROBATCH, PEERS, SMALL_EXCHANGE, until
from tests.peer.cohort.test_cohort_rounds import TOKEN, met, num_claims, until_together
from tests.peer.contexts import never
from tests.peer.features.gateway.test_gateway_rounds import LIGHTS, _contribute, _service, _wait_with_microbatches, _word
from tests.peer.scene import Member, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

STEPS = 3
DENSE = SMALL_EXCHANGE
SPARSE = replace(SMALL_EXCHANGE, codec="topk-256-4", first_min_exponent=-24)
THIN = replace(SPARSE, local_steps=STEPS, max_claim_samples=STEPS * MICROBATCH, weight_cap=STEPS * MICROBATCH)
AUDITOR = Identity(b"\x78" * 32)
RULES = AuditRules((AUDITOR.public_key,), proven_after=2, audit_percent=100, newcomer_percent=100, kept_rounds=5, pending_rounds=9)
EVERY = pytest.mark.parametrize("exchange", [DENSE, THIN], ids=["dense", "thin"])


def kept_by(scene: Scene, member: Member) -> dict[str, set[str]]:
    """Return the names of the vectors that a peer keeps, by the commit that they are kept by."""
    found = dict[str, set[str]]()
    for path in (member.store.run_path(scene.log.signed.run) / VECTORS).glob("*/*/*"):
        found.setdefault(path.parent.name, set()).add(path.name)
    return found


async def handed_in(scene: Scene, member: Member) -> Header:
    """Return what a peer handed in for the open round, alone."""

    def found() -> list[Header]:
        headers = [scene.log.handed[each][0] for each in scene.log.in_round()]
        return [header for header in headers if header.contribution.open().founder == member.key]

    await until(lambda: found() and member.stage is PeerStage.PROMISED)
    return found()[0]


async def rounds(scene: Scene, member: Member, count: int) -> list[Header]:
    """Have so many rounds of a peer's; return what it handed in."""
    found = []
    for _ in range(count):
        found.append(await handed_in(scene, member))
        scene.log.commit()
        await member.reaches(scene.log.ledger.round)
    return found


def wanted_of(header: Header) -> tuple[bytes, ...]:
    """Return what audits ask of a contribution at first."""
    return vectors_of(header.contribution.open(), tuple(signed.open() for signed in header.claims))


def is_brought(scene: Scene, header: Header) -> bool:
    """Whether an operator has all that is asked for of a contribution."""
    return any(all(one.folder.has(header.contribution.digest, each) for each in wanted_of(header)) for one in scene.log.brought.values())


@EVERY
async def test_what_is_drawn_is_brought_and_stays_and_a_step_that_does_not_fit_takes_the_own_vectors(
    tmp_path: Path, exchange: Exchange
) -> None:
    async with scene_in(tmp_path, exchange=exchange, audits=(RULES,)) as scene:
        member = scene.join(0)
        first, header, _ = await rounds(scene, member, 3)
        await until(lambda: is_brought(scene, first) and is_brought(scene, header))
        contribution, claims = header.contribution.open(), tuple(signed.open() for signed in header.claims)
        assert bool(claims[0].residual) == (exchange is not DENSE)
        (brought,) = scene.log.brought.values()
        brought.need(header.contribution.digest, 0)
        await rounds(scene, member, 1)
        own = claims[0].steps[0].vector
        await until(lambda: brought.folder.has(header.contribution.digest, own))
        assert own.hex() in kept_by(scene, member)[contribution.base.hex()]
        assert member.status.audited >= 2
        assert member.status.brought_bytes >= 2 * 4 * scene.log.num_weights


async def test_what_is_not_drawn_goes_with_its_beacon(tmp_path: Path) -> None:
    rules = replace(RULES, proven=(Identity(bytes([11]) * 32).public_key,), audit_percent=1, kept_rounds=60, pending_rounds=120)
    async with scene_in(tmp_path, exchange=THIN, audits=(rules,)) as scene:
        member = scene.join(0)
        headers = await rounds(scene, member, 8)
        audits = scene.log.ledger.reputation.audits
        old = {header.contribution.open().base.hex(): header.contribution.digest in audits for header in headers[2:-1]}
        await until(
            lambda: {base for base in old if base in kept_by(scene, member)} == {base for base, is_drawn in old.items() if is_drawn}
        )
        assert not all(old.values())


@EVERY
async def test_members_of_a_cohort_keep_its_means_and_bring_each_what_the_others_have_not(tmp_path: Path, exchange: Exchange) -> None:
    async with scene_in(tmp_path, exchange=exchange, audits=(RULES,)) as scene:
        scene.log.left_ms = 10_000
        members = [scene.join(number, token=TOKEN) for number in range(2)]
        await met(*members)
        await until_together(scene, 2)
        (header,) = (scene.log.handed[each][0] for each in scene.log.in_round())
        base, means = header.contribution.open().base.hex(), [step.mean.hex() for step in header.contribution.open().steps]
        for _ in range(2):
            scene.log.commit()
            await until(lambda: num_claims(scene) >= 2)
        await until(lambda: is_brought(scene, header))
        (brought,) = scene.log.brought.values()
        for step in range(exchange.local_steps):
            brought.need(header.contribution.digest, step)
        scene.log.commit()
        own = [step.vector for signed in header.claims for step in signed.open().steps]
        await until(lambda: all(brought.folder.has(header.contribution.digest, each) for each in own))
        for member in members:
            assert set(means) <= kept_by(scene, member)[base]


@EVERY
async def test_a_peer_that_was_killed_before_the_beacon_brings_it_when_it_is_here_again(tmp_path: Path, exchange: Exchange) -> None:
    rules = replace(RULES, kept_rounds=20, pending_rounds=30)
    async with scene_in(tmp_path, exchange=exchange, audits=(rules,)) as scene:
        member = scene.join(0)
        header = await handed_in(scene, member)
        await member.stops()  # as kill -9 does
        for seed in range(MAX_AGE + 6):  # longer than the log shows what was counted
            scene.log.commit()
            scene.log.give(Identity(bytes([12]) * 32), seed=seed)
        again = scene.join(0)
        await again.reaches(scene.log.ledger.round)
        await until(lambda: is_brought(scene, header))


@pytest.mark.parametrize("exchange", [DENSE, SPARSE], ids=["dense", "sparse"])
async def test_a_gateway_keeps_and_brings_what_its_light_contributors_learnt(tmp_path: Path, exchange: Exchange) -> None:
    async with scene_in(tmp_path, exchange=exchange, audits=(RULES,)) as scene:
        scene.log.left_ms = 600_000  # no clock decides here
        service = _service(scene)
        gateway = scene.join(0, gateway=service, prepare=_wait_with_microbatches)
        headers = []
        for round_ in range(1, 4):
            name = await _contribute(scene, service, LIGHTS[0])
            gateway.worker.may_go_on.set()
            await until(lambda name=name: _word(service, name).fate != ReturnFate.HELD)
            assert _word(service, name).fate == ReturnFate.TAKEN, _word(service, name).reason
            headers.append(scene.log.headers[-1])
            _wait_with_microbatches(gateway)
            scene.log.commit()
            await gateway.reaches(round_)
        header = headers[1]
        await until(lambda: is_brought(scene, header))
        (brought,) = scene.log.brought.values()
        brought.need(header.contribution.digest, 0)
        scene.log.give(PEERS[3], seed=1)
        scene.log.commit()
        own = [signed.open().steps[0].vector for signed in header.claims]
        assert len(own) == 2
        await until(lambda: all(brought.folder.has(header.contribution.digest, each) for each in own))


async def test_what_no_round_has_goes_once_none_can_have_it(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN, audits=(RULES,)) as scene:
        member, other = scene.join(0), scene.join(1)
        header = await handed_in(scene, member)
        base = header.contribution.open().base.hex()
        scene.log.loses.add(header.contribution.digest)
        await handed_in(scene, other)
        assert kept_by(scene, member)[base]
        for round_ in range(1, MAX_AGE + 4):
            scene.log.commit()
            await member.reaches(round_)
            await handed_in(scene, member)
        await until(lambda: base not in kept_by(scene, member))


async def test_an_auditor_gets_vectors_from_the_peer_itself(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN, audits=(RULES,)) as scene:
        member, auditor = scene.join(0), scene.network.endpoint(PublicKey(AUDITOR.public_key))
        header = await handed_in(scene, member)
        contribution = header.contribution.open()
        for digest in wanted_of(header):
            page = await auditor.call(member.key, VECTOR, pack(AskVector(contribution.base, digest, 0)), timeout_s=5)
            assert len(page) == 4 * scene.log.num_weights


async def test_an_open_run_keeps_nothing(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN) as scene:
        member = scene.join(0)
        await rounds(scene, member, 2)
        assert not (member.store.run_path(scene.log.signed.run) / VECTORS).exists()
        assert not (member.store.run_path(scene.log.signed.run) / "open").exists()


async def test_a_disk_without_room_stops_no_training_and_its_person_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "manta_swarm.peer.features.audit.evidence.most_vectors_bytes", lambda _exchange, _rules, num_weights: 4 * num_weights
    )
    async with scene_in(tmp_path, exchange=THIN, audits=(RULES,)) as scene:
        member = scene.join(0)
        await rounds(scene, member, 3)
        assert member.status.rounds_counted == 3
    assert capsys.readouterr().out.count("no room for what audits may ask of this peer's work") == 1


async def test_a_peer_whose_run_is_over_has_brought_what_is_wanted(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN, audits=(RULES,), num_rounds=3) as scene:
        member = scene.join(0)
        headers = await rounds(scene, member, 3)
        await member.ends()
        assert all(is_brought(scene, header) for header in headers[:-1])  # the last round has no beacon


async def test_who_leaves_stays_until_audits_could_ask_for_what_it_handed_in_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timeouts, "BROUGHT_S", (60.0, 60.0))
    said = []

    def has_said(words: str) -> bool:
        said.append(capsys.readouterr().out)
        return words in "".join(said)

    async with scene_in(tmp_path, exchange=THIN, audits=(RULES,)) as scene:
        member, other = scene.join(0), scene.join(1)
        header = await handed_in(scene, member)
        member.loop.leave()
        await until(lambda: has_said("it stays until audits could ask"))
        for round_ in (1, 2):
            assert not member.task.done()
            await handed_in(scene, other)
            scene.log.commit()
            await other.reaches(round_)
        await member.ends()
        assert is_brought(scene, header)
    assert not has_said("audits may still ask")


@pytest.mark.parametrize("is_away", [True, False])
async def test_who_leaves_is_not_held_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_away: bool) -> None:
    monkeypatch.setattr(timeouts, "BROUGHT_S", (0.2, 0.2))
    monkeypatch.setattr(timeouts, "LAST_ROUND_S", 0.1)

    async with scene_in(tmp_path, exchange=THIN, audits=(RULES,)) as scene:
        member = scene.join(0)
        await rounds(scene, member, 2)
        await handed_in(scene, member)
        if is_away:
            scene.log.go_away()
            await until(lambda: "cannot be reached" in member.status.waiting_for)
        else:
            await scene.log.endpoint.serve(WANTED, never)
        await member.leaves()
