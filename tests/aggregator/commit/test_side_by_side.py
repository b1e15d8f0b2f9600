"""The same thing brought twice at the same moment: it counts once, and whoever brought it again is not blamed."""

import asyncio

from manta_swarm.network.log_client import HandIn
from manta_swarm.protocol.encoding import pack
from tests.aggregator.desk import PEERS, Desk, Play

A, B = PEERS[:2]


def test_a_header_and_its_groups_side_by_side_make_one_contribution_and_one_ticket(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        answers = await asyncio.gather(*(desk.header(made) for _ in range(4)))
        assert {answer.status for answer in answers} == {HandIn.SEND_BODY}
        parts = await asyncio.gather(*(desk.part(made, place) for place in (0, 1, 0, 1, 1, 0)))
        tickets = [part for part in parts if part]
        assert len(tickets) >= 1
        assert len(set(tickets)) == 1
        assert desk.opened(tickets[0]).contribution == made.digest
        assert desk.intake.faults.by_reason == {}
        assert desk.commit() == (made.digest,)
        assert len(desk.bodies.read(1, mend=False)) == 1

    play(story)


def test_two_contributions_of_one_key_side_by_side_are_one_row(play: Play) -> None:
    async def story(desk: Desk) -> None:
        first, second, other = desk.made(A), desk.made(A, seed=1), desk.made(B)
        await asyncio.gather(desk.header(first), desk.header(second), desk.header(other))
        await asyncio.gather(*(desk.part(one, place) for one in (first, second, other) for place in (0, 1)), return_exceptions=True)
        await desk.until(lambda: not desk.intake._tasks)
        closed = desk.commit()
        assert len(closed) == 2
        assert other.digest in closed
        assert desk.ledger.last_keys == {A.public_key, B.public_key}

    play(story)


def test_a_contribution_that_is_in_a_table_is_not_taken_in_the_next_round(play: Play) -> None:
    async def story(desk: Desk) -> None:
        made = desk.made(A)
        await desk.hand_in(made)
        desk.commit()
        again = await desk.header(made)
        assert (again.status, again.round) == (HandIn.LISTED, 1)
        assert await desk.call(A, "header", pack(made.header)) == pack(again)

    play(story)
