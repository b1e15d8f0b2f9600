"""Audits from what was brought to what the log says, over a network in memory; what computes says what it is told to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.vectors import serve_vectors
from manta_swarm.peer.features.audit.auditor import AGAIN_PERCENT, Auditor, Volunteers
from manta_swarm.peer.features.audit.computing import AuditAnswer, AuditAnswerKind
from manta_swarm.protocol.auditing import NEED, VECTOR
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.protocol.verdicts import Outcome
from tests.audit_scene import (
    AUDITORS,
    KEPT_ROUNDS,
    NUM_WEIGHTS,
    OPERATORS,
    PENDING_ROUNDS,
    A,
    B,
    C,
    Peer,
    Scene,
    Scripted,
    V,
    found,
    header_of,
    needs,
    vector,
)
from tests.memory_log import until

GOOD, DEMOTED, VOID = Outcome.GOOD, Outcome.DEMOTED, Outcome.VOID
VECTOR_BYTES = 4 * NUM_WEIGHTS


@dataclass
class Played:
    """A scene with one contribution of two steps by A and B, which is audited."""

    scene: Scene
    header: Header
    peers: tuple[Peer, Peer]

    async def enter(self, *, brings: bool = False) -> "Played":
        """Have a round with the contribution, and the one after it; its peers may bring what is wanted."""
        round_ = self.scene.turn(self.header)
        self.scene.turn()
        for peer in self.peers:
            await peer.bringing.listed(round_, self.header.contribution.digest, peer.base)
        return await self.bring() if brings else self

    async def bring(self) -> "Played":
        """Let its peers bring what is wanted now."""
        for peer in self.peers:
            await peer.bringing.bring_all()
        return self

    async def bring_until_late(self, *, but: int = 0) -> None:
        """Let rounds go by until the time to bring is over, ``but`` for so many; in each its peers bring what is wanted."""
        while self.scene.reputation.round < 1 + KEPT_ROUNDS - but:
            await self.bring()
            self.scene.turn()

    @property
    def said(self) -> list[tuple[int, ...]]:
        """What verdicts that wait for the next round say."""
        return [verdict.outcomes for verdict in self.scene.waiting]

    @property
    def drawn(self) -> Identity:
        """The auditor whose word that it is good counts."""
        drawn = self.scene.reputation.audits[self.header.contribution.digest].auditor
        return next(each for each in AUDITORS if each.public_key == drawn)

    def forget(self, peer: Peer, *names: str) -> None:
        """Have a peer lose all vectors but those of these names."""
        peer.vectors.keep_only(peer.base, [vector_digest(vector(name)) for name in names])


async def played_in(
    tmp_path: Path, *, operators: int = 1, auditors: int = 1, max_bytes: int = 1 << 30, proven: tuple[Identity, ...] = (A, B, V)
) -> Played:
    """Return a scene whose peers have all vectors, and in which nothing has happened yet."""
    scene = Scene(tmp_path, operators=operators, auditors=auditors, proven=proven)
    scene.max_bytes = max_bytes
    await scene.open()
    header = header_of([A, B], steps=2)
    own = {each: [f" own {each.public_key.hex()[:8]} {step}" for step in range(2)] for each in (A, B)}
    a, b = (scene.peer(each, header, names=[" mean 0", " mean 1", *own[each]]) for each in (A, B))
    return Played(scene, header, (a, b))


@pytest.fixture
@asynccontextmanager
async def entered(tmp_path: Path) -> AsyncIterator[Played]:
    """Have the contribution in a round, with nothing brought."""
    yield await (await played_in(tmp_path)).enter()  # noqa: PT022 - entered by ``tests/conftest.py``


@pytest.fixture
@asynccontextmanager
async def brought(tmp_path: Path) -> AsyncIterator[Played]:
    """Have the contribution in a round, with all brought that is asked for at first."""
    yield await (await played_in(tmp_path)).enter(brings=True)  # noqa: PT022 - entered by ``tests/conftest.py``


async def audit(auditor: Auditor) -> None:
    """Let an auditor do what waits for it, once."""
    await auditor.do_one(await auditor.assignments())


def named(played: Played, *answers: AuditAnswer, again_percent: int = AGAIN_PERCENT, max_bytes: int = 1 << 30) -> tuple[Auditor, Scripted]:
    """Return the first named auditor."""
    return played.scene.auditor(AUDITORS[0], *answers, again_percent=again_percent, max_bytes=max_bytes)


async def test_what_is_brought_is_computed_and_found_good(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    scene = played.scene
    auditor, computing = named(played)
    await played.enter()
    await audit(auditor)
    assert not computing.asked  # nothing was brought
    await played.bring()
    scene.turn()
    await audit(auditor)
    (verdict,) = scene.waiting
    assert (verdict.outcomes, verdict.by) == ((GOOD, GOOD), AUDITORS[0].public_key)
    scene.turn()
    assert scene.reputation.good[A.public_key] == 1
    await audit(auditor)
    assert len(computing.asked) == 1


async def test_own_vectors_are_asked_for_only_where_a_step_does_not_fit(brought: Played) -> None:
    before = sum(peer.bringing.brought_bytes for peer in brought.peers)
    auditor, computing = named(brought, needs(1), found(GOOD, VOID))
    await audit(auditor)
    assert not brought.said  # the own vectors of step 1 are not there yet
    await brought.bring()
    assert sum(peer.bringing.brought_bytes for peer in brought.peers) - before == 2 * VECTOR_BYTES
    brought.scene.turn()
    await audit(auditor)
    assert brought.said == [(GOOD, VOID)]
    assert [ask.over for ask in computing.asked] == [(), ()]


async def test_an_own_vector_that_its_key_does_not_bring_is_withheld_once_its_time_is_over(brought: Played) -> None:
    brought.forget(brought.peers[1], " mean 0", " mean 1")
    auditor, computing = named(brought, needs(1), found(GOOD, DEMOTED))
    await audit(auditor)
    await brought.bring_until_late()
    await audit(auditor)
    assert brought.said == [(GOOD, DEMOTED)]
    assert [ask.over for ask in computing.asked] == [(), (1,)]


async def test_whoever_had_no_time_to_bring_an_own_vector_has_not_withheld_it(entered: Played) -> None:
    await entered.bring_until_late(but=1)
    auditor, computing = named(entered, needs(1), found(GOOD, DEMOTED))
    await audit(auditor)
    for _ in range(4):
        entered.scene.turn()
        await audit(auditor)
    assert not entered.said
    assert len(computing.asked) == 1


async def test_a_step_that_does_not_fit_after_one_whose_vectors_lack_is_asked_for_as_well(brought: Played) -> None:
    brought.forget(brought.peers[1])
    auditor, computing = named(brought, needs(0), needs(1), found(GOOD, DEMOTED))
    await audit(auditor)
    await brought.bring_until_late()
    await audit(auditor)
    assert not brought.said
    assert [ask.over for ask in computing.asked] == [(), (0,)]


async def test_another_named_auditor_knows_how_long_own_vectors_have_been_asked_for(tmp_path: Path) -> None:
    played = await played_in(tmp_path, operators=3, auditors=3)
    await played.enter(brings=True)
    played.forget(played.peers[1], " mean 0", " mean 1")
    first, _ = played.scene.auditor(played.drawn, needs(1), found(GOOD, DEMOTED))
    await audit(first)
    await played.bring_until_late()
    await audit(first)
    played.scene.turn()
    for each in AUDITORS[:3]:
        if each is not played.drawn:
            auditor, computing = played.scene.auditor(each, found(GOOD, DEMOTED))
            await audit(auditor)
            assert [ask.over for ask in computing.asked] == [(1,)]
    played.scene.turn()
    assert not played.scene.reputation.is_proven(B.public_key)
    assert played.scene.reputation.is_proven(A.public_key)


async def test_what_nobody_brings_is_withheld_once_its_time_is_over(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    scene = played.scene
    scene.endpoint(A)
    await played.enter()
    auditor, computing = named(played, found(DEMOTED, DEMOTED, said=AuditAnswerKind.LACKS))
    for _ in range(KEPT_ROUNDS - 1):
        await audit(auditor)
        assert not computing.asked
        scene.turn()
    await audit(auditor)
    assert played.said == [(DEMOTED, DEMOTED)]
    assert not computing.loaded  # who computes nothing needs no weights: they may be gone by then
    scene.turn()
    assert not scene.reputation.is_proven(A.public_key)


async def test_who_reaches_no_operator_says_of_nobody_that_it_withheld_anything(entered: Played) -> None:
    auditor, computing = named(entered, found(DEMOTED, DEMOTED, said=AuditAnswerKind.LACKS))
    while entered.scene.reputation.round < 1 + KEPT_ROUNDS:
        entered.scene.turn()
    entered.scene.network.lost = lambda _sender, _receiver, method: method == VECTOR
    await audit(auditor)
    assert not entered.said
    assert not computing.asked
    entered.scene.network.lost = lambda *_: False
    entered.scene.turn()
    await audit(auditor)
    assert entered.said == [(DEMOTED, DEMOTED)]


async def test_of_several_operators_a_quorum_has_to_say_that_nobody_brought_it(tmp_path: Path) -> None:
    played = await played_in(tmp_path, operators=3, auditors=3)
    await played.enter()
    auditor, computing = played.scene.auditor(played.drawn, found(DEMOTED, DEMOTED, said=AuditAnswerKind.LACKS))
    while played.scene.reputation.round < 1 + KEPT_ROUNDS:
        played.scene.turn()
    played.scene.network.lost = lambda _sender, receiver, method: method == VECTOR and receiver != PublicKey(OPERATORS[0].public_key)
    await audit(auditor)
    assert not computing.asked
    played.scene.network.lost = lambda _sender, receiver, method: method == VECTOR and receiver == PublicKey(OPERATORS[0].public_key)
    played.scene.turn()
    await audit(auditor)
    assert played.said == [(DEMOTED, DEMOTED)]


async def test_before_anything_is_called_withheld_whoever_handed_it_in_is_asked(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    scene = played.scene
    await played.enter()
    while scene.reputation.round < 1 + KEPT_ROUNDS:
        scene.turn()
    await serve_vectors(scene.endpoint(B), played.peers[1].vectors)
    auditor, computing = named(played)
    await audit(auditor)
    assert played.said == [(GOOD, GOOD)]
    assert computing.loaded == 1


async def test_where_the_log_has_no_room_nobody_is_blamed(tmp_path: Path) -> None:
    played = await played_in(tmp_path, max_bytes=VECTOR_BYTES - 1)
    await played.enter(brings=True)
    auditor, computing = named(played, found(DEMOTED, DEMOTED, said=AuditAnswerKind.LACKS))
    for _ in range(KEPT_ROUNDS + 2):
        played.scene.turn()
        await audit(auditor)
    assert not played.said
    assert not computing.asked


async def test_of_what_is_about_to_be_paid_nothing_is_called_withheld(entered: Played) -> None:
    """Operators remove what was brought once it is paid, and may know that before the auditor does."""
    auditor, computing = named(entered, found(DEMOTED, DEMOTED, said=AuditAnswerKind.LACKS))
    while entered.scene.reputation.round < PENDING_ROUNDS:
        entered.scene.turn()
    assert await auditor.assignments()
    await audit(auditor)
    assert not entered.said
    assert not computing.asked


async def test_an_auditor_without_room_for_what_was_brought_blames_nobody(brought: Played) -> None:
    auditor, computing = named(brought, max_bytes=VECTOR_BYTES)
    for _ in range(KEPT_ROUNDS + 2):
        brought.scene.turn()
        await audit(auditor)
    assert not brought.said
    assert not computing.asked


async def test_who_cannot_read_what_it_fetched_blames_nobody(brought: Played) -> None:
    auditor, _ = named(brought, found(DEMOTED, DEMOTED, said=AuditAnswerKind.LACKS))
    await brought.bring_until_late()
    await audit(auditor)
    assert not brought.said


async def test_what_is_here_is_not_fetched_again_and_what_cannot_be_judged_is_not_said_to_be_good(brought: Played) -> None:
    asked = list[PublicKey]()

    def lost(_sender: PublicKey, receiver: PublicKey, method: str) -> bool:
        asked.extend([receiver] if method == VECTOR else [])
        return False

    brought.scene.network.lost = lost
    auditor, computing = named(brought, *[AuditAnswer(AuditAnswerKind.NOTHING, (), 0, "saturated", 1)] * 2)
    await audit(auditor)
    pages = len(asked)
    assert pages > 2
    brought.scene.turn()
    await audit(auditor)
    assert (len(computing.asked), len(asked)) == (2, pages)
    assert not brought.said


async def test_a_paused_auditor_has_no_process_and_goes_on_when_it_may(brought: Played) -> None:
    auditor, computing = named(brought)
    auditor.pause()
    keeping = asyncio.create_task(auditor.keep())
    await asyncio.sleep(0)
    assert not computing.asked
    auditor.resume()
    await until(lambda: bool(brought.said))
    auditor.limit(0, 100)
    await until(lambda: computing.is_closed)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_an_auditor_ends_once_the_run_is_over_and_nothing_of_it_is_audited_any_more(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    auditor, _ = named(played)
    await played.enter()
    keeping = asyncio.create_task(auditor.keep())
    while played.scene.reputation.round < 1 + PENDING_ROUNDS - 1:
        played.scene.turn()
    played.scene.is_finished = True
    auditor.committed()
    await asyncio.sleep(0)
    assert not keeping.done()
    played.scene.turn()  # as the settlement does: what was audited is paid, or not
    auditor.committed()
    await until(keeping.done)


async def test_whoever_may_not_audit_is_told_so_once_and_when_it_may(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = await played_in(tmp_path, proven=(A, B))
    auditor, _ = played.scene.auditor(C)
    for _ in range(3):
        await audit(auditor)
    played.scene.reputation.admit(C.public_key)
    await audit(auditor)
    await audit(auditor)
    said = [line for line in capsys.readouterr().out.splitlines() if "audits" in line]
    assert said == [
        "audits nothing yet: this key is none of the run's auditors, and not proven",
        "audits from now on: this key is proven by now",
    ]


# Volunteers.


async def of_volunteer(played: Played, volunteer: Auditor, auditor: Auditor) -> None:
    """Have a contribution brought and left to a volunteer, and both do what waits for them."""
    await audit(volunteer)  # it is there
    await played.enter(brings=True)
    await audit(auditor)  # hands it out
    await audit(volunteer)
    await audit(auditor)


async def test_a_volunteer_computes_and_the_named_auditor_takes_it_over(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    volunteer, theirs = played.scene.auditor(V)
    auditor, ours = named(played, again_percent=0)
    await of_volunteer(played, volunteer, auditor)
    (verdict,) = played.scene.waiting
    assert (verdict.auditor, verdict.by, verdict.outcomes) == (AUDITORS[0].public_key, V.public_key, (GOOD, GOOD))
    assert (len(theirs.asked), len(ours.asked)) == (1, 0)


async def test_a_volunteer_that_says_yes_to_all_is_found_out_and_never_believed_again(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    volunteer, _ = played.scene.auditor(V)  # says that all is good
    auditor, ours = named(played, found(GOOD, VOID), again_percent=100)
    await audit(volunteer)
    await played.enter(brings=True)
    await audit(auditor)  # it is handed out
    assert not ours.asked  # not before there is something that may turn out false
    await audit(volunteer)
    assignments = await auditor.assignments()
    await auditor.do_one(assignments)
    assert played.said == [(GOOD, VOID)]
    folder = tmp_path / f"auditor-{AUDITORS[0].public_key.hex()[:8]}"
    assert Volunteers(folder / "distrusted").distrusted == {V.public_key}
    again, computing = named(played, again_percent=0)  # after a restart
    await again.do_one(assignments)
    assert len(computing.asked) == 1


async def test_a_volunteer_that_accuses_takes_nothing_from_anybody(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    volunteer, _ = played.scene.auditor(V, found(GOOD, VOID))
    auditor, ours = named(played, again_percent=0)
    await of_volunteer(played, volunteer, auditor)
    assert [(verdict.outcomes, verdict.by) for verdict in played.scene.waiting] == [((GOOD, GOOD), AUDITORS[0].public_key)]
    assert len(ours.asked) == 1


async def test_a_volunteer_asks_nobody_for_own_vectors(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    told = list[PublicKey]()

    def lost(_sender: PublicKey, receiver: PublicKey, method: str) -> bool:
        told.extend([receiver] if method == NEED else [])
        return False

    volunteer, theirs = played.scene.auditor(V, needs(0))
    auditor, _ = named(played, again_percent=0)
    played.scene.network.lost = lost
    await of_volunteer(played, volunteer, auditor)
    assert len(theirs.asked) == 1
    assert not told
    assert not played.said


async def test_what_is_taken_over_does_not_wait_for_what_is_computed(tmp_path: Path) -> None:
    played = await played_in(tmp_path)
    volunteer, _ = played.scene.auditor(V)
    auditor, ours = named(played, again_percent=0)
    await audit(volunteer)
    await played.enter(brings=True)
    await auditor.assignments()  # it is handed out
    await audit(volunteer)
    (found_good,) = await auditor.assignments()
    nobodys = replace(found_good, header=header_of([C], name="another"), left=(1,), volunteer=(), finding=())
    await auditor.do_one((nobodys, found_good))
    assert [verdict.by for verdict in played.scene.waiting] == [V.public_key]
    assert not ours.asked


def test_what_a_named_auditor_computes_again_is_its_secret_and_a_part_of_all(tmp_path: Path) -> None:
    """Two auditors, or one after a restart, look at others."""
    contributions = [sha256(b"%d" % number) for number in range(2000)]
    both = [Volunteers(tmp_path / "distrusted") for _ in range(2)]
    again = [[not each.are_believed(contribution, V.public_key) for contribution in contributions] for each in both]
    for each in again:
        assert 0.8 * AGAIN_PERCENT < 100 * sum(each) / len(each) < 1.2 * AGAIN_PERCENT
    assert again[0] != again[1]


# Several operators.


async def test_of_several_operators_a_liar_alone_takes_nothing_and_the_drawn_one_gets_what_was_brought_to_another(tmp_path: Path) -> None:
    played = await played_in(tmp_path, operators=4, auditors=4)
    scene = played.scene
    await played.enter(brings=True)
    liar = next(each for each in AUDITORS if each is not played.drawn)
    lying, _ = scene.auditor(liar, found(VOID, VOID))
    await audit(lying)
    assert not played.said  # it is another's to judge
    holders = [operator for operator in OPERATORS if scene.brought[operator.public_key].num_bytes]
    assert 0 < len(holders) < 4
    away = next(operator for operator in OPERATORS if operator not in holders)
    auditor, _ = scene.auditor(played.drawn)
    while auditor._line.operator != away.public_key:
        auditor._line.turn_away("it is one that has it")
    await audit(auditor)
    assert played.said == [(GOOD, GOOD)]
    scene.turn()
    assert scene.reputation.good[A.public_key] == 1
    assert scene.reputation.is_proven(A.public_key)
