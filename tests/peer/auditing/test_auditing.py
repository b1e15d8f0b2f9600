"""Audits from what peers bring to what the log says, over a network in memory; what computes says what it is told to."""

import asyncio
import random
from pathlib import Path

import pytest

from exact.residuals import vector_digest
from peer.auditing.auditor import AGAIN_PART
from protocol.auditing import BRING, MAX_WANTED_BYTES, WANTED, AskWanted, Fate, Page, Placed, Wanted
from protocol.encoding import pack, unpack
from protocol.records import Header
from protocol.signing import PublicKey
from protocol.vectors import PAGE_BYTES
from protocol.verdicts import Outcome
from swarm.rpc import Refused
from tests.audit_scene import (
    AUDITORS,
    KEPT_ROUNDS,
    NUM_WEIGHTS,
    OPERATORS,
    A,
    B,
    Peer,
    Said,
    Scene,
    V,
    found,
    good,
    header_of,
    needs,
    run,
    vector,
)

GOOD, UNPAID, DEMOTED, VOID = Outcome.GOOD, Outcome.UNPAID, Outcome.DEMOTED, Outcome.VOID


class Never(random.Random):
    """Looks at no volunteer's work again."""

    def random(self) -> float:
        return 1.0


class Always(random.Random):
    """Looks at all of it."""

    def random(self) -> float:
        return 0.0


async def listed(scene: Scene, header: Header, *peers: Peer) -> int:
    """Have a round with a contribution, and the one after it; tell its peers."""
    round_ = scene.turn(header)
    scene.turn()
    for peer in peers:
        await peer.bringing.listed(round_, header.contribution.digest, peer.claim.digest)
    return round_


async def audited(scene: Scene, auditor: object) -> None:
    """Let an auditor do what waits for it, once."""
    duties = await auditor._duties()  # type: ignore[attr-defined]
    await auditor.do_one(duties)  # type: ignore[attr-defined]


def test_what_is_brought_is_computed_and_found_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        auditor, computing = scene.auditor(AUDITORS[0])
        await listed(scene, header, peer)
        await audited(scene, auditor)
        assert not computing.asked  # nothing was brought
        await peer.bringing.bring_all()
        assert peer.bringing.brought_bytes == 4 * NUM_WEIGHTS
        scene.turn()
        await audited(scene, auditor)
        (verdict,) = scene.waiting
        assert (verdict.outcomes, verdict.by) == ((GOOD,), AUDITORS[0].public_key)
        scene.turn()
        assert scene.reputation.good[A.public_key] == 1
        await audited(scene, auditor)
        assert len(computing.asked) == 1

    run(scenario())


def test_each_member_brings_what_it_has_and_nothing_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A, B], steps=2, residual=True)
        means = [" mean 0", " mean 1"]
        one = scene.peer(A, header, names=[*means, f" residual {A.public_key.hex()[:8]}"])
        other = scene.peer(B, header, names=[*means, f" residual {B.public_key.hex()[:8]}"])
        await listed(scene, header, one, other)
        await one.bringing.bring_all()
        await other.bringing.bring_all()
        assert (one.bringing.brought_bytes, other.bringing.brought_bytes) == (3 * 4 * NUM_WEIGHTS, 4 * NUM_WEIGHTS)
        auditor, computing = scene.auditor(AUDITORS[0])
        await audited(scene, auditor)
        assert [verdict.outcomes for verdict in scene.waiting] == [(GOOD, GOOD)]
        assert len(computing.asked) == 1

    run(scenario())


def test_own_vectors_are_asked_for_only_where_a_step_does_not_fit(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A, B], steps=2)
        peers = [
            scene.peer(each, header, names=[" mean 0", " mean 1", *(f" own {each.public_key.hex()[:8]} {step}" for step in range(2))])
            for each in (A, B)
        ]
        await listed(scene, header, *peers)
        for peer in peers:
            await peer.bringing.bring_all()
        before = sum(peer.bringing.brought_bytes for peer in peers)
        auditor, computing = scene.auditor(AUDITORS[0], needs(1), found(GOOD, VOID))
        working = asyncio.create_task(audited(scene, auditor))
        await working
        assert not scene.waiting  # the own vectors of step 1 are not there yet
        for peer in peers:
            await peer.bringing.bring_all()
        assert sum(peer.bringing.brought_bytes for peer in peers) - before == 2 * 4 * NUM_WEIGHTS
        scene.turn()
        computing.answers = [needs(1), found(GOOD, VOID)]
        await audited(scene, auditor)
        assert [verdict.outcomes for verdict in scene.waiting] == [(GOOD, VOID)]

    run(scenario())


def test_what_nobody_brings_is_withheld_once_its_time_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A])
        scene.endpoint(A)
        await listed(scene, header)
        auditor, computing = scene.auditor(AUDITORS[0], found(DEMOTED, said=Said.LACKS))
        for _ in range(KEPT_ROUNDS - 1):
            await audited(scene, auditor)
            assert not computing.asked
            scene.turn()
        await audited(scene, auditor)
        assert [verdict.outcomes for verdict in scene.waiting] == [(DEMOTED,)]
        scene.turn()
        assert not scene.reputation.is_proven(A.public_key)

    run(scenario())


def test_before_anything_is_called_withheld_whoever_handed_it_in_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header)
        for _ in range(KEPT_ROUNDS - 1):
            scene.turn()
        digest, by_claim = header.contribution.digest, peer.vectors
        by_claim.keep(3, digest, vector_digest(vector(" mean 0")), vector(" mean 0"))
        from swarm.vectors import serve_vectors

        await serve_vectors(scene.endpoint(A), by_claim)
        auditor, _ = scene.auditor(AUDITORS[0], good())
        await audited(scene, auditor)
        assert [verdict.outcomes for verdict in scene.waiting] == [(GOOD,)]

    run(scenario())


def test_where_the_log_has_no_room_nobody_is_blamed(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        scene.max_bytes = 4 * NUM_WEIGHTS - 1
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        auditor, computing = scene.auditor(AUDITORS[0], found(DEMOTED, said=Said.LACKS))
        for _ in range(KEPT_ROUNDS + 2):
            scene.turn()
            await audited(scene, auditor)
        assert not scene.waiting
        assert not computing.asked

    run(scenario())


def test_what_cannot_be_judged_is_not_said_to_be_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        from peer.auditing.messages import Found

        auditor, _ = scene.auditor(AUDITORS[0], Found(Said.NOTHING, (), 0, "saturated", 1))
        await audited(scene, auditor)
        assert not scene.waiting

    run(scenario())


def test_a_volunteer_computes_and_the_named_auditor_takes_it_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        volunteer, theirs = scene.auditor(V)
        named, ours = scene.auditor(AUDITORS[0], rng=Never())
        await audited(scene, volunteer)  # it is there
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        await audited(scene, named)
        assert not scene.waiting  # it is left to the volunteer
        await audited(scene, volunteer)
        await audited(scene, named)
        (verdict,) = scene.waiting
        assert (verdict.auditor, verdict.by) == (AUDITORS[0].public_key, V.public_key)
        assert (len(theirs.asked), len(ours.asked), named.taken_over) == (1, 0, 1)

    run(scenario())


def test_a_volunteer_that_says_yes_to_all_is_found_out_and_not_believed_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        volunteer, _ = scene.auditor(V)  # says that all is good
        named, ours = scene.auditor(AUDITORS[0], found(VOID), rng=Always())
        await audited(scene, volunteer)
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        await audited(scene, named)  # hands the contribution out
        await audited(scene, volunteer)
        assert [verdict.outcomes for verdict in scene.waiting] == [(VOID,)]
        assert len(ours.asked) == 1

    run(scenario())


def test_a_volunteer_that_accuses_takes_nothing_from_anybody(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        volunteer, _ = scene.auditor(V, found(VOID))
        named, ours = scene.auditor(AUDITORS[0], rng=Never())
        await audited(scene, volunteer)
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        await audited(scene, named)
        await audited(scene, volunteer)
        await audited(scene, named)
        assert [(verdict.outcomes, verdict.by) for verdict in scene.waiting] == [((GOOD,), AUDITORS[0].public_key)]
        assert len(ours.asked) == 1

    run(scenario())


def test_of_several_operators_a_liar_alone_takes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path, operators=4, auditors=4)
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        drawn = scene.reputation.audits[header.contribution.digest].auditor
        liar = next(each for each in AUDITORS if each.public_key != drawn)
        auditors = {each: scene.auditor(each, *([found(VOID)] if each is liar else [])) for each in AUDITORS}
        await audited(scene, auditors[liar][0])
        assert not scene.waiting  # it is another's to judge
        (first,) = [each for each in AUDITORS if each.public_key == drawn]
        await audited(scene, auditors[first][0])
        scene.turn()
        assert scene.reputation.good[A.public_key] == 1
        assert scene.reputation.is_proven(A.public_key)

    run(scenario())


def test_a_named_auditor_gets_what_was_brought_to_another_operator(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path, operators=4, auditors=4)
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        await peer.bringing.bring_all()
        holders = [operator for operator in OPERATORS if scene.brought[operator.public_key].num_bytes]
        assert len(holders) == 1
        drawn = scene.reputation.audits[header.contribution.digest].auditor
        auditor, _ = scene.auditor(next(each for each in AUDITORS if each.public_key == drawn))
        while auditor._line.operator == holders[0].public_key:
            auditor._line.turn_away("it is the one that has it")
        await audited(scene, auditor)
        assert [verdict.outcomes for verdict in scene.waiting] == [(GOOD,)]

    run(scenario())


def test_bringing_goes_on_after_a_restart_and_ends_when_nothing_is_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A])
        peer = scene.peer(A, header, names=[" mean 0"])
        await listed(scene, header, peer)
        bringing = peer.again()
        assert bringing.claims == {peer.claim.digest}
        await bringing.bring_all()
        auditor, _ = scene.auditor(AUDITORS[0])
        await audited(scene, auditor)
        for _ in range(25):
            scene.turn()
        await bringing.bring_all()
        assert not bringing.claims
        assert not peer.again().claims

    run(scenario())


@pytest.mark.parametrize("what", ["another's", "a false vector", "a short page", "from the middle", "what nobody asked for"])
def test_what_strangers_and_liars_bring_is_refused(tmp_path: Path, what: str) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.open()
        header = header_of([A])
        await listed(scene, header)
        who = B if what == "another's" else A
        mean = vector(" mean 0").tobytes()
        digest, data, first = vector_digest(vector(" mean 0")), mean[:PAGE_BYTES], 0
        if what == "a short page":
            data = data[:-4]
        if what == "from the middle":
            first, data = PAGE_BYTES, mean[PAGE_BYTES:]
        if what == "what nobody asked for":
            digest = vector_digest(vector("other"))
        call = scene.endpoint(who).call
        operator = PublicKey(OPERATORS[0].public_key)
        page = Page(header.contribution.digest, digest, first, data)
        if what == "what nobody asked for":
            assert await call(operator, BRING, pack(page), timeout_s=5) == b""
        elif what == "a false vector":
            await call(operator, BRING, pack(page), timeout_s=5)
            last = Page(header.contribution.digest, digest, PAGE_BYTES, bytes(len(mean) - PAGE_BYTES))
            with pytest.raises(Refused, match="another vector"):
                await call(operator, BRING, pack(last), timeout_s=5)
        else:
            with pytest.raises(Refused):
                await call(operator, BRING, pack(page), timeout_s=5)
        (brought,) = scene.brought.values()
        assert brought.num_bytes == 0
        answer = await scene.endpoint(A).call(operator, WANTED, pack(AskWanted((Placed(1, header.contribution.digest),))), timeout_s=5)
        (wanted,) = unpack(Wanted, answer, max_bytes=MAX_WANTED_BYTES).answers
        assert (wanted.fate, wanted.vectors) == (Fate.BRING, (vector_digest(vector(" mean 0")),))

    run(scenario())


def test_a_quarter_of_what_volunteers_find_good_is_computed_again() -> None:
    assert AGAIN_PART == 0.25
