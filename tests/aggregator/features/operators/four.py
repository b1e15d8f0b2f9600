"""Four operators with real logs, states and disks on a network in memory."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.operators import verdicts
from manta_swarm.aggregator.features.operators.leader import Leader
from manta_swarm.aggregator.features.operators.own_operator import OwnOperator
from manta_swarm.aggregator.features.operators.service import OperatorsService
from manta_swarm.aggregator.features.operators.store import Store
from manta_swarm.aggregator.intake.waiting import Settling, Waiting
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import OperatorsSection
from manta_swarm.aggregator.states.opening import OpenedRun, open_run
from manta_swarm.aggregator.states.state_keeper import Next
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.operators import Newcomer
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from manta_swarm.protocol.verdicts import Verdict
from tests.aggregator.contexts import context_of
from tests.aggregator.made import Made
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, STATE, everybodys, said_of
from tests.clocks import ManualClock
from tests.contributions import round_of
from tests.memory_log import until

FOUR = (OPERATOR, *(Identity(bytes([number]) * 32) for number in (5, 6, 7)))
KEYS = tuple(peer_name(each.public_key) for each in FOUR)
RUN = CONFIG.run.model_copy(update={"rounds": 50})
OF_FOUR = CONFIG.model_copy(update={"run": RUN, "operators": OperatorsSection(keys=KEYS, etcd=("http://127.0.0.1:9",))})


class Anybodys:
    """A lease that is anybody's who says so."""

    async def may_be_of(self, operator: bytes) -> bool:
        del operator
        return True


class Open:
    """Rounds that are always open for a second more."""

    def left_ms(self, now: int) -> int:
        del now
        return 1000


class Four:
    """What each operator has; one that is killed and started again has what its disk has."""

    def __init__(self, directory: Path, config: RunConfig = OF_FOUR) -> None:
        self.directory, self.config = directory, config
        self.lost: Callable[[PublicKey, PublicKey, str], bool] = lambda *_: False
        self.asked = Counter[tuple[PublicKey, str]]()  # how often, by method
        self.network = MemoryNetwork(lost=self._is_lost)
        self.runs: dict[int, OpenedRun] = {}
        self.own_operators: dict[int, OwnOperator] = {}
        self.services: dict[int, OperatorsService] = {}
        self.waiting: dict[int, Waiting] = {}
        self.beating: dict[int, asyncio.Task[None]] = {}
        self.handing_on: dict[int, asyncio.Task[None]] = {}
        self.settling: dict[int, Settling] = {}
        self.contexts: dict[int, RunContext] = {}
        self.clock = ManualClock()
        self.stopped: list[BaseException] = []

    async def __aenter__(self) -> "Four":
        for place in range(4):
            await self.start(place)
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        for place in [place for place, each in enumerate(FOUR) if each.public_key in self.network.endpoints]:
            await self.kill(place)
        assert kind is not None or self.stopped == []

    def _is_lost(self, sender: PublicKey, receiver: PublicKey, method: str) -> bool:
        self.asked[receiver, method] += 1
        return self.lost(sender, receiver, method)

    async def until_asked_again(self, method: str, places: Sequence[int]) -> None:
        """Return once these were asked twice from now on."""
        self.asked.clear()
        await until(lambda: all(self.asked[PublicKey(FOUR[place].public_key), method] > 1 for place in places))

    async def start(self, place: int) -> OwnOperator:
        """Start one of them, or start it again."""
        directory, identity = self.directory / str(place), FOUR[place]
        if place and not directory.exists():
            signed = self.runs[0].signed
            Log.create(directory, signed, identity).close()
            state_keeper = self.runs[0].state_keeper
            snapshots = type(state_keeper.snapshots)(
                directory / "snapshots", signed.open(), state_keeper.plan, signed.run, keep=3, keep_rounds=32
            )
            snapshots.save(STATE)
        run = open_run(self.config, directory, identity, DATASET)
        endpoint = self.network.endpoint(identity.public_key)
        self.settling[place] = Settling(run.log, self.config.trust.settle_s, self.clock)
        context = self.contexts[place] = context_of(run, directory, endpoint, identity, settling=self.settling[place])
        context.broken.told.add_done_callback(lambda told: self.stopped.append(told.result()))
        blob_store, waiting = context.blob_store, context.waiting
        own_operator = OwnOperator(context)
        service = OperatorsService(endpoint, own_operator, Anybodys())
        await blob_store.serve(endpoint)
        await service.start()
        self.runs[place], self.own_operators[place], self.services[place] = run, own_operator, service
        self.waiting[place] = waiting
        self.handing_on[place] = asyncio.create_task(_hand_on(own_operator, service))
        return own_operator

    async def lose(self, place: int) -> None:
        """End one of them, and let all be gone that its disk had but the key; it begins anew with what another one's log has."""
        await self.kill(place)
        shutil.rmtree(self.directory / str(place))
        source = next(each for each in (1, 2) if each != place)  # a follower: this world's leaders save no states
        log = self.runs[source].log
        (self.directory / str(place)).mkdir()
        Store(self.directory / str(place)).come(Newcomer())
        with Log.create(self.directory / str(place), self.runs[source].signed, FOUR[place]) as own:
            own.commit(log.entries(0, log.head.size), log.tree_head)
        shutil.copytree(self.directory / str(source) / "snapshots", self.directory / str(place) / "snapshots")
        await self.start(place)

    async def kill(self, place: int) -> None:
        """End one of them; what it had in memory is gone."""
        self.network.endpoints.pop(FOUR[place].public_key, None)
        await self._end_beats(place)
        await ended(self.handing_on.pop(place))
        await self.services[place].follow_no_more()
        await self.own_operators[place].close()
        await self.waiting[place].close()
        self.runs[place].log.close()

    async def _end_beats(self, place: int) -> None:
        if (beating := self.beating.pop(place, None)) is not None:
            await ended(beating)

    async def write(self, place: int, term: int) -> tuple[Leader, list[bytes]]:
        """Let one of them take over; return what it found kept."""
        await self._end_beats(place)
        leader = Leader(self.own_operators[place], term)
        self.beating[place] = asyncio.create_task(leader.beat(Open()))
        async with asyncio.timeout(60):
            kept = await leader.take_over()
        return leader, [one.contribution for one, _ in kept]

    def round_for(self, place: int, contributions: Sequence[Made], before: int = 0, **lies: Any) -> tuple[list[bytes], Next]:
        """Return the entries of the next round, as the operator there computes them, and what they lead to."""
        log, state_keeper = self.runs[place].log, self.runs[place].state_keeper
        listed = [log.ledger.listed(one.header, log.ledger.round + 1) for one in contributions]
        after = state_keeper.after_table(log.ledger, listed, [one.parsed for one in contributions])
        entry = round_of(log.ledger, listed, before=before, **{**said_of(after), **lies})
        return [*map(entry_of, [one.header for one in contributions]), entry_of(entry)], after

    async def commit(self, leader: Leader, place: int, contributions: Sequence[Made], verdicts: Sequence[Signed[Verdict]] = ()) -> None:
        """Have a round committed by the leader, after some verdicts."""
        entries, after = self.round_for(place, contributions, len(verdicts))
        async with asyncio.timeout(60):
            await leader.write([*map(entry_of, verdicts), *entries], after)

    async def store(self, leader: Leader, place: int) -> list[Made]:
        """Have a contribution of each peer to the next round stored by the leader; return them."""
        ledger = self.runs[place].log.ledger
        contributions = everybodys(ledger)
        await leader.store([(ledger.round + 1, one.kept) for one in contributions])
        return contributions

    async def round(self, leader: Leader, place: int, verdicts: Sequence[Signed[Verdict]] = ()) -> None:
        """Have a round of everybody's contributions committed by the leader, after some verdicts."""
        await self.commit(leader, place, await self.store(leader, place), verdicts)

    async def until_all_have(self, round_: int, places: Sequence[int]) -> None:
        """Return once these have a round."""
        await until(lambda: all(self.runs[place].log.ledger.round >= round_ for place in places))
        for place in places:
            await self.own_operators[place].settled()

    def heads(self, places: Sequence[int]) -> set[tuple[int, bytes, bytes]]:
        """Return the different heads and states that these have."""
        runs = [self.runs[place] for place in places]
        return {(run.log.head.size, run.log.head.root, run.log.ledger.state) for run in runs}


async def _hand_on(own_operator: OwnOperator, service: OperatorsService) -> None:
    while True:
        await own_operator.verdicts.hand_on(None if service.leader is None else service.leader.ballot)
        await asyncio.sleep(verdicts.AGAIN_S)


async def ended(task: asyncio.Task[None]) -> None:
    """End a task."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


Story = Callable[[Four], Coroutine[Any, Any, None]]


def of_four(config: RunConfig = OF_FOUR) -> Callable[[Story], Callable[[Path], Coroutine[Any, Any, None]]]:
    """Make a test of a story of four operators of the run that ``config`` describes."""

    def test_of(story: Story) -> Callable[[Path], Coroutine[Any, Any, None]]:
        @pytest.mark.virtual_time
        async def test(tmp_path: Path) -> None:
            async with Four(tmp_path, config) as four:
                await story(four)

        return test

    return test_of
