"""Contributions of several keys at the log: who brings them, what becomes of them beside their members' own, and whose fault is what."""

import asyncio
from typing import Any

import pytest

from manta_swarm.aggregator.intake.bodies import Upload
from manta_swarm.network.log_client import BodyPart, HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.closing import Stage
from manta_swarm.protocol.reputation import FALSE, Fault
from manta_swarm.protocol.signing import Identity, sha256
from tests.aggregator.made import Made, made_of
from tests.aggregator.service import GRACE_MS, NUM_WEIGHTS, OPEN_MS, PEERS, Service, SlowDisk, says_no
from tests.contributions import claim_of, header_of, listing

A, B, C, D, E = PEERS[:5]  # in the order of their keys


def blamed(service: Service, made: Made) -> "asyncio.Future[set[bytes]]":
    """Return the keys that the log names when a header is handed in that is to be handed in without them."""

    async def ask() -> set[bytes]:
        answer = await service.header(made)
        assert answer.status == HandIn.WITHOUT
        return set(answer.blamed)

    return asyncio.ensure_future(ask())


async def hand_in(service: Service, made: Made, by: Identity) -> None:
    """Have a member bring header and body."""
    assert (await service.header(made, by=by)).status == HandIn.SEND_BODY
    assert await service.part(made, 0, by=by) == b""
    assert service.opened(await service.part(made, 1, by=by)).contribution == made.digest


# One contribution, several keys.


async def test_a_cohorts_contribution_is_one_row_with_all_of_its_keys(service: Service) -> None:
    made, alone = service.made_together(B, A, C), service.made(D)
    assert (await service.hand_in(made)).contribution == made.digest
    await service.hand_in(alone)
    assert set(service.commit()) == {made.digest, alone.digest}
    assert [len(one.keys) for one in service.ledger.table_at(1) or ()] == [3, 1]
    assert service.ledger.last_keys == {peer.public_key for peer in (A, B, C, D)}


async def test_any_member_may_bring_it_and_nobody_else(service: Service) -> None:
    made = service.made_together(B, A, C)
    await says_no(service.header(made, by=D), "other keys than the one that brings it")
    await hand_in(service, made, by=C)
    assert (await service.header(made, by=A)).status == HandIn.HAVE_PROMISE
    assert service.commit() == (made.digest,)


# Claims that cannot stand.


def together(service: Service, *, microbatches: tuple[int, ...] = (2, 2), **changes: Any) -> Made:
    """Return a contribution of A, B and C in which the claim of B is changed."""
    own = {A: {}, B: {"microbatches": microbatches, **changes}, C: {}}
    claims = [claim_of(service.ledger, peer, **{"founder": A.public_key, **mine}) for peer, mine in own.items()]
    whole = service.made_together(A, B, C)
    return Made(A, listing(claims, A, body=whole.header.contribution.open().body), whole.body, NUM_WEIGHTS)


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatches": (500, 500)},  # too many samples
        {"founder": B.public_key},  # it did not consent
        {"cohort": "there"},
        {"round": 1, "base": bytes(32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_claim_that_cannot_stand_is_named_and_the_others_are_handed_in_without_it(
    service: Service, changes: dict[str, Any]
) -> None:
    bad, good = together(service, **changes), service.made_together(A, C)
    for _ in range(2):
        assert await blamed(service, bad) == {B.public_key}
    await service.hand_in(good)
    assert service.commit() == (good.digest,)
    assert service.intake.faults.by_reason == {}  # what a member says of its work is not its founder's fault


async def test_all_claims_that_cannot_stand_are_named_at_once(service: Service) -> None:
    claims = [
        claim_of(service.ledger, peer, founder=A.public_key, microbatches=(2, 2) if peer is C else (5_000, 5_000)) for peer in (A, B, C)
    ]
    answer = await service.header(Made(A, listing(claims, A), b"", NUM_WEIGHTS))
    assert (answer.status, answer.round, answer.left_ms) == (HandIn.WITHOUT, 1, OPEN_MS)
    assert answer.blamed == (A.public_key, B.public_key)


async def test_of_one_claim_that_cannot_stand_there_is_nothing_left_and_it_is_refused(service: Service) -> None:
    made = made_of(service.ledger, A, service.vector(A), residual=sha256(b"out of nothing"))
    await says_no(service.header(made), "a residual in a run")
    assert service.refused(A) == {"not for this log": 1}


async def test_a_founder_that_hands_in_without_the_blamed_one_replaces_what_has_no_body(service: Service) -> None:
    first, second = service.made_together(A, B, C), service.made_together(A, C, seed=1)
    await service.begin(first)
    await service.hand_in(second)
    await says_no(service.part(first, 1), "no header of this body")
    assert (await service.header(first)).status == HandIn.LATER  # the second has its body, and stays
    assert service.commit() == (second.digest,)


async def test_a_key_that_is_in_elsewhere_is_named_unless_it_is_the_founder(service: Service) -> None:
    await service.hand_in(service.made_together(A, B))
    assert await blamed(service, service.made_together(D, B)) == {B.public_key}
    assert (await service.header(service.made_together(B, D))).status == HandIn.LATER
    assert service.intake.faults.by_reason == {}


# Both in.


async def test_with_both_in_the_cohorts_stands_and_nobody_is_blamed(service: Service) -> None:
    alone, other = service.made(B, of=A), service.made(D)
    whole = service.made_together(A, B, C)
    await service.hand_in(alone)
    await service.hand_in(other)
    await service.hand_in(whole)
    assert not service.intake._handed.keys() & {alone.digest}  # its body is on the disk, and no table needs it
    assert (await service.header(alone)).status == HandIn.HAVE_PROMISE
    assert service.commit() == (whole.digest, other.digest)
    answer = await service.header(alone)
    assert (answer.status, answer.round) == (HandIn.LISTED, 1)  # its work is: its inclusion promise is kept
    assert service.intake.faults.by_reason == {}


async def test_a_member_that_comes_after_its_cohort_hears_that_its_work_is_listed(service: Service) -> None:
    whole, alone = service.made_together(A, B), service.made(B, of=A)
    await service.hand_in(whole)
    assert (await service.header(alone)).status == HandIn.LATER
    service.commit()
    for made in (alone, whole):
        answer = await service.header(made)
        assert (answer.status, answer.round) == (HandIn.LISTED, 1)
    assert service.intake.faults.by_reason == {}


async def test_an_inclusion_promise_for_work_that_a_member_did_alone_is_kept_though_its_cohort_has_other_work_of_it(
    service: Service,
) -> None:
    alone, whole = service.made(B), service.made_together(A, B, C)
    await service.hand_in(alone)
    assert await blamed(service, whole) == {B.public_key}
    rest = service.made_together(A, C)
    await service.hand_in(rest)
    assert set(service.commit()) == {alone.digest, rest.digest}
    assert service.intake.faults.by_reason == {}


async def test_members_who_came_alone_count_where_the_cohorts_body_never_comes_and_are_named_to_it(service: Service) -> None:
    whole, alone = service.made_together(A, B, C), service.made(B, of=A)
    await service.begin(whole)
    await service.hand_in(alone)
    assert service.commit() == (alone.digest,)
    assert service.refused(A) == {"no body by the deadline": 1}
    assert await blamed(service, whole) == {B.public_key}
    rest = service.made_together(A, C, round=1)
    await service.hand_in(rest)
    assert service.commit() == (rest.digest,)


async def test_a_header_is_listed_only_if_one_table_has_all_of_its_work(service: Service) -> None:
    whole = service.made_together(A, B)
    first, second = service.made(A), service.made(B)
    await service.hand_in(first)
    service.commit()
    await service.hand_in(second)
    service.commit()
    assert await blamed(service, whole) == {A.public_key, B.public_key}  # each is in a table of its own


async def test_of_a_claim_on_another_base_nothing_is_listed(service: Service) -> None:
    await service.round(A)
    for changes in ({"base": bytes(32)}, {"run": bytes(32)}):
        header = header_of(service.ledger, A, round=1, **changes)
        await says_no(service.header(Made(A, header, b"", NUM_WEIGHTS)), "of another run|another base")


# Lies of members.


async def test_a_members_wrong_body_is_its_own_fault_whoever_sees_it_checked_and_the_founder_brings_the_right_one(service: Service) -> None:
    made = service.made_together(A, B)
    await service.begin(made, by=B)
    wrong = asyncio.create_task(service.part(made, 1, bytes(len(made.groups[1])), by=B))
    await asyncio.sleep(0)
    await service.header(made)  # the founder, while it is being checked
    with pytest.raises(Refused, match="does not have the root"):
        await wrong
    assert (service.refused(A), service.refused(B)) == ({}, {"bad body": 1})
    await service.hand_in(made)
    assert service.commit() == (made.digest,)


async def test_the_groups_of_a_body_come_from_one_member_and_the_founder_may_take_over(service: Service) -> None:
    made = service.made_together(A, B, C)
    await service.header(made, by=B)
    await service.part(made, 0, bytes(len(made.groups[0])), by=B)
    await says_no(service.part(made, 1, by=A), "another member brings this body")
    await service.header(made)  # from here on it is the founder's, and what the other brought is forgotten
    await says_no(service.part(made, 1, by=B), "another member brings this body")
    assert service.opened((await service.part(made, 1), await service.part(made, 0))[1]).contribution == made.digest
    assert service.commit() == (made.digest,)
    assert service.intake.faults.by_reason == {}


async def test_another_member_takes_over_only_once_nothing_came_for_a_while(service: Service) -> None:
    made = service.made_together(A, B, C)
    await service.header(made)
    service.clock.now += GRACE_MS - 1
    await service.part(made, 0)
    service.clock.now += GRACE_MS - 1
    await service.header(made, by=B)
    await says_no(service.part(made, 1, by=B), "another member brings this body")
    service.clock.now += 1
    await service.header(made, by=C)
    await says_no(service.part(made, 1), "another member brings this body")
    await service.part(made, 0, by=C)
    service.clock.now += OPEN_MS
    await service.header(service.made(D))
    assert (service.refused(A), service.refused(C)) == ({}, {"no body by the deadline": 1})  # whose it was last


async def test_a_member_that_hands_in_its_cohorts_body_as_its_own_keeps_nobody_out(service: Service) -> None:
    whole = service.made_together(A, B)
    root = whole.header.contribution.open().body
    stolen = Made(B, header_of(service.ledger, B, body=root, founder=A.public_key), whole.body, NUM_WEIGHTS)
    await service.hand_in(stolen)  # before the cohort's came nobody can tell
    await service.hand_in(whole)
    assert service.commit() == (whole.digest,)
    whole = service.made_together(A, B)
    stolen = Made(B, header_of(service.ledger, B, body=whole.header.contribution.open().body), whole.body, NUM_WEIGHTS)
    await service.header(whole)
    assert (await service.header(stolen)).status == HandIn.LATER  # its key has another claim in the cohort's
    await service.hand_in(whole)
    assert service.commit() == (whole.digest,)
    assert service.refused(B) == {}


# Starting again.


async def test_after_a_restart_with_both_in_the_cohorts_stands(service: Service) -> None:
    alone, whole, other = service.made(B, of=A), service.made_together(A, B), service.made(C)
    for one in (alone, other, whole):
        await service.hand_in(one)
    await service.restart()
    assert not service.intake._handed.keys() & {alone.digest}
    for one in (alone, whole):
        assert (await service.header(one)).status == HandIn.HAVE_PROMISE
    assert service.commit() == (whole.digest, other.digest)
    await service.restart()
    assert service.closing.stage is Stage.OPEN
    answer = await service.header(alone)
    assert (answer.status, answer.round) == (HandIn.LISTED, 1)


async def test_after_a_restart_without_the_cohorts_body_the_members_own_counts(service: Service) -> None:
    alone, whole = service.made(B, of=A), service.made_together(A, B)
    await service.hand_in(alone)
    await service.begin(whole)
    await service.restart()
    assert (await service.header(alone)).status == HandIn.HAVE_PROMISE
    assert service.commit() == (alone.digest,)
    assert await blamed(service, whole) == {B.public_key}


# A body that takes longer than a round.


async def test_what_came_of_a_body_stays_over_the_close_for_who_was_in_the_last_table(service: Service) -> None:
    await service.round(A, B)
    slow = service.made(A)
    await service.begin(slow)
    for _ in range(3):
        await service.round(B)
    assert len(service.intake._uploads) == 0
    assert service.refused(A) == {}  # it is under way
    answer = await service.header(slow)
    assert (answer.status, answer.round) == (HandIn.SEND_BODY, 5)
    assert (answer.has(0), answer.has(1)) == (True, False)
    sent: list[int] = []
    take = service.intake._uploads.part

    def taken(caller: bytes, by: bytes, part: BodyPart, now: int) -> Upload:
        sent.append(part.place)
        return take(caller, by, part, now)

    service.intake._uploads.part = taken  # type: ignore[method-assign]
    handed = await service.client(A).hand_in(slow.header, slow.groups)
    assert (handed.inclusion_promise is not None, sent) == (True, [1])  # the rest of it, and no more
    assert service.commit() == (slow.digest,)


async def test_whose_body_misses_round_after_round_without_more_of_it_is_blamed(service: Service) -> None:
    await service.round(A, B)
    slow = service.made(A)
    for round_ in range(3):
        await service.header(slow)
        if round_ == 0:
            await service.part(slow, 0)
        await service.round(B)
    assert sum(service.refused(A).values()) == 2
    assert service.ledger.round == 4


async def test_of_a_body_that_is_being_stored_one_group_is_sent_again_for_its_inclusion_promise(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(service, monkeypatch)
    made = service.made_together(A, B)
    first = asyncio.create_task(service.hand_in(made))
    turn = await disk.next()
    answer = await service.header(made, by=B)
    assert (answer.status, answer.has(0), answer.has(1)) == (HandIn.SEND_BODY, True, False)
    again = asyncio.create_task(service.client(B).hand_in(made.header, made.groups))
    turn.set()
    assert (await again).inclusion_promise == await first


async def test_what_came_of_a_body_is_forgotten_once_it_is_too_old_or_somebody_elses(service: Service) -> None:
    await service.round(A, B)
    slow, strange = service.made(A), service.made(C)
    for one in (slow, strange):
        await service.begin(one)
    await service.round(B)
    assert list(service.intake._uploads._missed) == [A.public_key]  # a newcomer has no claim to the room
    other = service.made(A, seed=1)
    await service.header(other)
    assert await service.part(other, 1) == b""  # what came of the first is no part of this
    await service.part(other, 0)
    service.commit()
    assert not service.intake._uploads._missed
    slow = service.made(A)
    await service.begin(slow)
    for _ in range(5):
        await service.round(B)
    assert not service.intake._uploads._missed


async def test_the_room_for_bodies_that_missed_a_round_is_what_the_others_leave(service: Service) -> None:
    service.intake._uploads._max_held = 3
    await service.round(A, B, C, D)
    for peer in (A, B, C):
        slow = service.made(peer)
        await service.begin(slow)
    await service.round(D)
    assert set(service.intake._uploads._missed) == {A.public_key, B.public_key, C.public_key}
    await service.header(service.made(D))
    assert len(service.intake._uploads._missed) == 2  # the room is for those who have a place


async def test_of_what_others_kept_that_excludes_each_other_the_first_is_taken_up(service: Service) -> None:
    whole, other, same, lone = service.made_together(A, B), service.made(B), service.made(B, of=A), service.made(C)
    service.intake.restore_valid([one.kept for one in (whole, other, same, lone)], 1)
    assert [service.closing.round_of(one.digest) for one in (whole, other, same, lone)] == [1, None, 1, 1]
    assert set(service.commit()) == {whole.digest, lone.digest}


# Who was found guilty, or was taken back.


async def test_new_work_of_a_key_that_was_taken_back_is_refused_and_its_cohort_peers_go_on_without_it(service: Service) -> None:
    promised = service.made(C)
    await service.hand_in(promised)
    for key in (B.public_key, C.public_key):
        service.ledger.admitted.out[key] = 1
    await says_no(service.header(service.made(B)), "took this key's admission back")
    assert await blamed(service, service.made_together(A, B)) == {B.public_key}
    await service.hand_in(service.made(A))
    assert set(service.commit()) >= {promised.digest}  # what has an inclusion promise is listed all the same


async def test_new_work_of_a_guilty_key_is_refused_and_its_cohort_peers_go_on_without_it(service: Service) -> None:
    promised = service.made(C)
    await service.hand_in(promised)
    for key in (B.public_key, C.public_key):
        service.ledger.reputation.guilty[key] = Fault(1, FALSE, bytes(32))
    await says_no(service.header(service.made(B)), "guilty")
    assert await blamed(service, service.made_together(A, B)) == {B.public_key}
    await service.hand_in(service.made(A))
    assert set(service.commit()) >= {promised.digest}  # what has an inclusion promise is listed all the same


@pytest.mark.parametrize("service", [{"audits_steps": True}], indirect=True)
async def test_where_local_steps_are_audited_no_member_keeps_its_cohort_s_out_whatever_it_is_or_does(service: Service) -> None:
    lone, late = service.made(B), service.made_together(A, B, C, D)
    await service.hand_in(lone)
    service.ledger.reputation.guilty[C.public_key] = Fault(1, FALSE, bytes(32))
    assert (await service.hand_in(late)).round == 1
    await service.restart()
    assert set(service.commit()) == {lone.digest, late.digest}
    of_cohort, alone = service.ledger.table_at(1) or ()
    paid = dict(zip(of_cohort.keys, of_cohort.weights, strict=True))
    assert [paid[peer.public_key] > 0 for peer in (A, B, C, D)] == [True, False, False, True]
    assert min(alone.weights) > 0
    await says_no(service.header(service.made(C)), "guilty")
