"""What the log takes and refuses, over an in-memory network: headers, bodies, inclusion promises, and what a stranger can do to it."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import BodyPart, HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.exchange import CHUNK
from manta_swarm.protocol.ledger import KEPT_TABLES
from manta_swarm.protocol.records import InclusionPromise
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.aggregator.made import made_of
from tests.aggregator.service import GRACE_MS, NUM_ROUNDS, OPEN_MS, OPERATOR, PEERS, Service, SlowDisk, says_no
from tests.contributions import header_of, with_contribution
from tests.runs import FixedTrainingSpec

A, B, C = PEERS[:3]


# A contribution on its way in.


async def test_header_and_body_make_an_inclusion_promise_and_are_on_the_disk_by_then(service: Service) -> None:
    made = service.made(A)
    answer = await service.header(made)
    assert (answer.status, answer.round, answer.left_ms, answer.inclusion_promise) == (HandIn.SEND_BODY, 1, OPEN_MS, ())
    assert await service.part(made, 0) == b""
    assert service.bodies.read(1) == []
    inclusion_promise = service.opened(await service.part(made, 1))
    assert inclusion_promise == InclusionPromise(service.ledger.run, 1, made.digest)
    assert service.bodies.read(1) == [made.kept]
    assert service.changes >= 2
    assert service.commit() == (made.digest,)


async def test_groups_may_come_in_any_order_and_again_and_the_first_for_a_place_stays(service: Service) -> None:
    made, other = service.made(A), service.made(A, seed=1)
    await service.header(made)
    assert await service.part(made, 1) == b""
    assert await service.part(made, 1, other.groups[1]) == b""
    inclusion_promise = service.opened(await service.part(made, 0))
    for place in (0, 1):
        assert service.opened(await service.part(made, place)) == inclusion_promise
    assert service.bodies.read(1) == [made.kept]


async def test_a_header_that_comes_again_is_welcome_and_brings_the_inclusion_promise_once_there_is_one(service: Service) -> None:
    made = service.made(A)
    assert (await service.header(made)).status == HandIn.SEND_BODY
    await service.part(made, 0)
    assert (await service.header(made)).status == HandIn.SEND_BODY  # what has come of it stays
    inclusion_promise = service.opened(await service.part(made, 1))
    answer = await service.header(made)
    assert answer.status == HandIn.HAVE_PROMISE
    assert answer.inclusion_promise[0].open_by(service.ledger.manifest.operators) == inclusion_promise
    assert service.refused(A) == {}


async def test_there_is_no_inclusion_promise_before_the_sync_and_one_sync_covers_all_that_wait(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(service, monkeypatch)
    made = [service.made(peer) for peer in (A, B, C)]
    first = asyncio.create_task(service.hand_in(made[0]))
    turn = await disk.next()
    others = [asyncio.create_task(service.hand_in(one)) for one in made[1:]]
    await service.until(lambda: all(service.closing.is_good(one.digest) for one in made))
    assert (await service.header(made[0])).status == HandIn.SEND_BODY
    again = [asyncio.create_task(service.part(made[0], place)) for place in (0, 1)]  # its groups are not kept any more
    await asyncio.sleep(0)
    assert not any(task.done() for task in (first, *others, *again))
    turn.set()
    assert (await first).contribution == made[0].digest
    assert [service.opened(await task).contribution for task in again] == [made[0].digest] * 2
    (await disk.next()).set()
    assert [(await task).contribution for task in others] == [one.digest for one in made[1:]]
    assert disk.calls == [1, 2]


@pytest.mark.parametrize("is_good", [True, False])
async def test_a_caller_who_hangs_up_ends_no_check_and_holds_up_no_round(service: Service, is_good: bool) -> None:
    made, other = service.made(A), service.made(B)
    await service.hand_in(other)
    await service.begin(made)
    handler = service.network.endpoints[PublicKey(OPERATOR.public_key)].handlers["body"]
    message = BodyPart(made.digest, 1, made.groups[1] if is_good else bytes(len(made.groups[1]))).pack()
    calling = asyncio.ensure_future(handler(PublicKey(A.public_key), message))
    await asyncio.sleep(0)  # it is being checked
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    while service.intake._tasks:
        await asyncio.wait(service.intake._tasks)
    if is_good:
        assert (await service.header(made)).status == HandIn.HAVE_PROMISE
        assert service.commit() == (made.digest, other.digest)
    else:
        assert service.refused(A) == {"bad body": 1}  # and was counted
        assert service.commit() == (other.digest,)


# Time.


async def test_a_header_in_time_and_a_body_within_the_grace_count_for_whoever_was_in_the_last_table(service: Service) -> None:
    await service.hand_in(service.made_together(A, B))
    service.commit()
    made = [service.made(peer) for peer in (A, B, C)]  # the members come alone this time
    for one in made:
        assert (await service.header(one)).round == 2
    await service.body(made[0])
    service.clock.now += OPEN_MS + GRACE_MS - 1
    assert (await service.body(made[1])).round == 2
    await says_no(service.part(made[2], 0), "hand it in again")  # a newcomer is not waited for
    assert set(service.commit()) == {made[0].digest, made[1].digest}
    assert service.refused(C) == {"no body by the deadline": 1}


async def test_a_body_that_comes_too_late_is_handed_in_again_and_counts_in_the_next_round(service: Service) -> None:
    await service.round(A, B)
    late, other = service.made(A), service.made(B)
    await service.begin(late)
    await service.hand_in(other)
    service.clock.now += OPEN_MS + GRACE_MS
    await says_no(service.part(late, 1), "hand it in again")
    answer = await service.header(late)
    assert (answer.status, answer.round) == (HandIn.SEND_BODY, 3)
    assert service.opened(await service.part(late, 1)).round == 3  # what had come of it was kept
    assert service.commit() == (other.digest,)
    assert service.bodies.read(3) == [late.kept]
    assert service.commit() == (late.digest,)
    (listed,) = service.ledger.table_at(3) or ()
    assert listed.weighing.age == 1


@pytest.mark.parametrize("service", [{"training_spec": FixedTrainingSpec(sorts=frozenset({2}))}], indirect=True)
async def test_a_late_header_is_checked_for_the_round_that_it_counts_in(service: Service) -> None:
    """It comes in time for one round, whose update sorts channels, and again when it can only count in the next."""
    await service.round(A, B)
    late, other = service.made(A), service.made(B)
    await service.header(late)
    await service.hand_in(other)
    service.clock.now += OPEN_MS + GRACE_MS
    await says_no(service.header(late), "another order")
    assert service.commit() == (other.digest,)


async def test_what_is_in_a_table_is_said_to_be_for_as_long_as_tables_are_kept(service: Service) -> None:
    first = service.made(A)
    await service.hand_in(first)
    service.commit()
    for _ in range(KEPT_TABLES - 1):
        answer = await service.header(first)
        assert (answer.status, answer.round) == (HandIn.LISTED, 1)
        await service.round(B)
    assert service.refused(A) == {}
    await service.round(B)
    await says_no(service.header(first), "commits old")


async def test_a_finished_run_takes_nothing_and_blames_nobody(service: Service) -> None:
    while not service.ledger.finished:
        late, last = service.made(B), service.made(A)
        await service.hand_in(last)
        service.commit()
    for _ in range(2):
        assert (await service.header(last)).status == HandIn.LISTED
        await says_no(service.header(late), "finished")
        service.is_open = False  # as after a start of the program
        await service.restart()
    assert service.refused(B) == {}
    assert service.ledger.round == NUM_ROUNDS


# Side by side.


async def test_a_header_and_its_groups_side_by_side_make_one_contribution_and_one_inclusion_promise(service: Service) -> None:
    made = service.made(A)
    answers = await asyncio.gather(*(service.header(made) for _ in range(4)))
    assert {answer.status for answer in answers} == {HandIn.SEND_BODY}
    parts = await asyncio.gather(*(service.part(made, place) for place in (0, 1, 0, 1, 1, 0)))
    (inclusion_promise,) = {part for part in parts if part}
    assert service.opened(inclusion_promise).contribution == made.digest
    assert service.intake.faults.by_reason == {}
    assert service.commit() == (made.digest,)
    assert len(service.bodies.read(1)) == 1


async def test_two_contributions_of_one_key_side_by_side_are_one_row(service: Service) -> None:
    first, second, other = service.made(A), service.made(A, seed=1), service.made(B)
    await asyncio.gather(*map(service.header, (first, second, other)))
    await asyncio.gather(*(service.part(one, place) for one in (first, second, other) for place in (0, 1)), return_exceptions=True)
    await service.until(lambda: not service.intake._tasks)
    closed = service.commit()
    assert len(closed) == 2
    assert other.digest in closed
    assert service.ledger.last_keys == {A.public_key, B.public_key}


# What others may not do.


async def test_only_a_contributions_own_keys_bring_it(service: Service) -> None:
    made = service.made(A)
    await says_no(service.header(made, by=B), "other keys than the one that brings it")
    await service.header(made)
    await says_no(service.part(made, 0, by=B), "other keys than the one that brings it")
    assert service.refused(B) == {"another's identity": 2}
    await service.body(made)
    assert service.refused(A) == {}


@pytest.mark.parametrize(
    ("signer", "changes", "says", "reason"),
    [
        (B, {}, "signature", "signature"),
        (A, {"run": bytes(32)}, "of another run", "not for this log"),
        (A, {"base": bytes(32)}, "another base", "not for this log"),
        (A, {"claims": (bytes(32),)}, "other claims", "not for this log"),
    ],
)
async def test_a_header_that_does_not_hold_is_refused_and_counted(
    service: Service, signer: Identity, changes: dict[str, Any], says: str, reason: str
) -> None:
    made = service.made(A)
    await says_no(service.header(replace(made, header=with_contribution(made.header, signer, **changes))), says)
    assert service.refused(A) == {reason: 1}
    assert not service.intake._uploads
    await service.hand_in(made)


async def test_bytes_of_any_kind_are_refused_and_counted(service: Service) -> None:
    chance = random.Random(0)
    made = service.made(A)
    await service.header(made)
    for method in ("header", "body"):
        for size in (0, 1, 33, 34, 5_000):
            before = service.intake.faults.by_reason.total()
            with pytest.raises(Refused):
                await service.call(PEERS[chance.randrange(1, 5)], method, chance.randbytes(size))
            assert service.intake.faults.by_reason.total() - before == (1 if method == "header" or size < 34 else 0)
    for place, data in ((0, b""), (0, made.groups[1]), (1, made.groups[0]), (2, made.groups[1]), (65_535, made.groups[0])):
        await says_no(service.part(made, place, data), "another place or size")
    assert service.refused(A) == {"malformed": 5}


@pytest.mark.parametrize(("has_root", "says"), [(False, "does not have the root"), (True, "larger than it needs")])
async def test_a_wrong_body_is_out_with_its_header_and_counted_once(service: Service, has_root: bool, says: str) -> None:
    good, chunk = service.made(A), bytes([1]) + bytes(2 * CHUNK)  # of zeros, with an exponent
    bad = replace(good, body=chunk + good.body[len(chunk) :])
    made = replace(bad, header=header_of(service.ledger, A, body=Blob.of(bad.groups).root if has_root else bytes(32)))
    await service.begin(made)
    await says_no(service.part(made, 1), says)
    assert service.refused(A) == {"bad body": 1}
    assert not service.intake._uploads
    assert not service.intake._synced
    await says_no(service.part(made, 1), "no header of this body")
    assert (await service.hand_in(good)).round == 1  # which is still welcome
    assert service.bodies.read(1) == [good.kept]


async def test_two_contributions_may_name_one_body_and_each_has_its_inclusion_promise(service: Service) -> None:
    made, vector = service.made(A), service.vector(A)
    twin = made_of(service.ledger, B, vector)
    assert twin.body == made.body
    await service.hand_in(made)
    assert (await service.hand_in(twin)).round == 1
    await service.restart()
    assert set(service.commit()) == {made.digest, twin.digest}
    assert (await service.hand_in(made_of(service.ledger, B, vector))).round == 2
