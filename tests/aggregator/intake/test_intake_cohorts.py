"""Contributions of several keys at the log: who brings them, what becomes of them beside their members' own, and whose fault is what."""

import asyncio
from typing import Any

import pytest

from manta_swarm.aggregator.intake.uploads import Upload
from manta_swarm.network.log_client import BodyPart, HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.closing import Stage
from manta_swarm.protocol.exchange import GROUP_VALUES
from manta_swarm.protocol.records import ClaimStep
from manta_swarm.protocol.reputation import FALSE, Fault
from manta_swarm.protocol.signing import Identity, sha256
from tests.aggregator.desk import GRACE_MS, NUM_WEIGHTS, OPEN_MS, PEERS, Desk, Play, SlowDisk, says_no
from tests.aggregator.made import Made, made_of
from tests.contributions import claim_of, header_of, listing
from tests.runs import FixedCourse

A, B, C, D, E = PEERS[:5]  # in the order of their keys


def blamed(desk: Desk, made: Made) -> "asyncio.Future[set[bytes]]":
    """Return the keys that the log names when a header is handed in that is to be handed in without them."""

    async def ask() -> set[bytes]:
        answer = await desk.header(made)
        assert answer.status == HandIn.WITHOUT
        return set(answer.blamed)

    return asyncio.ensure_future(ask())


async def hand_in(desk: Desk, made: Made, by: Identity) -> None:
    """Have a member bring header and body."""
    assert (await desk.header(made, by=by)).status == HandIn.SEND_BODY
    assert await desk.part(made, 0, by=by) == b""
    assert desk.opened(await desk.part(made, 1, by=by)).contribution == made.digest


# One contribution, several keys.


def test_a_cohorts_contribution_is_one_row_with_all_of_its_keys(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made, alone = desk.made_together(B, A, C), desk.made(D)
        assert (await desk.hand_in(made)).contribution == made.digest
        await desk.hand_in(alone)
        assert set(desk.commit()) == {made.digest, alone.digest}
        assert [len(one.keys) for one in desk.ledger.table_at(1) or ()] == [3, 1]
        assert desk.ledger.last_keys == {peer.public_key for peer in (A, B, C, D)}

    play(story)


def test_any_member_may_bring_it_and_nobody_else(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made_together(B, A, C)
        await says_no(desk.header(made, by=D), "other keys than the one that brings it")
        await hand_in(desk, made, by=C)
        assert (await desk.header(made, by=A)).status == HandIn.HAVE_TICKET
        assert desk.commit() == (made.digest,)

    play(story)


def test_every_key_of_the_last_table_is_waited_for(play: Play) -> None:
    async def story(desk: Desk) -> None:
        await desk.hand_in(desk.made_together(A, B))
        await desk.hand_in(desk.made(C))
        desk.commit()
        member, other, newcomer = desk.made(B), desk.made(C), desk.made(D)  # the member comes alone this time
        for one in (member, other, newcomer):
            await desk.header(one)
        await desk.body(other)
        desk.clock.now += OPEN_MS + GRACE_MS - 1
        assert (await desk.body(member)).round == 2
        await says_no(desk.part(newcomer, 0), "hand it in again")
        assert set(desk.commit()) == {member.digest, other.digest}

    play(story)


# Claims that cannot stand.


def together(desk: Desk, *, microbatches: tuple[int, ...] = (2, 2), **changes: Any) -> Made:
    """Return a contribution of A, B and C in which the claim of B is changed."""
    own = {A: {}, B: {"microbatches": microbatches, **changes}, C: {}}
    claims = [claim_of(desk.ledger, peer, **{"founder": A.public_key, **mine}) for peer, mine in own.items()]
    whole = desk.made_together(A, B, C)
    return Made(A, listing(claims, A, body=whole.header.contribution.open().body), whole.body, NUM_WEIGHTS)


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatches": (2, 2, 2)},  # the round asks for two architectures
        {"microbatches": (500, 500)},  # too many samples
        {"steps": (ClaimStep(0, 1, (), bytes(32)), ClaimStep(2, 3, (), bytes(32)))},
        {"microbatches": (3, 1), "steps": (ClaimStep(0, 3, (), bytes(32)),)},  # its indices are of other architectures
        {"residual": sha256(b"out of nothing")},
        {"founder": B.public_key},  # it did not consent
        {"cohort": "there"},
        {"round": 1, "base": bytes(32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_claim_that_cannot_stand_is_named_and_the_others_are_handed_in_without_it(play: Play, changes: dict[str, Any]) -> None:
    async def story(desk: Desk) -> None:
        bad, good = together(desk, **changes), desk.made_together(A, C)
        assert await blamed(desk, bad) == {B.public_key}
        assert await blamed(desk, bad) == {B.public_key}
        await desk.hand_in(good)
        assert desk.commit() == (good.digest,)
        assert desk.intake.faults.by_reason == {}  # what a member says of its work is not its founder's fault

    play(story)


def test_all_claims_that_cannot_stand_are_named_at_once(play: Play) -> None:
    async def story(desk: Desk) -> None:
        claims = [
            claim_of(desk.ledger, peer, founder=A.public_key, microbatches=(2, 2) if peer is C else (5_000, 5_000)) for peer in (A, B, C)
        ]
        answer = await desk.header(Made(A, listing(claims, A), b"", NUM_WEIGHTS))
        assert (answer.status, answer.round, answer.left_ms) == (HandIn.WITHOUT, 1, OPEN_MS)
        assert answer.blamed == (A.public_key, B.public_key)

    play(story)


def test_of_one_claim_that_cannot_stand_there_is_nothing_left_and_it_is_refused(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = made_of(desk.ledger, A, desk.vector(A), residual=sha256(b"out of nothing"))
        await says_no(desk.header(made), "a residual in a run")
        assert desk.refused(A) == {"not for this log": 1}

    play(story)


def test_a_founder_that_hands_in_without_the_blamed_one_replaces_what_has_no_body(play: Play) -> None:
    async def story(desk: Desk) -> None:
        first, second = desk.made_together(A, B, C), desk.made_together(A, C, seed=1)
        await desk.header(first)
        await desk.part(first, 0)
        await desk.hand_in(second)
        await says_no(desk.part(first, 1), "no header of this body")
        assert (await desk.header(first)).status == HandIn.LATER  # the second has its body, and stays
        assert desk.commit() == (second.digest,)

    play(story)


def test_a_key_that_is_in_elsewhere_is_named_unless_it_is_the_founder(play: Play) -> None:
    async def story(desk: Desk) -> None:
        await desk.hand_in(desk.made_together(A, B))
        assert await blamed(desk, desk.made_together(D, B)) == {B.public_key}
        assert (await desk.header(desk.made_together(B, D))).status == HandIn.LATER
        assert desk.intake.faults.by_reason == {}

    play(story)


# Both in.


def test_with_both_in_the_cohorts_stands_and_nobody_is_blamed(play: Play) -> None:
    async def story(desk: Desk) -> None:
        alone, other = desk.made(B, of=A), desk.made(D)
        whole = desk.made_together(A, B, C)
        await desk.hand_in(alone)
        await desk.hand_in(other)
        await desk.hand_in(whole)
        assert not desk.intake._handed.keys() & {alone.digest}  # its body is on the disk, and no table needs it
        assert (await desk.header(alone)).status == HandIn.HAVE_TICKET
        assert desk.commit() == (whole.digest, other.digest)
        answer = await desk.header(alone)
        assert (answer.status, answer.round) == (HandIn.LISTED, 1)  # its work is: its ticket is kept
        assert desk.intake.faults.by_reason == {}

    play(story)


def test_a_member_that_comes_after_its_cohort_hears_that_its_work_is_listed(play: Play) -> None:
    async def story(desk: Desk) -> None:
        whole, alone = desk.made_together(A, B), desk.made(B, of=A)
        await desk.hand_in(whole)
        assert (await desk.header(alone)).status == HandIn.LATER
        desk.commit()
        for made in (alone, whole):
            answer = await desk.header(made)
            assert (answer.status, answer.round) == (HandIn.LISTED, 1)
        assert desk.intake.faults.by_reason == {}

    play(story)


def test_a_ticket_for_work_that_a_member_did_alone_is_kept_though_its_cohort_has_other_work_of_it(play: Play) -> None:
    async def story(desk: Desk) -> None:
        alone, whole = desk.made(B), desk.made_together(A, B, C)
        await desk.hand_in(alone)
        assert await blamed(desk, whole) == {B.public_key}
        rest = desk.made_together(A, C)
        await desk.hand_in(rest)
        assert set(desk.commit()) == {alone.digest, rest.digest}
        assert desk.intake.faults.by_reason == {}

    play(story)


def test_members_who_came_alone_count_where_the_cohorts_body_never_comes_and_are_named_to_it(play: Play) -> None:
    async def story(desk: Desk) -> None:
        whole, alone = desk.made_together(A, B, C), desk.made(B, of=A)
        await desk.header(whole)
        await desk.part(whole, 0)
        await desk.hand_in(alone)
        assert desk.commit() == (alone.digest,)
        assert desk.refused(A) == {"no body by the deadline": 1}
        assert await blamed(desk, whole) == {B.public_key}
        rest = desk.made_together(A, C, round=1)
        await desk.hand_in(rest)
        assert desk.commit() == (rest.digest,)

    play(story)


def test_a_header_is_listed_only_if_one_table_has_all_of_its_work(play: Play) -> None:
    async def story(desk: Desk) -> None:
        whole = desk.made_together(A, B)
        first, second = desk.made(A), desk.made(B)
        await desk.hand_in(first)
        desk.commit()
        await desk.hand_in(second)
        desk.commit()
        assert await blamed(desk, whole) == {A.public_key, B.public_key}  # each is in a table of its own

    play(story)


def test_of_a_claim_on_another_base_nothing_is_listed(play: Play) -> None:
    async def story(desk: Desk) -> None:
        await desk.hand_in(desk.made(A))
        desk.commit()
        for changes in ({"base": bytes(32)}, {"run": bytes(32)}):
            header = header_of(desk.ledger, A, round=1, **changes)
            await says_no(desk.header(Made(A, header, b"", NUM_WEIGHTS)), "of another run|another base")

    play(story)


# Lies of members.


def test_a_members_wrong_body_is_its_own_fault_and_the_founder_brings_the_right_one(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made_together(A, B)
        await desk.header(made, by=B)
        await desk.part(made, 0, by=B)
        with pytest.raises(Refused, match="does not have the root"):
            await desk.part(made, 1, bytes(len(made.groups[1])), by=B)
        assert (desk.refused(A), desk.refused(B)) == ({}, {"bad body": 1})
        await desk.hand_in(made)
        assert desk.commit() == (made.digest,)

    play(story)


def test_the_groups_of_a_body_come_from_one_member_and_the_founder_may_take_over(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made_together(A, B, C)
        await desk.header(made, by=B)
        await desk.part(made, 0, bytes(len(made.groups[0])), by=B)
        await says_no(desk.part(made, 1, by=A), "another member brings this body")
        await desk.header(made)  # from here on it is the founder's, and what the other brought is forgotten
        await says_no(desk.part(made, 1, by=B), "another member brings this body")
        assert desk.opened((await desk.part(made, 1), await desk.part(made, 0))[1]).contribution == made.digest
        assert desk.commit() == (made.digest,)
        assert desk.intake.faults.by_reason == {}

    play(story)


def test_another_member_takes_over_only_once_nothing_came_for_a_while(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made_together(A, B, C)
        await desk.header(made)
        await desk.part(made, 0)
        desk.clock.now += GRACE_MS - 1
        await desk.header(made, by=B)
        await says_no(desk.part(made, 1, by=B), "another member brings this body")
        desk.clock.now += 1
        await desk.header(made, by=C)
        await says_no(desk.part(made, 1), "another member brings this body")
        await desk.part(made, 0, by=C)
        desk.clock.now += OPEN_MS
        await desk.header(desk.made(D))
        assert (desk.refused(A), desk.refused(C)) == ({}, {"no body by the deadline": 1})  # whose it was last

    play(story)


def test_whoever_sees_a_whole_body_checked_is_not_blamed_for_it(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made_together(A, B)
        await desk.header(made, by=B)
        await desk.part(made, 0, by=B)
        wrong = asyncio.create_task(desk.part(made, 1, bytes(len(made.groups[1])), by=B))
        await asyncio.sleep(0)
        await desk.header(made)  # the founder, while it is being checked
        with pytest.raises(Refused):
            await wrong
        assert (desk.refused(A), desk.refused(B)) == ({}, {"bad body": 1})

    play(story)


def test_a_member_that_hands_in_its_cohorts_body_as_its_own_keeps_nobody_out(play: Play) -> None:
    async def story(desk: Desk) -> None:
        whole = desk.made_together(A, B)
        root = whole.header.contribution.open().body
        stolen = Made(B, header_of(desk.ledger, B, body=root, founder=A.public_key), whole.body, NUM_WEIGHTS)
        await desk.hand_in(stolen)  # before the cohort's came nobody can tell
        await desk.hand_in(whole)
        assert desk.commit() == (whole.digest,)
        whole = desk.made_together(A, B)
        stolen = Made(B, header_of(desk.ledger, B, body=whole.header.contribution.open().body), whole.body, NUM_WEIGHTS)
        await desk.header(whole)
        assert (await desk.header(stolen)).status == HandIn.LATER  # its key has another claim in the cohort's
        await desk.hand_in(whole)
        assert desk.commit() == (whole.digest,)
        assert desk.refused(B) == {}

    play(story)


def test_members_who_learnt_the_same_count_each_alone(play: Play) -> None:
    async def story(desk: Desk) -> None:
        whole = desk.made_together(A, B, C)
        root = whole.header.contribution.open().body

        def alone(peer: Identity) -> Made:
            header = listing([claim_of(desk.ledger, peer, founder=A.public_key)], peer, body=root)
            return Made(peer, header, whole.body, NUM_WEIGHTS)

        first, second = alone(B), alone(C)
        await desk.hand_in(first)
        await desk.hand_in(second)
        assert set(desk.commit()) == {first.digest, second.digest}
        assert [one.keys for one in desk.ledger.table_at(1) or ()] == [(B.public_key,), (C.public_key,)]

    play(story)


def test_who_did_much_wrong_costs_its_cohort_nothing(play: Play) -> None:
    async def story(desk: Desk) -> None:
        for _ in range(9):
            await says_no(desk.header(desk.made(A), by=B), "other keys")
        made = desk.made_together(A, B)
        assert (await desk.header(made, by=B)).status == HandIn.LATER
        await desk.hand_in(made)
        assert desk.commit() == (made.digest,)

    play(story)


# Starting again.


def test_after_a_restart_with_both_in_the_cohorts_stands(play: Play) -> None:
    async def story(desk: Desk) -> None:
        alone, whole, other = desk.made(B, of=A), desk.made_together(A, B), desk.made(C)
        for one in (alone, other, whole):
            await desk.hand_in(one)
        await desk.restart()
        assert not desk.intake._handed.keys() & {alone.digest}
        for one in (alone, whole):
            assert (await desk.header(one)).status == HandIn.HAVE_TICKET
        assert desk.commit() == (whole.digest, other.digest)
        await desk.restart()
        assert desk.closing.stage is Stage.OPEN
        answer = await desk.header(alone)
        assert (answer.status, answer.round) == (HandIn.LISTED, 1)

    play(story)


def test_after_a_restart_without_the_cohorts_body_the_members_own_counts(play: Play) -> None:
    async def story(desk: Desk) -> None:
        alone, whole = desk.made(B, of=A), desk.made_together(A, B)
        await desk.hand_in(alone)
        await desk.header(whole)
        await desk.part(whole, 0)
        await desk.restart()
        assert (await desk.header(alone)).status == HandIn.HAVE_TICKET
        assert desk.commit() == (alone.digest,)
        assert await blamed(desk, whole) == {B.public_key}

    play(story)


def test_a_sort_of_channels_ends_what_a_cohort_could_still_hand_in(play: Play) -> None:
    async def story(desk: Desk) -> None:
        whole = desk.made_together(A, B)
        await desk.hand_in(desk.made(C))
        desk.commit()
        await says_no(desk.header(whole), "another order")

    play(story, course=FixedCourse(sorts=frozenset({1})))


# A body that takes longer than a round.


def test_what_came_of_a_body_stays_over_the_close_for_who_was_in_the_last_table(play: Play) -> None:
    async def story(desk: Desk) -> None:
        for peer in (A, B):
            await desk.hand_in(desk.made(peer))
        desk.commit()
        slow = desk.made(A)
        await desk.header(slow)
        await desk.part(slow, 0)
        for _ in range(3):
            await desk.hand_in(desk.made(B))
            desk.commit()
        assert len(desk.intake._uploads) == 0
        assert desk.refused(A) == {}  # it is under way
        answer = await desk.header(slow)
        assert (answer.status, answer.round) == (HandIn.SEND_BODY, 5)
        assert (answer.has(0), answer.has(1)) == (True, False)
        sent: list[int] = []
        take = desk.intake._uploads.part

        def taken(caller: bytes, by: bytes, part: BodyPart, now: int) -> Upload:
            sent.append(part.place)
            return take(caller, by, part, now)

        desk.intake._uploads.part = taken  # type: ignore[method-assign]
        handed = await desk.client(A).hand_in(slow.header, slow.groups)
        assert (handed.ticket is not None, sent) == (True, [1])  # the rest of it, and no more
        assert desk.commit() == (slow.digest,)

    play(story)


def test_whose_body_misses_round_after_round_without_more_of_it_is_blamed(play: Play) -> None:
    async def story(desk: Desk) -> None:
        for peer in (A, B):
            await desk.hand_in(desk.made(peer))
        desk.commit()
        slow = desk.made(A)
        for round_ in range(3):
            await desk.header(slow)
            if round_ == 0:
                await desk.part(slow, 0)
            await desk.hand_in(desk.made(B))
            desk.commit()
        assert sum(desk.refused(A).values()) == 2
        assert desk.ledger.round == 4

    play(story)


def test_of_a_body_that_is_being_stored_one_group_is_sent_again_for_its_ticket(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        disk = SlowDisk(desk, monkeypatch)
        made = desk.made_together(A, B)
        first = asyncio.create_task(desk.hand_in(made))
        turn = await disk.next()
        answer = await desk.header(made, by=B)
        assert (answer.status, answer.has(0), answer.has(1)) == (HandIn.SEND_BODY, True, False)
        again = asyncio.create_task(desk.client(B).hand_in(made.header, made.groups))
        turn.set()
        assert (await again).ticket == await first

    play(story)


def test_what_came_of_a_body_is_forgotten_once_it_is_too_old_or_somebody_elses(play: Play) -> None:
    async def story(desk: Desk) -> None:
        for peer in (A, B):
            await desk.hand_in(desk.made(peer))
        desk.commit()
        slow, strange = desk.made(A), desk.made(C)
        for one in (slow, strange):
            await desk.header(one)
            await desk.part(one, 0)
        await desk.hand_in(desk.made(B))
        desk.commit()
        assert list(desk.intake._uploads._missed) == [A.public_key]  # a newcomer has no claim to the room
        other = desk.made(A, seed=1)
        await desk.header(other)
        assert await desk.part(other, 1) == b""  # what came of the first is no part of this
        await desk.part(other, 0)
        desk.commit()
        assert not desk.intake._uploads._missed
        slow = desk.made(A)
        await desk.header(slow)
        await desk.part(slow, 0)
        for _ in range(5):
            await desk.hand_in(desk.made(B))
            desk.commit()
        assert not desk.intake._uploads._missed

    play(story)


def test_the_room_for_bodies_that_missed_a_round_is_what_the_others_leave(play: Play) -> None:
    async def story(desk: Desk) -> None:
        desk.intake._uploads._max_held = 3
        for peer in (A, B, C, D):
            await desk.hand_in(desk.made(peer))
        desk.commit()
        for peer in (A, B, C):
            slow = desk.made(peer)
            await desk.header(slow)
            await desk.part(slow, 0)
        await desk.hand_in(desk.made(D))
        desk.commit()
        assert set(desk.intake._uploads._missed) == {A.public_key, B.public_key, C.public_key}
        await desk.header(desk.made(D))
        assert len(desk.intake._uploads._missed) == 2  # the room is for those who have a place

    play(story)


assert NUM_WEIGHTS > GROUP_VALUES  # bodies here have two groups


# Who was found guilty.


def test_new_work_of_a_guilty_key_is_refused_and_its_mates_go_on_without_it(play: Play) -> None:
    async def story(desk: Desk) -> None:
        ticketed = desk.made(C)
        await desk.hand_in(ticketed)
        for key in (B.public_key, C.public_key):
            desk.ledger.reputation.guilty[key] = Fault(1, FALSE, bytes(32))
        await says_no(desk.header(desk.made(B)), "guilty")
        assert await blamed(desk, desk.made_together(A, B)) == {B.public_key}
        await desk.hand_in(desk.made(A))
        assert set(desk.commit()) >= {ticketed.digest}  # what has a ticket is listed all the same

    play(story)


def test_where_local_steps_are_audited_no_member_keeps_its_cohort_s_out_whatever_it_is_or_does(play: Play) -> None:
    async def story(desk: Desk) -> None:
        lone, late = desk.made(B), desk.made_together(A, B, C, D)
        await desk.hand_in(lone)
        desk.ledger.reputation.guilty[C.public_key] = Fault(1, FALSE, bytes(32))
        assert (await desk.hand_in(late)).round == 1
        await desk.restart()
        assert set(desk.commit()) == {lone.digest, late.digest}
        of_cohort, alone = desk.ledger.table_at(1) or ()
        paid = dict(zip(of_cohort.keys, of_cohort.weights, strict=True))
        assert [paid[peer.public_key] > 0 for peer in (A, B, C, D)] == [True, False, False, True]
        assert min(alone.weights) > 0
        await says_no(desk.header(desk.made(C)), "guilty")

    play(story, audits_steps=True)
