"""What auditors are told that waits for them: whom it waits for, what comes first, and what nobody can judge stands in no other's way."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.features.audits import assignments
from manta_swarm.aggregator.features.audits.assignments import AssignmentsService
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.auditing import (
    ASSIGNMENTS,
    MAX_ASSIGNMENTS,
    MAX_ASSIGNMENTS_BYTES,
    NEED,
    AskAssignments,
    Assignment,
    Assignments,
    Need,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.protocol.verdicts import Outcome, Verdict
from tests.audit_scene import AUDITORS, KEPT_ROUNDS, OPERATORS, A, B, C, Scene, V, header_of
from tests.protocol.record_samples import RUN


async def asked(scene: Scene, auditor: Identity) -> list[Assignment]:
    """Return what an auditor is told."""
    request = pack(AskAssignments(scene.reputation.round))
    answer = await scene.endpoint(auditor).call(PublicKey(OPERATORS[0].public_key), ASSIGNMENTS, request, timeout_s=20, large_answer=True)
    return list(unpack(Assignments, answer, max_bytes=MAX_ASSIGNMENTS_BYTES).assignments)


def service_of(scene: Scene) -> AssignmentsService:
    return scene.services[OPERATORS[0].public_key]


def rounds(scene: Scene, count: int) -> list[Header]:
    """Commit so many rounds with a contribution each, and one without."""
    made = [header_of([A], name=str(number)) for number in range(count)]
    for header in made:
        scene.turn(header)
    scene.turn()
    return made


def accuse(scene: Scene, header: Header, auditor: Identity, outcome: Outcome = Outcome.VOID) -> None:
    """Have an auditor's word stand in the next round."""
    audit = scene.reputation.audits[header.contribution.digest]
    scene.waiting.append(Verdict(RUN, auditor.public_key, audit.round, audit.work.contribution, (int(outcome),), auditor.public_key))


async def test_what_nobody_can_judge_stands_in_no_others_way(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    made = rounds(scene, 3 * MAX_ASSIGNMENTS)
    late: set[bytes] = {header.contribution.digest for header in made[: len(made) + 1 - KEPT_ROUNDS]}
    seen = set[bytes]()
    for _ in range(10):
        told = await asked(scene, AUDITORS[0])
        assert len(told) == MAX_ASSIGNMENTS
        now = [assignment.header.contribution.digest for assignment in told]
        assert set(now[: MAX_ASSIGNMENTS // 2]) <= late  # what can be judged comes first, the oldest of it always
        seen.update(now)
        scene.turn()
        late = {audit.work.contribution for audit in scene.reputation.audits.values() if service_of(scene)._is_late(audit)}
    assert seen >= late


async def test_who_is_accused_comes_first_and_is_shown_to_the_others_who_have_not_judged(tmp_path: Path) -> None:
    scene = Scene(tmp_path, auditors=4)
    await scene.open()
    made = rounds(scene, 4)
    newest = made[-1]
    drawn = scene.reputation.audits[newest.contribution.digest].auditor
    accuser, *others = [each for each in AUDITORS if each.public_key != drawn]
    assert all(newest.contribution.digest != assignment.header.contribution.digest for assignment in await asked(scene, others[0]))
    accuse(scene, newest, accuser)
    scene.turn()
    for each in others:
        first = (await asked(scene, each))[0]
        assert first.header.contribution.digest == newest.contribution.digest
        assert first.volunteer == ()
    assert all(newest.contribution.digest != assignment.header.contribution.digest for assignment in await asked(scene, accuser))


async def test_volunteers_have_places_while_they_ask_and_those_that_have_one_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignments, "MAX_VOLUNTEERS", 2)
    scene = Scene(tmp_path)
    await scene.open()
    scene.turn()
    service = service_of(scene)
    for each in (A, B, C):
        await asked(scene, each)
    assert service.num_volunteers == 2
    for _ in range(2 * assignments.THERE):
        scene.turn()
        for each in (A, B):
            await asked(scene, each)
        assert service._asked.keys() == {A.public_key, B.public_key}
    for _ in range(assignments.THERE):
        scene.turn()
    assert service.num_volunteers == 0
    await asked(scene, V)
    assert service.num_volunteers == 1


async def test_own_vectors_are_asked_for_by_named_auditors_of_steps_that_there_are(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    (header,) = rounds(scene, 1)
    digest = header.contribution.digest
    audit, brought = scene.reputation.audits[digest], scene.brought[OPERATORS[0].public_key]
    assert len(await brought.lacking(audit)) == 1
    operator = PublicKey(OPERATORS[0].public_key)
    for who, what, words in (
        (B, Need(digest, 0), "named auditor"),
        (AUDITORS[0], Need(digest, 1), "has not got"),
        (AUDITORS[0], Need(bytes(32), 0), "not audited"),
    ):
        with pytest.raises(Refused, match=words):
            await scene.endpoint(who).call(operator, NEED, pack(what), timeout_s=20)
    assert await scene.endpoint(AUDITORS[0]).call(operator, NEED, pack(Need(digest, 0)), timeout_s=20) == b""
    assert len(await brought.lacking(audit)) == 2


async def test_a_drawn_auditor_that_never_answers_leaves_nothing_behind(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    scene.turn()
    await asked(scene, V)
    made = rounds(scene, 3)
    brought, service = scene.brought[OPERATORS[0].public_key], service_of(scene)
    for header in made:
        digest = header.contribution.digest
        brought._here.setdefault(digest, set()).update(step.mean for step in header.contribution.open().steps)
        service._left[digest] = assignments._Left(V.public_key, 100)
    assert (await asked(scene, AUDITORS[0]))[0].is_here
    while scene.reputation.audits:
        scene.turn()
        await brought.committed()
    assert not service._left
    assert not brought._opened
    assert not brought._vectors
