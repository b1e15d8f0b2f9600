"""Four operators with real logs, states and disks on a network in memory: takeovers, what is kept, and what is refused."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from aggregator.log.log import Log
from aggregator.operators.desk import OperatorsDesk
from aggregator.operators.messages import KEEP, PROMISE, SIGN, AskPromise
from aggregator.operators.seat import Seat
from aggregator.operators.writer import Deposed, Writer
from aggregator.rounds.follower import Next
from aggregator.rounds.opening import OpenRun, filled_shelf, open_run
from aggregator.settings.sections import OperatorsSection
from protocol.ballots import Ballot
from protocol.closing import NotTaken
from protocol.encoding import pack
from protocol.listed import entries_of
from protocol.records import entry_of
from protocol.signing import Identity, PublicKey, peer_name
from swarm.memory import MemoryNetwork
from swarm.rpc import Refused
from tests.aggregator.made import Made
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, PEERS, STATE, everybodys, made, said_of
from tests.contributions import round_of

FOUR = (OPERATOR, *(Identity(bytes([number]) * 32) for number in (5, 6, 7)))
KEYS = tuple(peer_name(each.public_key) for each in FOUR)
OF_FOUR = CONFIG.model_copy(update={"operators": OperatorsSection(keys=KEYS, etcd=("http://127.0.0.1:9",))})


async def until(condition: Callable[[], bool]) -> None:
    """Return once that is so."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within a minute")


async def always(_key: PublicKey) -> bool:
    return True


class Four:
    """Their seats; one that is killed and started again has what its disk has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lost: Callable[[PublicKey, PublicKey, str], bool] = lambda *_: False
        self.network = MemoryNetwork(lost=lambda *call: self.lost(*call))
        self.runs: dict[int, OpenRun] = {}
        self.seats: dict[int, Seat] = {}
        self.desks: dict[int, OperatorsDesk] = {}
        self.beating: dict[int, asyncio.Task[None]] = {}
        self.stopped: list[BaseException] = []

    async def start(self, place: int) -> Seat:
        """Start one of them, or start it again."""
        directory, identity = self.directory / str(place), FOUR[place]
        if place and not directory.exists():
            signed = self.runs[0].signed
            Log.create(directory, signed, identity).close()
            follower = self.runs[0].follower
            snapshots = type(follower.snapshots)(directory / "snapshots", signed.open(), follower.plan, signed.run, keep=3, keep_rounds=32)
            snapshots.save(STATE)
        run = open_run(OF_FOUR, directory, identity, DATASET)
        endpoint, shelf = self.network.endpoint(identity.public_key), filled_shelf(run.log, run.follower)
        seat = Seat(
            endpoint,
            identity,
            directory,
            run.log,
            run.follower,
            run.bodies,
            shelf,
            on_commit=lambda: None,
            stop=self.stopped.append,
        )
        desk = OperatorsDesk(endpoint, seat, always, lambda: None)
        await shelf.serve(endpoint)
        await desk.start()
        self.runs[place], self.seats[place], self.desks[place] = run, seat, desk
        return seat

    async def kill(self, place: int) -> None:
        """End one of them; what it had in memory is gone."""
        self.network.endpoints.pop(FOUR[place].public_key, None)
        if (beating := self.beating.pop(place, None)) is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await self.desks[place].close()
        await self.seats[place].close()
        self.runs[place].log.close()

    async def write(self, place: int, term: int) -> tuple[Writer, list[bytes]]:
        """Let one of them take over; return what it found kept."""
        writer = Writer(self.seats[place], term)
        async with asyncio.timeout(60):
            kept = await writer.take_over()
        self.beating[place] = asyncio.create_task(writer.beat(lambda: 1000))
        return writer, [one.contribution for one, _ in kept]

    def round_for(self, place: int, contributions: Sequence[Made], **lies: Any) -> tuple[list[bytes], Next]:
        """Return the entries of the next round, as the operator there computes them, and what they lead to."""
        log, follower = self.runs[place].log, self.runs[place].follower
        listed = [log.ledger.listed(one.header, log.ledger.round + 1) for one in contributions]
        after = follower.follow(log.ledger, listed, [one.parsed for one in contributions])
        entry = round_of(log.ledger, listed, **{**said_of(after), **lies})
        return [*entries_of([one.header for one in contributions]), entry_of(entry)], after

    async def commit(self, writer: Writer, place: int, contributions: Sequence[Made]) -> None:
        """Have a round committed by the writer."""
        entries, after = self.round_for(place, contributions)
        async with asyncio.timeout(60):
            await writer.commit(entries, after)

    async def until_all_have(self, round_: int, places: Sequence[int]) -> None:
        """Return once these have a round."""
        await until(lambda: all(self.runs[place].log.ledger.round >= round_ for place in places))
        for place in places:
            await self.seats[place].settled()

    def heads(self, places: Sequence[int]) -> set[tuple[int, bytes, bytes]]:
        """Return the different heads and states that these have."""
        runs = [self.runs[place] for place in places]
        return {(run.log.head.size, run.log.head.root, run.log.ledger.state) for run in runs}


Story = Callable[[Four], Coroutine[Any, Any, None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[[Story], None]:
    """Tell a story of four operators."""

    def play(story: Story) -> None:
        async def scene() -> None:
            four = Four(tmp_path)
            for place in range(4):
                await four.start(place)
            try:
                await story(four)
            finally:
                for place in [place for place, each in enumerate(FOUR) if each.public_key in four.network.endpoints]:
                    await four.kill(place)
            assert four.stopped == []

        asyncio.run(scene())

    return play


def test_what_has_a_ticket_is_in_the_next_writers_round_and_who_was_away_gets_all_of_it(tell: Callable[[Story], None]) -> None:
    async def story(four: Four) -> None:
        writer, kept = await four.write(0, 1)
        assert kept == []
        contributions = everybodys(four.runs[0].log.ledger)
        await four.kill(3)
        await writer.keep([(1, one.kept) for one in contributions])
        await four.kill(0)
        await four.start(3)
        second, kept = await four.write(3, 2)  # which had not heard of them
        assert sorted(kept) == sorted(one.digest for one in contributions)
        await four.commit(second, 3, contributions)
        await four.until_all_have(1, (1, 2, 3))
        await four.start(0)
        await four.until_all_have(1, (0,))
        assert len(four.heads((0, 1, 2, 3))) == 1
        assert four.runs[0].follower.state is not None
        assert four.runs[0].follower.state.round == 1
        more = everybodys(four.runs[3].log.ledger)
        await second.keep([(2, one.kept) for one in more])
        await four.commit(second, 3, more)
        await four.until_all_have(2, (0, 1, 2, 3))
        assert len(four.heads((0, 1, 2, 3))) == 1

    tell(story)


def test_a_batch_that_a_quorum_accepted_is_the_next_writers_too_though_nobody_signed_it(tell: Callable[[Story], None]) -> None:
    async def story(four: Four) -> None:
        writer, _ = await four.write(0, 1)
        contributions = everybodys(four.runs[0].log.ledger)
        await writer.keep([(1, one.kept) for one in contributions])
        four.lost = lambda _sender, _receiver, method: method == SIGN
        entries, after = four.round_for(0, contributions)
        committing = asyncio.create_task(writer.commit(entries, after))
        await until(lambda: sum(bool(four.seats[place].store.memory.accepted) for place in range(4)) >= 3)
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        await four.kill(0)
        four.lost = lambda *_: False
        await four.write(2, 2)
        log = four.runs[2].log
        assert log.entries(0, 100) == entries
        assert log.ledger.state == after.blob.root

    tell(story)


def test_an_old_writer_gets_no_ticket_and_no_commit_any_more(tell: Callable[[Story], None]) -> None:
    async def story(four: Four) -> None:
        old, _ = await four.write(0, 1)
        new, _ = await four.write(1, 2)
        contributions = everybodys(four.runs[0].log.ledger)
        with pytest.raises(NotTaken, match="another operator writes"):
            await old.keep([(1, one.kept) for one in contributions])
        entries, after = four.round_for(0, contributions)
        with pytest.raises(Deposed):
            await old.commit(entries, after)
        with pytest.raises(Deposed):
            await Writer(four.seats[0], 1).take_over()
        await new.keep([(1, one.kept) for one in contributions])
        await four.commit(new, 1, contributions)
        await four.until_all_have(1, (0, 1, 2, 3))
        assert len(four.heads((0, 1, 2, 3))) == 1

    tell(story)


def test_a_round_that_does_not_come_to_what_its_writer_says_is_accepted_by_nobody_else(tell: Callable[[Story], None]) -> None:
    async def story(four: Four) -> None:
        writer, _ = await four.write(0, 1)
        contributions = everybodys(four.runs[0].log.ledger)
        await writer.keep([(1, one.kept) for one in contributions])
        entries, after = four.round_for(0, contributions, state=bytes(32))
        committing = asyncio.create_task(writer.commit(entries, after))
        done, _ = await asyncio.wait((committing,), timeout=2)  # each of the others refuses again and again
        assert not done
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        assert all(four.seats[place].store.memory.accepted == () for place in (1, 2, 3))
        assert four.heads((1, 2, 3)) == {(0, four.runs[1].log.head.root, four.runs[1].log.ledger.state)}

    tell(story)


def test_nobody_but_the_runs_operators_is_answered_and_none_of_them_in_anothers_name(tell: Callable[[Story], None]) -> None:
    async def story(four: Four) -> None:
        stranger = four.network.endpoint(PEERS[0].public_key)
        ask = pack(AskPromise(Ballot(9, PEERS[0].public_key)))
        for method in (PROMISE, KEEP):
            with pytest.raises(Refused, match="for the run's operators"):
                await stranger.call(FOUR[0].public_key, method, ask, timeout_s=10)
        other = four.network.endpoints[FOUR[1].public_key]
        with pytest.raises(Refused, match="another operator than the caller"):
            await other.call(FOUR[0].public_key, PROMISE, ask, timeout_s=10)
        for rubbish in (b"", b"\x80", ask + b"\x00", bytes(5000)):
            with pytest.raises(Refused):
                await other.call(FOUR[0].public_key, PROMISE, rubbish, timeout_s=10)
        assert four.seats[0].store.memory.promised.term == 0

    tell(story)


def test_of_two_that_one_key_handed_in_to_two_writers_the_one_with_the_ticket_is_taken_up_first(tell: Callable[[Story], None]) -> None:
    async def story(four: Four) -> None:
        peer, ledger = PEERS[0], four.runs[0].log.ledger
        without, with_ticket = made(ledger, peer), made(ledger, peer, seed=1)
        old, _ = await four.write(0, 1)
        four.lost = lambda sender, _receiver, method: method == KEEP and sender == FOUR[0].public_key
        keeping = asyncio.create_task(old.keep([(1, without.kept)]))
        await until(lambda: bool(four.seats[0].held))
        old.end()
        with pytest.raises(NotTaken):
            await keeping
        await four.kill(0)
        four.lost = lambda *_: False
        new, kept = await four.write(1, 2)
        assert kept == []
        await new.keep([(1, with_ticket.kept)])
        await four.kill(1)
        await four.start(0)
        _, kept = await four.write(0, 3)
        assert kept == [with_ticket.digest, without.digest]

    tell(story)
