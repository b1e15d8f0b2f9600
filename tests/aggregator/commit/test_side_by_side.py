"""The same thing brought twice at the same moment: it counts once, and whoever brought it again is not blamed."""

import asyncio

from manta_swarm.network.log_client import HandIn
from manta_swarm.protocol.encoding import pack
from tests.aggregator.service import PEERS, Play, Service

A, B = PEERS[:2]


def test_a_header_and_its_groups_side_by_side_make_one_contribution_and_one_inclusion_promise(play: Play) -> None:
    async def story(service: Service) -> None:
        made = service.made(A)
        answers = await asyncio.gather(*(service.header(made) for _ in range(4)))
        assert {answer.status for answer in answers} == {HandIn.SEND_BODY}
        parts = await asyncio.gather(*(service.part(made, place) for place in (0, 1, 0, 1, 1, 0)))
        inclusion_promises = [part for part in parts if part]
        assert len(inclusion_promises) >= 1
        assert len(set(inclusion_promises)) == 1
        assert service.opened(inclusion_promises[0]).contribution == made.digest
        assert service.intake.faults.by_reason == {}
        assert service.commit() == (made.digest,)
        assert len(service.bodies.read(1, mend=False)) == 1

    play(story)


def test_two_contributions_of_one_key_side_by_side_are_one_row(play: Play) -> None:
    async def story(service: Service) -> None:
        first, second, other = service.made(A), service.made(A, seed=1), service.made(B)
        await asyncio.gather(service.header(first), service.header(second), service.header(other))
        await asyncio.gather(*(service.part(one, place) for one in (first, second, other) for place in (0, 1)), return_exceptions=True)
        await service.until(lambda: not service.intake._tasks)
        closed = service.commit()
        assert len(closed) == 2
        assert other.digest in closed
        assert service.ledger.last_keys == {A.public_key, B.public_key}

    play(story)


def test_a_contribution_that_is_in_a_table_is_not_taken_in_the_next_round(play: Play) -> None:
    async def story(service: Service) -> None:
        made = service.made(A)
        await service.hand_in(made)
        service.commit()
        again = await service.header(made)
        assert (again.status, again.round) == (HandIn.LISTED, 1)
        assert await service.call(A, "header", pack(made.header)) == pack(again)

    play(story)
