"""Whether inclusion promises were kept, as the log shows it: in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import ProvenContribution
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.submit.promises import ClaimListed, ContributionFate, FateKnown, KnownFates, PromiseEvent, Promises
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.rounds import SignedWork
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import header_of
from tests.network.virtual_time import now
from tests.runs import FixedTrainingSpec, manifest_of

pytestmark = pytest.mark.virtual_time

OPERATOR, PEER = Identity(b"\x01" * 32), Identity(b"\x0b" * 32)
LEDGER = Ledger(SignedManifest.sign(manifest_of(OPERATOR), OPERATOR), FixedTrainingSpec())
HEADER = header_of(LEDGER, PEER)
SIGNED = SignedWork(HEADER, HEADER.contribution.open(), HEADER.claims[0].digest, 64)
COUNTED = ProvenContribution(HEADER.contribution.digest, HEADER.contribution.open())
OTHER = ProvenContribution(COUNTED.digest, replace(COUNTED.contribution, claims=(sha256(b"another's claim"),)))
COHORTS = ProvenContribution(
    sha256(b"the cohort's"), replace(COUNTED.contribution, claims=(sha256(b"a cohort peer's claim"), HEADER.claims[0].digest))
)


class Seen:
    """What became of promises, with a log that answers as the test says."""

    def __init__(self, *answers: ProvenContribution | Exception | None) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[int, float]] = []
        self.promises = Promises(self)
        self.outcomes: list[FateKnown] = []
        self.listed: list[ClaimListed] = []

    def see(self, round_: int, counted: ProvenContribution) -> None:
        """Let the promises see what a round has."""
        self._take(self.promises.see(round_, counted))

    def look_again(self) -> None:
        """Take what was found out meanwhile."""
        self._take(self.promises.take_events())

    def _take(self, events: list[PromiseEvent]) -> None:
        for event in events:
            if isinstance(event, FateKnown):
                self.outcomes.append(event)
            else:
                self.listed.append(event)

    def _of(self, fate: ContributionFate) -> list[FateKnown]:
        self.look_again()
        return [outcome for outcome in self.outcomes if outcome.fate is fate]

    @property
    def kept(self) -> list[tuple[int, SignedWork]]:
        return [(outcome.round, outcome.signed) for outcome in self._of(ContributionFate.COUNTED)]

    @property
    def found(self) -> list[ProvenContribution | None]:
        """What the log was found to say of each that was kept."""
        return [outcome.found for outcome in self._of(ContributionFate.COUNTED)]

    @property
    def broken(self) -> list[tuple[int, SignedWork]]:
        return [(outcome.round, outcome.signed) for outcome in self._of(ContributionFate.BROKEN)]

    @property
    def after_all(self) -> list[tuple[int, SignedWork, ProvenContribution | None]]:
        return [(outcome.round, outcome.signed, outcome.found) for outcome in self._of(ContributionFate.COUNTED_AFTER_ALL)]

    @property
    def instead(self) -> list[SignedWork]:
        return [outcome.signed for outcome in self._of(ContributionFate.REPLACED)]

    async def counted(self, round: int) -> ProvenContribution | None:
        self.asked.append((round, now()))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def seen(*answers: ProvenContribution | Exception | None) -> AsyncIterator[Seen]:
    found = Seen(*answers)
    yield found
    await found.promises.close()
    assert not found.promises._looking


async def after(story: Callable[[Seen], Awaitable[Any]], *answers: ProvenContribution | Exception | None) -> Seen:
    async with seen(*answers) as found:
        await story(found)
    return found


async def look(found: Seen) -> None:
    """Expect a contribution in round 1, and ask the log until that is settled."""
    found.promises.expect(1, SIGNED)
    found.promises.look()
    await asyncio.wait(found.promises._looking.values())


async def test_a_row_that_comes_with_the_news_keeps_the_promise_and_nobody_is_asked() -> None:
    async with seen() as found:
        found.promises.expect(1, SIGNED)
        found.see(2, COUNTED)  # of another round
        found.see(1, OTHER)
        assert found.kept == []
        found.see(1, COUNTED)
        found.see(1, COUNTED)
        await found.promises.settle()
    assert (found.kept, found.broken, found.asked) == ([(1, SIGNED)], [], [])


@pytest.mark.parametrize("row", [COUNTED, COHORTS], ids=["its own", "its cohort's"])
async def test_an_inclusion_promise_that_comes_after_the_row_was_seen_counts_nothing_twice(row: ProvenContribution) -> None:
    async with seen() as found:
        found.promises.expect(1, SIGNED)
        found.see(1, row)
        found.promises.expect(1, SIGNED)
        assert found.promises.take_known().is_all
        await found.promises.settle()
    assert (found.kept, found.found, found.broken, found.asked) == ([(1, SIGNED)], [row], [], [])


async def test_a_row_that_the_news_did_not_bring_is_asked_for_once() -> None:
    async with seen(COUNTED) as found:
        found.promises.expect(1, SIGNED)
        found.promises.look()
        found.promises.look()
        await found.promises.settle()
    assert (found.kept, found.broken, len(found.asked)) == ([(1, SIGNED)], [], 1)


@pytest.mark.parametrize("answer", [None, OTHER])
async def test_a_table_without_it_breaks_the_promise(answer: ProvenContribution | None) -> None:
    found = await after(look, answer)
    assert (found.kept, found.broken) == ([], [(1, SIGNED)])


async def test_a_log_that_is_away_has_broken_nothing() -> None:
    away = Unreachable("away")
    found = await after(look, *[away] * 6, COUNTED)
    assert (found.kept, found.broken) == ([(1, SIGNED)], [])
    assert [at for _, at in found.asked] == [0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5]


@pytest.mark.parametrize("fault", [Refused("that table is not kept here any more"), EncodingError("no row")])
async def test_a_log_that_does_not_show_the_table_is_believed_its_inclusion_promise_in_the_end(fault: Exception) -> None:
    assert (await after(look, fault, fault, COUNTED)).kept == [(1, SIGNED)]
    found = await after(look, *[fault] * 3)
    assert (found.kept, found.broken, len(found.asked)) == ([(1, SIGNED)], [], 3)


async def test_at_the_end_it_is_waited_for_but_not_for_long() -> None:
    async with seen(*[Unreachable("away")] * 100) as found:
        found.promises.expect(1, SIGNED)
        await found.promises.settle()
        assert now() == timeouts.LAST_ROUND_S
    assert (found.kept, found.broken) == ([], [])


async def test_what_comes_with_the_news_meanwhile_ends_the_asking() -> None:
    async with seen(Unreachable("away")) as found:
        found.promises.expect(1, SIGNED)
        found.promises.look()
        await asyncio.sleep(0.1)
        found.see(1, COUNTED)
        await found.promises.settle()
    assert (found.kept, len(found.asked)) == ([(1, SIGNED)], 1)


async def test_what_was_given_up_is_looked_for_in_the_tables_that_may_have_it_and_found_once() -> None:
    async with seen(None, COHORTS) as found:
        found.promises.give_up(SIGNED, 1)
        found.promises.look()
        await found.promises.settle()
        found.promises.committed(2)
        found.promises.look()
        await found.promises.settle()
        for round_ in (2, 3):
            found.promises.committed(round_)
            found.see(round_, COHORTS)
        found.promises.look()
        await found.promises.settle()
    assert [round_ for round_, _ in found.asked] == [1, 2]
    assert (found.after_all, found.kept, found.broken, found.instead) == ([(2, SIGNED, COHORTS)], [], [], [])


async def test_what_was_given_up_is_not_looked_for_once_it_is_too_old() -> None:
    async with seen(*[None] * (MAX_AGE + 1)) as found:
        found.promises.give_up(SIGNED, 0)
        for round_ in range(1, 9):
            found.promises.committed(round_)
            found.promises.look()
            await found.promises.settle()
    assert [round_ for round_, _ in found.asked] == [*range(1, 2 + MAX_AGE)]
    assert (found.after_all, found.broken) == ([], [])


async def test_work_without_an_inclusion_promise_that_gave_way_to_other_work_of_its_peer_is_no_broken_promise() -> None:
    async def story(found: Seen) -> None:
        found.promises.expect(1, SIGNED, is_promised=False)
        found.promises.look()
        await found.promises.settle()

    found = await after(story, OTHER)
    assert (found.kept, found.broken, found.instead) == ([], [], [SIGNED])
    assert (await after(story, None)).broken == [(1, SIGNED)]  # the log said that its table has some


async def test_an_inclusion_promise_makes_it_one() -> None:
    async def story(found: Seen) -> None:
        found.promises.expect(1, SIGNED, is_promised=False)
        await look(found)

    assert (await after(story, OTHER)).broken == [(1, SIGNED)]


async def test_what_a_founder_has_of_work_that_came_to_nothing_is_looked_for_while_it_may_be_listed() -> None:
    base = HEADER.contribution.open().base

    async def story(found: Seen) -> None:
        found.promises.wonder(1, base, 0)
        assert not found.promises.is_looking_for(base)  # no round is there that could have it
        found.promises.committed(1)
        assert found.promises.is_looking_for(base)
        assert not found.promises.is_looking_for(sha256(b"another"))
        found.promises.look()
        await asyncio.wait(found.promises._looking.values())
        assert found.promises.is_looking_for(base)  # until what was found is told
        found.look_again()
        assert not found.promises.is_looking_for(base)
        found.promises.committed(MAX_AGE + 2)
        assert not found.promises.is_looking_for(base)

    assert [round_ for round_, _ in (await after(story, OTHER)).asked] == [1]


async def test_every_row_with_a_claim_of_the_peer_is_told_and_one_that_is_believed_too() -> None:
    base = COUNTED.contribution.base
    async with seen() as found:
        found.promises.expect(1, SIGNED)
        found.see(1, COHORTS)
        found.see(3, OTHER)
    found.look_again()
    assert found.listed == [ClaimListed(1, COHORTS.digest, base), ClaimListed(3, OTHER.digest, base)]
    found = await after(look, *[Refused("that table is not kept here any more")] * 3)
    found.look_again()
    assert found.listed == [ClaimListed(1, COUNTED.digest, base)]


async def test_the_newest_row_says_which_residual_holds_whenever_an_older_one_is_found() -> None:
    async def story(found: Seen) -> None:
        promises = found.promises
        assert (promises.listed_in, promises.take_known()) == (0, KnownFates(None, (), True))
        promises.expect(2, SIGNED)
        found.see(2, COHORTS)
        older = replace(SIGNED, claim=OTHER.contribution.claims[0])
        promises.expect(1, older)
        found.see(1, OTHER)
        assert (promises.listed_in, promises.take_known()) == (2, KnownFates((COHORTS.digest, 2), (), True))
        assert (promises.listed_in, promises.take_known().listed) == (2, None)

    assert [round_ for round_, _ in (await after(story)).kept] == [2, 1]


async def test_what_asking_finds_is_handed_out_once_whoever_waits_for_it() -> None:
    async with seen(COUNTED) as found:
        waiting = asyncio.create_task(found.promises.next_event())
        found.promises.expect(1, SIGNED)
        found.promises.look()
        assert await waiting == ClaimListed(1, COUNTED.digest, COUNTED.contribution.base)
        assert await found.promises.next_event() == FateKnown(ContributionFate.COUNTED, 1, SIGNED, COUNTED)
        assert found.promises.take_events() == []
        waiting = asyncio.create_task(found.promises.next_event())
        await asyncio.sleep(1)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})
