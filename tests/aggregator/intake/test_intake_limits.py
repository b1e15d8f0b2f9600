"""What the log's intake holds at most, what it forgives, and what it does when its disk fails, it is stopped, or it is started again."""

import asyncio
import errno
import os
from dataclasses import replace

import pytest

from manta_swarm.aggregator.intake.refusals import check_lengths
from manta_swarm.network.log_client import HandIn
from manta_swarm.network.rates import FAULTS_FORGIVEN, FORGET_S
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.exchange import MAX_COHORT, MAX_LOCAL_STEPS, MAX_MICROBATCH_MS
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.records import MAX_ARCHITECTURES, MAX_INDEX, MAX_SKIPPED, Claim, ClaimStep, Contribution, Header, StepMean
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.aggregator.service import GRACE_MS, MAX_ROWS, OPEN_MS, PEERS, Service, SlowDisk, says_no
from tests.clocks import ManualClock
from tests.protocol.record_samples import CLAIM, CONTRIBUTION, RUN

A, B, C, D, E = PEERS[:5]


def stranger(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def held(service: Service) -> list[int]:
    """Return how many groups of each body on its way are held."""
    return [sum(group is not None for group in upload.groups) for _, upload in service.intake._uploads]


# Places and memory.


async def test_of_a_founder_one_body_is_held_however_many_it_announces(service: Service) -> None:
    made = [service.made(A, seed=seed) for seed in range(4)]
    for one in made:
        await service.begin(one)
        assert held(service) == [1]
    for one in made[:-1]:
        await says_no(service.part(one, 1), "no header of this body")
    assert (await service.body(made[-1])).contribution == made[-1].digest
    assert (await service.header(made[0])).status == HandIn.LATER  # one is in, and stays
    assert held(service) == [0]


async def test_there_are_no_more_bodies_than_places_in_a_table(service: Service) -> None:
    made = [service.made(stranger(number)) for number in range(1, MAX_ROWS + 4)]
    answers = [await service.header(one) for one in made]
    assert [answer.status for answer in answers] == [HandIn.SEND_BODY] * MAX_ROWS + [HandIn.LATER] * 3
    for one in made[MAX_ROWS:]:
        await says_no(service.part(one, 0), "no header of this body")
    assert len(held(service)) == MAX_ROWS
    assert service.intake.faults.by_reason == {}  # no place is nobody's fault


async def test_what_came_to_nothing_is_forgotten_though_no_round_is_committed(service: Service) -> None:
    for cycle in range(5):
        for number in range(MAX_ROWS):
            made = service.made(stranger(10 * cycle + number + 1))
            assert (await service.header(made)).status == HandIn.SEND_BODY
            await service.part(made, 0)
        assert len(held(service)) == MAX_ROWS
        service.clock.now += OPEN_MS
    assert service.closing.tick(service.clock.now) is None
    await service.header(service.made(A))
    assert held(service) == [0]
    assert service.intake.faults.by_reason == {"no body by the deadline": 5 * MAX_ROWS}


async def test_after_a_commit_nothing_of_its_round_is_held(service: Service) -> None:
    for _ in range(3):
        for peer in (A, B):
            await service.hand_in(service.made(peer))
        await service.header(service.made(C))
        service.commit()
        intake = service.intake
        assert not any((len(intake._uploads), intake._handed, intake._synced, intake._batch.kept))


# Who fails often.


async def test_a_header_without_its_body_again_and_again_is_not_looked_at_for_a_while(service: Service) -> None:
    clock = service.intake.faults._clock = ManualClock()
    for _ in range(FAULTS_FORGIVEN + 1):
        assert (await service.header(service.made(B))).status == HandIn.SEND_BODY
        service.clock.now += OPEN_MS
        await service.header(service.made(A))
    assert service.refused(B) == {"no body by the deadline": FAULTS_FORGIVEN + 1}
    assert (await service.header(service.made(B))).status == HandIn.LATER
    assert service.refused(B) == {"no body by the deadline": FAULTS_FORGIVEN + 1}  # what is not looked at is not counted
    clock.advance(FORGET_S + 1)
    await service.hand_in(service.made(B))


async def test_who_brings_what_is_anothers_harms_only_itself(service: Service) -> None:
    made = service.made(A)
    for _ in range(FAULTS_FORGIVEN + 1):
        await says_no(service.header(made, by=B), "other keys")
    answer = await service.header(service.made(B))  # later, not no: at a second no a peer gives its work up
    assert (answer.status, answer.round, answer.left_ms) == (HandIn.LATER, 1, OPEN_MS)
    await service.hand_in(service.made_together(A, B))  # nor does it harm its cohort
    assert service.refused(A) == {}


# A disk that refuses, and the end.


def refuse(kept: object) -> None:
    raise StorageError("/a/secret/place: no space left; make room")


async def test_after_a_disks_error_nothing_is_promised_and_nothing_is_tried_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [service.made(peer) for peer in (A, B, C)]
    await service.hand_in(made[0])
    await service.header(made[2])
    await service.part(made[2], 0)
    monkeypatch.setattr(service.bodies, "append", refuse)
    with pytest.raises(Refused, match="hand it in again when it is back") as caught:
        await service.hand_in(made[1])
    assert "secret" not in str(caught.value)
    monkeypatch.undo()  # there is room again
    assert isinstance(service.broken.told.result(), StorageError)
    assert not service.intake._is_stored(made[1].digest)
    assert (await service.header(made[1])).status == HandIn.LATER
    assert (await service.header(service.made(D))).status == HandIn.LATER
    await says_no(service.part(made[2], 1), "hand it in again")
    with pytest.raises(StorageError, match="no space left"):
        await service.intake.synced([made[0].digest, made[1].digest])
    await service.intake.close()
    assert service.bodies.read(1) == [made[0].kept]
    assert service.intake.faults.by_reason == {}


async def test_those_who_wait_for_a_disk_that_fails_hear_of_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(service, monkeypatch)
    handing_in = [asyncio.create_task(service.hand_in(service.made(peer))) for peer in (A, B, C)]
    turn = await disk.next()
    await service.until(lambda: all(service.closing.is_good(service.made(peer).digest) for peer in (A, B, C)))

    def fsync(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    turn.set()
    for task in handing_in:
        with pytest.raises(Refused, match="hand it in again"):
            await task
    assert "Input/output error" in str(service.broken.told.result())
    assert len(disk.calls) == 1


async def test_a_fault_of_the_program_stops_it_and_leaves_nobody_waiting(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    made = service.made(A)
    await service.begin(made)
    monkeypatch.setattr(service.intake, "_checked", fail)
    with pytest.raises(ZeroDivisionError):
        await service.part(made, 1)
    assert isinstance(service.broken.told.result(), ZeroDivisionError)
    monkeypatch.undo()
    other = service.made(B)
    assert (await service.header(other)).status == HandIn.LATER


async def test_the_end_waits_for_what_is_being_stored_and_takes_nothing_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(service, monkeypatch)
    made = service.made(A)
    handing_in = asyncio.create_task(service.hand_in(made))
    turn = await disk.next()
    await service.header(service.made(B))
    closing = asyncio.create_task(service.intake.close())
    await asyncio.sleep(0)
    assert not closing.done()
    assert (await service.header(service.made(C))).status == HandIn.LATER
    await says_no(service.part(service.made(B), 0), "hand it in again")
    turn.set()
    await closing
    assert (await handing_in).contribution == made.digest
    assert service.bodies.read(1) == [made.kept]


# A start on what an earlier one left.


async def test_all_inclusion_promises_hold_after_a_restart_for_the_open_round_and_the_next(service: Service) -> None:
    now, early, headed = service.made(A), service.made(B), service.made(C)
    await service.hand_in(now)
    await service.begin(headed)
    service.clock.now += OPEN_MS
    assert (await service.hand_in(early)).round == 2
    await service.restart()
    for made, round_ in ((now, 1), (early, 2)):
        answer = await service.header(made)
        assert (answer.status, answer.round) == (HandIn.HAVE_PROMISE, round_)
        assert answer.inclusion_promise[0].open_by(service.ledger.manifest.operators).contribution == made.digest
        for place in (0, 1):
            assert service.opened(await service.part(made, place)).round == round_
    await says_no(service.part(headed, 1), "hand it in again")  # that was in memory only
    assert (await service.hand_in(headed)).round == 1
    assert set(service.commit()) == {now.digest, headed.digest}
    assert service.commit() == (early.digest,)


async def test_a_restart_in_the_grace_waits_a_whole_round_for_those_without_an_inclusion_promise(service: Service) -> None:
    await service.round(A, B)
    await service.hand_in(service.made(A))
    await service.header(service.made(B))
    service.clock.now += OPEN_MS + GRACE_MS // 2
    await service.restart()
    assert service.closing.left_ms(service.clock.now) == OPEN_MS
    await service.hand_in(service.made(B))
    assert len(service.commit()) == 2


# Lengths.


async def test_headers_that_no_such_run_has_are_refused_before_they_are_opened(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[object]()
    monkeypatch.setattr(service.ledger.verified, "claim", opened.append)
    made = service.made(A)
    signed, claim = made.header.claims[0], made.header.claims[0].open()
    steps = tuple(ClaimStep(10 * step, 10 * step + 1, (), sha256(b"vector")) for step in range(MAX_LOCAL_STEPS))
    long = Signed.sign(replace(claim, steps=steps, work=(2 * len(steps), 0)), A)
    contribution = made.header.contribution.open()
    means = tuple(StepMean(sha256(b"mean"), 1) for _ in range(MAX_LOCAL_STEPS))
    for header, what in (
        (Header(made.header.contribution, (signed, long)), "a claim of more than"),
        (Header(Signed.sign(replace(contribution, steps=means), A), (signed,)), "a contribution of more than"),
    ):
        await says_no(service.call(A, "header", pack(header)), what)
    assert opened == []
    assert service.refused(A) == {"malformed": 2}


def test_the_longest_claims_that_a_run_may_have_are_not_too_long() -> None:
    for steps in (1, 2, 16):
        claims = tuple(Signed(Claim, bytes(size), b"") for size in [longest_claim(steps)] * MAX_COHORT)
        means = tuple(StepMean(sha256(b"mean"), 2**MAX_COHORT - 1) for _ in range(steps))
        contribution = replace(
            CONTRIBUTION, round=MAX_ROUND, claims=(sha256(b"claim"),) * MAX_COHORT, included=2**MAX_COHORT - 1, steps=means, residual=RUN
        )
        check_lengths(Header(Signed(Contribution, pack(contribution), b""), claims), steps)


def longest_claim(steps: int) -> int:
    """Return how many bytes a claim has whose numbers are as large as can be, and which left out as much as can be."""
    skipped = 2 * MAX_SKIPPED
    firsts = [MAX_INDEX - 1 - (steps - step) * 2 * skipped for step in range(steps)]
    each = tuple(ClaimStep(first, first + skipped, tuple(range(first + 1, first + skipped, 2)), RUN) for first in firsts)
    work = (*(0,) * (MAX_ARCHITECTURES - 1), sum(step.count for step in each))
    claim = replace(CLAIM, round=MAX_ROUND, cohort="x" * 63, steps=each, work=work, residual=RUN, microbatch_ms=MAX_MICROBATCH_MS)
    return len(pack(claim)) + 8 * MAX_ARCHITECTURES  # whose counts may be large
