"""What the log takes and refuses, over an in-memory network: headers, bodies, tickets, and what a stranger can do to it."""

import asyncio
import random
from typing import Any

import pytest

from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import BodyPart, HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.exchange import CHUNK
from manta_swarm.protocol.ledger import KEPT_TABLES
from manta_swarm.protocol.records import Ticket
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.desk import GRACE_MS, NUM_ROUNDS, NUM_WEIGHTS, OPEN_MS, OPERATOR, PEERS, Desk, Play, SlowDisk, says_no
from tests.aggregator.made import Made, made_of
from tests.contributions import header_of, with_contribution
from tests.runs import FixedCourse

A, B, C = PEERS[:3]


# A contribution on its way in.


def test_header_and_body_make_a_ticket_and_are_on_the_disk_by_then(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        answer = await desk.header(made)
        assert (answer.status, answer.round, answer.left_ms, answer.ticket) == (HandIn.SEND_BODY, 1, OPEN_MS, ())
        assert await desk.part(made, 0) == b""
        assert desk.bodies.read(1) == []
        ticket = desk.opened(await desk.part(made, 1))
        assert ticket == Ticket(desk.ledger.run, 1, made.digest)
        assert desk.bodies.read(1) == [made.kept]
        assert desk.changes >= 2
        assert desk.commit() == (made.digest,)

    play(story)


def test_groups_may_come_in_any_order_and_again(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        await desk.header(made)
        assert await desk.part(made, 1) == b""
        assert await desk.part(made, 1) == b""
        ticket = desk.opened(await desk.part(made, 0))
        for place in (0, 1):
            assert desk.opened(await desk.part(made, place)) == ticket
        assert desk.bodies.read(1) == [made.kept]

    play(story)


def test_the_first_group_that_comes_for_a_place_stays(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made, other = desk.made(A), desk.made(A, seed=1)
        await desk.header(made)
        await desk.part(made, 0)
        await desk.part(made, 0, other.groups[0])
        assert desk.opened(await desk.part(made, 1)).contribution == made.digest

    play(story)


def test_a_header_that_comes_again_is_welcome_and_brings_the_ticket_once_there_is_one(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        assert (await desk.header(made)).status == HandIn.SEND_BODY
        await desk.part(made, 0)
        assert (await desk.header(made)).status == HandIn.SEND_BODY  # what has come of it stays
        ticket = desk.opened(await desk.part(made, 1))
        answer = await desk.header(made)
        assert answer.status == HandIn.HAVE_TICKET
        assert answer.ticket[0].open_by(desk.ledger.manifest.operators) == ticket
        assert desk.refused(A) == {}

    play(story)


def test_a_peers_own_client_gets_its_ticket(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        for _ in range(2):  # the second time the answer is in the header's
            handed = await desk.client(A).hand_in(made.header, made.groups)
            assert handed.status is HandIn.HAVE_TICKET
            assert handed.ticket == Ticket(desk.ledger.run, 1, made.digest)

    play(story)


def test_there_is_no_ticket_before_the_sync_and_one_sync_covers_all_that_wait(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        disk = SlowDisk(desk, monkeypatch)
        made = [desk.made(peer) for peer in (A, B, C)]
        first = asyncio.create_task(desk.hand_in(made[0]))
        turn = await disk.next()
        others = [asyncio.create_task(desk.hand_in(one)) for one in made[1:]]
        await desk.until(lambda: all(desk.closing.is_good(one.digest) for one in made))
        assert (await desk.header(made[0])).status == HandIn.SEND_BODY
        again = [asyncio.create_task(desk.part(made[0], place)) for place in (0, 1)]  # its groups are not kept any more
        await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *others, *again))
        turn.set()
        assert (await first).contribution == made[0].digest
        assert [desk.opened(await task).contribution for task in again] == [made[0].digest] * 2
        (await disk.next()).set()
        assert [(await task).contribution for task in others] == [one.digest for one in made[1:]]
        assert disk.calls == [1, 2]

    play(story)


@pytest.mark.parametrize("is_good", [True, False])
def test_a_caller_who_hangs_up_ends_no_check_and_holds_up_no_round(play: Play, is_good: bool) -> None:
    async def story(desk: Desk) -> None:
        made, other = desk.made(A), desk.made(B)
        await desk.hand_in(other)
        await desk.header(made)
        await desk.part(made, 0)
        handler = desk.network.endpoints[PublicKey(OPERATOR.public_key)].handlers["body"]
        message = BodyPart(made.digest, 1, made.groups[1] if is_good else bytes(len(made.groups[1]))).pack()
        calling = asyncio.ensure_future(handler(PublicKey(A.public_key), message))
        await asyncio.sleep(0)  # it is being checked
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        while desk.intake._tasks:
            await asyncio.wait(desk.intake._tasks)
        if is_good:
            assert (await desk.header(made)).status == HandIn.HAVE_TICKET
            assert desk.commit() == (made.digest, other.digest)
        else:
            assert desk.refused(A) == {"bad body": 1}  # and was counted
            assert desk.commit() == (other.digest,)

    play(story)


# Time.


def test_a_header_in_time_and_a_body_within_the_grace_count_for_whoever_was_in_the_last_table(play: Play) -> None:
    async def story(desk: Desk) -> None:
        await desk.hand_in(desk.made(A))
        await desk.hand_in(desk.made(B))
        desk.commit()
        made = [desk.made(peer) for peer in (A, B, C)]
        for one in made:
            assert (await desk.header(one)).round == 2
        await desk.body(made[0])
        desk.clock.now += OPEN_MS + GRACE_MS - 1
        assert (await desk.body(made[1])).round == 2
        await says_no(desk.part(made[2], 0), "hand it in again")  # a newcomer is not waited for
        assert set(desk.commit()) == {made[0].digest, made[1].digest}
        assert desk.refused(C) == {"no body by the deadline": 1}

    play(story)


def test_a_body_that_comes_too_late_is_handed_in_again_and_counts_in_the_next_round(play: Play) -> None:
    async def story(desk: Desk) -> None:
        for peer in (A, B):
            await desk.hand_in(desk.made(peer))
        desk.commit()
        late, other = desk.made(A), desk.made(B)
        await desk.header(late)
        await desk.part(late, 0)
        await desk.hand_in(other)
        desk.clock.now += OPEN_MS + GRACE_MS
        await says_no(desk.part(late, 1), "hand it in again")
        answer = await desk.header(late)
        assert (answer.status, answer.round) == (HandIn.SEND_BODY, 3)
        assert desk.opened(await desk.part(late, 1)).round == 3  # what had come of it was kept
        assert desk.commit() == (other.digest,)
        assert desk.bodies.read(3) == [late.kept]
        assert desk.commit() == (late.digest,)
        (listed,) = desk.ledger.table_at(3) or ()
        assert listed.weighing.age == 1

    play(story)


def test_a_late_header_is_checked_for_the_round_that_it_counts_in(play: Play) -> None:
    """It came in time for one round, whose update sorts channels, and again when it could only count in the next."""

    async def story(desk: Desk) -> None:
        for peer in (A, B):
            await desk.hand_in(desk.made(peer))
        desk.commit()
        late, other = desk.made(A), desk.made(B)
        await desk.header(late)
        await desk.hand_in(other)
        desk.clock.now += OPEN_MS + GRACE_MS
        await says_no(desk.header(late), "another order")
        assert desk.commit() == (other.digest,)

    play(story, course=FixedCourse(sorts=frozenset({2})))


def test_headers_that_come_after_the_deadline_count_in_the_next_round(play: Play) -> None:
    async def story(desk: Desk) -> None:
        first, early = desk.made(A), desk.made(B)
        await desk.hand_in(first)
        desk.clock.now += OPEN_MS
        assert (await desk.hand_in(early)).round == 2
        assert desk.bodies.read(2) == [early.kept]
        assert desk.commit() == (first.digest,)
        assert (await desk.header(early)).round == 2
        assert desk.commit() == (early.digest,)

    play(story)


def test_what_is_in_a_table_is_said_to_be_for_as_long_as_tables_are_kept(play: Play) -> None:
    async def story(desk: Desk) -> None:
        first = desk.made(A)
        await desk.hand_in(first)
        desk.commit()
        for _ in range(KEPT_TABLES - 1):
            answer = await desk.header(first)
            assert (answer.status, answer.round) == (HandIn.LISTED, 1)
            await desk.hand_in(desk.made(B))
            desk.commit()
        assert desk.refused(A) == {}
        await desk.hand_in(desk.made(B))
        desk.commit()
        await says_no(desk.header(first), "commits old")

    play(story)


def test_a_finished_run_takes_nothing_and_blames_nobody(play: Play) -> None:
    async def story(desk: Desk) -> None:
        while not desk.ledger.finished:
            late, last = desk.made(B), desk.made(A)
            await desk.hand_in(last)
            desk.commit()
        for _ in range(2):
            assert (await desk.header(last)).status == HandIn.LISTED
            await says_no(desk.header(late), "finished")
            desk.is_open = False  # as after a start of the program
            await desk.restart()
        assert desk.refused(B) == {}
        assert desk.ledger.round == NUM_ROUNDS

    play(story)


# What others may not do.


def test_only_a_contributions_own_keys_bring_it(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        await says_no(desk.header(made, by=B), "other keys than the one that brings it")
        await desk.header(made)
        await says_no(desk.part(made, 0, by=B), "other keys than the one that brings it")
        assert desk.refused(B) == {"another's identity": 2}
        await desk.body(made)
        assert desk.refused(A) == {}

    play(story)


def damaged(made: Made, how: str) -> Made:
    """Return a contribution with a header that does not hold."""
    header = made.header
    if how == "signature":
        payload = with_contribution(header, B).contribution
        return Made(made.peer, type(header)(payload, header.claims), made.body, made.count)
    changes: dict[str, dict[str, Any]] = {
        "another run": {"run": bytes(32)},
        "another base": {"base": bytes(32)},
        "a round to come": {"round": 3},
        "another claim": {"claims": (bytes(32),)},
    }
    return Made(made.peer, with_contribution(header, made.peer, **changes[how]), made.body, made.count)


@pytest.mark.parametrize(
    ("how", "says", "reason"),
    [
        ("signature", "signature", "signature"),
        ("another run", "of another run", "not for this log"),
        ("another base", "another base", "not for this log"),
        ("a round to come", "another base", "not for this log"),
        ("another claim", "other claims", "not for this log"),
    ],
)
def test_a_header_that_does_not_hold_is_refused_and_counted(play: Play, how: str, says: str, reason: str) -> None:
    async def story(desk: Desk) -> None:
        await says_no(desk.header(damaged(desk.made(A), how)), says)
        assert desk.refused(A) == {reason: 1}
        assert not desk.intake._uploads
        await desk.hand_in(desk.made(A))

    play(story)


def test_bytes_of_any_kind_are_refused_and_counted(play: Play) -> None:
    async def story(desk: Desk) -> None:
        chance = random.Random(0)
        made = desk.made(A)
        await desk.header(made)
        for method in ("header", "body"):
            for size in (0, 1, 33, 34, 5_000):
                before = desk.intake.faults.by_reason.total()
                with pytest.raises(Refused):
                    await desk.call(PEERS[chance.randrange(1, 5)], method, chance.randbytes(size))
                assert desk.intake.faults.by_reason.total() - before == (1 if method == "header" or size < 34 else 0)
        for place, data in ((0, b""), (0, made.groups[1]), (1, made.groups[0]), (2, made.groups[1]), (65_535, made.groups[0])):
            await says_no(desk.part(made, place, data), "another place or size")
        assert desk.refused(A) == {"malformed": 5}

    play(story)


def wrong_body(desk: Desk, how: str) -> Made:
    """Return a contribution of A whose body is not what it has to be."""
    good = desk.made(A)
    if how == "another root":
        return Made(A, header_of(desk.ledger, A, body=bytes(32)), good.body, NUM_WEIGHTS)
    chunk = bytes([20 if how == "an exponent out of the window" else 1]) + bytes(2 * CHUNK)  # of zeros
    data = chunk + good.body[len(chunk) :]
    root = Blob.of(Made(A, good.header, data, NUM_WEIGHTS).groups).root
    return Made(A, header_of(desk.ledger, A, body=root), data, NUM_WEIGHTS)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("another root", "does not have the root"),
        ("an exponent out of the window", "beyond the window"),
        ("an exponent larger than it needs", "larger than it needs"),
    ],
)
def test_a_wrong_body_is_out_with_its_header_and_counted_once(play: Play, how: str, says: str) -> None:
    async def story(desk: Desk) -> None:
        made = wrong_body(desk, how)
        await desk.header(made)
        await desk.part(made, 0)
        await says_no(desk.part(made, 1), says)
        assert desk.refused(A) == {"bad body": 1}
        assert not desk.intake._uploads
        assert not desk.intake._synced
        await says_no(desk.part(made, 1), "no header of this body")
        assert (await desk.hand_in(desk.made(A, seed=1))).round == 1  # a good one is still welcome
        assert [kept.header for kept in desk.bodies.read(1)] == [desk.made(A, seed=1).header]

    play(story)


def test_two_contributions_may_name_one_body_and_each_has_its_ticket(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made, vector = desk.made(A), desk.vector(A)
        twin = made_of(desk.ledger, B, vector)
        assert twin.body == made.body
        await desk.hand_in(made)
        assert (await desk.hand_in(twin)).round == 1
        await desk.restart()
        assert set(desk.commit()) == {made.digest, twin.digest}
        assert (await desk.hand_in(made_of(desk.ledger, B, vector))).round == 2

    play(story)
